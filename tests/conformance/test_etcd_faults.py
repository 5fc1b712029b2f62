"""etcd itself is killed, stopped, or loses a member; sessions run out; many write below one parent."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from engine.env import SystemEnv
from engine.errors import ConfigError, ConnectionLoss, KeeperUnavailable, SessionExpired
from engine.keeper import CreateMode, EventType, etcd
from engine.keeper.etcd.embedded import EmbeddedEtcd, find_etcd
from engine.testing.seen import Seen

pytestmark = pytest.mark.slow
PATIENCE_S = 60.0


@pytest.fixture
async def own_server(tmp_path):
    try:
        find_etcd()
    except ConfigError as error:
        pytest.skip(str(error))
    async with EmbeddedEtcd(tmp_path / "etcd", ends_with_parent=True) as server:
        yield server


async def test_a_session_and_its_watches_outlive_a_killed_etcd(own_server):
    """1 a watch is armed, 2 etcd is killed, 3 it starts again, 4 the same session goes on."""
    keeper = await etcd.connect(own_server.config, SystemEnv())
    await keeper.create("/a", b"acknowledged")
    await keeper.create("/e", mode=CreateMode.EPHEMERAL)
    seen = Seen()
    await keeper.get("/a", watch=seen)
    await own_server.kill()
    await own_server.start()
    node = await keeper.get("/a")
    assert node.data == b"acknowledged" and seen.events == []
    assert (await keeper.exists("/e")).ephemeral_owner == keeper.session_id
    await keeper.set("/a", b"x")
    assert (await seen.wait()).type is EventType.CHANGED
    await keeper.close()


@pytest.mark.extended
async def test_a_session_that_runs_out_is_over_and_its_nodes_are_removed_by_a_living_one(own_server):
    """1 the first one's process stands still (its loop's tasks end), 2 its lease runs out, 3 the other sees
    the node go with the parent's bookkeeping moved, 4 the next use hears of the end."""
    config = dataclasses.replace(own_server.config, session_timeout_ms=2000)
    dying = await etcd.connect(config, SystemEnv())
    living = await etcd.connect(own_server.config, SystemEnv())
    await living.create("/p")
    await dying.create("/p/e", mode=CreateMode.EPHEMERAL)
    await living.sync("/")
    gone = Seen()
    await living.exists("/p/e", watch=gone)
    before = await living.exists("/p")
    dying.abandon()
    async with asyncio.timeout(PATIENCE_S):
        assert (await gone.wait()).type is EventType.DELETED
    after = await living.exists("/p")
    assert after.num_children == 0 and after.cversion == before.cversion + 1 and after.pzxid > before.pzxid
    with pytest.raises(SessionExpired):
        await dying.get("/p")
    await living.close()


@pytest.mark.extended
async def test_a_stopped_etcd_is_noticed_and_the_session_ends_or_goes_on(own_server):
    config = dataclasses.replace(own_server.config, session_timeout_ms=3000)
    keeper = await etcd.connect(config, SystemEnv())
    over = asyncio.Event()
    keeper.on_expired(over.set)
    own_server.pause()
    with pytest.raises((ConnectionLoss, SessionExpired)):
        await keeper.create("/a")
    async with asyncio.timeout(PATIENCE_S):
        await over.wait()
    own_server.resume()
    again = await etcd.connect(own_server.config, SystemEnv())
    assert (await again.children("/")).names in ((), ("a",))
    await again.close()
    await keeper.close()


async def test_eight_writers_below_one_parent_lose_and_repeat_no_number(own_server):
    sessions = [await etcd.connect(own_server.config, SystemEnv()) for _ in range(8)]
    await sessions[0].create("/hot")

    async def write(keeper, who):
        made = []
        for number in range(15):
            made.append(await keeper.create("/hot/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL))
            await keeper.create(f"/hot/{who}-{number}")
        return made

    made = [path for each in await asyncio.gather(*map(write, sessions, range(8))) for path in each]
    assert len(set(made)) == 120
    stat = await sessions[0].exists("/hot")
    assert (stat.num_children, stat.cversion) == (240, 240)
    assert max(int(path[-10:]) for path in made) < 240
    for keeper in sessions:
        await keeper.close()


async def test_users_of_etcd_are_asked_for_and_shown_again_after_a_restart(own_server):
    """etcd forgets who has shown a password when it starts."""
    program = find_etcd().with_name("etcdctl")
    if not program.is_file():
        pytest.skip("There is no etcdctl beside etcd.")
    for arguments in (["user", "add", "root:pw"], ["user", "grant-role", "root", "root"], ["auth", "enable"]):
        endpoint = f"--endpoints=127.0.0.1:{own_server.client_port}"
        ran = await asyncio.create_subprocess_exec(program, endpoint, *arguments)
        assert await ran.wait() == 0
    for user, password in (("root", "wrong"), ("", "")):
        with pytest.raises(KeeperUnavailable, match="refuses a session"):
            await etcd.connect(
                dataclasses.replace(own_server.config, user=user, password=password), SystemEnv()
            )
    config = dataclasses.replace(own_server.config, user="root", password="pw")
    keeper = await etcd.connect(config, SystemEnv())
    await keeper.create("/a")
    await own_server.restart()
    assert await keeper.exists("/a") is not None
    await keeper.create("/b")
    await keeper.close()
