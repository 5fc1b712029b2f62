"""Parts without rows are dropped on every replica, and nothing that is needed goes with them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engine.keeper.base import Create, Op, OpResult, SetData
from engine.keeper.session import RequestKind
from engine.replication.commands.insert import InsertOptions
from engine.replication.commands.mutate import create_mutation, wait_for_mutation
from engine.replication.commands.waiting import Sync
from engine.replication.log_actions import DropRange
from engine.replication.quorum import LastQuorumParts
from engine.replication.replica.cleanup.empty import drop_empty_parts
from engine.replication.replica.switches import Activity
from engine.replication.settings import ReplicatedSettings
from tests.unit.replication.live_support import PATHS, Live, LiveReplica, P, run

BY_HAND = ReplicatedSettings(
    max_bytes_to_merge_at_max_space_in_pool=1, cleanup_delay_period=1e9, max_cleanup_delay_period=1e9
)


async def delete(replica: LiveReplica, where: str) -> None:
    number = await create_mutation(replica.ctx, f"DELETE WHERE {where}")
    await wait_for_mutation(replica.ctx, number, sync=Sync.ALL)


def test_a_part_that_a_mutation_has_emptied_goes_everywhere_with_the_ids_of_its_blocks() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2, BY_HAND)
        await one.insert(1, token="first")
        await one.insert(2, token="second")
        await delete(one, "k = 1")
        await live.quiet()
        assert await drop_empty_parts(two.ctx) == 1
        await live.quiet()
        for replica in (one, two):
            assert replica.parts() == replica.parts_in_keeper() == ["all_1_1_0_2"]
            assert replica.keys() == [2]
        assert await drop_empty_parts(one.ctx) == 0
        assert await two.insert(2, token="second") is None, "its part is there"
        with_quorum = InsertOptions(token="first", quorum=2, quorum_timeout_s=30)
        assert await two.insert(1, options=with_quorum) is not None, "nothing is left that it repeats"
        assert two.keys() == [1, 2]

    run(main)


def test_they_stay_where_the_setting_says_so() -> None:
    async def main(live: Live) -> None:
        (one,) = await live.cluster(1, ReplicatedSettings(remove_empty_parts=0))
        await one.insert(1)
        await delete(one, "k = 1")
        assert await drop_empty_parts(one.ctx) == 0 and one.parts() == ["all_0_0_0_1"]

    run(main)


@pytest.mark.parametrize("last", ["all_0_0_0", "all_0_0_0_1"])
def test_what_readers_of_quorum_inserts_look_for_stays(last: str) -> None:
    async def main(live: Live) -> None:
        (one,) = await live.cluster(1, BY_HAND)
        await one.insert(1, options=InsertOptions())
        await delete(one, "k = 1")
        await (await live.keeper()).multi(
            [SetData(PATHS.quorum_last_part, LastQuorumParts((P(last),)).to_bytes())]
        )
        assert await drop_empty_parts(one.ctx) == 0 and one.parts() == ["all_0_0_0_1"]

    run(main)


def test_what_another_replica_drops_at_the_same_moment_is_dropped_once() -> None:
    """1. A replica looks. 2. Another one drops the part. 3. The first assigns."""

    async def main(live: Live) -> None:
        one, two = await live.cluster(2, BY_HAND)
        await one.insert(1)
        await delete(one, "k = 1")
        await live.quiet()
        two.ctx.switches.stop(Activity.QUEUES)
        keeper = two.ctx.session()
        real = keeper.multi

        async def after_another(ops: Sequence[Op]) -> list[OpResult]:
            if any(isinstance(op, Create) and op.path == PATHS.log_prefix for op in ops):
                keeper.multi = real  # type: ignore[method-assign]
                assert await drop_empty_parts(one.ctx) == 1
            return await real(ops)

        keeper.multi = after_another  # type: ignore[method-assign]
        assert await drop_empty_parts(two.ctx) == 0
        two.ctx.switches.start(Activity.QUEUES)
        two.ctx.queue_changed.set()
        await live.quiet()
        assert one.parts() == two.parts() == []
        dropped = [entry for entry in live.log() if isinstance(entry.action, DropRange)]
        assert len(dropped) == 1

    run(main)


def test_a_lost_reply_drops_nothing_twice() -> None:
    async def main(live: Live) -> None:
        (one,) = await live.cluster(1, BY_HAND)
        await one.insert(1)
        await delete(one, "k = 1")
        live.server.lose_next_reply(one.ctx.session().session_id, kind=RequestKind.MULTI)
        assert await drop_empty_parts(one.ctx) == 1
        await live.quiet()
        assert one.parts() == [] and await drop_empty_parts(one.ctx) == 0

    run(main)


def test_cleanup_does_it_by_itself() -> None:
    async def main(live: Live) -> None:
        one, two = await live.cluster(2)
        await one.insert(1)
        await one.insert(2)
        await delete(one, "k = 1")
        while len(one.parts()) > 1 or len(two.parts()) > 1:
            await live.env.sleep(10)
        assert one.keys() == two.keys() == [2]

    run(main)
