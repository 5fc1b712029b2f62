"""ALTER of a replicated table: real servers run it once in each shard, and we read who did."""

from __future__ import annotations

from engine.ddl.outcome import HostState
from tests.interop.cluster import RealQueue


async def _replicated_table(real: RealQueue) -> None:
    engine = f"ReplicatedMergeTree('{real.queue.path}/tables/{{shard}}/r', '{{replica}}', day, id, 8192)"
    entry = await real.submit(
        f"CREATE TABLE r ON CLUSTER all (id UInt64, day Date) ENGINE = {engine}", token="create"
    )
    assert (await real.outcome(entry)).is_done_on_all_hosts


async def test_an_added_column_is_executed_once_in_each_shard_and_arrives_everywhere(
    start_real,
) -> None:
    real = await start_real(2, 2)
    await _replicated_table(real)

    entry = await real.submit("ALTER TABLE r ON CLUSTER all ADD COLUMN name String", token="alter")
    await real.outcome_with_restarts(entry)
    status = await real.client.status(entry)

    assert status.is_done_on_all_hosts
    executed = {shard.shard: shard.executed_by for shard in status.shards}
    assert executed.keys() == {shard.node_name for shard in real.clusters[0].shards}
    for shard in real.clusters[0].shards:
        assert executed[shard.node_name] in {replica.host_id for replica in shard.replicas}
    for server in real.servers:
        await real.eventually(
            server, "SELECT name FROM system.columns WHERE table = 'r' ORDER BY name", "day\nid\nname\n"
        )


async def test_a_dropped_partition_is_gone_from_every_replica(start_real) -> None:
    real = await start_real(2)
    await _replicated_table(real)
    await real.first.query("INSERT INTO r (id, day) VALUES (1, '2026-01-01'), (2, '2026-02-01')")
    await real.eventually(real.servers[1], "SELECT count() FROM r", "2\n")

    entry = await real.submit("ALTER TABLE r ON CLUSTER all DROP PARTITION '202601'", token="drop")
    status = await real.outcome_with_restarts(entry)

    assert status.is_done_on_all_hosts
    for server in real.servers:
        await real.eventually(server, "SELECT id FROM r", "2\n")


async def test_an_alter_that_fails_is_a_failure_of_the_replica_that_ran_it(start_real) -> None:
    real = await start_real(2)
    await _replicated_table(real)

    entry = await real.submit("ALTER TABLE r ON CLUSTER all DROP COLUMN nobody", token="fails")
    await real.outcome_with_restarts(entry)
    status = await real.client.status(entry)

    (shard,) = status.shards
    assert shard.executed_by is not None
    assert status.outcome(shard.executed_by).state is HostState.FAILED
    assert "nobody" in status.outcome(shard.executed_by).error
