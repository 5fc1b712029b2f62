"""`/replicas_status`: which delays take a node out of its load balancer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine.node.replicated.replicas_status import replicas_status
from engine.replication.replica.switches import Activity
from tests.unit.replication.support import Bench, Replica, simulated


async def _status(replica: Replica) -> str:
    tables: Any = SimpleNamespace(all=lambda: [SimpleNamespace(ctx=replica.ctx)])
    return await replicas_status(tables)


@simulated
async def test_by_default_a_replica_is_closed_that_is_300_s_behind_the_best_active_one(bench: Bench) -> None:
    one, two, three = await bench.cluster(3)
    for replica in (two, three):
        replica.ctx.switches.stop(Activity.QUEUES)
    await one.insert(1)
    await bench.env.sleep(290)
    assert [await _status(each) for each in (one, two, three)] == ["", "", ""]
    await bench.env.sleep(15)
    assert await _status(one) == ""
    for replica in (two, three):
        line = await _status(replica)
        assert line.startswith("d.t:\tAbsolute delay: 30") and "Relative delay: 30" in line
    await one.stop()
    assert await _status(two) == "", "nobody who is active is any better"


@simulated
async def test_an_absolute_delay_closes_only_where_a_limit_is_set(bench: Bench) -> None:
    (one,) = await bench.cluster(1)
    two = await bench.start(
        "r2", settings={"min_absolute_delay_to_close": 60, "min_relative_delay_to_close": 0}
    )
    two.ctx.switches.stop(Activity.QUEUES)
    await one.insert(1)
    await bench.env.sleep(55)
    assert await _status(two) == ""
    await bench.env.sleep(600)
    assert (await _status(two)).startswith("d.t:\tAbsolute delay: 65")
