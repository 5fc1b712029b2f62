"""Recipes, under virtual time and under faults."""

from __future__ import annotations

import asyncio
import random

import pytest

from engine.errors import (
    Busy,
    ConnectionLoss,
    KeeperFull,
    KeeperUnavailable,
    MultiFailed,
    NoNode,
    NotEmpty,
    SessionExpired,
    Unavailable,
    UnknownOutcome,
)
from engine.keeper import Create, CreateMode, EventType, SetData
from engine.keeper.faults import FaultPlan
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import (
    KeeperLock,
    SessionHolder,
    Signal,
    ancestors,
    create_ancestors,
    create_if_not_exists,
    create_or_update,
    remove_ephemeral_if_content_matches,
    remove_recursive,
    remove_unowned,
    try_remove,
    wait_until_changed,
    wait_until_exists,
    wait_until_gone,
)
from engine.keeper.session import RequestKind
from engine.testing.simulation import run_simulation
from tests.unit.keeper.support import simulated


async def tree(keeper, path="/"):
    found = []
    for name in (await keeper.children(path)).names:
        child = f"{path.rstrip('/')}/{name}"
        found += [child, *await tree(keeper, child)]
    return found


# --- making and removing ----------------------------------------------------------------------------------


def test_ancestors_are_the_proper_prefixes():
    assert ancestors("/a/b/c") == ["/a", "/a/b"]
    assert ancestors("/a") == ancestors("/") == []


@simulated
async def test_create_ancestors_makes_what_is_missing_and_not_the_node(env, server, alice, bob):
    await alice.create("/a", b"kept")
    await create_ancestors(alice, "/a/b/c/d")
    assert await tree(alice) == ["/a", "/a/b", "/a/b/c"]
    assert (await alice.get("/a")).data == b"kept"
    await create_ancestors(alice, "/a/b/c/d")


@simulated
async def test_two_may_create_the_same_ancestors_at_once(env, server, alice, bob):
    await asyncio.gather(create_ancestors(alice, "/a/b/c/d"), create_ancestors(bob, "/a/b/x/y"))
    assert await tree(alice) == ["/a", "/a/b", "/a/b/c", "/a/b/x"]


@simulated
async def test_create_if_not_exists_leaves_the_value(env, server, alice, bob):
    assert await create_if_not_exists(alice, "/a", b"1")
    assert not await create_if_not_exists(bob, "/a", b"2")
    assert (await alice.get("/a")).data == b"1"


@simulated
async def test_create_or_update_sets_the_value_in_any_case(env, server, alice, bob):
    await create_or_update(alice, "/a", b"1")
    await create_or_update(bob, "/a", b"2")
    assert (await alice.get("/a")).data == b"2"
    with pytest.raises(NoNode):
        await create_or_update(alice, "/missing/b", b"")


@simulated
async def test_create_or_update_wins_against_removals(env, server, alice, bob):
    async def remove_often():
        for _ in range(20):
            await try_remove(bob, "/a")

    removing = asyncio.create_task(remove_often())
    for number in range(20):
        await create_or_update(alice, "/a", str(number).encode())
    await removing
    await create_or_update(alice, "/a", b"last")
    assert (await bob.get("/a")).data == b"last"


@simulated
async def test_try_remove_returns_what_stands_against_it(env, server, alice, bob):
    await alice.multi([Create("/a"), Create("/a/b")])
    assert isinstance(await try_remove(alice, "/a"), NotEmpty)
    assert isinstance(await try_remove(alice, "/missing"), NoNode)
    assert await try_remove(alice, "/a/b") is None


@simulated
async def test_remove_recursive_removes_everything_below_and_the_node(env, server, alice, bob):
    await alice.multi([Create(path) for path in ("/a", "/a/b", "/a/b/c", "/a/d", "/e")])
    assert await remove_recursive(alice, "/a")
    assert await tree(alice) == ["/e"]
    assert await remove_recursive(alice, "/a")  # nothing there: as wanted


@simulated
async def test_remove_recursive_keeps_one_child_and_empties_it(env, server, alice, bob):
    await alice.multi([Create(path) for path in ("/a", "/a/lock", "/a/lock/x", "/a/b", "/a/b/c")])
    assert await remove_recursive(alice, "/a", keep_child="lock")
    assert await tree(alice) == ["/a", "/a/lock"]


@simulated
async def test_remove_recursive_goes_in_batches_of_a_hundred(env, server, alice, bob):
    await alice.create("/a")
    for start in range(0, 250, 50):
        await alice.multi([Create(f"/a/{number}") for number in range(start, start + 50)])
    server.operations.clear()
    assert await remove_recursive(alice, "/a")
    assert server.operations["alice"]["multi"] == 3
    assert await tree(alice) == []


@simulated
async def test_remove_recursive_tolerates_others_who_remove(env, server, alice, bob):
    await alice.create("/a")
    for number in range(30):
        await alice.multi([Create(f"/a/{number}"), Create(f"/a/{number}/x")])
    assert await asyncio.gather(remove_recursive(alice, "/a"), remove_recursive(bob, "/a")) == [True, True]
    assert await tree(alice) == []


def test_remove_recursive_leaves_what_others_add_meanwhile():
    async def main(env):
        server = MemoryKeeperServer(env.fork())
        alice, bob = await server.connect(), await server.connect()
        await alice.multi([Create("/a"), *(Create(f"/a/{number}") for number in range(5))])

        async def add():
            try:
                await bob.create("/a/3/new")
            except NoNode:
                return False
            return True

        removed, added = await asyncio.gather(remove_recursive(alice, "/a"), add())
        left = await tree(alice)
        if not removed:
            assert added and left == ["/a", "/a/3", "/a/3/new"]
        else:
            assert left == []
        return removed

    assert {run_simulation(seed, main) for seed in range(100)} == {True, False}


# --- waiting ----------------------------------------------------------------------------------------------


@simulated
async def test_waiting_for_a_node_to_come_and_to_go(env, server, alice, bob):
    coming = asyncio.create_task(wait_until_exists(alice, "/a"))
    await env.sleep(1)
    await bob.create("/a")
    assert (await coming).version == 0
    going = asyncio.create_task(wait_until_gone(alice, "/a"))
    await env.sleep(1)
    await bob.set("/a", b"still here")
    await env.sleep(1)
    assert not going.done()
    await bob.remove("/a")
    await going
    await wait_until_gone(alice, "/a")


@simulated
async def test_waiting_for_any_change(env, server, alice, bob):
    await bob.create("/a")
    seen = await alice.exists("/a")
    waiting = asyncio.create_task(wait_until_changed(alice, "/a", seen))
    await env.sleep(1)
    assert not waiting.done()
    await bob.set("/a", b"")
    assert (await waiting).version == 1
    assert (await wait_until_changed(alice, "/a", seen)).version == 1  # it has changed already
    await bob.remove("/a")
    assert await wait_until_changed(alice, "/a", seen) is None


@simulated
async def test_the_end_of_the_session_wakes_who_waits(env, server, alice, bob):
    await alice.create("/a")
    waiting = asyncio.create_task(wait_until_gone(alice, "/a"))
    await env.sleep(1)
    server.expire_session(alice.session_id)
    with pytest.raises(SessionExpired):
        await waiting


@simulated
async def test_a_signal_may_be_waited_for_again_after_a_cancellation(env, server, alice, bob):
    signal = Signal()
    await alice.exists("/a", watch=signal)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await signal.wait()
    await bob.create("/a")
    assert (await signal.wait()).type is EventType.CREATED


# --- ephemeral nodes --------------------------------------------------------------------------------------


@simulated
async def test_what_ones_own_old_session_left_is_removed_at_once(env, server, alice, bob):
    await alice.create("/active", b"host1", mode=CreateMode.EPHEMERAL)
    started_s = env.monotonic_s()
    await remove_ephemeral_if_content_matches(bob, "/active", b"host1")
    assert await bob.exists("/active") is None
    assert env.monotonic_s() == started_s
    await remove_ephemeral_if_content_matches(bob, "/active", b"host1")


@simulated
async def test_a_node_that_no_session_owns_is_removed_at_once(env, server, alice, bob):
    await alice.create("/active", b"host1")
    started_s = env.monotonic_s()
    await remove_ephemeral_if_content_matches(bob, "/active", b"host2")
    assert await bob.exists("/active") is None
    assert env.monotonic_s() == started_s


@simulated
async def test_a_real_node_in_the_place_of_one_that_no_session_owns_stays(env, server, alice, bob):
    # 1. Two look at the same node. 2. One removes it and makes a real one. 3. The other would remove it.
    await alice.create("/lock", b"copied")
    set_by_bob = bob.set

    async def late(path, data, *, version):
        assert await remove_unowned(alice, path)
        await alice.create(path, data, mode=CreateMode.EPHEMERAL)
        return await set_by_bob(path, data, version=version)

    bob.set = late
    assert not await remove_unowned(bob, "/lock")
    assert (await alice.exists("/lock")).ephemeral_owner == alice.session_id
    assert not await remove_unowned(bob, "/absent")


@simulated
async def test_somebody_elses_ephemeral_node_is_waited_for(env, server, alice, bob):
    await alice.create("/active", b"host1", mode=CreateMode.EPHEMERAL)
    server.crash_client("alice")
    await remove_ephemeral_if_content_matches(bob, "/active", b"host2")
    assert env.monotonic_s() == pytest.approx(9)


@simulated
async def test_somebody_else_who_stays_is_named(env, server, alice, bob):
    await alice.create("/active", b"host1", mode=CreateMode.EPHEMERAL)
    with pytest.raises(Busy, match="still exists after 27 s") as caught:
        await remove_ephemeral_if_content_matches(bob, "/active", b"host2")
    assert caught.value.holder == "host1"


# --- the lock ---------------------------------------------------------------------------------------------


@simulated
async def test_one_holder_at_a_time(env, server, alice, bob):
    first, second = KeeperLock(alice, env, "/locks/a", "alice"), KeeperLock(bob, env, "/locks/a", "bob")
    assert await first.try_acquire()
    assert await first.is_held() and first.fence
    assert await second.try_acquire() is None
    assert await second.holder() == "alice"
    await first.release()
    assert await second.holder() is None
    assert await second.try_acquire()
    await first.release()
    assert await second.is_held()


@simulated
async def test_fences_rise_from_holder_to_holder(env, server, alice, bob):
    numbers = []
    for number in range(6):
        lock = KeeperLock((alice, bob)[number % 2], env, "/lock", "x")
        numbers.append((await lock.acquire()).number)
        await lock.release()
    assert numbers == sorted(set(numbers))


@simulated
async def test_acquiring_waits_for_the_holder(env, server, alice, bob):
    first, second = KeeperLock(alice, env, "/lock", "alice"), KeeperLock(bob, env, "/lock", "bob")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await env.sleep(5)
    assert not waiting.done()
    await first.release()
    assert await waiting
    assert env.monotonic_s() == 5


@simulated
async def test_a_crashed_holder_frees_the_lock_after_its_timeout(env, server, alice, bob):
    await KeeperLock(alice, env, "/lock", "alice").acquire()
    server.crash_client("alice")
    await KeeperLock(bob, env, "/lock", "bob").acquire()
    assert env.monotonic_s() == pytest.approx(9)


@simulated
async def test_a_lock_whose_reply_was_lost_is_found_again(env, server, alice, bob):
    lock = KeeperLock(alice, env, "/lock", "alice")
    server.lose_next_reply(alice.session_id, kind=RequestKind.MULTI)
    with pytest.raises(ConnectionLoss):
        await lock.try_acquire()
    assert lock.fence is None and await lock.holder() == "alice"
    assert await lock.try_acquire() is lock.fence is not None
    assert await lock.is_held()
    assert lock.fence.number == (await bob.exists("/lock/holder")).czxid
    assert await KeeperLock(bob, env, "/lock", "bob").try_acquire() is None
    await alice.multi([lock.fence.check])


@simulated
async def test_a_lock_that_the_server_of_the_new_connection_does_not_know_yet_is_found_again(
    env, server, alice, bob
):
    for ends in ("try_acquire", "release"):
        lock = KeeperLock(alice, env, f"/{ends}", "alice")
        server.lose_next_reply_and_lag(alice.session_id, kind=RequestKind.MULTI)
        with pytest.raises(ConnectionLoss):
            await lock.try_acquire()
        assert await lock.holder() is None
        await getattr(lock, ends)()
        assert (lock.fence is not None) is (await lock.holder() is not None) is (ends == "try_acquire")


@simulated
async def test_another_lock_object_of_the_same_session_is_somebody_else(env, server, alice, bob):
    await KeeperLock(alice, env, "/lock", "one").acquire()
    assert await KeeperLock(alice, env, "/lock", "two").try_acquire() is None


@simulated
async def test_a_paused_holder_cannot_write_after_its_successor(env, server, alice, bob):
    """1 alice holds, 2 her session ends unheard, 3 bob holds and writes, 4 alice, back on a new session,
    tries to write with her old fence and is refused."""
    await bob.create("/data")
    first = await KeeperLock(alice, env, "/lock", "alice").acquire()
    server.expire_session(alice.session_id)
    second = await KeeperLock(bob, env, "/lock", "bob").acquire()
    await bob.multi([second.check, SetData("/data", b"bob")])
    again = await server.connect(client="alice")
    with pytest.raises(MultiFailed) as caught:
        await again.multi([first.check, SetData("/data", b"alice")])
    assert caught.value.index == 0
    assert (await bob.get("/data")).data == b"bob"
    assert second.number > first.number


def fenced_counting(seed):
    """Workers count under the lock, by fenced read and write, through every fault; returns what happened."""

    async def main(env):
        plan = FaultPlan.rough(random.Random(seed), rate=0.1)
        server = MemoryKeeperServer(env.fork(), faults=plan)
        server.tree.write(Create("/count", b"0"), _server_caller())
        server.tree.changes.clear()
        acknowledged, unknown, holders, contended = 0, 0, [], 0

        async def work(number):
            nonlocal acknowledged, unknown, contended
            for _ in range(6):
                keeper = None
                try:
                    keeper = await server.connect(client=f"w{number}", session_timeout_s=5)
                    lock = KeeperLock(keeper, env, "/lock", f"w{number}")
                    fence = await lock.try_acquire()
                    if fence is None:
                        contended += 1
                        continue
                    holders.append(fence.number)
                    value = int((await keeper.get("/count")).data)
                    await env.sleep(env.rng.random())
                    attempted = True
                    try:
                        await keeper.multi([fence.check, SetData("/count", str(value + 1).encode())])
                        acknowledged += 1
                        attempted = False
                    except MultiFailed:
                        attempted = False
                    finally:
                        unknown += attempted
                    await lock.release()
                except (UnknownOutcome, Unavailable):
                    pass
                finally:
                    if keeper is not None:
                        await keeper.close()
                await env.sleep(env.rng.random() * 5)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(work(number))
        plan.calm()
        value = int((await (await server.connect()).get("/count")).data)
        assert acknowledged <= value <= acknowledged + unknown
        assert len(set(holders)) == len(holders)
        return value, acknowledged, unknown, contended, sum(plan.happened.values())

    return run_simulation(seed, main)


def _server_caller():
    from engine.keeper.tree import Caller

    return Caller(0, frozenset(), 0)


@pytest.mark.slow
def test_under_faults_no_count_is_lost_or_made_twice():
    outcomes = [fenced_counting(seed) for seed in range(100)]
    assert any(value > acknowledged for value, acknowledged, *_ in outcomes)
    assert any(contended for *_, contended, _ in outcomes)
    assert all(happened for *_, happened in outcomes)


# --- the session holder -----------------------------------------------------------------------------------


@simulated
async def test_a_holder_gives_one_session_to_all(env, server, alice, bob):
    async with SessionHolder(server.factory(client="node"), env) as holder:
        sessions = await asyncio.gather(*(holder.get() for _ in range(5)))
        assert len({session.session_id for session in sessions}) == 1
        assert holder.current is sessions[0]
    assert sessions[0].is_expired and holder.current is None


@simulated
async def test_a_holder_opens_another_session_after_the_end_of_one(env, server, alice, bob):
    async with SessionHolder(server.factory(client="node"), env) as holder:
        first = await holder.get()
        server.expire_session(first.session_id)
        await env.sleep(1)
        assert holder.current is None
        second = await holder.get()
        assert second.session_id != first.session_id


@simulated
async def test_hooks_have_run_when_the_session_is_given(env, server, alice, bob):
    made = []

    async def announce(keeper):
        await keeper.create("/active", mode=CreateMode.EPHEMERAL)
        made.append(keeper.session_id)

    async with SessionHolder(server.factory(client="node"), env) as holder:
        holder.on_new_session(announce)
        keeper = await holder.get()
        assert (await keeper.exists("/active")).ephemeral_owner == keeper.session_id
        await holder.get()
        assert made == [keeper.session_id]


@simulated
async def test_a_holder_keeps_trying_while_keeper_is_away(env, server, alice, bob):
    server.stop()
    async with SessionHolder(server.factory(client="node"), env, where="zk1:2181") as holder:
        with pytest.raises(KeeperUnavailable, match="Keeper at zk1:2181 within 10 s"):
            await holder.get(timeout_s=10)
        opening = asyncio.create_task(holder.get())
        await env.sleep(60)
        assert not opening.done()
        server.start()
        assert not (await opening).is_expired


@simulated
async def test_a_holder_says_that_keeper_is_full_where_that_is_why_there_is_no_session(
    env, server, alice, bob
):
    answers = [KeeperFull("refused.", hint="Make room."), KeeperUnavailable("away")]

    async def refuse():
        raise answers[0]

    async with SessionHolder(refuse, env, where="zk1:2181") as holder:
        assert holder.explain("It waits") == "It waits"
        with pytest.raises(KeeperFull, match=r"refused\. Make room\."):
            await holder.get(timeout_s=10)
        why = "no session with Keeper at zk1:2181: refused. Make room."
        assert holder.explain("It waits") == f"It waits; {why}" and holder.explain("") == ""
        del answers[0]
        with pytest.raises(KeeperUnavailable, match="Keeper at zk1:2181 within 10 s"):
            await holder.get(timeout_s=10)


@simulated
async def test_a_hook_that_fails_costs_the_session_and_another_is_tried(env, server, alice, bob):
    tried = []

    async def fragile(keeper):
        tried.append(keeper)
        if len(tried) < 3:
            raise ConnectionLoss("broken")

    async with SessionHolder(server.factory(client="node"), env) as holder:
        holder.on_new_session(fragile)
        keeper = await holder.get()
        assert tried[2] is keeper and all(earlier.is_expired for earlier in tried[:2])
        assert server.session_ids("node") == [keeper.session_id]


@simulated
async def test_a_hook_that_is_wrong_is_not_tried_again(env, server, alice, bob):
    async def wrong(keeper):
        await keeper.get("/missing")

    async with SessionHolder(server.factory(client="node"), env) as holder:
        holder.on_new_session(wrong)
        with pytest.raises(NoNode):
            await holder.get()
        assert server.session_ids("node") == []


@simulated
async def test_a_running_holder_has_a_new_session_soon_after_the_end_of_one(env, server, alice, bob):
    opened = []

    async def note(keeper):
        opened.append(keeper.session_id)

    holder = SessionHolder(server.factory(client="node"), env)
    holder.on_new_session(note)
    running = asyncio.create_task(holder.run())
    for _ in range(3):
        await env.sleep(5)
        server.expire_session(opened[-1])
    await env.sleep(5)
    assert len(opened) == 4 and holder.current.session_id == opened[-1]
    running.cancel()
    await holder.close()
    with pytest.raises(KeeperUnavailable, match="closed"):
        await holder.get()
