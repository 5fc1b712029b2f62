"""The tasks of a migration DAG one by one: a real ZooKeeper, a real ledger, hosts that play along."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from engine.migrations.states import MigrationState, RunState
from tests.airflow.migration_support import FIRST, SECOND, SIX, Run, ledger, recorded

pytestmark = pytest.mark.slow


# --- a run --------------------------------------------------------------------------------------------------


def test_every_hosts_outcome_is_in_the_ledger_when_the_wait_is_over(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    run = Run(folder).begin()
    result = run.statement(FIRST)

    assert result["state"] == "done"
    assert recorded(tmp_path) == {(1, "done"): SIX}
    assert ledger(tmp_path).records("order_cluster")[1].state is MigrationState.APPLIED


def test_executing_submit_twice_sends_the_statement_once(folder: Path, hosts: Any) -> None:
    run = Run(folder).begin()
    first = run.execute(f"{FIRST}.submit_1")
    second = run.execute(f"{FIRST}.submit_1")

    assert first == second
    assert len(hosts.entries()) == 1


def test_a_run_that_is_done_updates_the_schema_asset_and_gives_the_lock_back(
    folder: Path, hosts: Any
) -> None:
    run = Run(folder).begin()
    run.statement(FIRST)
    run.statement(SECOND)

    assert run.execute("applied") == {"run_id": "manual__1", "direction": "up", "versions": [1, 2]}
    assert run.execute("close") == "done"
    again = Run(folder, "manual__2")
    again.execute("plan")
    assert {"begin", "applied", f"{FIRST}.submit_1"} <= again.skipped
    assert "close" not in again.skipped


def test_plan_only_ends_after_the_plan(folder: Path, hosts: Any) -> None:
    run = Run(folder, plan_only=True)
    run.execute("plan")

    assert {"rehearse", "approve", "begin", f"{FIRST}.submit_1", "applied"} <= run.skipped
    assert hosts.entries() == []
    plan = run.xcoms["plan", "plan"]
    assert [len(s["hosts"]) for m in plan["migrations"] for s in m["statements"]] == [6, 6]


def test_a_target_version_leaves_what_is_above_it(folder: Path, hosts: Any) -> None:
    run = Run(folder, target_version=1).begin()

    assert f"{SECOND}.submit_1" in run.skipped
    assert f"{FIRST}.submit_1" not in run.skipped
    assert "down.v0001_create_database.submit_1" in run.skipped


def test_a_task_of_another_migration_skips_itself_if_it_is_run_all_the_same(folder: Path, hosts: Any) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    run = Run(folder, target_version=1).begin()
    with pytest.raises(AirflowSkipException):
        run.execute(f"{SECOND}.submit_1")
    with pytest.raises(AirflowSkipException):
        run.execute(f"{SECOND}.wait_1")


def test_the_second_statement_is_refused_while_the_first_is_not_sent(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = Run(folder).begin()
    with pytest.raises(TaskRefused, match="comes before it"):
        run.execute(f"{SECOND}.submit_1")
    assert hosts.entries() == []


def test_a_migration_that_was_applied_out_of_order_is_passed_over_in_its_place(
    folder: Path, hosts: Any
) -> None:
    first = Run(folder).begin()
    first.statement(FIRST)
    first.statement(SECOND)
    first.execute("close")
    (folder / "0003_a.up.sql").write_text("CREATE DATABASE IF NOT EXISTS a;")
    (folder / "0005_c.up.sql").write_text("CREATE DATABASE IF NOT EXISTS c;")
    middle = Run(folder, "manual__2", allow_gaps=True, target_version=5).begin()
    middle.statement("up.v0003_a")
    middle.statement("up.v0005_c")
    middle.execute("close")
    (folder / "0004_b.up.sql").write_text("CREATE DATABASE IF NOT EXISTS b;")
    (folder / "0006_d.up.sql").write_text("CREATE DATABASE IF NOT EXISTS d;")
    run = Run(folder, "manual__3", allow_out_of_order=True).begin()

    # Between 4 and 6 nothing is skipped at once: 6 would start while 4 is under way.
    assert {f"{FIRST}.submit_1", "up.v0003_a.submit_1"} <= run.skipped
    assert {"up.v0004_b.submit_1", "up.v0005_c.submit_1", "up.v0006_d.submit_1"} & run.skipped == set()


def test_the_id_of_a_run_that_was_deleted_in_airflow_is_refused(folder: Path, hosts: Any) -> None:
    """It undid the last migration; a second one of its id was a success and undid nothing."""
    from oncluster_airflow.errors import TaskRefused

    first = Run(folder, "release").begin()
    first.statement(FIRST)
    first.statement(SECOND)
    first.execute("close")
    first.execute("plan")  # cleared, it is the same run

    second = Run(folder, "release", direction="down")
    second.run_after = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    with pytest.raises(TaskRefused, match=r"The ledger has a run release .* already"):
        second.execute("plan")


# --- what people have to agree to ---------------------------------------------------------------------------


def roll_back(folder: Path, hosts: Any) -> Run:
    done = Run(folder).begin()
    done.statement(FIRST)
    done.statement(SECOND)
    done.execute("close")
    run = Run(folder, "manual__2", direction="down")
    run.execute("plan")
    return run


def test_a_destructive_plan_asks_and_shows_what_it_asks_about(folder: Path, hosts: Any) -> None:
    from airflow.sdk.exceptions import TaskAwaitingInput

    run = roll_back(folder, hosts)
    question = run.xcoms["plan", "approval"]

    assert "approve 1 of 1 statements (down)" in question["subject"]
    assert "DROP TABLE IF EXISTS shop.orders" in question["body"]
    assert issubclass(TaskAwaitingInput, BaseException)


def test_without_an_answer_nothing_destructive_is_sent(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = roll_back(folder, hosts)
    before = len(hosts.entries())
    with pytest.raises(TaskRefused, match="needs approval"):
        run.execute("begin")
    assert len(hosts.entries()) == before


def test_with_approval_it_is_rolled_back_and_the_ledger_knows_who_asked_and_who_agreed(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    run = roll_back(folder, hosts)
    run.approve(by="grace")
    run.execute("begin")
    run.statement("down.v0002_create_orders")
    assert run.execute("close") == "done"

    assert ledger(tmp_path).records("order_cluster")[2].state is MigrationState.ROLLED_BACK
    last = ledger(tmp_path).runs("order_cluster")[-1]
    assert (last.requested_by, last.approved_by) == ("ada", "grace")


def test_an_approval_is_for_the_plan_that_was_shown(folder: Path, hosts: Any) -> None:
    """Somebody clears `plan` alone after the answer: it plans anew, and nobody has seen that plan."""
    from oncluster_airflow.errors import TaskRefused

    run = roll_back(folder, hosts)
    run.approve(by="grace")
    (folder / "0002_create_orders.down.sql").write_text("DROP DATABASE IF EXISTS shop;")
    run.execute("plan")
    before = len(hosts.entries())
    with pytest.raises(TaskRefused, match=r"approved.*another plan"):
        run.execute("begin")
    assert len(hosts.entries()) == before

    run.approve(by="grace")
    run.execute("begin")


def test_an_approval_is_for_the_hosts_that_were_shown(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = roll_back(folder, hosts)
    run.approve(by="grace")
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(grown(tmp_path)))
    before = len(hosts.entries())
    with pytest.raises(TaskRefused, match="node07:9000 joined order_cluster"):
        run.execute("begin")
    assert len(hosts.entries()) == before

    run.execute("plan")
    run.approve(by="grace")
    run.execute("begin")


@pytest.mark.parametrize("own_tasks", ["30", "1"])
def test_an_approval_is_for_the_hosts_that_were_shown_also_while_the_run_is_under_way(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_tasks: str
) -> None:
    from oncluster_airflow.errors import TaskRefused

    roll_back(folder, hosts)
    (folder / "0003_last.up.sql").write_text("CREATE DATABASE IF NOT EXISTS last;")
    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", own_tasks)
    drops = "down.v0002_create_orders.submit_1" if own_tasks == "30" else "down.earlier"
    run = Run(folder, "manual__3", direction="down", target_version=1)
    run.execute("plan")
    run.approve(by="grace")
    run.execute("begin")
    usual = os.environ["ONCLUSTER_CONFIG"]
    before = len(hosts.entries())
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(grown(tmp_path)))
    with pytest.raises(TaskRefused, match="node07:9000 joined order_cluster"):
        run.execute(drops)
    assert len(hosts.entries()) == before

    # Sent to the hosts that were shown it goes to no other, and clearing its task is safe.
    monkeypatch.setenv("ONCLUSTER_CONFIG", usual)
    run.execute(drops)
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(grown(tmp_path)))
    run.execute(drops)
    assert len(hosts.entries()) == before + 1


def grown(tmp_path: Path) -> Path:
    """The configuration with a host more."""
    last = "<replica><host>node06</host><port>9000</port></replica>"
    usual = Path(os.environ["ONCLUSTER_CONFIG"]).read_text()
    path = tmp_path / "grown.xml"
    path.write_text(usual.replace(last, last + last.replace("node06", "node07"), 1))
    return path


def test_a_plan_that_destroys_nothing_asks_nobody(folder: Path, hosts: Any) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    run = Run(folder)
    run.execute("plan")
    with pytest.raises(AirflowSkipException):
        run.execute("approve")


# --- files that change under a run --------------------------------------------------------------------------


def test_a_file_that_changed_after_the_plan_is_refused_and_the_lock_given_back(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = Run(folder)
    run.execute("plan")
    (folder / "0002_create_orders.up.sql").write_text("CREATE TABLE shop.other (id UInt8) ENGINE = Memory;")
    with pytest.raises(TaskRefused, match=r"2\.up statement 1 is not what was planned"):
        run.execute("begin")

    assert ledger(tmp_path).runs("order_cluster")[-1].state is RunState.UNFINISHED
    Run(folder, "manual__2").begin()


def test_a_file_that_changed_while_the_run_is_under_way_is_refused(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = Run(folder).begin()
    run.statement(FIRST)
    (folder / "0002_create_orders.up.sql").write_text("CREATE TABLE shop.other (id UInt8) ENGINE = Memory;")
    with pytest.raises(TaskRefused, match=r"2\.up statement 1 is not what was planned"):
        run.execute(f"{SECOND}.submit_1")
    assert len(hosts.entries()) == 1


@pytest.mark.parametrize(
    "files", [{}, {"0002_create_orders.up.sql": "SELECT a; SELECT b;"}], ids=["gone", "longer"]
)
def test_a_run_is_closed_and_gives_its_lock_back_though_a_file_of_it_is_not_what_it_was(
    folder: Path, hosts: Any, tmp_path: Path, files: dict[str, str]
) -> None:
    """The lock stayed for a quarter of an hour, and clearing `close` did not help."""
    run = Run(folder).begin()
    run.statement(FIRST)
    for path in folder.glob("0002_*"):
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)

    assert run.execute("close") == "unfinished"
    assert recorded(tmp_path) == {(1, "done"): SIX}
    other = Run(folder, "manual__2", direction="down", target_version=-1, rehearse=False)
    other.execute("plan")
    other.approve(by="grace")
    other.execute("begin")


def test_begin_cleared_in_the_middle_of_a_run_goes_on_with_what_is_left(folder: Path, hosts: Any) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    run = Run(folder).begin()
    run.statement(FIRST)
    run.execute("begin")
    assert {f"{FIRST}.submit_1", f"{FIRST}.wait_1"} <= run.skipped
    assert run.statement(SECOND)["state"] == "done"
    assert run.execute("applied")["versions"] == [2]
    assert run.execute("close") == "done"
    assert len(hosts.entries()) == 2

    run.execute("begin")
    with pytest.raises(AirflowSkipException, match="nothing was left"):
        run.execute("applied")
    assert run.execute("close") == "done"


def test_a_comment_that_changed_is_no_change(folder: Path, hosts: Any) -> None:
    run = Run(folder)
    run.execute("plan")
    path = folder / "0001_create_database.up.sql"
    path.write_text(f"-- why not\n{path.read_text()}")
    run.execute("begin")

    assert run.statement(FIRST)["state"] == "done"
