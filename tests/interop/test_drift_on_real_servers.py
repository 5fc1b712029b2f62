"""Schema drift and the standby's comparison on real servers of 2018."""

from __future__ import annotations

from pathlib import Path

from engine.client import NodeClient
from engine.config.model import NodeConfig
from engine.operations.act import ActState
from engine.operations.carrying_out import carry_out
from engine.operations.drift import check_drift, drift_performer, plan_drift_repair
from engine.operations.records import Records
from engine.operations.site import Site
from engine.operations.standby import StepState, check_standby, switch_steps
from tests.interop.cluster import ENV


async def test_drift_of_real_servers_is_found_and_repaired_and_their_rows_are_hashed(
    start_real, tmp_path: Path
) -> None:
    real = await start_real(2, 1)
    clients = {server.host_id: NodeClient(server.spec.url) for server in real.servers}
    config = NodeConfig(path="unused", topology=real.topology, zookeeper=real.zookeeper, queues=(real.queue,))
    records = Records(tmp_path / "records.db", env=ENV)
    site = Site(
        "all", config, records, ENV, "test", keeper_or_none=real.keeper, clients=clients, patience_s=60
    )
    first, second, third = clients.values()
    path = f"/drift/{ENV.new_uuid()}"
    for number, client in enumerate(clients.values()):
        replica = f"ReplicatedMergeTree('{path}/{number // 2}', 'r{number}')"
        for sql in (
            "CREATE DATABASE shop",
            (
                "CREATE TABLE shop.r (k UInt64, d Date, n Nullable(String)) ENGINE = "
                f"{replica} PARTITION BY toYYYYMM(d) ORDER BY k"
            ),
            "CREATE TABLE shop.p (k UInt64 DEFAULT 7, s String) ENGINE = MergeTree ORDER BY k",
            "CREATE TABLE shop.f AS shop.r ENGINE = Distributed('all', 'shop', 'r', k)",
            "CREATE VIEW shop.v AS SELECT k, count() AS c FROM shop.r GROUP BY k",
            "CREATE MATERIALIZED VIEW shop.mv TO shop.p AS SELECT k, 'x' AS s FROM shop.r",
        ):
            await client.command(sql)
    await first.command("INSERT INTO shop.r VALUES (1, '2020-01-01', NULL), (2, '2020-02-01', 'a')")
    await third.command("INSERT INTO shop.r VALUES (3, '2020-01-01', 'b')")
    await real.eventually(real.servers[1], "SELECT count() FROM shop.r", "2\n")
    report = await check_drift(site)
    assert report.is_equal and report.objects == 6, report.to_json()

    for sql in ("ALTER TABLE shop.p DROP COLUMN s", "DROP TABLE shop.v", "DROP TABLE shop.mv"):
        await second.command(sql)
    plan = plan_drift_repair(site, await check_drift(site))
    done = await carry_out(site, plan, drift_performer(site), run_id="repair", approved_by="test")
    assert [result.state for _, result in done.results] == [ActState.DONE] * 3
    assert (await check_drift(site)).is_equal

    compared = await check_standby(site, site)
    assert compared.is_equal and compared.rows == 6, compared.lines
    deadline_s = ENV.monotonic_s() + 60
    steps = await switch_steps(site, site, watch_s=0.1)
    while steps[3].state is StepState.LATER and ENV.monotonic_s() < deadline_s:  # a merge, say: look again
        steps = await switch_steps(site, site, watch_s=0.1)
    assert steps[3].state is StepState.BY_HAND  # 18.16 cannot tell of its spools
    for client in clients.values():
        await client.close()
