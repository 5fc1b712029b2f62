"""Checks of versions inside transactions, each with the race that it is there for.

Between what a command has read and its transaction something else is let in, by hand: `between`. At the end
each check is left out, and the race has to be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from engine.errors import Code, SqlError
from engine.keeper.base import Create, Keeper, Op, OpResult
from engine.replication.commands import drop_range, mutate
from engine.replication.commands.insert import Inserter, InsertOptions
from engine.replication.commands.mutate import create_mutation, wait_for_mutation
from engine.replication.commands.partitions import Sync, drop_partition
from engine.replication.log_actions import DropRange
from engine.replication.replica.context import ReplicaContext
from engine.replication.replica.quorum import Alive
from tests.unit.replication import replica_bench as replica_bench
from tests.unit.replication.live_support import PATHS, Live, check_equal, run


def between(ctx: ReplicaContext, made: str, first: Callable[[Keeper], Awaitable[object]]) -> list[int]:
    """Have `first` run before the replica's next transaction that creates a node of the prefix `made`.
    Returns a list that gets an item for each such transaction."""
    keeper = ctx.session()
    real = keeper.multi
    sent: list[int] = []

    async def multi(ops: Sequence[Op]) -> list[OpResult]:
        if any(isinstance(op, Create) and op.path == made for op in ops):
            sent.append(len(sent))
            if len(sent) == 1:
                await first(keeper)
        return await real(ops)

    keeper.multi = multi  # type: ignore[method-assign]
    return sent


def test_a_mutation_that_took_its_numbers_first_and_comes_second_is_applied_to_all_parts() -> None:
    """1. The first mutation takes block number 1. 2. The second takes 2, is created and applied: the part has
    version 2. 3. The first is created. With its number it would be passed over on that part."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()

        async def second(_: Keeper) -> None:
            await create_mutation(two.ctx, "UPDATE v = v + 10 WHERE 1")
            async with asyncio.timeout(600):
                while not one.rows() == two.rows() == [(1, 10)]:
                    await live.env.sleep(0.5)

        sent = between(one.ctx, PATHS.mutation_prefix, second)
        first = await create_mutation(one.ctx, "UPDATE v = v + 100 WHERE 1")
        await wait_for_mutation(one.ctx, first, sync=Sync.ALL)
        assert len(sent) == 2
        assert one.rows() == two.rows() == [(1, 110)]
        assert not live.locks()

    run(main)


def test_a_partition_is_dropped_as_it_is_after_a_command_on_partitions_that_came_between() -> None:
    """A server that takes no number away from others has replaced rows of the partition between the number of
    a DROP and its transaction: they are in the partition when the DROP is carried out, and go with it."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await live.quiet()

        async def other(keeper: Keeper) -> None:
            await two.insert(2)
            await keeper.set(PATHS.alter_partition_version, b"")

        sent = between(one.ctx, PATHS.log_prefix, other)
        await drop_partition(one.ctx, "all", sync=Sync.ALL)
        assert len(sent) == 2
        assert live.actions(DropRange) == ["drop\nall_0_2_999999999_999999999"]
        await live.quiet()
        check_equal(one, two)
        assert one.keys() == []
        assert not live.locks()

    run(main)


@pytest.mark.parametrize("left", ["is_active", "host"])
def test_a_quorum_is_counted_anew_where_the_replica_was_activated_since(left: str) -> None:
    """1. The insert counts its peers. 2. The replica's term ends, and perhaps another begins; meanwhile the
    peers went away. 3. Its transaction would make a quorum that nobody reaches."""

    async def main(bench: replica_bench.Bench) -> None:
        one, two = await bench.replica("r1"), await bench.replica("r2")

        async def end(keeper: Keeper) -> None:
            await keeper.remove(two.ctx.me.is_active)
            if left == "host":  # activated anew: `is_active` is a new node, of the version of the old one
                await keeper.set(one.ctx.me.host, one.ctx.host.to_bytes())
            else:
                await keeper.remove(one.ctx.me.is_active)

        sent = between(one.ctx, PATHS.log_prefix, end)
        options = InsertOptions(quorum=2, quorum_timeout_s=30, max_retries=2)
        with pytest.raises(SqlError) as refused:
            await Inserter(one.ctx).commit([await one.write(1)], options)
        wanted = Code.TOO_FEW_LIVE_REPLICAS if left == "host" else Code.READONLY
        assert refused.value.code == wanted
        assert len(sent) == 1
        assert bench.log() == [] and one.values() == []
        assert bench.children(PATHS.quorum_parallel) == [] and not bench.locks()

    replica_bench.run(main)


# -- what must not be simplified away ------------------------------------------------------------------------


async def _any_version(*_: object) -> int:
    return -1


def _only(number: int) -> Callable[[Alive, ReplicaContext], Sequence[Op]]:
    checks = Alive.checks
    return lambda alive, ctx: [checks(alive, ctx)[number]]


BUGS: dict[str, tuple[object, str, object, Callable[[], None]]] = {
    "mutations": (
        mutate, "mutations_version", _any_version,
        test_a_mutation_that_took_its_numbers_first_and_comes_second_is_applied_to_all_parts,
    ),
    "alter_partition_version": (
        drop_range, "alter_partition_version", _any_version,
        test_a_partition_is_dropped_as_it_is_after_a_command_on_partitions_that_came_between,
    ),
    "is_active": (
        Alive, "checks", _only(1),
        lambda: test_a_quorum_is_counted_anew_where_the_replica_was_activated_since("is_active"),
    ),
    "host": (
        Alive, "checks", _only(0),
        lambda: test_a_quorum_is_counted_anew_where_the_replica_was_activated_since("host"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("left_out", sorted(BUGS))
def test_without_its_check_the_race_is_lost(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, bug, race = BUGS[left_out]
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        race()
