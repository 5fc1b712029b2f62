"""TLS to ZooKeeper. The test's own authority signs for a TLS front before the embedded server."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from engine.env import SystemEnv
from engine.errors import KeeperUnavailable
from engine.keeper import Create, EventType, zookeeper
from engine.testing.seen import Seen

pytestmark = pytest.mark.slow


def make_certificate(directory, host):
    """A self-signed certificate for one host name; its file is key, certificate and authority at once."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = directory / f"{host}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture
async def front(zookeeper_server, tmp_path):
    """Starts a TLS front with a certificate for `host`; gives its port and the certificate."""
    servers = []

    async def start(host):
        pem = make_certificate(tmp_path, host)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)

        async def forward(reader, writer):
            while chunk := await reader.read(65536):
                writer.write(chunk)
            writer.close()

        async def accept(reader, writer):
            to_server = await asyncio.open_connection("127.0.0.1", zookeeper_server.client_port)
            await asyncio.gather(
                forward(reader, to_server[1]), forward(to_server[0], writer), return_exceptions=True
            )

        server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
        servers.append(server)
        return server.sockets[0].getsockname()[1], pem

    yield start
    for server in servers:
        server.close()


def secured(backend, port, ca_file):
    return dataclasses.replace(
        backend.config, hosts=(("localhost", port),), root=backend.root, secure=True, ca_file=str(ca_file)
    )


async def test_a_session_over_tls_reads_writes_and_watches(front, zookeeper_backend):
    port, ca = await front("localhost")
    keeper = await zookeeper.connect(secured(zookeeper_backend, port, ca), SystemEnv())
    await keeper.multi([Create("/a", b"x" * 100_000), *(Create(f"/{number}") for number in range(200))])
    seen = Seen()
    assert len((await keeper.get("/a", watch=seen)).data) == 100_000
    # Many replies in one TLS record: none may be left lying in its buffer.
    nodes = await asyncio.gather(*(keeper.get(f"/{number}") for number in range(200)))
    assert len(nodes) == 200
    await keeper.set("/a", b"")
    assert (await seen.wait()).type is EventType.CHANGED
    await keeper.close()


async def test_an_authority_that_is_not_trusted_is_refused(front, zookeeper_backend):
    port, _ = await front("localhost")
    config = dataclasses.replace(secured(zookeeper_backend, port, ""), ca_file="")
    with pytest.raises(KeeperUnavailable, match="certificate verify failed"):
        await zookeeper.connect(config, SystemEnv(), connect_timeout_s=2)


async def test_a_port_without_tls_is_named_as_that(zookeeper_server, zookeeper_backend):
    config = secured(zookeeper_backend, zookeeper_server.client_port, "")
    with pytest.raises(KeeperUnavailable, match="is that its port for TLS"):
        await zookeeper.connect(dataclasses.replace(config, ca_file=""), SystemEnv(), connect_timeout_s=2)


async def test_a_certificate_for_another_host_is_refused(front, zookeeper_backend):
    port, ca = await front("elsewhere.example")
    with pytest.raises(KeeperUnavailable, match="certificate verify failed"):
        await zookeeper.connect(secured(zookeeper_backend, port, ca), SystemEnv(), connect_timeout_s=2)
