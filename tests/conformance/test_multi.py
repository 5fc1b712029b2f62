"""All or nothing."""

from __future__ import annotations

import pytest

from engine.errors import (
    BadVersion,
    KeeperAnswer,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
)
from engine.keeper import Check, Create, CreateMode, Remove, SetData, Stat
from engine.testing.seen import Seen


async def refused(keeper, ops) -> MultiFailed:
    with pytest.raises(MultiFailed) as caught:
        await keeper.multi(ops)
    return caught.value


async def test_each_operation_has_its_result(keeper):
    await keeper.create("/a")
    await keeper.create("/old")
    results = await keeper.multi(
        [
            Create("/a/n-", b"1", CreateMode.PERSISTENT_SEQUENTIAL),
            SetData("/a", b"2"),
            Remove("/old"),
            Check("/a", 1),
            Create("/e", mode=CreateMode.EPHEMERAL),
        ]
    )
    assert results[0] == "/a/n-0000000000"
    assert isinstance(results[1], Stat) and results[1].version == 1
    assert results[2:4] == [None, None]
    assert results[4] == "/e"
    assert (await keeper.exists("/e")).ephemeral_owner == keeper.session_id


async def test_one_transaction_id_for_all(keeper):
    results = await keeper.multi([Create("/a"), Create("/b"), SetData("/a", b"")])
    first, second = await keeper.exists_many(["/a", "/b"])
    assert first.czxid == second.czxid == first.mzxid == results[2].mzxid


async def test_a_refused_multi_changes_nothing(keeper):
    await keeper.create("/a", b"old")
    await keeper.create("/gone")
    before = await keeper.exists_many(["/", "/a"])
    await refused(
        keeper,
        [
            Create("/new"),
            SetData("/a", b"new"),
            Remove("/gone"),
            Create("/e", mode=CreateMode.EPHEMERAL),
            Check("/missing"),
        ],
    )
    assert await keeper.exists_many(["/new", "/e"]) == [None, None]
    assert await keeper.exists("/gone") is not None
    assert (await keeper.get("/a")).data == b"old"
    assert await keeper.exists_many(["/", "/a"]) == before


async def test_the_failing_operation_is_named_with_its_answer_and_its_path(keeper):
    failed = await refused(
        keeper, [Create("/a"), Create("/a/b"), Remove("/missing"), Create("/c"), Check("/a")]
    )
    assert failed.index == 2
    assert isinstance(failed.error, NoNode) and failed.path == failed.error.path == "/missing"
    assert failed.op_codes == (0, 0, -101, -2, -2)
    assert failed.keeper_code == -101
    assert str(failed) == "Transaction failed (No node): Op #2, path: /missing"


@pytest.mark.parametrize(
    ("op", "answer"),
    [
        (Create("/x/y"), NoNode),
        (Create("/full"), NodeExists),
        (Create("/e/child"), NoChildrenForEphemerals),
        (Remove("/missing"), NoNode),
        (Remove("/full", 5), BadVersion),
        (Remove("/full"), NotEmpty),
        (SetData("/missing", b""), NoNode),
        (SetData("/full", b"", 5), BadVersion),
        (Check("/missing"), NoNode),
        (Check("/full", 5), BadVersion),
    ],
    ids=lambda value: str(value) if not isinstance(value, type) else value.__name__,
)
async def test_every_answer_comes_through(keeper, op, answer):
    await keeper.multi([Create("/full"), Create("/full/child"), Create("/e", mode=CreateMode.EPHEMERAL)])
    failed = await refused(keeper, [Check("/full"), op])
    assert (failed.index, type(failed.error)) == (1, answer)
    assert failed.op_codes == (0, answer.keeper_code)


async def test_the_first_of_several_failing_operations_counts(keeper):
    failed = await refused(keeper, [Remove("/missing"), Create("/x/y")])
    assert (failed.index, failed.op_codes) == (0, (-101, -2))


async def test_later_operations_see_earlier_ones(keeper):
    results = await keeper.multi(
        [Create("/a"), Create("/a/b"), SetData("/a/b", b"1"), Check("/a/b", 1), Remove("/a/b"), Check("/a")]
    )
    assert results[:2] == ["/a", "/a/b"]
    assert (await keeper.children("/a")).names == ()


async def test_create_and_remove_asserts_that_a_node_is_missing(keeper):
    must_not_exist = [Create("/x"), Remove("/x")]
    await keeper.multi([*must_not_exist, Create("/y")])
    assert await keeper.exists("/x") is None
    await keeper.create("/x")
    failed = await refused(keeper, [*must_not_exist, Create("/z")])
    assert (failed.index, type(failed.error)) == (0, NodeExists)
    assert await keeper.exists("/z") is None


async def test_check_of_any_version_asserts_that_a_node_is_there(keeper):
    await keeper.create("/a")
    await keeper.set("/a", b"")
    assert await keeper.multi([Check("/a", -1), Check("/a", 1)]) == [None, None]


async def test_a_single_check_is_a_multi_of_one(keeper):
    assert await keeper.multi([Check("/")]) == [None]
    assert (await refused(keeper, [Check("/missing")])).index == 0


async def test_an_empty_multi_succeeds(keeper):
    assert await keeper.multi([]) == []


async def test_sequences_inside_a_multi_count_on(keeper):
    await keeper.create("/a")
    sequential = CreateMode.PERSISTENT_SEQUENTIAL
    assert await keeper.multi(
        [Create("/a/n-", mode=sequential), Create("/a/x"), Create("/a/n-", mode=sequential)]
    ) == [
        "/a/n-0000000000",
        "/a/x",
        "/a/n-0000000002",
    ]


async def test_a_refused_multi_gives_its_numbers_back(keeper):
    await keeper.create("/a")
    sequential = CreateMode.PERSISTENT_SEQUENTIAL
    await refused(keeper, [Create("/a/n-", mode=sequential), Check("/missing")])
    assert await keeper.create("/a/n-", mode=sequential) == "/a/n-0000000000"


async def test_more_than_a_hundred_operations(keeper):
    await keeper.create("/a")
    made = await keeper.multi([Create("/a/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL) for _ in range(250)])
    assert len(set(made)) == 250
    await keeper.multi([Remove(path) for path in made])
    stat = await keeper.exists("/a")
    assert (stat.num_children, stat.cversion) == (0, 500)


async def test_watches_fire_after_the_whole_multi(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await other.children("/a", watch=seen)
    await keeper.multi([Create("/a/b"), Create("/a/c")])
    await seen.wait()
    assert (await other.children("/a")).names == ("b", "c")
    assert len(seen.events) == 1


async def test_a_refused_multi_fires_no_watch(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await other.children("/a", watch=seen)
    await other.get("/a", watch=seen)
    await refused(keeper, [Create("/a/b"), SetData("/a", b"x"), Check("/missing")])
    await other.sync("/a")
    assert await other.exists("/a/b") is None
    assert seen.events == []


async def test_a_failed_multi_is_a_definite_answer(keeper):
    assert isinstance(await refused(keeper, [Check("/missing")]), KeeperAnswer)
