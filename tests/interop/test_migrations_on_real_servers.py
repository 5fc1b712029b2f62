"""A folder of migrations, applied by our runner to real servers of 2018."""

from __future__ import annotations

from pathlib import Path

from engine.migrations.drive import drive
from engine.migrations.files import Direction, load_folder
from engine.migrations.ledger import Ledger
from engine.migrations.model import RunRequest
from engine.migrations.runner import MigrationRunner
from engine.migrations.states import CellState, MigrationState, RunState
from engine.migrations.upkeep import refresh
from tests.interop.cluster import ENV, RealQueue

FILES = {
    "0001_shop.up.sql": """
        -- the shop; its orders
        CREATE DATABASE shop;
        CREATE TABLE shop.orders (id UInt64, day Date) ENGINE = MergeTree(day, id, 8192);
    """,
    "0001_shop.down.sql": """
        DROP TABLE shop.orders;
        DROP DATABASE shop;
    """,
    "0002_customer.up.sql": """
        ALTER TABLE shop.orders ADD COLUMN customer String DEFAULT 'no; body';
    """,
    "0002_customer.down.sql": """
        ALTER TABLE shop.orders DROP COLUMN customer;
    """,
}
COLUMNS = "SELECT name FROM system.columns WHERE database = 'shop' AND table = 'orders' ORDER BY name"


def _runner(real: RealQueue, directory: Path) -> MigrationRunner:
    folder = directory / "all"
    folder.mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    ledger = Ledger(f"sqlite:///{directory / 'ledger.db'}", env=ENV)
    return MigrationRunner(real.keeper, load_folder(folder), ledger, real.topology, real.queue, ENV)


def _request(run_id: str, **wishes) -> RunRequest:
    return RunRequest(run_id, entry_version=1, holder="test", approved_by="test", **wishes)


async def test_migrations_go_up_and_down_on_real_servers_and_the_ledger_knows_each_host(
    start_real, tmp_path: Path
) -> None:
    # Not replicated tables: 18.16 wants internal_replication to say so, or refuses every ALTER with 371.
    real = await start_real(1, 1, internal_replication=False)
    runner = _runner(real, tmp_path)

    up = await drive(runner, _request("up"))

    assert up.state is RunState.DONE
    assert {(row.version, row.statement, row.host) for row in up.rows} == {
        (version, statement, host) for version, statement in ((1, 1), (1, 2), (2, 1)) for host in real.hosts
    }
    assert {row.state for row in up.rows} == {CellState.DONE}
    for server in real.servers:
        assert await server.query(COLUMNS) == "customer\nday\nid\n"

    again = await drive(runner, _request("again"))
    assert again.state is RunState.DONE and again.steps == ()
    assert len(await real.client.list()) == 3

    down = await drive(runner, _request("down", direction=Direction.DOWN, target=-1))
    assert down.state is RunState.DONE
    for server in real.servers:
        assert await server.query("EXISTS TABLE shop.orders") == "0\n"
    assert {r.state for r in runner.ledger.records("all").values()} == {MigrationState.ROLLED_BACK}
    await real.all_workers_answer()


async def test_a_real_server_that_was_down_catches_up_and_then_the_migration_is_applied(
    start_real, tmp_path: Path
) -> None:
    real = await start_real(1, 1, internal_replication=False)
    runner = _runner(real, tmp_path)
    await real.servers[1].stop()

    first = await drive(runner, _request("first", target=1, timeout_s=1))

    assert first.state is RunState.UNFINISHED
    assert runner.ledger.records("all")[1].state is not MigrationState.APPLIED

    await real.servers[1].start()
    for entry in await real.client.list():
        await real.outcome(entry)
    await refresh(runner, _request("refresh"))
    second = await drive(runner, _request("second"))

    assert second.state is RunState.DONE
    assert {row.state for row in runner.ledger.rows("all")} == {CellState.DONE}
    assert await real.servers[1].query(COLUMNS) == "customer\nday\nid\n"
    await real.all_workers_answer()


async def test_a_statement_that_one_real_server_refuses_fails_the_run_with_its_code(
    start_real, tmp_path: Path
) -> None:
    real = await start_real(1, 1, internal_replication=False)
    runner = _runner(real, tmp_path)
    await real.servers[1].query("CREATE DATABASE shop")

    summary = await drive(runner, _request("fails"))

    assert summary.state is RunState.FAILED
    states = {row.host: (row.state, row.code) for row in summary.rows if row.statement == 1}
    assert states[real.hosts[0]] == (CellState.DONE, 0)
    assert states[real.hosts[1]] == (CellState.FAILED, 82)
    await real.all_workers_answer()
