"""Sequence numbers in etcd while others take them, too: a write is prepared for several numbers at once."""

from __future__ import annotations

import asyncio

import pytest

from engine.env import SystemEnv
from engine.errors import MultiFailed, NodeExists, NoNode
from engine.keeper import Create, CreateMode, Remove, SetData, etcd
from engine.keeper.etcd import turns
from engine.keeper.etcd.embedded import EmbeddedEtcd

pytestmark = pytest.mark.slow
SEQUENTIAL, EPHEMERAL = CreateMode.PERSISTENT_SEQUENTIAL, CreateMode.EPHEMERAL_SEQUENTIAL


@pytest.fixture
async def keeper(etcd_backend):
    return await etcd_backend.open()


@pytest.fixture
async def other(etcd_backend):
    return await etcd_backend.open()


@pytest.fixture
def crowded(monkeypatch):
    """Every session expects this many others, and as many of its writes as were prepared in turn are kept."""
    prepared = []
    real = turns.in_turn

    def in_turn(*arguments):
        made = real(*arguments)
        prepared.append(made)
        return made

    monkeypatch.setattr("engine.keeper.etcd.store.in_turn", in_turn)
    monkeypatch.setattr(turns.Crowd, "expected", lambda self, *, is_sure: range(0 if is_sure else 2, 8))
    return prepared


@pytest.mark.parametrize("others", range(12))
async def test_a_number_is_the_next_one_however_many_others_came_first(keeper, other, crowded, others):
    """1 a session knows the parent, 2 others create children, fewer than expected, as many, or more, 3 it
    takes a number: it is that of the count that there is by then, all else is as if nobody had come."""
    await keeper.create("/p")
    await keeper.create("/p/a-", mode=SEQUENTIAL)
    for number in range(others):
        if number % 2:
            await other.create(f"/p/{number}")
        else:
            await other.create("/p/o-", mode=SEQUENTIAL)
    made = await keeper.create("/p/b-", b"x", mode=EPHEMERAL)
    assert crowded[-1] is not None
    assert made == f"/p/b-{others + 1:010}"
    node, parent = await keeper.get(made), await other.exists("/p")
    assert node.data == b"x" and node.stat.ephemeral_owner == keeper.session_id
    assert parent.num_children == parent.cversion == others + 2
    assert parent.pzxid == node.stat.czxid == node.stat.mzxid == node.stat.pzxid
    assert await other.create("/p/c-", mode=SEQUENTIAL) == f"/p/c-{others + 2:010}"
    await keeper.remove(made)
    assert (await other.exists("/p")).cversion == others + 4


@pytest.mark.parametrize("others", [0, 3, 9])
async def test_a_multi_takes_its_numbers_in_one_instant(keeper, other, crowded, others):
    await keeper.create("/p")
    await keeper.create("/q", b"0")
    await keeper.create("/p/a-", mode=SEQUENTIAL)
    for _ in range(others):
        await other.create("/p/o-", mode=SEQUENTIAL)
    made = await keeper.multi(
        [Create("/p/b-", b"1", SEQUENTIAL), SetData("/q", b"1"), Create("/p/b-", b"2", SEQUENTIAL)]
    )
    assert crowded[-1] is not None
    assert (made[0], made[2]) == (f"/p/b-{others + 1:010}", f"/p/b-{others + 2:010}")
    assert made[1] == (await other.get("/q")).stat and made[1].version == 1
    assert (await other.get(made[2])).data == b"2"
    assert (await other.exists("/p")).cversion == others + 3


@pytest.mark.parametrize("others", [0, 2, 5])
async def test_a_name_that_somebody_took_by_hand_is_refused_and_costs_no_number(
    keeper, other, crowded, others
):
    await keeper.create("/p")
    await keeper.create("/p/a-", mode=SEQUENTIAL)
    await other.create(f"/p/b-{others + 2:010}")
    for _ in range(others):
        await other.create("/p/o-", mode=SEQUENTIAL)
    with pytest.raises(NodeExists):
        await keeper.create("/p/b-", mode=SEQUENTIAL)
    with pytest.raises(MultiFailed) as caught:
        await keeper.multi([Create("/q"), Create("/p/b-", mode=SEQUENTIAL)])
    assert caught.value.index == 1 and isinstance(caught.value.error, NodeExists)
    assert await other.exists("/q") is None
    assert await keeper.create("/p/c-", mode=SEQUENTIAL) == f"/p/c-{others + 2:010}"


async def test_a_parent_that_was_made_anew_counts_from_the_start_and_one_that_is_gone_is_missed(
    keeper, other, crowded
):
    await keeper.create("/p")
    for _ in range(3):
        await keeper.create("/p/a-", mode=SEQUENTIAL)
    doomed = [Remove(f"/p/a-{number:010}") for number in range(3)]
    await other.multi([*doomed, Remove("/p"), Create("/p"), *(Create(f"/p/{n}") for n in range(3))])
    await other.create("/p/4")
    assert await keeper.create("/p/b-", mode=SEQUENTIAL) == "/p/b-0000000004"
    children = [Remove(f"/p/{name}") for name in (await other.children("/p")).names]
    await other.multi([*children, Remove("/p")])
    with pytest.raises(NoNode):
        await keeper.create("/p/b-", mode=SEQUENTIAL)


async def test_writers_below_one_parent_take_every_number_once(etcd_server: EmbeddedEtcd) -> None:
    """Each writer's numbers grow, and none is left out: also of multis, which take two at a time."""
    sessions = [await etcd.connect(etcd_server.config, SystemEnv()) for _ in range(6)]
    root = await sessions[0].create(f"/turns-{sessions[0].session_id:x}")

    async def write(keeper):
        made = []
        for number in range(20):
            if number % 4 == 3:
                made += await keeper.multi([Create(f"{root}/m-", mode=SEQUENTIAL)] * 2)
            else:
                made.append(await keeper.create(f"{root}/n-", mode=SEQUENTIAL))
        return [int(path[-10:]) for path in made]

    numbers = await asyncio.gather(*map(write, sessions))
    assert all(each == sorted(each) for each in numbers)
    assert sorted(number for each in numbers for number in each) == list(range(6 * 25))
    stat = await sessions[0].exists(root)
    assert stat.num_children == stat.cversion == 6 * 25
    for keeper in sessions:
        await keeper.close()


async def test_what_is_too_large_for_several_numbers_is_prepared_for_one(keeper, other, crowded):
    await keeper.create("/p")
    await keeper.create("/p/a-", mode=SEQUENTIAL)
    await other.create("/p/o-", mode=SEQUENTIAL)
    assert await keeper.create("/p/b-", b"x" * 200_000, mode=SEQUENTIAL) == "/p/b-0000000002"
    assert crowded[-1] is None
    many = [Create("/p/c-", mode=SEQUENTIAL), *(Create(f"/n{number}") for number in range(60))]
    assert (await keeper.multi(many))[0] == "/p/c-0000000003"
    assert crowded[-1] is None
