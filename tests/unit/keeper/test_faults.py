"""Every knob of the memory Keeper does what its name says. All under virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import (
    ConnectionLoss,
    KeeperAnswer,
    KeeperUnavailable,
    NodeExists,
    OperationTimeout,
    SessionExpired,
    Unavailable,
    UnknownOutcome,
)
from engine.keeper import Create, CreateMode, EventType, SetData, WatchEvent
from engine.keeper.faults import Direction, Fault, FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.testing.seen import Seen
from engine.testing.simulation import START_OF_TIME_S, run_simulation
from tests.unit.keeper.support import simulated

EPHEMERAL = CreateMode.EPHEMERAL


@simulated
async def test_a_lost_request_has_not_happened(env, server, alice, bob):
    server.lose_next_request(alice.session_id)
    with pytest.raises(ConnectionLoss):
        await alice.create("/a")
    assert await alice.exists("/a") is None
    assert not alice.is_expired


@simulated
async def test_a_lost_reply_has_happened(env, server, alice, bob):
    server.lose_next_reply(alice.session_id)
    with pytest.raises(ConnectionLoss):
        await alice.create("/a", mode=EPHEMERAL)
    assert (await alice.exists("/a")).ephemeral_owner == alice.session_id


@simulated
async def test_what_follows_a_lost_request_is_lost_too(env, server, alice, bob):
    server.lose_next_request(alice.session_id)
    with pytest.raises(ConnectionLoss):
        await alice.exists_many(["/a", "/b", "/c"])
    assert server.operations == {}
    assert await alice.exists_many(["/a", "/b"]) == [None, None]


@simulated
async def test_an_expired_session_hears_of_it_when_it_reconnects(env, server, alice, bob):
    """1 the server ends the session, 2 others see its node go, 3 its owner still believes, 4 it hears."""
    await alice.create("/e", mode=EPHEMERAL)
    pending = Seen()
    await alice.children("/", watch=pending)
    server.expire_session(alice.session_id)
    assert await bob.exists("/e") is None
    with pytest.raises((SessionExpired, ConnectionLoss)):
        await alice.get("/e")
    await env.sleep(1)
    assert alice.is_expired and pending.types == [EventType.SESSION]
    assert server.session_ids("alice") == []


@simulated
async def test_a_partition_makes_requests_hang_until_they_fail(env, server, alice, bob):
    await alice.create("/a")
    server.partition("alice")
    started_s = env.monotonic_s()
    with pytest.raises(ConnectionLoss):
        await alice.get("/a")
    assert 5 < env.monotonic_s() - started_s < 7  # noticed after two thirds of the session timeout
    assert await bob.exists("/a") is not None


@simulated
async def test_an_operation_times_out_before_the_partition_is_noticed(env, server, alice, bob):
    patient = await server.connect(client="alice", session_timeout_s=30)
    server.partition("alice")
    started_s = env.monotonic_s()
    with pytest.raises(OperationTimeout):
        await patient.create("/a")
    assert env.monotonic_s() - started_s == pytest.approx(server.operation_timeout_s)


@simulated
async def test_a_request_that_timed_out_is_executed_after_the_partition(env, server, alice, bob):
    patient = await server.connect(client="alice", session_timeout_s=30)
    server.partition("alice")
    with pytest.raises(OperationTimeout):
        await patient.create("/a")
    assert await bob.exists("/a") is None
    server.heal("alice")
    assert await patient.exists("/a") is not None  # the same session looks: the create came before


@simulated
async def test_a_partition_beyond_the_timeout_expires_the_session(env, server, alice, bob):
    await alice.create("/e", mode=EPHEMERAL)
    gone = Seen()
    await bob.exists("/e", watch=gone)
    server.partition("alice")
    await env.sleep(8.9)
    assert gone.events == []
    await env.sleep(0.2)
    assert gone.events == [WatchEvent(EventType.DELETED, "/e")]
    assert not alice.is_expired  # nobody could tell
    server.heal("alice")
    await env.sleep(1)
    assert alice.is_expired


@simulated
async def test_a_short_partition_costs_nothing_but_time(env, server, alice, bob):
    await alice.create("/e", mode=EPHEMERAL)
    server.partition("alice")
    waiting = asyncio.create_task(alice.get("/e"))
    await env.sleep(3)
    assert not waiting.done()
    server.heal("alice")
    assert (await waiting).stat.ephemeral_owner == alice.session_id


@simulated
async def test_a_session_without_a_connection_for_its_timeout_ends_by_itself(env, server, alice, bob):
    pending = Seen()
    await alice.children("/", watch=pending)
    server.partition("alice")
    await env.sleep(6 + 9.1)
    assert alice.is_expired and pending.types == [EventType.SESSION]


@simulated
async def test_a_partition_of_replies_lets_requests_through(env, server, alice, bob):
    server.partition("alice", direction=Direction.FROM_KEEPER)
    with pytest.raises(ConnectionLoss):
        await alice.create("/a")
    assert await bob.exists("/a") is not None


@simulated
async def test_a_partitioned_client_cannot_connect(env, server, alice, bob):
    server.partition("alice")
    with pytest.raises(KeeperUnavailable):
        await server.connect(client="alice")
    await server.connect(client="carol")
    server.heal("alice")
    await server.connect(client="alice")


@simulated
async def test_watches_that_fired_during_a_partition_are_told_afterwards(env, server, alice, bob):
    await bob.create("/a")
    seen, flash = Seen(), Seen()
    await alice.get("/a", watch=seen)
    await alice.exists("/flash", watch=flash)
    server.partition("alice")
    await env.sleep(7)  # noticed: the connection is gone, the session is not
    await bob.set("/a", b"x")
    await bob.multi([Create("/flash")])
    await bob.remove("/flash")
    server.heal("alice")
    await alice.exists("/a")
    assert seen.types == [EventType.CHANGED]
    assert flash.types == []  # made and removed meanwhile: nobody could tell


@simulated
async def test_stale_reads_until_a_sync(env, server, alice, bob):
    await bob.create("/a", b"old")
    server.stale_reads(alice.session_id)
    await bob.set("/a", b"new")
    assert (await alice.get("/a")).data == b"old"
    assert (await bob.get("/a")).data == b"new"
    await alice.sync("/a")
    assert (await alice.get("/a")).data == b"new"


@simulated
async def test_stale_reads_end_with_a_write_of_ones_own(env, server, alice, bob):
    server.stale_reads(alice.session_id)
    await bob.create("/a")
    assert await alice.exists("/a") is None
    with pytest.raises(NodeExists):
        await alice.create("/a")
    assert await alice.exists("/a") is not None


@simulated
async def test_stale_reads_end_with_time(env, server, alice, bob):
    server.stale_reads(alice.session_id, for_s=2)
    await bob.create("/a")
    assert await alice.exists("/a") is None
    await env.sleep(2.1)
    assert await alice.exists("/a") is not None


@simulated
async def test_an_event_comes_before_the_read_that_sees_the_change_even_from_a_stale_server(
    env, server, alice, bob
):
    await bob.create("/a")
    before, during = Seen(), Seen()
    await alice.get("/a", watch=before)
    server.stale_reads(alice.session_id)
    await bob.set("/a", b"x")
    await bob.create("/a/b")
    await alice.children("/a", watch=during)
    assert before.events == during.events == []
    await alice.sync("/a")
    assert before.types == [EventType.CHANGED] and during.types == [EventType.CHILD]


@simulated
async def test_a_delayed_reply_may_come_too_late(env, server, alice, bob):
    server.delay_replies(alice.session_id, 3)
    await alice.create("/a")
    assert env.monotonic_s() == pytest.approx(3)
    server.delay_replies(alice.session_id, 30)
    with pytest.raises(OperationTimeout):
        await alice.create("/b")
    assert await bob.exists("/b") is not None


@simulated
async def test_sessions_survive_a_restart_of_keeper(env, server, alice, bob):
    await alice.create("/e", mode=EPHEMERAL)
    seen = Seen()
    await alice.exists("/later", watch=seen)
    server.stop()
    with pytest.raises(KeeperUnavailable):
        await server.connect()
    waiting = asyncio.create_task(bob.get("/e"))
    await env.sleep(2)
    assert not waiting.done()
    server.start()
    assert (await waiting).stat.ephemeral_owner == alice.session_id
    assert (await alice.get("/e")).stat.ephemeral_owner == alice.session_id
    await bob.create("/later")
    assert (await seen.wait()).type is EventType.CREATED


@simulated
async def test_lost_data_ends_all_sessions(env, server, alice, bob):
    await alice.create("/a")
    server.lose_data()
    await env.sleep(1)
    assert alice.is_expired and bob.is_expired
    new = await server.connect()
    assert await new.exists("/a") is None


@simulated
async def test_a_jump_of_the_servers_clock_shows_in_times_only(env, server, alice, bob):
    server.jump_clock(-3600)
    await alice.create("/a")
    stat = await alice.exists("/a")
    assert stat.ctime_ms == int((START_OF_TIME_S - 3600) * 1000)
    await env.sleep(100)
    assert not alice.is_expired


@simulated
async def test_a_crashed_client_says_nothing_and_its_nodes_go_after_the_timeout(env, server, alice, bob):
    await alice.create("/e", mode=EPHEMERAL)
    told, gone = Seen(), Seen()
    await alice.children("/", watch=told)
    await bob.exists("/e", watch=gone)
    server.crash_client("alice")
    with pytest.raises(SessionExpired):
        await alice.get("/e")
    await env.sleep(8.9)
    assert gone.events == [] and await bob.exists("/e") is not None
    await env.sleep(0.2)
    assert gone.types == [EventType.DELETED]
    assert told.events == []


@simulated
async def test_what_a_crashed_client_had_sent_is_executed(env, server, alice, bob):
    sending = asyncio.create_task(alice.create("/sent"))
    while not alice.to_server:
        await asyncio.sleep(0)
    server.crash_client("alice")
    await env.sleep(1)
    assert await bob.exists("/sent") is not None
    sending.cancel()


def test_latency_keeps_the_order_of_each_session():
    async def main(env):
        server = MemoryKeeperServer(env.fork(), latency_s=(0.001, 0.5))
        keeper = await server.connect()
        await keeper.create("/a")
        sent = []

        async def send(number):
            sent.append(number)
            return number, (await keeper.set("/a", b"")).version

        versions = dict(await asyncio.gather(*(send(number) for number in range(20))))
        assert [versions[number] for number in sent] == list(range(1, 21))
        return env.monotonic_s()

    assert 0.1 < run_simulation(1, main) < 10


@simulated
async def test_operations_are_counted_by_client_and_kind(env, server, alice, bob):
    await alice.create("/a")
    await alice.multi([SetData("/a", b""), SetData("/a", b"")])
    await alice.get_many(["/a", "/a"])
    await bob.exists("/a")
    assert server.operations["alice"] == {"create": 1, "multi": 1, "multi_ops": 2, "get": 2}
    assert server.operations["bob"] == {"exists": 1}


# --- at random --------------------------------------------------------------------------------------------


def chaos(seed):
    """Ten clients make nodes while everything goes wrong; returns what happened."""

    async def main(env):
        plan = FaultPlan.rough(random.Random(seed), rate=0.2)
        server = MemoryKeeperServer(env.fork(), faults=plan, latency_s=(0.0, 0.01))
        acknowledged, unknown, expired = [], [], []

        async def count(number):
            keeper = None
            for _ in range(20):
                try:
                    if keeper is None or keeper.is_expired:
                        keeper = await server.connect(client=f"c{number}", session_timeout_s=8)
                    await keeper.create(f"/c{number}-", mode=CreateMode.PERSISTENT_SEQUENTIAL)
                    acknowledged.append(number)
                except UnknownOutcome as error:
                    unknown.append(number)
                    if isinstance(error, SessionExpired):
                        expired.append(number)
                except Unavailable:
                    pass

        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(count(number))
        plan.calm()
        happened = dict(plan.happened)
        calm = await server.connect()
        made = len((await calm.children("/")).names)
        assert len(acknowledged) <= made <= len(acknowledged) + len(unknown)
        assert plan.happened == happened
        return happened, len(acknowledged), len(unknown), len(expired), made

    return run_simulation(seed, main)


@pytest.mark.slow
def test_under_random_faults_nothing_acknowledged_is_lost_and_every_fault_occurs():
    outcomes = [chaos(seed) for seed in range(60)]
    assert set().union(*(happened for happened, *_ in outcomes)) == set(Fault)
    assert any(made > acknowledged for _, acknowledged, _, _, made in outcomes)  # a lost reply
    assert any(
        made < acknowledged + unknown for _, acknowledged, unknown, _, made in outcomes
    )  # a lost request
    assert any(expired for *_, expired, _ in outcomes)


def test_random_faults_replay_exactly():
    assert chaos(11) == chaos(11)


def test_a_calm_plan_draws_nothing():
    plan = FaultPlan(random.Random(0), request_lost=1.0, connect_refused=1.0)
    assert plan.draw() is Fault.REQUEST_LOST and plan.draws_refusal()
    plan.calm()
    assert plan.draw() is None and not plan.draws_refusal()


def test_an_answer_is_never_a_fault():
    assert not issubclass(KeeperAnswer, (UnknownOutcome, Unavailable))
