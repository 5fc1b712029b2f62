"""Migrations, health, cleanup and drift on real servers, on engine nodes, and on both in one queue.

What an old server does not have is said in a note, and nothing else is missing for it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config.model import ZooKeeper
from engine.ddl.initiator import prepare
from engine.ddl.outcome import HostState
from engine.migrations.drive import drive
from engine.migrations.files import Direction, load_folder
from engine.migrations.ledger import Ledger
from engine.migrations.model import RunRequest
from engine.migrations.runner import MigrationRunner
from engine.migrations.states import CellState, RunState
from engine.operations.carrying_out import carry_out
from engine.operations.cleanup import (
    CleanupKind,
    CleanupSettings,
    cleanup_performer,
    plan_cleanup,
)
from engine.operations.drift import check_drift, drift_performer, plan_drift_repair
from engine.operations.finding import FindingKind
from engine.operations.health import Depth, HealthReport, check_health
from engine.operations.overview import look
from engine.operations.repair import prove
from engine.operations.site import Site
from engine.testing.clickhouse_server import find_server
from tests.interop.cluster import ENV
from tests.interop.conftest import NO_SERVER, REAL_CLUSTERS
from tests.interop.operations_support import Kind, Stand, running

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
ROWS = 30
REPLICATED = "ReplicatedMergeTree('ROOT/{shard}/rows', '{replica}') PARTITION BY toYYYYMM(day) ORDER BY id"
FILES = {
    "0001_shop.up.sql": f"""
        CREATE DATABASE IF NOT EXISTS shop;
        CREATE TABLE IF NOT EXISTS shop.orders (id UInt64, day Date)
            ENGINE = MergeTree() PARTITION BY toYYYYMM(day) ORDER BY id;
        CREATE TABLE IF NOT EXISTS shop.rows (id UInt64, day Date) ENGINE = {REPLICATED};
        CREATE VIEW IF NOT EXISTS shop.late AS SELECT id FROM shop.orders WHERE day > '2020-01-01';
    """,
    "0001_shop.down.sql": """
        DROP TABLE IF EXISTS shop.late;
        DROP TABLE IF EXISTS shop.rows;
        DROP TABLE IF EXISTS shop.orders;
        DROP DATABASE IF EXISTS shop;
    """,
    "0002_customer.up.sql": "ALTER TABLE shop.orders ADD COLUMN customer String DEFAULT 'no; body';",
    "0002_customer.down.sql": "ALTER TABLE shop.orders DROP COLUMN customer;",
}
STATEMENTS = 5
COLUMNS = "SELECT name, type FROM system.columns WHERE database = 'shop' AND table = 'orders' ORDER BY name"
NOT_IN_2018 = ("system.distribution_queue", "system.disks", "system.detached_parts")


@pytest.fixture(params=list(Kind), ids=[kind.name.lower() for kind in Kind])
async def stand(
    request: pytest.FixtureRequest, zookeeper_config: ZooKeeper, tmp_path: Path
) -> AsyncIterator[Stand]:
    kind: Kind = request.param
    if kind in (Kind.REAL, Kind.MIXED) and find_server() is None:
        pytest.skip(NO_SERVER)
    real_clusters = request.node.stash[REAL_CLUSTERS] = []
    async with running(kind, zookeeper_config, tmp_path, real_clusters) as stand:
        yield stand


def folder(stand: Stand) -> Path:
    """The migrations, with the entry's version where an old server has to read them."""
    place = stand.directory / "migrations" / "all"
    place.mkdir(parents=True, exist_ok=True)
    option = f"-- oncluster: entry_version={stand.entry_version}\n"
    for name, text in FILES.items():
        (place / name).write_text(option + text.replace("ROOT", tables_of(stand)))
    return place


def tables_of(stand: Stand) -> str:
    """Where this test's replicated tables are in Keeper."""
    return f"{stand.queue.path.rpartition('/')[0]}/tables"


def runner(stand: Stand) -> MigrationRunner:
    site = stand.site
    ledger = Ledger(f"sqlite:///{stand.ledger_url}", env=ENV)
    return MigrationRunner(
        site.keeper, load_folder(folder(stand)), ledger, site.config.topology, stand.queue, ENV
    )


async def migrate(stand: Stand) -> None:
    request = RunRequest("up", holder="test", approved_by="test")
    summary = await drive(runner(stand), request)
    assert summary.state is RunState.DONE, summary
    assert {row.state for row in summary.rows} == {CellState.DONE}
    assert len(summary.rows) == STATEMENTS * len(stand.specs)


async def all_workers_answer(stand: Stand) -> None:
    """Every host executes one more statement."""
    prepared = prepare(
        "CREATE DATABASE IF NOT EXISTS alive ON CLUSTER all",
        topology=stand.site.config.topology,
        queue=stand.queue,
        token=str(ENV.new_uuid()),
        entry_version=stand.entry_version,
    )
    entry = (await stand.ddl.submit(prepared)).entry
    last = [status async for status in stand.ddl.watch(entry)][-1]
    assert {host.state for host in last.hosts} == {HostState.DONE}
    assert len(last.hosts) == len(stand.specs)


async def test_a_cluster_of_any_kind_is_migrated_judged_compared_and_cleaned(stand: Stand) -> None:
    site = stand.site
    await migrate(stand)
    shapes = {await stand.query(spec, COLUMNS + " FORMAT TSVRaw") for spec in stand.specs}
    assert shapes == {"customer\tString\nday\tDate\nid\tUInt64\n"}

    # Health: nothing is wrong; what 18.16 does not have is a note with its host.
    for spec in stand.specs:
        await stand.query(
            spec, f"INSERT INTO shop.rows SELECT {spec.tcp_port} + number, '2020-01-01' FROM numbers({ROWS})"
        )
    for specs in stand.kinds:
        for spec in specs:
            wanted = f"{ROWS * len(specs)}\n"
            await stand.eventually(spec, "SELECT count() FROM shop.rows FORMAT TSVRaw", wanted)
    alone = sum(len(specs) == 1 for specs in stand.kinds)
    health = await health_with(site, [FindingKind.TOO_FEW_REPLICAS] * alone)
    assert sum(1 for _ in health.facts.replicas()) == len(stand.specs)
    notes = "\n".join(health.notes)
    for table in NOT_IN_2018:
        assert (table in notes) is bool(stand.real), notes
    for spec in stand.nodes:
        assert spec.host_id.readable not in notes
    proof = await prove(site, [f"{tables_of(stand)}/{shard}/rows" for shard in shards_of(stand)], wait_s=60)
    assert proof.is_equal, proof.words

    # Drift: all hosts are alike; what one of them loses is named, and made again there alone.
    assert (await check_drift(site)).drifts == ()
    victim = stand.specs[-1]
    await stand.query(victim, "DROP TABLE shop.orders")
    report = await check_drift(site)
    assert [(drift.host, str(drift.object)) for drift in report.drifts] == [(victim.host_id, "shop.orders")]
    plan = plan_drift_repair(site, report)
    assert [act.host for act in plan.acts] == [victim.host_id.readable]
    done = await carry_out(site, plan, drift_performer(site), run_id="drift", approved_by="test")
    assert done.is_good, done
    assert (await check_drift(site)).drifts == ()
    assert await stand.query(victim, COLUMNS + " FORMAT TSVRaw") in shapes

    # The queue: what all have done goes, whoever did it; every worker lives on.
    settings = CleanupSettings(ddl_keep_entries=2)
    cleaning = await plan_cleanup(site, settings, {CleanupKind.DDL})
    cleaned = await carry_out(site, cleaning, cleanup_performer(site), run_id="clean", approved_by="test")
    assert cleaned.is_good, cleaned
    assert len(await stand.ddl.list()) == 3  # the latest, and two before it
    await all_workers_answer(stand)

    overview = await look(site)
    assert overview.hosts.value is not None and not overview.hosts.value.down
    assert overview.queue.value is not None and overview.queue.value.open_tasks == ()

    down = await drive(
        runner(stand),
        RunRequest("down", holder="test", approved_by="test", direction=Direction.DOWN, target=-1),
    )
    assert down.state is RunState.DONE


async def health_with(site: Site, kinds: list[FindingKind]) -> HealthReport:
    """A check that finds just this, however full the disk here is; on a busy machine Keeper may seem slow
    for a while."""
    settings = replace(site.config.health, disk_free_percent=None, disk_critical_percent=None)
    deadline_s = ENV.monotonic_s() + 120
    while True:
        health = await check_health(site, settings, depth=Depth.READS_DATA)
        if [finding.kind for finding in health.findings] == kinds:
            return health
        assert ENV.monotonic_s() < deadline_s, [finding.what for finding in health.findings]


def shards_of(stand: Stand) -> list[str]:
    return sorted({spec.macros["shard"] for spec in stand.specs})


@pytest.mark.parametrize(
    "stand", [Kind.MIXED, Kind.MODERN_MIXED], indirect=True, ids=["mixed", "modern_mixed"]
)
async def test_the_commands_drive_both_kinds_in_one_queue(stand: Stand) -> None:
    """1. Migrate. 2. A server is stopped, a statement is sent, its part of it is given up. 3. The server is
    back: it executes what it missed, and its own word counts. 4. A scrapped replica's place is cleared."""
    config, site = stand.arguments()[:2], [*stand.arguments(), "--cluster", "all"]
    folder(stand)
    where = ["--dir", str(stand.directory / "migrations" / "all"), "--cluster", "all", *config]
    code, _, err = await oncluster(stand, "migrate", "apply", *where, "--approve", "--no-rehearse")
    assert code == 0, err

    # 2.
    first, away = stand.specs[:2]
    entry_options = ("--entry-version", str(stand.entry_version), "--token", "missed")
    await stand.processes[away.name].stop()
    sql = "CREATE TABLE shop.missed ON CLUSTER all (a UInt8) ENGINE = Memory"
    await oncluster(stand, "ddl", "submit", sql, *entry_options, "--timeout", "0", *config)
    entry = (await stand.ddl.list())[-1]
    while sum(host.state is HostState.DONE for host in (await stand.ddl.status(entry)).hosts) < 2:
        await ENV.sleep(0.05)
    waiting = ("ddl", "wait", "--token", "missed", "--timeout", "1", *config)
    code, told, err = await oncluster(stand, *waiting)
    while states_of(told)[away.tcp_port] == "waiting":  # until its session with Keeper has expired
        code, told, err = await oncluster(stand, *waiting)
    assert code == 3, err
    assert states_of(told) == {spec.tcp_port: "inactive" if spec is away else "done" for spec in stand.specs}
    code, told, err = await oncluster(stand, "health", "check", *site)
    assert code in (10, 20), err
    assert told["silent_hosts"] == [away.host_id.readable]
    gone = ("cleanup", "abandon", away.host_id.readable, "--reason", "scrapped", "--yes")
    code, told, err = await oncluster(stand, *gone, *site)
    assert code == 0, err
    code, told, err = await oncluster(stand, "ddl", "wait", "--token", "missed", *config)
    assert states_of(told)[away.tcp_port] == "abandoned"

    # 3.
    stand.processes[away.name].start()
    await stand.wait_until_up(away)
    await stand.eventually(away, "EXISTS TABLE shop.missed FORMAT TSVRaw", "1\n")
    code, told, err = await oncluster(stand, "ddl", "wait", "--token", "missed", *config)
    assert code == 0, err
    assert set(states_of(told).values()) == {"done"}
    await all_workers_answer(stand)

    # 4. A table that 26.9 has detached is no loss, since it says so: it gets an empty disk instead.
    if stand.real:
        await stand.query(away, "DETACH TABLE shop.rows")
    else:
        await stand.processes[away.name].stop()
        shutil.rmtree(stand.directory / away.name / "data")
        stand.processes[away.name].start()
        await stand.wait_until_up(away)
    deadline_s = ENV.monotonic_s() + 120
    while "lost-replica" not in {finding["kind"] for finding in told.get("findings", ())}:
        assert ENV.monotonic_s() < deadline_s, told
        code, told, err = await oncluster(stand, "health", "check", *site)
        assert code in (0, 10, 20), err
    scrapped = ("--kind", "replicas", "--gone", f"{away.name}=scrapped")
    code, told, err = await oncluster(stand, "cleanup", "apply", "--yes", *scrapped, *site)
    assert code == 0, err
    left = "SELECT total_replicas FROM system.replicas WHERE table = 'rows' FORMAT TSVRaw"
    await stand.eventually(first, left, "1\n")
    for command in (("cluster", "show"), ("drift", "check")):
        code, told, err = await oncluster(stand, *command, *site)
        assert code in (0, 1, 10) and told is not None, (command, err)


def states_of(told: Any) -> dict[int, str]:
    """Of an entry's status: hosts, which differ by their ports, to states."""
    return {host["port"]: host["state"] for host in told.get("status", told)["hosts"]}


async def oncluster(stand: Stand, *arguments: str) -> tuple[int | None, Any, str]:
    """The command's exit code, its JSON, and what it says besides."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.cli", *arguments, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "ONCLUSTER_HOME": str(stand.directory / "home")},
    )
    out, err = await process.communicate()
    print(arguments, process.returncode, out.decode()[:3000], err.decode()[:2000])
    return process.returncode, json.loads(out) if out else None, err.decode()
