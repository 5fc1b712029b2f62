"""Backups of Keeper's tree on the memory Keeper: what a file holds is what the tree was, and a restored tree
is what the file holds, whatever happened on the way."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import Corrupt, Refused
from engine.keeper.base import Acl, Create, CreateMode
from engine.keeper.tree import digest_identity
from engine.operations.keeper_backup import (
    Aspect,
    Ephemerals,
    LiveTree,
    PatientKeeper,
    compare,
    copy_tree,
    dump_tree,
    open_backup,
)
from engine.operations.keeper_backup.record import order_of
from tests.unit.operations.keeper_backup_support import (
    SEQUENTIAL,
    another,
    compared,
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
