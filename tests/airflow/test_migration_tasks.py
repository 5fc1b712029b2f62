"""The tasks of a migration DAG one by one: a real ZooKeeper, a real ledger, hosts that play along."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from engine.config.load import load_node_config
from engine.env import SystemEnv
from engine.migrations.files import load_folder
from engine.migrations.ledger import Ledger
from engine.migrations.states import MigrationState, RunState
from tests.airflow.dag_run import DagRun

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
FIRST = "up.v0001_create_database"
SECOND = "up.v0002_create_orders"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "migrations" / "order_cluster"
    path.mkdir(parents=True)
    (path / "0001_create_database.up.sql").write_text("CREATE DATABASE IF NOT EXISTS shop;")
    (path / "0001_create_database.down.sql").write_text("DROP DATABASE IF EXISTS shop;")
    (path / "0002_create_orders.up.sql").write_text(
        "CREATE TABLE IF NOT EXISTS shop.orders (id UInt64) ENGINE = Memory;"
    )
    (path / "0002_create_orders.down.sql").write_text("DROP TABLE IF EXISTS shop.orders;")
    monkeypatch.setenv("ONCLUSTER_MIGRATIONS", str(tmp_path / "migrations"))
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
    return path


class Run(DagRun):
    """One run of a folder's DAG, by hand."""

    def __init__(self, folder: Path, run_id: str = "manual__1", **params: object) -> None:
        from oncluster_airflow.migration_dag import migration_dag

        dag = migration_dag(folder)
        super().__init__(dag, dag.params.dump() | params, run_id=run_id)

    def begin(self) -> Run:
        self.execute("plan")
        self.execute("begin")
        return self

    def statement(self, group: str, number: int = 1) -> Any:
        self.execute(f"{group}.submit_{number}")
        return self.execute(f"{group}.wait_{number}")


def ledger(tmp_path: Path) -> Ledger:
    return Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", env=SystemEnv())


def recorded(tmp_path: Path) -> dict[tuple[int, str], set[str]]:
    """(version, state) to the hosts of which the ledger says so."""
    found: dict[tuple[int, str], set[str]] = {}
    for row in ledger(tmp_path).rows("order_cluster"):
        found.setdefault((row.version, str(row.state)), set()).add(row.host.host)
    return found


SIX = {f"node0{n}" for n in range(1, 7)}


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


def test_migrations_too_old_to_be_shown_go_first_in_one_task(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    (folder / "0003_more.up.sql").write_text("CREATE DATABASE IF NOT EXISTS more;")
    run = Run(folder).begin()
    assert "up.v0001_create_database.submit_1" not in run.dag.task_ids
    assert "up.v0003_more.submit_1" not in run.skipped
    assert run.dag.get_task("up.v0003_more.submit_1").upstream_task_ids == {"up.earlier"}

    assert run.execute("up.earlier") == 2
    assert run.execute("up.earlier") == 2
    assert run.statement("up.v0003_more")["state"] == "done"
    assert run.execute("close") == "done"
    assert len(hosts.entries()) == 3
    assert recorded(tmp_path) == {(1, "done"): SIX, (2, "done"): SIX, (3, "done"): SIX}


def test_an_old_migration_that_fails_stops_its_task_with_every_host(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncluster_airflow.errors import DDLFailed

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    hosts.failing["node04"] = (57, "exists")
    run = Run(folder).begin()
    with pytest.raises(DDLFailed, match="node04"):
        run.execute("up.earlier")
    assert run.xcoms["up.earlier", "ddl_state"] == "failed"


class Clock(SystemEnv):
    """Sleeping takes no time and is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def now_s(self) -> float:
        return 1000.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_slow_statement_of_an_old_migration_gives_its_worker_back_and_the_task_goes_on_behind_it(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. The first of two statements is waited for longer than a moment: the task defers. 2. Meanwhile a
    retry attaches to it and defers again. 3. The hosts are done: the trigger resumes the task, later than
    Airflow can hold the slot. 4. The task sends the second statement and ends."""
    from airflow.sdk.exceptions import TaskDeferred
    from airflow.triggers.base import TaskSuccessEvent

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    monkeypatch.setenv("ONCLUSTER_WAIT_ALERT_S", "0")
    (folder / "0003_more.up.sql").write_text("CREATE DATABASE IF NOT EXISTS more;")
    hosts.away.add("node02")
    run = Run(folder).begin()
    earlier = run.dag.get_task("up.earlier")
    earlier.grace_s = 0.3
    for _ in range(2):
        with pytest.raises(TaskDeferred) as handed:
            run.execute("up.earlier")
    assert len(hosts.entries()) == 1
    _, arguments = handed.value.trigger.serialize()
    assert "sqlite" not in json.dumps(arguments)
    trigger = type(handed.value.trigger)(**json.loads(json.dumps(arguments | {"resume_at_s": 1007.0})))
    trigger._env = clock = Clock()
    trigger.deadline_s = None

    hosts.away.clear()
    (event,) = asyncio.run(asyncio.wait_for(_events(trigger), 120))

    assert not isinstance(event, TaskSuccessEvent)
    assert clock.slept == [7.0]
    assert recorded(tmp_path) == {(1, "done"): SIX}
    assert handed.value.method_name == "execute_complete"
    earlier.grace_s = 60
    left = json.loads(json.dumps(handed.value.kwargs))
    assert earlier.execute_complete(run.context("up.earlier"), event.payload, **left) == 2
    assert len(hosts.entries()) == 2
    assert recorded(tmp_path) == {(1, "done"): SIX, (2, "done"): SIX}


def test_an_old_migration_that_is_not_done_in_time_stops_its_task_with_every_host(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from oncluster_airflow.errors import DDLTimeout

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    hosts.away.add("node02")
    run = Run(folder, timeout=1).begin()
    earlier = run.dag.get_task("up.earlier")
    earlier.grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.execute("up.earlier")
    hosts.wait_until(done=5)
    handed.value.trigger.resume_at_s = 0.0
    (event,) = asyncio.run(_events(handed.value.trigger))
    with pytest.raises(DDLTimeout, match=r"5 done, 1 (waiting|inactive)"):
        earlier.execute_complete(run.context("up.earlier"), event.payload, **handed.value.kwargs)
    assert len(hosts.entries()) == 1


def test_nothing_old_in_the_run_skips_the_task(
    folder: Path, hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    done = Run(folder, target_version=1).begin()
    done.statement(FIRST)
    done.execute("close")
    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    run = Run(folder, "manual__2").begin()
    with pytest.raises(AirflowSkipException):
        run.execute("up.earlier")


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


def test_with_approval_it_is_rolled_back_and_the_ledger_knows_who_agreed(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    run = roll_back(folder, hosts)
    run.approve(by="grace")
    run.execute("begin")
    run.statement("down.v0002_create_orders")
    assert run.execute("close") == "done"

    assert ledger(tmp_path).records("order_cluster")[2].state is MigrationState.ROLLED_BACK
    assert ledger(tmp_path).runs("order_cluster")[-1].approved_by == "grace"


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


# --- bad days -----------------------------------------------------------------------------------------------


def test_a_failing_host_fails_the_wait_with_every_hosts_status_tells_people_and_stops_the_run(
    folder: Path, hosts: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What people are told goes to the log where no other channel is configured."""
    from oncluster_airflow.errors import DDLFailed, TaskRefused

    hosts.failing["node05"] = (57, "Code: 57. DB::Exception: Database already exists")
    run = Run(folder).begin()
    with pytest.raises(DDLFailed, match=r"\[node05:9000\]: Code: 57") as failed:
        run.statement(FIRST)

    (callback,) = run.dag.get_task(f"{FIRST}.wait_1").on_failure_callback
    with caplog.at_level(logging.WARNING, logger="oncluster_airflow.channels"):
        callback(run.context(f"{FIRST}.wait_1") | {"exception": failed.value})
    (message,) = [r.getMessage() for r in caplog.records if r.name == "oncluster_airflow.channels"]
    assert f"migrate_order_cluster · {FIRST}.wait_1" in message
    assert "Database already exists" in message and "node05" in message
    assert run.xcoms[f"{FIRST}.wait_1", "ddl_state"] == "failed"
    told = {host["host"]: host["state"] for host in run.xcoms[f"{FIRST}.wait_1", "ddl_hosts"]}
    assert told == {name: "failed" if name == "node05" else "done" for name in SIX}
    with pytest.raises(TaskRefused):
        run.execute(f"{SECOND}.submit_1")
    assert run.execute("close") == "failed"
    assert recorded(tmp_path) == {(1, "done"): SIX - {"node05"}, (1, "failed"): {"node05"}}


def test_retry_failed_sends_it_again_to_the_host_that_failed_only(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    from oncluster_airflow.errors import DDLFailed, TaskRefused

    hosts.failing["node05"] = (57, "exists")
    run = Run(folder).begin()
    with pytest.raises(DDLFailed):
        run.statement(FIRST)
    run.execute("close")
    hosts.failing.clear()
    with pytest.raises(TaskRefused, match="retry-failed"):
        Run(folder, "manual__2").execute("plan")
    again = Run(folder, "manual__3", retry_failed=True).begin()

    assert again.statement(FIRST)["state"] == "done"
    assert [len(hosts.listed(name)) for name in hosts.entries()] == [6, 1]
    assert recorded(tmp_path) == {(1, "done"): SIX}


def test_a_timeout_shows_the_hosts_and_a_second_wait_attaches(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    from oncluster_airflow.errors import DDLTimeout

    hosts.stuck.add("node02")
    run = Run(folder, timeout=1).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 5
    run.execute(f"{FIRST}.submit_1")
    hosts.wait_until(done=5, running=1)
    with pytest.raises(DDLTimeout, match="5 done, 1 running"):
        run.execute(f"{FIRST}.wait_1")
    assert run.xcoms[f"{FIRST}.wait_1", "ddl_state"] == "timeout"
    assert recorded(tmp_path) == {(1, "done"): SIX - {"node02"}, (1, "running"): {"node02"}}

    hosts.stuck.clear()
    assert run.execute(f"{FIRST}.wait_1")["state"] == "done"
    assert len(hosts.entries()) == 1


@pytest.mark.parametrize("close", ["success", None], ids=["alone", "with those after it"])
@pytest.mark.parametrize("where", ["worker", "triggerer"])
def test_a_task_that_is_cleared_alone_when_its_run_is_over_gives_the_lock_back(
    folder: Path, hosts: Any, tmp_path: Path, close: str | None, where: str
) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from oncluster_airflow.errors import TaskRefused

    hosts.stuck.add("node02")
    run = Run(folder, timeout=120).begin()
    run.execute(f"{FIRST}.submit_1")
    assert run.execute("close") == "unfinished"

    run.states["close"] = close
    wait = run.dag.get_task(f"{FIRST}.wait_1")
    if where == "triggerer":
        wait.grace_s = 0
        with pytest.raises(TaskDeferred) as handed:
            run.execute(f"{FIRST}.wait_1")
        hosts.stuck.clear()
        asyncio.run(_events(handed.value.trigger))
    else:
        wait.grace_s = 120
        hosts.stuck.clear()
        assert run.execute(f"{FIRST}.wait_1")["state"] == "done"

    assert recorded(tmp_path) == {(1, "done"): SIX}
    other = Run(folder, "manual__2")
    other.execute("plan")
    with contextlib.nullcontext() if close else pytest.raises(TaskRefused, match="manual__1"):
        other.execute("begin")


@pytest.mark.parametrize("timeout", [0, 60])
def test_a_wait_for_what_was_never_sent_is_refused(folder: Path, hosts: Any, timeout: int) -> None:
    """`submit` was marked as successful by hand, or another run rolled the migration back since."""
    from oncluster_airflow.errors import TaskRefused

    run = Run(folder, timeout=timeout).begin()
    with pytest.raises(TaskRefused, match=r"1\.up statement 1 was not sent"):
        run.execute(f"{FIRST}.wait_1")


def test_a_new_run_after_a_timeout_attaches_to_what_the_old_one_sent(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import DDLTimeout

    hosts.away.add("node02")
    run = Run(folder, timeout=1).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 5
    with pytest.raises(DDLTimeout):
        run.statement(FIRST)
    assert run.execute("close") == "unfinished"
    hosts.away.clear()
    again = Run(folder, "manual__2").begin()

    assert again.statement(FIRST)["state"] == "done"
    assert len(hosts.entries()) == 1


def test_a_slow_statement_is_handed_to_a_trigger_that_records_and_ends_the_task(
    folder: Path, hosts: Any, tmp_path: Path
) -> None:
    from airflow.sdk.exceptions import TaskDeferred
    from airflow.triggers.base import TaskSuccessEvent

    hosts.away.add("node02")
    run = Run(folder).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.statement(FIRST)
    path, arguments = handed.value.trigger.serialize()
    assert "sqlite" not in json.dumps(arguments)
    trigger = type(handed.value.trigger)(**json.loads(json.dumps(arguments)))

    async def main() -> list[Any]:
        waiting = asyncio.create_task(_events(trigger))
        await asyncio.sleep(0)
        hosts.away.clear()
        return await asyncio.wait_for(waiting, 120)

    (event,) = asyncio.run(main())
    assert path.startswith("oncluster_airflow.triggers.")
    assert isinstance(event, TaskSuccessEvent)
    assert recorded(tmp_path) == {(1, "done"): SIX}
    assert ledger(tmp_path).records("order_cluster")[1].state is MigrationState.APPLIED


def test_the_trigger_ends_at_its_deadline_with_every_host(folder: Path, hosts: Any) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from oncluster_airflow.errors import DDLTimeout

    hosts.away.add("node02")
    run = Run(folder, timeout=1).begin()
    wait = run.dag.get_task(f"{FIRST}.wait_1")
    wait.grace_s = 0.3
    run.execute(f"{FIRST}.submit_1")
    hosts.wait_until(done=5)
    with pytest.raises(TaskDeferred) as handed:
        run.execute(f"{FIRST}.wait_1")
    (event,) = asyncio.run(_events(handed.value.trigger))
    with pytest.raises(DDLTimeout, match=r"5 done, 1 (waiting|inactive)"):
        wait.execute_complete(run.context(f"{FIRST}.wait_1"), event.payload)


async def _events(trigger: Any) -> list[Any]:
    return [event async for event in trigger.run()]


def test_a_cancelled_trigger_ends_its_thread_and_leaves_the_statement(folder: Path, hosts: Any) -> None:
    import threading

    from airflow.sdk.exceptions import TaskDeferred

    hosts.away.add("node02")
    run = Run(folder).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.statement(FIRST)

    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("oncluster-wait")]

    async def main() -> None:
        waiting = asyncio.create_task(_events(handed.value.trigger))
        while not threads():
            await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        while threads():
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 120))
    assert len(hosts.entries()) == 1


def test_a_trigger_that_starts_while_the_ledger_is_away_waits_for_it(
    folder: Path, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a triggerer that was started over together with the database."""
    from airflow.sdk.exceptions import TaskDeferred
    from airflow.triggers.base import TaskSuccessEvent

    hosts.away.add("node02")
    run = Run(folder).begin()
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 0.3
    with pytest.raises(TaskDeferred) as handed:
        run.statement(FIRST)
    hosts.away.clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'file' / 'ledger.db'}")
    asked = asyncio.Event()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "wait_interrupted" in record.getMessage():
                loop.call_soon_threadsafe(asked.set)

    async def main() -> list[Any]:
        nonlocal loop
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(_events(handed.value.trigger))
        seen = asyncio.create_task(asked.wait())
        await asyncio.wait({waiting, seen}, timeout=120, return_when=asyncio.FIRST_COMPLETED)
        seen.cancel()
        monkeypatch.setenv("ONCLUSTER_LEDGER_URL", f"sqlite:///{tmp_path / 'ledger.db'}")
        return await asyncio.wait_for(waiting, 120)

    loop: Any = None
    handler = Seen()
    log = logging.getLogger("oncluster_airflow.migration_wait")
    log.addHandler(handler)
    try:
        (event,) = asyncio.run(main())
    finally:
        log.removeHandler(handler)
    assert asked.is_set()
    assert isinstance(event, TaskSuccessEvent)
    assert recorded(tmp_path) == {(1, "done"): SIX}


def test_a_second_run_is_refused_with_the_name_of_the_first(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    Run(folder, "manual__1").begin()
    second = Run(folder, "manual__2")
    second.execute("plan")
    with pytest.raises(TaskRefused, match="DAG migrate_order_cluster, run manual__1"):
        second.execute("begin")


def test_a_host_that_is_off_line_does_not_hold_up_an_only_active_run_and_catches_up(
    folder: Path, hosts: Any, tmp_path: Path, zookeeper: Any
) -> None:
    """Up to a change of a replicated table that the host has still to make."""
    from airflow.sdk.exceptions import AirflowSkipException
    from kazoo.client import KazooClient

    from oncluster_airflow.errors import TaskUnavailable

    third = "up.v0003_note"
    (folder / "0002_create_orders.up.sql").write_text(
        "CREATE TABLE IF NOT EXISTS shop.orders (id UInt64) ENGINE = ReplicatedMergeTree ORDER BY id;"
    )
    (folder / "0003_note.up.sql").write_text("ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;")
    (folder / "0003_note.down.sql").write_text("ALTER TABLE shop.orders DROP COLUMN IF EXISTS note;")
    client = KazooClient(zookeeper.connect_string)
    client.start()
    active = "/clickhouse/task_queue/replicas/{}:9000/active"
    for name in SIX:
        client.create(active.format(name), b"x", ephemeral=True, makepath=True)
    client.delete(active.format("node03"))
    hosts.away.add("node03")
    try:
        run = Run(folder, output_mode="throw_only_active", target_version=2).begin()
        run.dag.get_task(f"{FIRST}.wait_1").grace_s = 10
        run.dag.get_task(f"{SECOND}.wait_1").grace_s = 10
        assert run.statement(FIRST)["state"] == "partial"
        assert run.statement(SECOND)["state"] == "partial"
        with pytest.raises(AirflowSkipException, match="partial"):
            run.execute("applied")
        assert run.execute("close") == "partial"
        run = Run(folder, "manual__2", output_mode="throw_only_active").begin()
        with pytest.raises(TaskUnavailable, match="node03:9000 has still to make"):
            run.statement(third)
        assert run.execute("close") == "unfinished"
        hosts.away.clear()
        again = Run(folder, "manual__3").begin()
        assert again.statement(FIRST)["state"] == "done"
        assert again.statement(SECOND)["state"] == "done"
        assert again.statement(third)["state"] == "done"
        assert again.execute("close") == "done"
    finally:
        client.stop()
        client.close()
    assert len(hosts.entries()) == 3
    assert recorded(tmp_path) == {(1, "done"): SIX, (2, "done"): SIX, (3, "done"): SIX}


def test_a_gap_in_the_versions_is_named_by_the_plan(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0004_later.up.sql").write_text("CREATE DATABASE IF NOT EXISTS later;")
    with pytest.raises(TaskRefused, match=r"2 → 4"):
        Run(folder).execute("plan")


def test_gaps_that_the_form_allows_stop_neither_lint_nor_plan(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0004_later.up.sql").write_text("CREATE DATABASE IF NOT EXISTS later;")
    (folder / "0004_later.down.sql").write_text("DROP DATABASE IF EXISTS later;")
    with pytest.raises(TaskRefused, match=r"version 4 follows 2.*allow=version-gap"):
        Run(folder).execute("lint")
    run = Run(folder, allow_gaps=True)
    run.execute("lint")
    run.execute("plan")
    planned = run.xcoms["plan", "plan"]["migrations"]
    assert [migration["version"] for migration in planned] == [1, 2, 4]


def test_lint_fails_for_a_cluster_that_is_not_configured(folder: Path, tmp_path: Path) -> None:
    from oncluster_airflow.errors import TaskRefused

    other = folder.rename(folder.with_name("no_such_cluster"))
    with pytest.raises(TaskRefused, match="no_such_cluster"):
        Run(other).execute("lint")


def test_a_rehearsal_that_fails_stops_the_run_before_any_host_sees_it(folder: Path, hosts: Any) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0003_wrong.up.sql").write_text("ALTER TABLE shop.orders ADD COLUMN x NoSuchType;")
    (folder / "0003_wrong.down.sql").write_text("ALTER TABLE shop.orders DROP COLUMN IF EXISTS x;")
    run = Run(folder)
    run.execute("plan")
    with pytest.raises(TaskRefused, match="NoSuchType"):
        run.execute("rehearse")
    assert hosts.entries() == []


def test_a_rehearsal_that_goes_well_says_how_much_was_rehearsed(folder: Path) -> None:
    assert Run(folder).execute("rehearse") == {"rehearsed": 10, "not_rehearsed": 0}


def test_what_is_applied_already_is_not_rehearsed_again(folder: Path, hosts: Any) -> None:
    done = Run(folder).begin()
    done.statement(FIRST)
    done.statement(SECOND)
    done.execute("close")
    (folder / "0003_note.up.sql").write_text("ALTER TABLE shop.orders ADD COLUMN IF NOT EXISTS note String;")
    run = Run(folder, "manual__2")
    run.execute("plan")
    # The ground, two statements; and up, and up again, of the new one.
    assert run.execute("rehearse") == {"rehearsed": 4, "not_rehearsed": 0}


def test_lint_asks_the_real_parser(folder: Path) -> None:
    from oncluster_airflow.errors import TaskRefused

    (folder / "0003_wrong.up.sql").write_text("CREATE TABLE IF NOT EXISTS shop.t (id UInt64 ENGINE = Memory;")
    with pytest.raises(TaskRefused, match=r"0003_wrong\.up\.sql"):
        Run(folder).execute("lint")


def test_keeper_that_is_away_during_a_wait_is_waited_for(
    folder: Path, hosts: Any, zookeeper_server: Any, tmp_path: Path
) -> None:
    run = Run(folder).begin()
    hosts.away.add("node02")
    run.execute(f"{FIRST}.submit_1")
    run.dag.get_task(f"{FIRST}.wait_1").grace_s = 30

    async def main() -> Any:
        waiting = asyncio.create_task(asyncio.to_thread(run.execute, f"{FIRST}.wait_1"))
        # 1. The wait has begun: the ledger has what the others did.
        while recorded(tmp_path).get((1, "done")) != SIX - {"node02"}:
            await asyncio.sleep(0.02)
        # 2. Keeper stops and comes back; the last host finishes after that.
        await zookeeper_server.restart()
        hosts.away.clear()
        return await waiting

    assert asyncio.run(main())["state"] == "done"


def test_the_folder_of_the_demo_and_its_configuration_fit() -> None:
    config = load_node_config(ROOT / "config" / "cluster.xml")
    for folder in sorted((ROOT / "migrations").iterdir()):
        assert load_folder(folder).cluster in config.topology.clusters
