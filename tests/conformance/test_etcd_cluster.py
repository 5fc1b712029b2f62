"""A cluster of three members that serve over TLS: the one that a session is at fails; so does the leader."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from engine.env import SystemEnv
from engine.errors import ConfigError, ConnectionLoss, OperationTimeout, SessionExpired
from engine.keeper import CreateMode, EventType, etcd
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel, LinkLost
from engine.keeper.etcd.embedded import EmbeddedEtcdCluster, ServerTls, find_etcd
from engine.testing.seen import Seen
from tests.conformance.test_etcd_tls import without_key
from tests.conformance.test_zookeeper_tls import make_certificate

pytestmark = pytest.mark.slow
PATIENCE_S = 90.0
EPHEMERAL = CreateMode.EPHEMERAL


@dataclasses.dataclass
class Members:
    cluster: EmbeddedEtcdCluster
    ca: Path

    @property
    def config(self):
        hosts = tuple(("localhost", server.client_port) for server in self.cluster.servers)
        return dataclasses.replace(self.cluster.config, hosts=hosts, secure=True, ca_file=str(self.ca))

    async def open(self, *, session_timeout_s=30):
        config = dataclasses.replace(self.config, session_timeout_ms=1000 * session_timeout_s)
        return await etcd.connect(config, SystemEnv(), connect_timeout_s=30)

    def of(self, keeper):
        """The member that a session is at."""
        return next(each for each in self.cluster.servers if each.client_port == keeper._attempts.last[1])

    async def leader(self):
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for server in self.cluster.servers:
                    channel = EtcdChannel(self.config, "localhost", server.client_port)
                    try:
                        status = await channel.call(messages.STATUS, messages.StatusRequest(), timeout_s=10)
                        if status.leader == status.header.member_id:
                            return server
                    except LinkLost:
                        pass  # it is down
                    finally:
                        await channel.close()


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    try:
        find_etcd()
    except ConfigError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("etcd-cluster")
    pem = make_certificate(directory, "localhost")
    cluster = EmbeddedEtcdCluster(
        directory / "members", is_durable=False, ends_with_parent=True, tls=ServerTls(pem, pem)
    )
    asyncio.run(cluster.start())
    yield Members(cluster, without_key(pem))
    asyncio.run(cluster.stop())


async def until(request):
    """What a request answers once there is a connection again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await request()
            except (ConnectionLoss, OperationTimeout):
                await asyncio.sleep(0.05)


async def test_a_session_over_tls_goes_on_at_another_member_when_its_own_is_killed(members):
    keeper, other = await members.open(), await members.open()
    path = await keeper.create(f"/failover-{keeper.session_id:x}", b"0")
    mine = await keeper.create(f"{path}/e", b"mine", mode=EPHEMERAL)
    seen = Seen()
    await keeper.get(path, watch=seen)
    killed = members.of(keeper)
    await killed.kill()
    try:
        node = await until(lambda: keeper.get(mine))
        assert node.data == b"mine" and node.stat.ephemeral_owner == keeper.session_id
        assert members.of(keeper) is not killed and seen.events == []
        await until(lambda: other.set(path, b"1"))
        assert (await seen.wait()).type is EventType.CHANGED
    finally:
        await killed.start()
    await keeper.close()
    assert await until(lambda: other.exists(mine)) is None
    await other.close()


@pytest.mark.extended
async def test_a_lease_that_runs_out_while_the_leader_changes_takes_its_nodes_with_it_and_no_others(members):
    """1 three sessions: one whose process ends, one with a short timeout, one that watches, 2 the leader is
    killed at once: it would have ended the first one's lease, 3 there is another leader: the first session's
    node goes, with an event and the parent's counts; the short session goes on, or it is over and its node
    goes, too; the third has lost nothing."""
    living = await members.open()
    path = await living.create(f"/leases-{living.session_id:x}")
    await living.create(f"{path}/living", mode=EPHEMERAL)
    dying, short = await members.open(session_timeout_s=2), await members.open(session_timeout_s=2)
    await dying.create(f"{path}/dying", mode=EPHEMERAL)
    await short.create(f"{path}/short", mode=EPHEMERAL)
    await living.sync("/")
    gone = Seen()
    await living.exists(f"{path}/dying", watch=gone)
    leader = await members.leader()
    dying.abandon()
    await leader.kill()
    try:
        assert (await gone.wait()).type is EventType.DELETED
        assert await members.leader() is not leader
        try:
            await until(lambda: short.set(f"{path}/short", b"still here"))
            goes_on = True
        except SessionExpired:
            goes_on = False
        async with asyncio.timeout(PATIENCE_S):
            expected = {"living", "short"} if goes_on else {"living"}
            while set((names := await until(lambda: living.children(path))).names) != expected:
                await asyncio.sleep(0.05)
        stat = await until(lambda: living.exists(path))
        assert (stat.num_children, stat.cversion) == (len(names.names), 6 - len(names.names))
        assert (await living.exists(f"{path}/living")).ephemeral_owner == living.session_id
        with pytest.raises(SessionExpired):
            await dying.get(path)
    finally:
        await leader.start()
    await short.close()
    await living.close()
