"""Commands without an answer, when nobody can tell any more, or wait any longer, what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine.errors import UnknownOutcome
from engine.replication.commands import partitions, uninterrupted
from engine.replication.commands.partitions import RangeFate, Sync
from engine.replication.log_actions import AttachPart, DropRange
from engine.replication.replica.cleanup.log import clean_log
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.live_support import OTHER, PATHS, Live, LiveReplica, check_equal, run, staged
from tests.unit.replication.partitions_support import lose_message_to_log

SHORT_LOG = ReplicatedSettings(
    max_bytes_to_merge_at_max_space_in_pool=1,
    min_replicated_logs_to_keep=1,
    max_replicated_logs_to_keep=3,
    cleanup_delay_period=10**6,
)


async def begin_and_cut_off(
    live: Live, replica: LiveReplica, command: Awaitable[Any], kind: type
) -> asyncio.Future[Any]:
    """The command under way, whose entry of this kind is in the log, on a node that is cut off from Keeper
    before it is told."""
    before = len(live.actions(kind))
    lose_message_to_log(live, replica, "reply")
    statement = asyncio.ensure_future(command)
    while len(live.actions(kind)) == before:
        await asyncio.sleep(0)
    live.server.partition(replica.name)
    return statement


async def attach(replica: LiveReplica) -> None:
    await partitions.attach_partition(replica.ctx, "all", sync=Sync.NONE)


async def drop(replica: LiveReplica) -> None:
    await partitions.drop_partition(replica.ctx, "all", sync=Sync.NONE)


@pytest.mark.parametrize(
    ("command", "kind", "left"),
    [pytest.param(attach, AttachPart, [1], id="attach"), pytest.param(drop, DropRange, [], id="drop")],
)
def test_a_command_whose_entry_has_left_the_log_is_not_carried_out_again(
    command: Callable[[LiveReplica], Awaitable[None]], kind: type, left: list[int]
) -> None:
    async def main(live: Live) -> None:
        first, second = await live.cluster(2, SHORT_LOG)
        await first.insert(1)
        if kind is AttachPart:
            await partitions.drop_partition(first.ctx, "all", fate=RangeFate.DETACH, sync=Sync.ALL)
        await live.quiet()
        # 1. The transaction is executed, and the first replica is cut off before it is told.
        statement = await begin_and_cut_off(live, first, command(first), kind)
        # 2. Others go on without it, until it is lost and the log begins behind its entry.
        while live.has(first.ctx.me.is_active):
            await live.env.sleep(1)
        for value in range(10, 20):
            await second.insert(value)
        await live.quiet(second)
        await clean_log(second.ctx)
        assert live.data(first.ctx.me.is_lost) == b"1"
        assert live.actions(kind) == []
        # 3. It comes back and looks for its entry.
        live.server.heal(first.name)
        with pytest.raises(UnknownOutcome, match="does not go back far enough"):
            await statement
        assert await first.table.wait_until_active(timeout_s=60)
        await live.quiet()
        check_equal(first, second)
        assert sorted(second.keys()) == [*left, *range(10, 20)]
        assert (
            "all_0_0_0" not in first.disk.detached
        )  # it was attached, and is not there to be attached again

    run(main)


def end_table(*replicas: LiveReplica) -> None:
    for replica in replicas:
        replica.ctx.ending.set()


def cancel_all(*_replicas: LiveReplica) -> None:
    """As the end of the event loop does it."""
    for task in uninterrupted._running:
        task.cancel()


@pytest.mark.parametrize("end", [end_table, cancel_all])
def test_a_node_that_stops_while_a_move_is_unanswered_keeps_the_rows_for_its_next_start(
    end: Callable[..., None],
) -> None:
    """The parts that were moved are dropped from the other table: there are no others than the copies."""

    async def main(live: Live) -> None:
        source, destination = [await live.replica(paths=paths) for paths in (PATHS, OTHER)]
        for value in (1, 2):
            await source.insert(value)
        await live.quiet()
        move = partitions.move_partition(source.ctx, "all", destination.ctx, sync=Sync.NONE)
        statement = await begin_and_cut_off(live, source, move, DropRange)
        await live.env.sleep(0.5)  # it looks for its entry, and Keeper is not there
        end(source, destination)
        with pytest.raises((UnknownOutcome, asyncio.CancelledError)):
            await statement
        live.server.heal(source.name)
        await live.crash(source.name)
        await live.quiet()
        assert (source.keys(), destination.keys()) == ([], [1, 2])
        assert not staged(source, destination)

    run(main)


def test_a_node_that_stops_while_an_attach_is_unanswered_has_attached_it_at_its_next_start() -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1)
        await replica.insert(1)
        await partitions.drop_partition(replica.ctx, "all", fate=RangeFate.DETACH)
        statement = await begin_and_cut_off(live, replica, attach(replica), AttachPart)
        await live.env.sleep(0.5)
        end_table(replica)
        with pytest.raises(UnknownOutcome):
            await statement
        assert staged(replica) == ["all_2_2_0"]
        live.server.heal(replica.name)
        await live.crash(replica.name)
        assert (replica.parts(), replica.keys(), replica.disk.detached) == (["all_2_2_0"], [1], {})

    run(main)
