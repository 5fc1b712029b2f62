"""Backups and restores that others write into, that are killed, or whose Keeper goes away."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import Busy, KeeperUnavailable
from engine.keeper.base import Create, Remove, SetData
from engine.keeper.session import RequestKind
from engine.keeper.tree import Caller
from engine.operations.keeper_backup import (
    PatientKeeper,
    Phase,
    dump_tree,
    open_backup,
    restore_tree,
)
from tests.unit.operations.keeper_backup_support import (
    another,
    compared,
    disturbance,
    dump,
    patient,
    plant,
    restore,
    wide,
)
from tests.unit.operations.support import simulated


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("engine.operations.keeper_backup.live.BATCH_NODES", 100)


# --- one instant --------------------------------------------------------------------------------------------


def test_a_change_between_listing_and_reading_is_read_again(tmp_path):
    """1. all lists are read  2. others write, make and remove nodes  3. values are read: they do not fit."""

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        tasks = []

        def meddle(_):
            async def work():
                await keeper.multi([Create("/b/new", b"1"), Create("/b/new/er", b"2")])
                await keeper.remove("/a/log/log-0000000001")
                await keeper.set("/a!", b"other")

            tasks.append(asyncio.ensure_future(work()))

        facts = await dump(env, server, tmp_path / "b", progress=disturbance(Phase.LISTING, meddle, at=3))
        await asyncio.gather(*tasks)
        assert facts.is_of_one_instant and facts.rounds > 1
        result = await compared(env, server, tmp_path / "b")
        assert result.is_equal, result.differences

    simulated(main)


def test_what_never_rests_is_named_and_the_rest_is_of_one_instant(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        tasks = []

        def meddle(number):
            async def work():
                await keeper.set("/b", b"%d" % number)

            tasks.append(asyncio.ensure_future(work()))

        progress = disturbance(Phase.LISTING, meddle, times=1000)
        facts = await dump(env, server, tmp_path / "b", progress=progress)
        await asyncio.gather(*tasks)
        assert facts.changing == ("/b",) and not facts.is_of_one_instant
        result = await compared(env, server, tmp_path / "b")
        assert {difference.path for difference in result.differences} <= {"/b"}

    simulated(main)


def write(server, op):
    """At once, from nowhere."""
    server.tree.write(op, Caller(0, frozenset(), 0))


def test_a_new_session_at_a_follower_that_is_behind_does_not_read_the_past(tmp_path, monkeypatch):
    """1. /b is listed  2. /b changes, then /a/x  3. /a/x is listed and read  4. the session ends
    5. the next one is served what was before 2: the old /b fits its listing, and never stood beside the new
    /a/x."""
    monkeypatch.setattr("engine.operations.keeper_backup.live.BATCH_NODES", 1)

    async def main(env, server):
        keeper = await server.connect()
        for path in ("/a", "/a/x", "/b"):
            await keeper.create(path, b"old")
        first, behind = [await server.connect(client="backup") for _ in range(2)]
        sessions = [first, behind]

        async def open_session():
            return sessions.pop(0)

        def step_two(_):
            server.stale_reads(behind.session_id)
            write(server, SetData("/b", b"new"))
            write(server, SetData("/a/x", b"new"))

        listed = disturbance(Phase.LISTING, step_two, at=3)
        read = disturbance(Phase.READING, lambda _: server.expire_session(first.session_id), at=3)

        def progress(phase, done, total):
            listed(phase, done, total)
            read(phase, done, total)

        async with PatientKeeper(open_session, env) as source:
            await dump_tree(source, tmp_path / "b", source_name="test", env=env, progress=progress)
        assert not sessions
        result = await compared(env, server, tmp_path / "b")
        assert result.is_equal, result.differences

    simulated(main)


def test_what_stood_below_a_node_that_went_in_the_last_round_is_left_out_and_named(tmp_path, monkeypatch):
    """1. /p changes between its listing and its reading  2. all is listed again, and /p/c has not changed
    3. both are removed  4. /p is read for the last time."""
    monkeypatch.setattr("engine.operations.keeper_backup.live.BATCH_NODES", 1)

    async def main(env, server):
        keeper = await server.connect()
        await keeper.create("/p", b"1")
        await keeper.create("/p/c", b"1")

        def meddle(tick):
            if tick == 3:
                write(server, SetData("/p", b"2"))
            if tick == 6:
                write(server, Remove("/p/c"))
                write(server, Remove("/p"))

        progress = disturbance(Phase.LISTING, meddle, times=100)
        async with patient(env, server) as source:
            facts = await dump_tree(
                source, tmp_path / "b", source_name="test", env=env, progress=progress, rounds=1
            )
        assert facts.changing == ("/p", "/p/c")
        assert [record.path async for record in open_backup(tmp_path / "b").records()] == ["/"]

    simulated(main)


# --- interruptions ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


def killing(phase, at):
    def die(_):
        raise Killed

    return disturbance(phase, die, at=at)


def test_a_killed_dump_continues_where_it_was(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await wide(keeper)
        with pytest.raises(Killed):
            await dump(env, server, tmp_path / "b", progress=killing(Phase.READING, 2))
        assert not (tmp_path / "b").exists()
        with (tmp_path / "b.part").open("ab") as file:
            file.write(b"what a crash left of a chunk")
        await keeper.set("/w00001", b"changed while nobody read")
        await keeper.remove("/w00002")
        await keeper.create("/w00001/new")
        server.operations.clear()
        facts = await dump(env, server, tmp_path / "b")
        assert facts.is_of_one_instant
        assert server.operations["backup"]["get"] < 100  # 200 were in the file
        assert not list(tmp_path.glob("b.part*"))
        result = await compared(env, server, tmp_path / "b")
        assert result.is_equal, result.differences

    simulated(main)


def test_a_dump_survives_lost_sessions_and_lost_replies(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await wide(keeper)

        def hurt(number):
            for session_id in server.session_ids("backup"):
                if number % 2:
                    server.expire_session(session_id)
                else:
                    server.lose_next_reply(session_id, kind=RequestKind.GET)

        facts = await dump(env, server, tmp_path / "b", progress=disturbance(Phase.READING, hurt, times=2))
        assert facts.nodes == 251
        assert (await compared(env, server, tmp_path / "b")).is_equal

    simulated(main)


def test_keeper_down_for_long_ends_the_dump_and_keeps_the_file(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await wide(keeper)
        with pytest.raises(KeeperUnavailable, match=r"No session|did not answer"):
            await dump(
                env,
                server,
                tmp_path / "b",
                progress=disturbance(Phase.READING, lambda _: server.stop()),
                patience_s=30,
            )
        server.start()
        await dump(env, server, tmp_path / "b")
        assert (await compared(env, server, tmp_path / "b")).is_equal

    simulated(main)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "at"), [(Phase.CREATING, 1), (Phase.CREATING, 2), (Phase.RAISING, 1), (Phase.RAISING, 3)]
)
def test_a_killed_restore_continues_where_it_was(tmp_path, phase, at):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        await wide(keeper)
        await dump(env, server, tmp_path / "b")
        other = another(env)
        with pytest.raises(Killed):
            await restore(env, other, tmp_path / "b", root="/p/q", progress=killing(phase, at))
        assert (
            phase is Phase.RAISING or not (await compared(env, other, tmp_path / "b", root="/p/q")).is_equal
        )
        restored = await restore(env, other, tmp_path / "b", root="/p/q")
        assert restored.present >= 100
        result = await compared(env, other, tmp_path / "b", root="/p/q")
        assert result.is_equal, result.differences

    simulated(main)


@pytest.mark.parametrize("multis", [1, 4, 6, 8, 9])
def test_a_restore_killed_between_any_two_multis_continues(tmp_path, monkeypatch, multis):
    monkeypatch.setattr("engine.operations.keeper_backup.restore._MULTI_OPS", 10)

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper, 60)
        await dump(env, server, tmp_path / "b")
        other = another(env)
        execute = other._execute

        def killing(record, request):
            reply = execute(record, request)
            if other.operations.get("backup", {}).get("multi", 0) == multis and not first.done():
                first.cancel()
                other.break_connection(record.session.session_id)  # and with it what is on its way
            return reply

        other._execute = killing
        first = asyncio.ensure_future(restore(env, other, tmp_path / "b"))
        with pytest.raises(asyncio.CancelledError):
            await first
        other._execute = execute
        assert not (await compared(env, other, tmp_path / "b")).is_equal
        await restore(env, other, tmp_path / "b")
        result = await compared(env, other, tmp_path / "b")
        assert result.is_equal, result.differences

    simulated(main)


def test_a_restore_survives_lost_sessions_and_lost_replies(tmp_path):
    """Also where the server of the new connection lags: what was raised is not raised again."""

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        await wide(keeper)
        await dump(env, server, tmp_path / "b")
        other = another(env)
        hurt = []

        def progress(phase, _done, _total):
            for session_id in other.session_ids("backup"):
                hurt.append(phase)
                if len(hurt) % 3 == 0:
                    other.expire_session(session_id)
                else:
                    other.lose_next_reply_and_lag(session_id, kind=RequestKind.MULTI)

        await restore(env, other, tmp_path / "b", progress=progress)
        assert len(hurt) > 3
        result = await compared(env, other, tmp_path / "b")
        assert result.is_equal, result.differences

    simulated(main)


def test_patience_is_for_a_keeper_that_does_nothing(tmp_path, monkeypatch):
    """Raising a great counter takes long, and every few multis the connection breaks."""
    monkeypatch.setattr("engine.operations.keeper_backup.restore._MULTI_OPS", 10)

    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper, 60)
        await dump(env, server, tmp_path / "b")
        slow = type(server)(env.fork(), latency_s=(0.1, 0.1))
        began_s = env.monotonic_s()

        def hurt(_):
            for session_id in slow.session_ids("backup"):
                slow.lose_next_reply(session_id, kind=RequestKind.MULTI)

        progress = disturbance(Phase.RAISING, hurt, times=100)
        async with patient(env, slow, patience_s=1.0) as target:
            await restore_tree(open_backup(tmp_path / "b"), target, root="/", progress=progress)
        assert env.monotonic_s() - began_s > 3
        assert (await compared(env, slow, tmp_path / "b")).is_equal

    simulated(main)


def test_two_who_write_the_same_file_the_second_is_refused(tmp_path):
    async def main(env, server):
        async with patient(env, server) as source:

            async def one():
                return await dump_tree(source, tmp_path / "b", source_name="test", env=env)

            results = await asyncio.gather(one(), one(), return_exceptions=True)
            assert sorted(type(result).__name__ for result in results) == ["BackupFacts", "Busy"]

    simulated(main)
    assert Busy
