"""Nodes, their bookkeeping, create modes, and the answers to what cannot be done."""

from __future__ import annotations

import pytest

from engine.errors import (
    BadArguments,
    BadVersion,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
)
from engine.keeper import Create, CreateMode, Remove
from engine.keeper.checks import MAX_REQUEST_BYTES

SEQUENTIAL = CreateMode.PERSISTENT_SEQUENTIAL
EPHEMERAL = CreateMode.EPHEMERAL


async def test_the_root_is_there_from_the_start(keeper):
    assert await keeper.exists("/") is not None
    assert (await keeper.children("/")).names == ()


async def test_create_returns_the_path_and_get_returns_the_value(keeper):
    assert await keeper.create("/a", b"value") == "/a"
    assert (await keeper.get("/a")).data == b"value"


async def test_a_value_may_be_empty(keeper):
    await keeper.create("/a")
    node = await keeper.get("/a")
    assert node.data == b"" and node.stat.data_length == 0


async def test_a_value_is_any_bytes(keeper):
    data = bytes(range(256)) * 4
    await keeper.create("/a", data)
    assert (await keeper.get("/a")).data == data


async def test_names_may_hold_any_letters(keeper):
    await keeper.create("/Größe %2F")
    await keeper.create("/Größe %2F/表")
    assert (await keeper.children("/Größe %2F")).names == ("表",)


async def test_a_new_node_has_a_fresh_stat(keeper):
    before = await keeper.exists("/")
    await keeper.create("/a", b"four")
    stat = await keeper.exists("/a")
    assert stat.czxid == stat.mzxid == stat.pzxid > before.pzxid
    assert stat.ctime_ms == stat.mtime_ms > 1_600_000_000_000
    assert (stat.version, stat.cversion, stat.aversion) == (0, 0, 0)
    assert (stat.ephemeral_owner, stat.data_length, stat.num_children) == (0, 4, 0)


async def test_creating_a_child_changes_the_parents_bookkeeping(keeper):
    await keeper.create("/a")
    before = await keeper.exists("/a")
    await keeper.create("/a/b")
    after, child = await keeper.exists("/a"), await keeper.exists("/a/b")
    assert (after.num_children, after.cversion) == (1, 1)
    assert after.pzxid == child.czxid
    assert (after.version, after.mzxid, after.mtime_ms) == (before.version, before.mzxid, before.mtime_ms)


async def test_removing_a_child_changes_the_parents_bookkeeping(keeper):
    await keeper.create("/a")
    await keeper.create("/a/b")
    before = await keeper.exists("/a")
    await keeper.remove("/a/b")
    after = await keeper.exists("/a")
    assert (after.num_children, after.cversion) == (0, 2)
    assert after.pzxid > before.pzxid


async def test_setting_a_child_leaves_the_parents_bookkeeping(keeper):
    await keeper.create("/a")
    await keeper.create("/a/b")
    before = await keeper.exists("/a")
    await keeper.set("/a/b", b"x")
    assert await keeper.exists("/a") == before


async def test_grandchildren_do_not_count(keeper):
    await keeper.create("/a")
    await keeper.create("/a/b")
    before = await keeper.exists("/a")
    await keeper.create("/a/b/c")
    assert await keeper.exists("/a") == before


async def test_set_raises_the_version_and_returns_the_new_stat(keeper):
    await keeper.create("/a", b"1")
    first = await keeper.exists("/a")
    stat = await keeper.set("/a", b"22")
    assert (stat.version, stat.data_length) == (1, 2)
    assert stat.mzxid > first.mzxid and stat.czxid == first.czxid and stat.pzxid == first.pzxid
    assert stat.mtime_ms >= first.mtime_ms and stat.ctime_ms == first.ctime_ms
    assert await keeper.exists("/a") == stat


async def test_a_node_made_again_starts_at_version_zero(keeper):
    await keeper.create("/a")
    await keeper.set("/a", b"x")
    await keeper.remove("/a")
    await keeper.create("/a")
    assert (await keeper.exists("/a")).version == 0


async def test_the_stats_of_a_parent_after_many_changes(keeper):
    """Twenty creations, twenty removals, a hundred sets."""
    await keeper.create("/a")
    for number in range(20):
        await keeper.create(f"/a/{number}")
    stat = await keeper.exists("/a")
    assert (stat.version, stat.cversion, stat.num_children) == (0, 20, 20)
    for number in range(20):
        await keeper.remove(f"/a/{number}")
    stat = await keeper.exists("/a")
    assert (stat.version, stat.cversion, stat.num_children) == (0, 40, 0)
    for _ in range(100):
        await keeper.set("/a", b"abc")
    stat = await keeper.exists("/a")
    assert (stat.version, stat.cversion, stat.aversion, stat.data_length) == (100, 40, 0, 3)


async def test_transaction_ids_rise_across_the_tree(keeper, other):
    zxids = []
    for number in range(10):
        path = f"/{number}"
        await (keeper if number % 2 else other).create(path)
        zxids.append((await other.exists(path)).czxid)
        zxids.append((await keeper.set(path, b"")).mzxid)
    assert zxids == sorted(set(zxids))


# --- create modes -----------------------------------------------------------------------------------------


async def test_a_sequence_counts_from_zero_with_ten_digits(keeper):
    await keeper.create("/a")
    made = [await keeper.create("/a/n-", mode=SEQUENTIAL) for _ in range(3)]
    assert made == ["/a/n-0000000000", "/a/n-0000000001", "/a/n-0000000002"]


async def test_a_plain_child_uses_up_a_number(keeper):
    await keeper.create("/a")
    assert await keeper.create("/a/a-", mode=SEQUENTIAL) == "/a/a-0000000000"
    await keeper.create("/a/b")
    assert await keeper.create("/a/a-", mode=SEQUENTIAL) == "/a/a-0000000002"


async def test_an_ephemeral_child_uses_up_a_number(keeper):
    await keeper.create("/a")
    await keeper.create("/a/b", mode=EPHEMERAL)
    assert await keeper.create("/a/a-", mode=SEQUENTIAL) == "/a/a-0000000001"


async def test_prefixes_share_the_counter_of_their_parent(keeper):
    await keeper.create("/a")
    await keeper.create("/a/x-", mode=SEQUENTIAL)
    assert await keeper.create("/a/y-", mode=SEQUENTIAL) == "/a/y-0000000001"


async def test_removals_do_not_rewind_the_counter(keeper):
    await keeper.create("/a")
    for _ in range(3):
        await keeper.remove(await keeper.create("/a/n-", mode=SEQUENTIAL))
    assert await keeper.create("/a/n-", mode=SEQUENTIAL) == "/a/n-0000000003"


async def test_a_parent_made_again_counts_from_zero(keeper):
    await keeper.create("/a")
    await keeper.remove(await keeper.create("/a/n-", mode=SEQUENTIAL))
    await keeper.remove("/a")
    await keeper.create("/a")
    assert await keeper.create("/a/n-", mode=SEQUENTIAL) == "/a/n-0000000000"


async def test_the_name_before_a_sequence_may_be_empty(keeper):
    await keeper.create("/a")
    assert await keeper.create("/a/", mode=SEQUENTIAL) == "/a/0000000000"


async def test_a_sequence_meets_a_name_that_somebody_chose(keeper):
    await keeper.create("/a")
    await keeper.create("/a/n0000000001")
    with pytest.raises(NodeExists):
        await keeper.create("/a/n", mode=SEQUENTIAL)
    with pytest.raises(NodeExists):  # a failure does not use up a number
        await keeper.create("/a/n", mode=SEQUENTIAL)
    await keeper.create("/a/other")
    assert await keeper.create("/a/n", mode=SEQUENTIAL) == "/a/n0000000002"


async def test_a_sequence_beside_the_plain_name(keeper):
    await keeper.create("/node")
    assert (await keeper.create("/node", mode=SEQUENTIAL)).startswith("/node0")


async def test_ten_rounds_of_sequential_and_plain_children(keeper):
    await keeper.create("/a")
    for number in range(10):
        await keeper.create(f"/a/a{number}-", mode=SEQUENTIAL)
        await keeper.create(f"/a/b{number}")
    expected = {f"a{n}-{2 * n:010d}" for n in range(10)} | {f"b{n}" for n in range(10)}
    assert set((await keeper.children("/a")).names) == expected


async def test_an_ephemeral_node_names_its_session(keeper):
    await keeper.create("/e", mode=EPHEMERAL)
    await keeper.create("/p")
    assert (await keeper.exists("/e")).ephemeral_owner == keeper.session_id
    assert (await keeper.exists("/p")).ephemeral_owner == 0


async def test_an_ephemeral_sequential_node_is_both(keeper):
    await keeper.create("/a")
    path = await keeper.create("/a/e-", mode=CreateMode.EPHEMERAL_SEQUENTIAL)
    assert path == "/a/e-0000000000"
    assert (await keeper.exists(path)).ephemeral_owner == keeper.session_id


# --- answers ----------------------------------------------------------------------------------------------


async def test_create_without_a_parent_is_no_node(keeper):
    with pytest.raises(NoNode) as caught:
        await keeper.create("/a/b")
    assert caught.value.path == "/a/b"


async def test_create_of_what_exists_is_node_exists(keeper):
    await keeper.create("/a", b"first")
    with pytest.raises(NodeExists) as caught:
        await keeper.create("/a", b"second")
    assert caught.value.path == "/a" and caught.value.code == 999
    assert (await keeper.get("/a")).data == b"first"


async def test_create_below_an_ephemeral_node_is_refused(keeper):
    await keeper.create("/e", mode=EPHEMERAL)
    with pytest.raises(NoChildrenForEphemerals):
        await keeper.create("/e/child")


@pytest.mark.parametrize("path", ["/a//b", "/a/../b", "/a/./b", "/a/", "/", "//"])
async def test_create_with_a_path_out_of_grammar_is_refused(keeper, path):
    await keeper.create("/a")
    with pytest.raises((BadArguments, NodeExists, NoNode)):
        await keeper.create(path)
    assert (await keeper.children("/a")).names == ()


@pytest.mark.parametrize("path", ["/a/", "/a/bell\a", "/a/null\0", "/a/private \ue000", "/a/.", "/a/.."])
async def test_create_with_a_bad_name_is_bad_arguments(keeper, path):
    await keeper.create("/a")
    with pytest.raises(BadArguments):
        await keeper.create(path)
    assert (await keeper.children("/a")).names == ()


async def test_a_path_that_is_not_absolute_is_refused_by_every_operation(keeper):
    """Otherwise it would leave the session's root."""
    for call in (keeper.create, keeper.get, keeper.exists, keeper.children, keeper.remove, keeper.sync):
        with pytest.raises(BadArguments):
            await call("a")
    with pytest.raises(BadArguments):
        await keeper.multi([Create("a")])


async def test_remove_of_a_missing_node_is_no_node(keeper):
    with pytest.raises(NoNode):
        await keeper.remove("/a")


async def test_the_root_of_the_tree_cannot_be_removed(backend):
    keeper = await backend.open_at_the_top()
    with pytest.raises(BadArguments):
        await keeper.remove("/")
    with pytest.raises(MultiFailed) as caught:
        await keeper.multi([Remove("/")])
    assert isinstance(caught.value.error, BadArguments)


async def test_remove_of_a_node_with_children_is_not_empty(keeper):
    await keeper.create("/a")
    await keeper.create("/a/b")
    with pytest.raises(NotEmpty):
        await keeper.remove("/a")
    assert await keeper.exists("/a") is not None


async def test_remove_with_another_version_is_bad_version(keeper):
    await keeper.create("/a")
    await keeper.set("/a", b"")
    with pytest.raises(BadVersion):
        await keeper.remove("/a", version=0)
    await keeper.remove("/a", version=1)
    assert await keeper.exists("/a") is None


async def test_remove_looks_at_the_version_before_the_children(keeper):
    await keeper.create("/a")
    await keeper.create("/a/b")
    with pytest.raises(BadVersion):
        await keeper.remove("/a", version=7)


async def test_set_of_a_missing_node_is_no_node(keeper):
    with pytest.raises(NoNode):
        await keeper.set("/a", b"")


async def test_set_with_another_version_is_bad_version(keeper):
    await keeper.create("/a", b"old")
    with pytest.raises(BadVersion):
        await keeper.set("/a", b"new", version=1)
    assert (await keeper.get("/a")).data == b"old"
    assert (await keeper.set("/a", b"new", version=0)).version == 1


async def test_reads_of_a_missing_node(keeper):
    assert await keeper.exists("/a") is None
    with pytest.raises(NoNode):
        await keeper.get("/a")
    with pytest.raises(NoNode):
        await keeper.children("/a")


async def test_children_are_names_sorted_with_the_stat_of_the_node(keeper):
    await keeper.create("/a")
    for name in ("c", "a", "b"):
        await keeper.create(f"/a/{name}")
    await keeper.create("/a/b/deep")
    children = await keeper.children("/a")
    assert children.names == ("a", "b", "c")
    assert children.stat == await keeper.exists("/a")


async def test_the_largest_request_is_accepted_and_a_larger_one_refused_at_once(keeper):
    overhead = 8 + 4 + len(b"/big") + 4 + 4 + (4 + 4 + len("world") + 4 + len("anyone")) + 4
    await keeper.create("/big")
    await keeper.remove("/big")
    room = MAX_REQUEST_BYTES - overhead - 200  # the path of the test's root is part of the request
    await keeper.create("/big", b"x" * room)
    assert (await keeper.exists("/big")).data_length == room
    with pytest.raises(BadArguments, match="longer than"):
        await keeper.set("/big", b"x" * MAX_REQUEST_BYTES)
    assert (await keeper.exists("/big")).version == 0


# --- reading many -----------------------------------------------------------------------------------------


async def test_get_many_answers_in_the_order_of_the_paths(keeper):
    for number in range(5):
        await keeper.create(f"/{number}", str(number).encode())
    nodes = await keeper.get_many(["/3", "/missing", "/0"])
    assert nodes[0].data == b"3" and nodes[2].data == b"0"
    assert isinstance(nodes[1], NoNode) and nodes[1].path == "/missing"


async def test_exists_many_answers_in_the_order_of_the_paths(keeper):
    await keeper.create("/a")
    assert await keeper.exists_many(["/missing", "/a"]) == [None, await keeper.exists("/a")]


async def test_children_many_answers_in_the_order_of_the_paths(keeper):
    await keeper.create("/a")
    await keeper.create("/a/b")
    below, missing = await keeper.children_many(["/a", "/missing"])
    assert below.names == ("b",)
    assert isinstance(missing, NoNode)


async def test_reading_no_paths_at_all(keeper):
    assert await keeper.get_many([]) == await keeper.exists_many([]) == await keeper.children_many([]) == []
