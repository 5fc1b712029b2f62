"""DETACH of a Distributed table whose rows cannot be sent: `flush_on_detach` says whether they may wait."""

from __future__ import annotations

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.distributed.delivery import AllReplicasFailed
from engine.errors import Code
from tests.unit.distributed.test_select_remembered import World, world
from tests.unit.distributed.test_select_shapes import bench

__all__ = ["bench", "world"]


def pending(world: World) -> int:
    directories = world.bench.pool.path.parent.rglob("shard1_replica1")
    return sum(1 for directory in directories for _ in directory.glob("*.bin"))


@pytest.mark.slow
@pytest.mark.parametrize("flush_on_detach", ["", "SETTINGS flush_on_detach = 0"])
def test_detach_sends_first_unless_the_table_says_otherwise(world: World, flush_on_detach: str) -> None:
    nobody = Replica("node.invalid", 9000, default_database="s1")
    world.topology = Topology({"c": Cluster("c", (Shard(1, (nobody,)),))})
    world.ask(f"CREATE TABLE late (id UInt64) ENGINE = Distributed(c, '', late, id) {flush_on_detach}")
    world.ask("SYSTEM STOP DISTRIBUTED SENDS late")
    before = pending(world)
    world.ask("INSERT INTO late VALUES (1), (2)", settings={"prefer_localhost_replica": "0"})
    assert pending(world) == before + 1
    if flush_on_detach:
        world.ask("DETACH TABLE late")
        world.ask("ATTACH TABLE late")
    else:
        with pytest.raises(AllReplicasFailed) as refused:
            world.ask("DETACH TABLE late")
        assert refused.value.code == Code.ALL_CONNECTION_TRIES_FAILED
    assert pending(world) == before + 1
    assert world.ask("EXISTS TABLE late").endswith("1\n")
