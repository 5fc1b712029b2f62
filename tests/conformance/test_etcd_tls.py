"""TLS to etcd, with certificates that the test makes: etcd's, and the client's own."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import pytest

from engine.config.model import Etcd
from engine.env import SystemEnv
from engine.errors import ConfigError, KeeperUnavailable
from engine.keeper import Create, CreateMode, EventType, etcd
from engine.keeper.etcd.embedded import EmbeddedEtcd, ServerTls, find_etcd
from engine.testing.seen import Seen
from tests.conformance.test_zookeeper_tls import make_certificate

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0


@pytest.fixture
async def start(tmp_path):
    """Starts an etcd with a certificate for `host`; gives it and how to connect to it."""
    try:
        find_etcd()
    except ConfigError as error:
        pytest.skip(str(error))
    servers = []

    async def start(host="localhost", *, client_ca=None):
        pem = make_certificate(tmp_path, host)
        server = EmbeddedEtcd(
            tmp_path / "etcd", is_durable=False, ends_with_parent=True, tls=ServerTls(pem, pem, client_ca)
        )
        await server.start()
        servers.append(server)
        hosts = (("localhost", server.client_port),)
        return server, dataclasses.replace(
            server.config, hosts=hosts, secure=True, ca_file=str(without_key(pem))
        )

    yield start
    for server in servers:
        await server.stop()


async def test_a_session_over_tls_with_a_certificate_and_a_user_goes_on_after_a_restart(start, tmp_path):
    own = make_certificate(tmp_path, "client.example")
    server, config = await start(client_ca=without_key(own))
    config = dataclasses.replace(config, certificate_file=str(own))
    program = find_etcd().with_name("etcdctl")
    if not program.is_file():
        pytest.skip("There is no etcdctl beside etcd.")
    for arguments in (["user", "add", "root:pw"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
        ran = await asyncio.create_subprocess_exec(
            program,
            f"--endpoints=https://localhost:{server.client_port}",
            f"--cacert={config.ca_file}",
            f"--cert={own}",
            f"--key={own}",
            *arguments,
        )
        assert await ran.wait() == 0
    with pytest.raises(KeeperUnavailable, match="authentication failed"):
        await etcd.connect(dataclasses.replace(config, user="root", password="wrong"), SystemEnv())

    keeper = await etcd.connect(dataclasses.replace(config, user="root", password="pw"), SystemEnv())
    await keeper.multi([Create("/a", b"x" * 100_000), *(Create(f"/{number}") for number in range(50))])
    await keeper.create("/e", mode=CreateMode.EPHEMERAL)
    seen = Seen()
    assert len((await keeper.get("/a", watch=seen)).data) == 100_000
    await server.restart()
    assert (await keeper.exists("/e")).ephemeral_owner == keeper.session_id
    await keeper.set("/a", b"")
    async with asyncio.timeout(PATIENCE_S):
        assert (await seen.wait()).type is EventType.CHANGED
    await keeper.close()


async def test_a_client_without_the_certificate_that_etcd_wants_is_refused(start, tmp_path):
    own = make_certificate(tmp_path, "client.example")
    _, config = await start(client_ca=without_key(own))
    with pytest.raises(KeeperUnavailable, match="localhost"):
        await etcd.connect(config, SystemEnv(), connect_timeout_s=2)
    with_it = dataclasses.replace(config, certificate_file=str(without_key(own)), private_key_file=str(own))
    await (await etcd.connect(with_it, SystemEnv())).close()


@pytest.mark.extended
async def test_an_authority_that_is_not_trusted_is_refused_and_the_reason_told(start):
    _, config = await start()
    with pytest.raises(KeeperUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await etcd.connect(dataclasses.replace(config, ca_file=""), SystemEnv(), connect_timeout_s=2)


@pytest.mark.extended
async def test_a_certificate_for_another_host_is_refused_and_the_reason_told(start):
    _, config = await start("elsewhere.example")
    with pytest.raises(KeeperUnavailable, match=r"(?i)hostname"):
        await etcd.connect(config, SystemEnv(), connect_timeout_s=2)


@pytest.mark.extended
async def test_plain_text_to_an_etcd_with_tls_is_refused(start):
    _, config = await start()
    with pytest.raises(KeeperUnavailable, match="localhost"):
        await etcd.connect(dataclasses.replace(config, secure=False), SystemEnv(), connect_timeout_s=2)


@pytest.mark.parametrize("name", ["ca_file", "certificate_file", "private_key_file"])
async def test_a_file_of_tls_that_is_not_there_is_named(tmp_path, name):
    pem = str(make_certificate(tmp_path, "localhost"))
    files = {"ca_file": pem, "certificate_file": pem, "private_key_file": pem, name: "/not/there.pem"}
    config = etcd_config(**files)
    with pytest.raises(ConfigError, match=r"/not/there\.pem"):
        await etcd.connect(config, SystemEnv(), connect_timeout_s=2)


async def test_a_file_that_holds_no_certificate_is_an_error_of_the_configuration(tmp_path):
    """And no server that cannot be reached."""
    file = tmp_path / "empty.pem"
    file.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"empty\.pem"):
        await etcd.connect(etcd_config(ca_file=str(file)), SystemEnv(), connect_timeout_s=2)


async def test_a_certificate_without_its_key_and_a_key_without_certificate_are_errors_of_the_configuration(
    tmp_path,
):
    """etcd would refuse a client that shows none, without saying why."""
    pem = make_certificate(tmp_path, "localhost")
    alone, other = str(without_key(pem)), str(make_certificate(tmp_path, "other.example"))
    for config, named in (
        (etcd_config(certificate_file=alone), alone),
        (etcd_config(certificate_file=alone, private_key_file=other), other),
        (etcd_config(private_key_file=str(pem)), str(pem)),
    ):
        with pytest.raises(ConfigError, match=re.escape(named)):
            await etcd.connect(config, SystemEnv(), connect_timeout_s=2)


def etcd_config(**files):
    return Etcd(hosts=(("localhost", 1),), secure=True, **files)


def without_key(pem):
    """etcd takes files of authorities that hold certificates only."""
    path = pem.with_suffix(".crt")
    path.write_text(
        "-----BEGIN CERTIFICATE-----" + pem.read_text().partition("-----BEGIN CERTIFICATE-----")[2]
    )
    return path
