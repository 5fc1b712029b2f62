"""etcd's space is used up: while its alarm stands it refuses what writes. When it notices, it says so of
requests, too, that it has carried out."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import urllib.error

import aiohttp
import grpc
import pytest

from engine.env import SystemEnv
from engine.errors import BadArguments, ConfigError, ConnectionLoss, KeeperFull
from engine.keeper import Create, CreateMode, EventType, SetData, etcd
from engine.keeper.etcd import link, messages, reaper
from engine.keeper.etcd.channel import EtcdChannel, EtcdRefuses
from engine.keeper.etcd.clock import Clock
from engine.keeper.etcd.embedded import EmbeddedEtcd, find_etcd
from engine.keeper.recipes import SessionHolder
from engine.operations.health.ask_keeper import ask_keeper
from engine.testing.seen import Seen
from tests.conformance.nodes_support import ask, nodes_of
from tests.unit.operations.support import site

pytestmark = pytest.mark.slow
ENV = SystemEnv()
PATIENCE_S = 60.0
FULL = "etcdserver: mvcc: database space exceeded"


class SmallEtcd(EmbeddedEtcd):
    async def raise_alarm(self) -> None:
        await self._alarm("ACTIVATE")

    async def disarm(self) -> None:
        await self._alarm("DEACTIVATE")

    async def _alarm(self, action: str) -> None:
        base = f"http://127.0.0.1:{self.client_port}/v3/maintenance"
        async with aiohttp.ClientSession() as http:
            async with http.post(f"{base}/status", json={}) as answer:
                member = (await answer.json(content_type=None))["header"]["member_id"]
            alarm = {"action": action, "memberID": member, "alarm": "NOSPACE"}
            async with http.post(f"{base}/alarm", json=alarm) as answer:
                assert answer.status == 200, await answer.text()


@pytest.fixture
async def small(tmp_path):
    try:
        find_etcd()
    except ConfigError as error:
        pytest.skip(str(error))
    arguments = ["--quota-backend-bytes=6000000"]
    async with SmallEtcd(
        tmp_path / "etcd", is_durable=False, ends_with_parent=True, arguments=arguments
    ) as server:
        yield server


async def open_session(server, *, timeout_s=30):
    return await etcd.connect(
        dataclasses.replace(server.config, session_timeout_ms=timeout_s * 1000), SystemEnv()
    )


async def test_a_session_outlives_a_full_etcd_reads_meanwhile_and_writes_when_there_is_room(
    small, monkeypatch
):
    """1 a session that tells the time, an ephemeral node of it and of another one, a watch, 2 the alarm is
    raised: writes are refused, with what to do, 3 the other session ends: its node stays for now, 4 the time
    was to be told several times: the session still is the same, and reads, 5 the alarm is disarmed: it
    writes, and the other one's node goes."""
    ticks = []
    tick = Clock.tick

    async def counted(self, channel, session_id):
        await tick(self, channel, session_id)
        ticks.append(session_id)

    monkeypatch.setattr(Clock, "tick", counted)
    monkeypatch.setattr(link, "TICK_S", 0.05)
    monkeypatch.setattr(reaper, "_FULL_PAUSE_S", 0.1)
    keeper, other = await open_session(small), await open_session(small)
    session_id = keeper.session_id
    await keeper.create("/a", b"0")
    await keeper.create("/mine", mode=CreateMode.EPHEMERAL)
    await other.create("/other", mode=CreateMode.EPHEMERAL)
    changed, gone = Seen(), Seen()
    await keeper.get("/a", watch=changed)
    await keeper.exists("/other", watch=gone)

    await small.raise_alarm()
    for refused in (
        keeper.create("/b"),
        keeper.set("/a", b"1"),
        keeper.remove("/mine"),
        keeper.multi([SetData("/a", b"1"), Create("/b")]),
    ):
        with pytest.raises(BadArguments, match="disarm its alarm"):
            await refused
    await other.close()
    del ticks[:]
    async with asyncio.timeout(PATIENCE_S):
        while ticks.count(session_id) < 3:
            await asyncio.sleep(0.02)
    assert (await keeper.get("/a")).data == b"0" and await keeper.exists("/b") is None
    assert (await keeper.exists("/other")) is not None and not changed.events and not gone.events

    await small.disarm()
    await keeper.set("/a", b"1")
    assert (await changed.wait()).type is EventType.CHANGED
    assert (await gone.wait()).type is EventType.DELETED
    assert (await keeper.exists("/mine")).ephemeral_owner == keeper.session_id == session_id
    await keeper.close()


async def test_while_etcd_is_full_nobody_gets_a_session_and_health_calls_it_full_and_not_down(
    small, tmp_path
):
    await small.raise_alarm()
    with pytest.raises(KeeperFull, match="disarm its alarm") as caught:
        await open_session(small)
    where = dataclasses.replace(site(tmp_path, ENV, None), keeper_error=caught.value)
    facts = await ask_keeper(where, [])
    assert not facts.is_answering and "disarm its alarm" in facts.takes_no_writes
    async with SessionHolder(lambda: open_session(small), ENV) as holder:
        with pytest.raises(KeeperFull):
            await holder.get(timeout_s=1)
        assert "disarm its alarm" in holder.explain("It is read-only")
        await small.disarm()
        await holder.get(timeout_s=PATIENCE_S)
        assert holder.explain("It is read-only") == "It is read-only"


@pytest.mark.extended
async def test_tables_and_databases_of_a_node_that_starts_while_etcd_is_full_say_that_it_is(small, tmp_path):
    async with nodes_of(tmp_path, small, ["n1"]) as [port]:
        ask(port, "CREATE TABLE t (a UInt8) ENGINE = ReplicatedMergeTree('/t', 'n1') ORDER BY a")
        ask(port, "CREATE DATABASE r ENGINE = Replicated('/r', 's', 'n1')")
    await small.raise_alarm()
    async with nodes_of(tmp_path, small, ["n1"]) as [port]:
        for statement in (
            "INSERT INTO t SETTINGS insert_keeper_max_retries = 0 VALUES (1)",
            "CREATE TABLE r.a (a UInt8) ENGINE = MergeTree ORDER BY a",
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(port, statement)
            assert "disarm its alarm" in refused.value.read().decode()
        for table in ("replicas", "database_replicas"):
            assert "disarm its alarm" in ask(port, f"SELECT zookeeper_exception FROM system.{table}")
        await small.disarm()
        async with asyncio.timeout(PATIENCE_S):
            for table in ("replicas", "database_replicas"):
                asked = f"SELECT is_readonly, zookeeper_exception FROM system.{table}"
                while ask(port, asked) != "0\t\n":
                    await asyncio.sleep(0.1)


WRITES = [
    lambda keeper: keeper.create("/new"),
    lambda keeper: keeper.create("/e", mode=CreateMode.EPHEMERAL),
    lambda keeper: keeper.create("/p/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL),
    lambda keeper: keeper.set("/p", b"1"),
    lambda keeper: keeper.remove("/p/old"),
    lambda keeper: keeper.multi([SetData("/p", b"1"), Create("/p/new"), Create("/p/new/e")]),
    lambda keeper: keeper.multi([Create(f"/many-{number}") for number in range(200)]),
]


@pytest.mark.parametrize("write", WRITES)
async def test_what_was_done_and_called_full_has_an_unknown_outcome(small, monkeypatch, write):
    """1 etcd carries a write out and says that it is full, 2 its session hears that nobody knows, 3 the same
    again, not carried out: it hears of a refusal. Watches hear of the first before its session does."""
    keeper, crowd = await open_session(small), await open_session(small)
    await keeper.create("/p")
    await keeper.create("/p/old")
    for _ in range(8):  # who has met others prepares for several numbers
        numbers = [each.create("/p/m-", mode=CreateMode.PERSISTENT_SEQUENTIAL) for each in (keeper, crowd)]
        await asyncio.gather(*numbers)
    call, is_done = EtcdChannel.call, True

    async def full(self, method, request, *, timeout_s=None):
        if method is not messages.TXN or not is_written(request):
            return await call(self, method, request, timeout_s=timeout_s)
        if is_done and not (answer := await call(self, method, request, timeout_s=timeout_s)).succeeded:
            return answer
        raise EtcdRefuses(grpc.StatusCode.RESOURCE_EXHAUSTED, FULL)

    async def tree():
        return [(await crowd.children(path)).names for path in ("/", "/p")], await crowd.get("/p")

    seen = Seen()
    await keeper.children("/p", watch=seen)
    before = await tree()
    monkeypatch.setattr(EtcdChannel, "call", full)
    with pytest.raises(ConnectionLoss, match="disarm its alarm"):
        await write(keeper)
    done = await tree()
    assert done != before
    is_done = False
    with pytest.raises(BadArguments, match="disarm its alarm"):
        await keeper.create("/another")
    assert await tree() == done
    monkeypatch.undo()
    await asyncio.gather(keeper.close(), crowd.close())


def is_written(request) -> bool:
    return any(
        is_written(op.request_txn) if op.HasField("request_txn") else not op.HasField("request_range")
        for op in (*request.success, *request.failure)
    )


async def test_many_writers_that_fill_etcd_are_told_no_only_of_what_is_not_there(small):
    """With the server's own answers; most of those under way when its space ends were carried out."""
    sessions = [await open_session(small) for _ in range(20)]
    refused: list[str] = []
    numbers = itertools.count()

    async def fill(keeper):
        while True:
            path = f"/n-{next(numbers)}"
            try:
                await keeper.create(path, b"x" * 6000)
            except BadArguments:
                refused.append(path)
                return
            except ConnectionLoss:
                return

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*map(fill, sessions))
    there = set((await sessions[0].children("/")).names)
    assert [path for path in refused if path[1:] in there] == []
    for keeper in sessions:
        keeper.abandon()
