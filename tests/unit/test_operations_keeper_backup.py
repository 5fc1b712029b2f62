"""Backups of Keeper's tree on the memory Keeper: what a file holds is what the tree was, and a restored tree
is what the file holds, whatever happened on the way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Busy, Corrupt, KeeperUnavailable, Refused
from engine.keeper.base import Acl, Create, CreateMode, Remove, SetData
from engine.keeper.session import RequestKind
from engine.keeper.tree import Caller, digest_identity
from engine.operations.keeper_backup import (
    Aspect,
    Ephemerals,
    LiveTree,
    PatientKeeper,
    Phase,
    compare,
    copy_tree,
    dump_tree,
    open_backup,
    restore_tree,
)
from engine.operations.keeper_backup.record import order_of
from tests.unit.operations_support import simulated


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr("engine.operations.keeper_backup.live.BATCH_NODES", 100)


SEQUENTIAL = CreateMode.PERSISTENT_SEQUENTIAL


@asynccontextmanager
async def patient(env, server, *, patience_s=60.0, **how):
    async def open_session():
        return await server.connect(session_timeout_s=10, client="backup", **how)

    async with PatientKeeper(open_session, env, patience_s=patience_s) as source:
        yield source


async def dump(env, server, path, *, root="/", progress=None, **how):
    async with patient(env, server, **how) as source:
        more = {} if progress is None else {"progress": progress}
        return await dump_tree(source, path, root=root, source_name="test", env=env, **more)


async def restore(env, server, path, *, root="/", progress=None, identity=""):
    async with patient(env, server, identity=identity) as target:
        more = {} if progress is None else {"progress": progress}
        return await restore_tree(open_backup(path), target, root=root, identity=identity, **more)


async def compared(env, server, path, *, root="/", identity=""):
    async with patient(env, server, identity=identity) as target:
        return await compare(open_backup(path), LiveTree(target, root))


def another(env):
    from engine.keeper.memory import MemoryKeeperServer

    return MemoryKeeperServer(env.fork())


async def plant(keeper, count=30):
    """A tree with a bit of everything: used-up numbers, versions, bytes that are no text, empty values."""
    await keeper.create("/a", b"\xff\x00 no text")
    await keeper.create("/a/log", "é\n".encode())
    for _ in range(count):
        await keeper.create("/a/log/log-", b"entry", mode=SEQUENTIAL)
    for number in range(0, count, 2):
        await keeper.remove(f"/a/log/log-{number:010d}")
    for _ in range(5):
        await keeper.set("/a", b"\xff\x00 changed")
    await keeper.create("/a!", b"sorts between /a and /a/log as text")
    await keeper.create("/b", b"")


def test_a_restored_tree_is_equal_and_gives_the_next_number(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        facts = await dump(env, server, tmp_path / "b")
        assert facts.is_of_one_instant and facts.ephemeral == 0
        other = another(env)
        restored = await restore(env, other, tmp_path / "b")
        assert restored.created == facts.nodes - 1  # the root is always there
        result = await compared(env, other, tmp_path / "b")
        assert result.is_equal, result.differences
        there = await other.connect()
        assert (await there.get("/a")).stat.version == 5
        assert await there.create("/a/log/log-", mode=SEQUENTIAL) == "/a/log/log-0000000030"
        assert await keeper.create("/a/log/log-", mode=SEQUENTIAL) == "/a/log/log-0000000030"

    simulated(main)


names = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="/\x7f"), min_size=1, max_size=4
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["create", "sequential", "set", "remove"]),
        st.integers(0, 10**6),
        names.filter(lambda name: name not in (".", "..") and not any(0x7F <= ord(c) < 0xA0 for c in name)),
        st.binary(max_size=20),
    ),
    max_size=40,
)


@settings(max_examples=50, deadline=None)
@given(steps)
def test_any_tree_survives_the_round_trip(tmp_path_factory, history):
    path = tmp_path_factory.mktemp("trip") / "b"

    async def main(env, server):
        from engine.errors import KeeperAnswer

        keeper = await server.connect()
        paths = ["/"]
        for what, pick, name, data in history:
            at = paths[pick % len(paths)]
            try:
                match what:
                    case "create":
                        paths.append(await keeper.create(at.rstrip("/") + "/" + name, data))
                    case "sequential":
                        paths.append(await keeper.create(at.rstrip("/") + "/" + name, data, mode=SEQUENTIAL))
                    case "set":
                        await keeper.set(at, data)
                    case _ if at != "/":
                        await keeper.remove(at)
            except KeeperAnswer:
                pass
        await dump(env, server, path)
        await restore(env, server, path, root="/elsewhere/deep")
        result = await compared(env, server, path, root="/elsewhere/deep")
        assert result.is_equal, result.differences

    simulated(main)


def test_the_order_is_that_of_a_walk():
    paths = ["/", "/a", "/a/b", "/a/b/c", "/a/c", "/a!", "/a-b", "/b"]
    assert sorted(set(paths), key=order_of) == paths


def test_ephemeral_nodes_are_counted_and_not_restored(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await keeper.create("/replicas")
        await keeper.create("/replicas/is_active", b"me", mode=CreateMode.EPHEMERAL)
        facts = await dump(env, server, tmp_path / "b")
        assert facts.ephemeral == 1
        other = another(env)
        restored = await restore(env, other, tmp_path / "b")
        assert restored.left_out == 1
        there = await other.connect()
        assert await there.exists("/replicas/is_active") is None
        result = await compared(env, other, tmp_path / "b")
        assert result.is_equal and result.ephemeral == 1
        async with patient(env, other) as target:
            strict = await compare(
                open_backup(tmp_path / "b"), LiveTree(target, "/"), ephemerals=Ephemerals.COMPARED
            )
        assert [(d.path, d.aspect) for d in strict.differences] == [("/replicas/is_active", Aspect.MISSING)]
        # The number that the ephemeral node used is not given again.
        assert await there.create("/replicas/n", mode=SEQUENTIAL) == "/replicas/n0000000001"

    simulated(main)


# --- one instant --------------------------------------------------------------------------------------------


def disturbance(phase, do, *, at=1, times=1):
    """Calls `do` when the phase reports for the `at`-th time, and `times` - 1 times more."""
    seen = []

    def progress(now, _done, _total):
        if now is phase:
            seen.append(now)
            if at <= len(seen) < at + times:
                do(len(seen))

    return progress


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


async def wide(keeper, count=250):
    await keeper.multi([Create(f"/w{number:05d}", b"v") for number in range(count)])


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
                    other.lose_next_reply(session_id, kind=RequestKind.MULTI)

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


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (Create("/b", b"another value"), r"/b \(value\)"),
        (Create("/foreign"), r"/foreign \(extra\)"),
        (Create("/b", b"", CreateMode.EPHEMERAL), r"/b \(extra\)|/b"),
    ],
)
def test_a_target_with_something_else_is_refused_and_left_alone(tmp_path, make, named):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        await dump(env, server, tmp_path / "b")
        other = another(env)
        there = await other.connect()
        await there.create(make.path, make.data, mode=make.mode)
        before = other.tree.zxid
        if make.mode is CreateMode.PERSISTENT:
            with pytest.raises(Refused, match=named):
                await restore(env, other, tmp_path / "b")
            assert set(other.tree.nodes) == {"/", make.path}
            assert other.tree.zxid - before <= 4  # sessions came and went

    simulated(main)


def test_a_backup_is_never_overwritten_and_other_peoples_parts_are_not_continued(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await wide(keeper)
        await dump(env, server, tmp_path / "b")
        with pytest.raises(Refused, match="there already"):
            await dump(env, server, tmp_path / "b")
        with pytest.raises(Refused, match="no node /nowhere"):
            await dump(env, server, tmp_path / "c", root="/nowhere")
        with pytest.raises(Refused, match=r"its root is '/nowhere'"):
            await dump(env, server, tmp_path / "c")

    simulated(main)


def test_damage_anywhere_is_found_and_its_place_is_named(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper, 4)
        await dump(env, server, tmp_path / "b")

    simulated(main)
    good = (tmp_path / "b").read_bytes()
    bad = tmp_path / "bad"
    for at in range(len(good)):
        bad.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
        with pytest.raises(Corrupt, match=r"at byte \d+|no head"):
            open_backup(bad)
    for length in range(1, len(good), 7):
        bad.write_bytes(good[:length])
        with pytest.raises(Corrupt, match=r"ends within|no trailer"):
            open_backup(bad)
    bad.write_bytes(good + good)
    with pytest.raises(Corrupt):
        open_backup(bad)


# --- ACLs ---------------------------------------------------------------------------------------------------


def test_acls_are_kept_also_those_that_shut_the_restorer_out(tmp_path):
    async def main(env, server):
        owner = await server.connect(identity="ada:secret")
        await owner.create("/own", b"1")
        closed = Acl(31, *digest_identity(b"bob:x"))
        await owner.create(
            "/shared", b"2", acl=[Acl(31, *digest_identity(b"ada:secret")), Acl(1, "world", "anyone")]
        )
        await owner.create("/shared/below", b"3", acl=[Acl(31, "world", "anyone")])
        await owner.create("/read", b"4", acl=[Acl(1, "world", "anyone"), closed])
        for _ in range(3):
            await owner.create("/shared/n-", mode=SEQUENTIAL)
        path = tmp_path / "b"
        with pytest.raises(Refused, match="does not know the ACLs of 1 nodes"):
            # ada may read /read but is not shown bob's digest.
            await dump(env, server, path, identity="ada:secret")
            await restore(env, another(env), path, identity="ada:secret")
        both = await server.connect(identity="ada:secret")
        await both.add_auth("digest", b"bob:x")
        path = tmp_path / "c"

        async def open_session():
            session = await server.connect(client="backup", identity="ada:secret")
            await session.add_auth("digest", b"bob:x")
            return session

        async with PatientKeeper(open_session, env) as source:
            facts = await dump_tree(source, path, source_name="test", env=env)
        assert not facts.hidden_acls and not facts.unreadable
        for identity in ("ada:secret", ""):
            other = another(env)
            restored = await restore(env, other, path, identity=identity)
            assert restored.acls_set >= 1
            assert await restore(env, other, path, identity=identity)  # again: nothing to do, nothing refused

            async def open_other(other=other):
                session = await other.connect(client="backup", identity="ada:secret")
                await session.add_auth("digest", b"bob:x")
                return session

            async with PatientKeeper(open_other, env) as target:
                result = await compare(open_backup(path), LiveTree(target, "/"))
            assert result.is_equal, result.differences

    simulated(main)


def test_a_node_that_may_not_be_read_is_named(tmp_path):
    async def main(env, server):
        owner = await server.connect(identity="ada:secret")
        await owner.create("/own", b"1")
        await owner.create("/own/below", b"1")
        facts = await dump(env, server, tmp_path / "b")
        assert facts.unreadable == 1
        restored = await restore(env, another(env), tmp_path / "b")
        assert restored.unreadable == ("/own",)

    simulated(main)


# --- comparing and copying ----------------------------------------------------------------------------------


def test_every_kind_of_difference_is_told(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        await keeper.create("/left")
        other = another(env)
        await dump(env, server, tmp_path / "b")
        await restore(env, other, tmp_path / "b")
        there = await other.connect()
        await there.remove("/left")
        await there.create("/right")
        await there.set("/a!", b"changed")
        await there.create("/b/x")
        await there.remove("/b/x")
        await there.set_acl("/a/log", [Acl(1, "world", "anyone")])
        async with patient(env, server) as left, patient(env, other) as right:
            result = await compare(LiveTree(left, "/"), LiveTree(right, "/"))
        found = {(difference.path, difference.aspect) for difference in result.differences}
        assert found == {
            ("/", Aspect.COUNTER_AHEAD),
            ("/a!", Aspect.VALUE),
            ("/a!", Aspect.VERSION),
            ("/a/log", Aspect.ACL),
            ("/b", Aspect.COUNTER_AHEAD),
            ("/left", Aspect.MISSING),
            ("/right", Aspect.EXTRA),
        }
        async with patient(env, server) as left, patient(env, other) as right:
            back = await compare(LiveTree(right, "/"), LiveTree(left, "/"))
        assert ("/b", Aspect.COUNTER_BEHIND) in {(d.path, d.aspect) for d in back.differences}

    simulated(main)


def test_a_copy_leaves_ephemeral_nodes_out_and_is_proven_equal(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        await plant(keeper)
        await keeper.create("/a/alive", mode=CreateMode.EPHEMERAL)
        other = another(env)
        async with patient(env, server) as source, patient(env, other) as target:
            copied = await copy_tree(
                source,
                target,
                tmp_path / "way",
                root="/a",
                target_root="/copy/of/a",
                source_name="test",
                env=env,
            )
        assert copied.comparison.is_equal and copied.facts.ephemeral == copied.restored.left_out == 1
        there = await other.connect()
        assert (await there.get("/copy/of/a")).data == b"\xff\x00 changed"
        assert await there.exists("/copy/of/a/alive") is None

    simulated(main)


def test_values_of_the_greatest_size_pass(tmp_path):
    async def main(env, server):
        keeper = await server.connect()
        big = bytes(range(256)) * 4000
        for number in range(5):
            await keeper.create(f"/big{number}", big)
        await keeper.set("/big0", big)
        await dump(env, server, tmp_path / "b")
        other = another(env)
        await restore(env, other, tmp_path / "b")
        assert (await compared(env, other, tmp_path / "b")).is_equal

    simulated(main)
