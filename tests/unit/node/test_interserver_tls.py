"""Parts over TLS, and credentials, as a node's configuration sets them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from engine.config.model import InterserverAccess, NodeConfig
from engine.env import SystemEnv
from engine.errors import ConfigError
from engine.node.interserver import fetcher_of, server_of, warn_if_open
from engine.ports import free_ports
from engine.replication.bandwidth import Bandwidth
from engine.replication.fetching import PartUnavailable
from engine.replication.host import ReplicaHost
from engine.replication.part_name import PartName
from engine.replication.paths import ReplicaPaths
from engine.replication.replica.switches import Switches
from engine.testing.replication.disk import StoreDisk, model_definition
from engine.testing.replication.store import MemoryPartStore

ENV = SystemEnv()
PART = PartName.parse("all_0_0_0")
REPLICA = ReplicaPaths("/t/replicas/r1")


@dataclass
class Sending:
    store: MemoryPartStore
    switches: Switches = field(default_factory=Switches)
    send_bandwidth: Bandwidth = field(default_factory=lambda: Bandwidth(ENV, lambda: 0))

    def check_later(self, part: PartName, *, delay_s: float = 0.0) -> None:
        raise AssertionError(f"{part} is damaged")


def certificate_for(directory: Path, address: str) -> Path:
    """Self-signed; the file is key, certificate and authority at once."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = directory / f"{address}.pem"
    file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return file


@asynccontextmanager
async def serving(config: NodeConfig) -> AsyncIterator[ReplicaHost]:
    """A node that has the part."""
    store = MemoryPartStore(StoreDisk(model_definition()), ENV)
    await store.stage_inserted(await store.write("all", [{"k": 1, "v": 1}]), PART)
    server = server_of(config, find={REPLICA.root: Sending(store)}.get, version="26.9.1.1")
    await server.start()
    try:
        yield ReplicaHost("127.0.0.1", server.port, 9000, "d", "t", server.scheme)
    finally:
        await server.stop()


async def fetched(host: ReplicaHost, config: NodeConfig) -> list[PartName]:
    target = MemoryPartStore(StoreDisk(model_definition()), ENV)
    async with fetcher_of(config) as fetcher:
        await fetcher.fetch(host, REPLICA, PART, into=target, expected=None)
    return list(target.staged)


@pytest.fixture
def secure(tmp_path: Path) -> NodeConfig:
    pem = str(certificate_for(tmp_path, "127.0.0.1"))
    [port] = free_ports(1)
    return NodeConfig(
        path=str(tmp_path),
        interserver_https_port=port,
        certificate_file=pem,
        ca_file=pem,
    )


async def test_a_part_is_fetched_over_tls(secure: NodeConfig) -> None:
    async with serving(secure) as host:
        assert host.scheme == "https"
        assert await fetched(host, secure) == [PART]


async def test_an_authority_that_is_not_trusted_is_refused(secure: NodeConfig) -> None:
    async with serving(secure) as host:
        with pytest.raises(PartUnavailable, match="certificate"):
            await fetched(host, replace(secure, ca_file=""))


async def test_a_certificate_for_another_address_is_refused(secure: NodeConfig, tmp_path: Path) -> None:
    other = str(certificate_for(tmp_path, "127.0.0.99"))
    async with serving(replace(secure, certificate_file=other)) as host:
        with pytest.raises(PartUnavailable, match="certificate"):
            await fetched(host, replace(secure, ca_file=other))


async def test_a_plain_request_to_a_tls_port_is_no_part(secure: NodeConfig) -> None:
    async with serving(secure) as host:
        with pytest.raises(PartUnavailable):
            await fetched(replace(host, scheme="http"), secure)


async def test_a_certificate_that_is_not_there_is_a_configuration_error(secure: NodeConfig) -> None:
    with pytest.raises(ConfigError):
        server_of(replace(secure, certificate_file="/nowhere.pem"), find={}.get, version="1")


async def test_nodes_with_the_same_configured_credentials_exchange_parts(tmp_path: Path) -> None:
    plain = NodeConfig(path=str(tmp_path), interserver_access=InterserverAccess("parts", "new"))
    async with serving(plain) as host:
        assert host.scheme == "http"
        assert await fetched(host, plain) == [PART]
        with pytest.raises(PartUnavailable, match="401"):
            await fetched(host, replace(plain, interserver_access=None))


async def test_an_old_password_is_accepted_while_it_is_changed(tmp_path: Path) -> None:
    ahead = InterserverAccess("parts", "new", old=(("parts", "old"),))
    behind = NodeConfig(path=str(tmp_path), interserver_access=InterserverAccess("parts", "old"))
    async with serving(replace(behind, interserver_access=ahead)) as host:
        assert await fetched(host, behind) == [PART]


ACCESS = InterserverAccess("replica", "secret")


@pytest.mark.parametrize(
    ("config", "to_do"),
    [
        (NodeConfig("/d", listen_host="0.0.0.0"), "Set <interserver_http_credentials>"),
        (NodeConfig("/d", listen_host="::"), "Set <interserver_http_credentials>"),
        (NodeConfig("/d", interserver_listen_host="10.1.2.3"), "Set <interserver_http_credentials>"),
        (
            NodeConfig("/d", listen_host="0.0.0.0", interserver_access=replace(ACCESS, allow_empty=True)),
            "Remove <allow_empty>",
        ),
        (NodeConfig("/d", listen_host="0.0.0.0", interserver_access=ACCESS), None),
        (NodeConfig("/d"), None),
        (NodeConfig("/d", listen_host="localhost"), None),
        (NodeConfig("/d", listen_host="0.0.0.0", interserver_listen_host="::1"), None),
    ],
)
def test_a_port_that_others_reach_without_a_password_is_warned_of(
    config: NodeConfig, to_do: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    warn_if_open(config, 9009)
    if to_do is None:
        assert caplog.messages == []
    else:
        [said] = caplog.messages
        assert to_do in said and ":9009 " in said and "secret" not in said
