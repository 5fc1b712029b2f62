"""The DAGs of operations: plan, question, answer, acts; what was approved is what runs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from engine.config.model import ZooKeeper
from engine.errors import KeeperUnavailable
from engine.operations.act import Danger
from engine.operations.finding import Finding, FindingKind, Severity
from tests.airflow.operations_support import APPROVE, CLUSTER, Run, World, tiny_dag

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCHEDULED = {"replica_health", "cleanup", "schema_drift", "keeper_backup"}
DAGS = SCHEDULED | {"abandon_tasks", "keeper_restore"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    from airflow.providers.standard.operators import hitl

    from oncluster_airflow.operators import operation

    world = World(tmp_path)
    monkeypatch.setenv("ONCLUSTER_RECORDS_URL", f"sqlite:///{tmp_path / 'records.db'}")
    monkeypatch.setattr(operation, "site_of", world.site_of)
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **_: None)
    return world


def states(world: World, run: Run) -> dict[str, str]:
    """What the records say became of each act of the cluster's newest run."""
    record = world.records.runs(CLUSTER)[0]
    results = world.records.acts_of(record.run_id)
    return {act.subject: results[act.act_id].state.value for act in record.plan.acts if act.act_id in results}


def planned(world: World, **form: object) -> Run:
    run = Run(tiny_dag(world), **form)  # type: ignore[arg-type]
    run.execute(f"{CLUSTER}.plan")
    return run


def approved(world: World) -> Run:
    run = planned(world)
    assert run.ask()
    run.approve(APPROVE)
    return run


# --- plan, question, answer, acts ---------------------------------------------------------------------------


def test_what_was_approved_is_done_and_recorded_with_the_names_of_both_people(world: World) -> None:
    run = planned(world)
    question = run.ask()
    run.approve(APPROVE)
    run.execute(f"{CLUSTER}.act")

    assert "3 acts" in question["subject"] and "Remove a." in question["body"]
    assert world.shelf == set()
    assert set(states(world, run).values()) == {"done"}
    (record,) = world.records.runs(CLUSTER)
    assert record.approved_by == "grace"
    assert record.requested_by == "ada (Airflow, DAG tidy, run manual__1)"
    assert record.run_id.startswith("tidy/manual__1/order_cluster/")
    assert run.xcoms[f"{CLUSTER}.act", "report"]["states"] == {"done": 3}


def test_a_plan_is_all_that_is_made_when_nothing_else_is_asked_for(world: World) -> None:
    run = planned(world, mode="plan")

    assert run.skipped == {f"{CLUSTER}.approve", f"{CLUSTER}.act"}
    assert world.shelf == {"a", "b", "c"}
    assert run.xcoms[f"{CLUSTER}.plan", "plan"]["first_acts"] == ["Remove a.", "Remove b.", "Remove c."]


def test_a_run_with_nothing_to_do_ends_at_the_plan(world: World) -> None:
    world.shelf.clear()

    assert planned(world).skipped == {f"{CLUSTER}.approve", f"{CLUSTER}.act"}


def test_without_a_persons_word_only_what_is_safe_is_done(world: World) -> None:
    world.dangers = {"a": Danger.SAFE, "b": Danger.REPAIRS}
    run = planned(world, mode="safe")
    assert run.ask() == {}
    run.execute(f"{CLUSTER}.act")

    assert world.shelf == {"b", "c"}
    assert any("need approval: 2" in note for note in run.xcoms[f"{CLUSTER}.plan", "plan"]["notes"])


def test_a_task_that_was_marked_as_successful_by_hand_is_no_answer(world: World) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = planned(world)
    run.ask()
    with pytest.raises(TaskRefused, match="Nobody has approved"):
        run.execute(f"{CLUSTER}.act")
    assert world.shelf == {"a", "b", "c"}


def test_an_answer_does_not_hold_for_a_plan_that_was_made_after_it(world: World) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = approved(world)
    world.shelf.add("d")
    run.execute(f"{CLUSTER}.plan")
    with pytest.raises(TaskRefused, match="made anew"):
        run.execute(f"{CLUSTER}.act")
    assert world.shelf == {"a", "b", "c", "d"}


def test_a_plan_that_was_edited_on_its_way_is_refused(world: World) -> None:
    from oncluster_airflow.errors import TaskRefused

    run, other = approved(world), planned(world)
    world.shelf.add("d")
    other.execute(f"{CLUSTER}.plan")
    plan = run.xcoms[f"{CLUSTER}.plan", "plan"]
    plan["packed"] = other.xcoms[f"{CLUSTER}.plan", "plan"]["packed"]
    with pytest.raises(TaskRefused, match="cannot be used"):
        run.execute(f"{CLUSTER}.act")


# --- faults -------------------------------------------------------------------------------------------------


def test_an_act_whose_answer_was_lost_is_looked_at_by_the_next_try(world: World) -> None:
    from oncluster_airflow.errors import TaskUnavailable

    world.lost_answers.add("b")
    run = approved(world)
    with pytest.raises(TaskUnavailable, match="Remove b"):
        run.execute(f"{CLUSTER}.act")
    assert states(world, run) == {"a": "done", "b": "started", "c": "done"}
    run.execute(f"{CLUSTER}.act")

    assert states(world, run) == {"a": "done", "b": "not-needed", "c": "done"}


def test_acts_that_fail_do_not_stop_the_others_and_fail_the_task_with_their_names(world: World) -> None:
    from oncluster_airflow.errors import ActsFailed

    world.failing.add("a")
    run = approved(world)
    with pytest.raises(ActsFailed, match=r"1 of 3 acts.*\n.*Remove a\.: failed a is nailed down"):
        run.execute(f"{CLUSTER}.act")

    assert states(world, run) == {"a": "failed", "b": "done", "c": "done"}
    assert run.xcoms[f"{CLUSTER}.act", "report"]["not_good"][0]["what"] == "Remove a."


def test_two_at_once_the_second_is_told_who_the_first_is_and_tries_again(world: World) -> None:
    from engine.keeper.recipes import KeeperLock
    from engine.operations.carrying_out import lock_path
    from oncluster_airflow.errors import TaskUnavailable

    run = approved(world)

    async def while_somebody_acts() -> None:
        async with world.site(CLUSTER, "eve") as site:
            lock = KeeperLock(site.keeper, site.env, lock_path(site), "eve@host7, process 12, cleanup")
            assert await lock.try_acquire() is not None
            with pytest.raises(TaskUnavailable, match="eve@host7, process 12"):
                await asyncio.to_thread(run.execute, f"{CLUSTER}.act")

    asyncio.run(while_somebody_acts())
    assert world.shelf == {"a", "b", "c"}
    run.execute(f"{CLUSTER}.act")
    assert world.shelf == set()


def test_keeper_out_of_reach_is_tried_again(world: World) -> None:
    from oncluster_airflow.errors import TaskUnavailable

    world.keeper_error = KeeperUnavailable("no server of 127.0.0.1:2181 answers")
    with pytest.raises(TaskUnavailable, match="no server"):
        planned(world)
    dag = tiny_dag(world)
    assert {dag.get_task(f"{CLUSTER}.{name}").retries for name in ("plan", "act")} == {3}


def test_a_plan_of_thousands_of_acts_goes_through_xcom_and_its_question_stays_readable(world: World) -> None:
    world.shelf = {f"{n:05d}" for n in range(5000)}
    run = planned(world)
    question = run.ask()
    plan = run.xcoms[f"{CLUSTER}.plan", "plan"]

    assert len(json.dumps(plan)) < 400_000
    assert plan["acts"] == 5000
    assert len(question["body"]) < 10_000 and "And 4950 more" in question["body"]


# --- which cluster ------------------------------------------------------------------------------------------


def test_the_form_offers_the_clusters_of_the_configuration(world: World) -> None:
    dag = tiny_dag(world)

    assert dag.params.get_param("cluster").schema["enum"] == ["all", "order_cluster", "log_cluster"] or set(
        dag.params.get_param("cluster").schema["enum"]
    ) == {"all", "order_cluster", "log_cluster"}


def test_a_run_is_about_its_cluster_only(world: World) -> None:
    run = Run(tiny_dag(world))
    run.execute("choose")
    assert run.skipped == {f"log_cluster.{name}" for name in ("plan", "approve", "act")}

    everything = Run(tiny_dag(world), cluster="all")
    everything.execute("choose")
    assert everything.skipped == set()


def test_a_cluster_that_there_is_not_is_refused_with_those_there_are(world: World) -> None:
    from oncluster_airflow.errors import TaskRefused

    with pytest.raises(TaskRefused, match=r"no cluster 'nowhere'.*log_cluster, order_cluster"):
        Run(tiny_dag(world), cluster="nowhere").execute("choose")


def test_a_parameter_that_the_form_lacks_is_refused(world: World) -> None:
    from oncluster_airflow.errors import TaskRefused

    with pytest.raises(TaskRefused, match=r"no parameter clusters; there are .*cluster"):
        Run(tiny_dag(world), clusters="log_cluster").execute("choose")


def test_a_configuration_that_cannot_be_read_makes_a_dag_that_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from oncluster_airflow.errors import TaskRefused

    (tmp_path / "broken.xml").write_text("<clickhouse><remote")
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(tmp_path / "broken.xml"))
    dag = tiny_dag(world)

    assert "broken.xml" in dag.doc_md and "broken" in dag.tags
    with pytest.raises(TaskRefused, match=r"broken\.xml"):
        dag.get_task("choose").execute({})


@pytest.mark.parametrize(
    ("name", "value"),
    [("ONCLUSTER_DEADLINE_S", "soon"), ("ONCLUSTER_CLEANUP_MODE", "act"), ("ONCLUSTER_NOTIFY_LEAST", "bad")],
)
def test_a_setting_that_cannot_be_meant_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)

    assert name in tiny_dag(world).doc_md


def test_a_schedule_that_is_none_is_named_by_its_own_dag_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ONCLUSTER_HEALTH_SCHEDULE", "61 * * * *")

    assert "'61 * * * *' (ONCLUSTER_…_SCHEDULE)" in dag("replica_health").doc_md
    assert "broken" not in dag("cleanup").tags


def test_odd_names_of_clusters_make_groups_of_their_own() -> None:
    from oncluster_airflow.ids import as_group_id

    ids = {as_group_id(name) for name in ("a.b", "a_b", "a b", "ä b", "order_cluster")}
    assert len(ids) == 5 and "order_cluster" in ids
    assert not any("." in name or " " in name for name in ids)


# --- people are told ----------------------------------------------------------------------------------------


def test_what_a_plan_finds_is_recorded_and_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.findings = (
        Finding(
            FindingKind.EXPIRED_DDL,
            Severity.CRITICAL,
            CLUSTER,
            "query-0000000007 expired unfinished on node03:9000",
            "Run it again there.",
            host="node03:9000",
            subject="query-0000000007",
        ),
    )
    planned(world, mode="plan")
    planned(world, mode="plan")

    (record,) = world.records.open_findings(CLUSTER, "tidy")
    assert record.finding == world.findings[0]
    told = [line for line in caplog.messages if "oncluster.notify" in line]
    assert len(told) == 1
    for part in ("query-0000000007 expired", "Run it again there.", "expired-ddl.md", "http://airflow/"):
        assert part in told[0]


# --- the DAG files ------------------------------------------------------------------------------------------


def test_reading_the_dag_files_opens_no_connection_and_reads_no_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    from engine import database

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reading a DAG file opened a connection")

    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(database, "database_engine", refuse)
    for name in ("HEALTH", "CLEANUP", "DRIFT", "BACKUP"):
        monkeypatch.setenv(f"ONCLUSTER_{name}_SCHEDULE", "*/5 * * * *")
    bag = DagBag(str(ROOT / "dags" / "operations.py"))

    assert bag.import_errors == {}
    assert set(bag.dags) == DAGS
    assert {name for name, dag in bag.dags.items() if dag.timetable.can_be_scheduled} == SCHEDULED
    assert all(dag.deadline for dag in bag.dags.values())


def test_by_default_nothing_runs_by_itself() -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags" / "operations.py"))
    assert {dag.dag_id for dag in bag.dags.values() if dag.timetable.can_be_scheduled} == set()


def test_the_dags_go_through_airflows_database() -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.serialization.serialized_objects import DagSerialization

    for dag in DagBag(str(ROOT / "dags" / "operations.py")).dags.values():
        stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert stored.task_dict.keys() == dag.task_dict.keys()


@pytest.mark.parametrize("name", ["cleanup", "abandon_tasks", "keeper_restore"])
def test_started_by_hand_these_only_show_what_they_would_do(name: str) -> None:
    from airflow.dag_processing.dagbag import DagBag

    assert DagBag(str(ROOT / "dags" / "operations.py")).dags[name].params["mode"] == "plan"


# --- the operations themselves, where every host is down ----------------------------------------------------


def dag(name: str) -> Any:
    from oncluster_airflow.operation_dag import operation_dag
    from oncluster_airflow.operation_dags import OPERATIONS

    return operation_dag(name, OPERATIONS[name])


def test_the_health_check_succeeds_whatever_it_finds_and_tells_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(dag("replica_health"), run_type="scheduled")
    run.execute(f"{CLUSTER}.check")

    assert run.xcoms[f"{CLUSTER}.check", "return_value"]["worst"] == "critical"
    down = {
        r.finding.host
        for r in world.records.open_findings(CLUSTER, "health")
        if r.finding.kind == "host-down"
    }
    assert len(down) == 6
    assert run.skipped == {f"{CLUSTER}.{name}" for name in ("plan", "approve", "act")}
    assert sum("oncluster.notify" in line for line in caplog.messages) == 1


def test_repairs_are_planned_when_the_form_asks_and_only_then(world: World) -> None:
    run = Run(dag("replica_health"), repair="plan")
    run.execute(f"{CLUSTER}.check")
    assert run.skipped == set()
    run.execute(f"{CLUSTER}.plan")

    assert run.xcoms[f"{CLUSTER}.plan", "plan"]["operation"] == "repair"
    assert run.skipped == {f"{CLUSTER}.approve", f"{CLUSTER}.act"}


def test_health_is_checked_without_keeper_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.operations.site import KeeperNeed

    seen: list[KeeperNeed] = []
    site_of = world.site_of

    def remember(cluster: str, context: Any, *, need: KeeperNeed, **more: object) -> Any:
        seen.append(need)
        return site_of(cluster, context, **more)

    monkeypatch.setattr("oncluster_airflow.operators.operation.site_of", remember)
    Run(dag("replica_health")).execute(f"{CLUSTER}.check")
    assert seen == [KeeperNeed.OPTIONAL]


def finished_entries(world: World, count: int) -> None:
    """Entries that every host has done."""
    from engine.ddl.client import DDLQueueClient
    from engine.ddl.initiator import prepare
    from engine.ddl.status import ExecutionStatus
    from engine.env import SystemEnv

    async def make() -> None:
        async with world.site(CLUSTER, "test") as site:
            client = DDLQueueClient(site.keeper, SystemEnv(), site.queue.paths)
            for n in range(count):
                statement = prepare(
                    f"CREATE DATABASE d{n} ON CLUSTER {CLUSTER}",
                    topology=site.config.topology,
                    queue=site.queue,
                    token=f"t{n}",
                )
                submission = await client.submit(statement)
                for host in site.hosts:
                    path = site.queue.paths.finished(submission.entry, host)
                    await site.keeper.create(path, ExecutionStatus(0, "").to_bytes())

    asyncio.run(make())


def entries(world: World) -> int:
    async def count() -> int:
        async with world.site(CLUSTER, "test") as site:
            names = (await site.keeper.children(site.queue.paths.root)).names
            return sum(name.startswith("query-") for name in names)

    return asyncio.run(count())


@pytest.mark.parametrize("mode", ["plan", "safe", "act"])
def test_a_cleanup_takes_away_what_its_form_says_once_it_may(world: World, mode: str) -> None:
    finished_entries(world, 5)
    run = Run(dag("cleanup"), mode=mode, kinds=["ddl"], ddl_keep_entries=2)
    run.execute(f"{CLUSTER}.plan")
    assert entries(world) == 5 and run.xcoms[f"{CLUSTER}.plan", "plan"]["by_danger"] == {"safe": 1}
    if mode == "plan":
        assert run.skipped == {f"{CLUSTER}.approve", f"{CLUSTER}.act"}
        return
    question = run.ask()
    assert bool(question) == (mode == "act")
    if question:
        run.approve(APPROVE)
    run.execute(f"{CLUSTER}.act")

    assert entries(world) == 3  # as in ClickHouse, one more than the number stays
    assert world.records.runs(CLUSTER)[0].approved_by == ("grace" if question else "")


def test_a_scheduled_cleanup_shows_its_plan_unless_the_settings_let_it_act(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(dag("cleanup"), run_type="scheduled", mode="act")
    run.execute(f"{CLUSTER}.plan")
    assert run.skipped == {f"{CLUSTER}.approve", f"{CLUSTER}.act"}

    monkeypatch.setenv("ONCLUSTER_CLEANUP_MODE", "safe")
    task = dag("cleanup").get_task(f"{CLUSTER}.plan")
    assert task.mode(run.context(f"{CLUSTER}.plan")).value == "safe"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"kinds": ["rubbish"]}, "no kind of rubbish"),
        ({"gone": ["node05"]}, "does not say why"),
        ({"mode": "everything"}, "no mode"),
    ],
)
def test_a_form_that_cannot_be_meant_is_refused(world: World, form: dict[str, object], message: str) -> None:
    from oncluster_airflow.errors import TaskRefused

    with pytest.raises(TaskRefused, match=message):
        Run(dag("cleanup"), **form).execute(f"{CLUSTER}.plan")  # type: ignore[arg-type]


def test_what_differs_between_schemas_is_recorded_and_hosts_that_were_not_asked_are_named(
    world: World,
) -> None:
    run = Run(dag("schema_drift"))
    run.execute(f"{CLUSTER}.check")

    kinds = {r.finding.kind.value for r in world.records.open_findings(CLUSTER, "drift")}
    assert kinds == {"not-checked"}
    assert run.skipped == {f"{CLUSTER}.{name}" for name in ("plan", "approve", "act")}


def test_giving_a_host_up_needs_a_host_and_a_reason(world: World) -> None:
    from oncluster_airflow.errors import TaskRefused

    run = Run(dag("abandon_tasks"), host="nobody", reason="sold", mode="plan")
    with pytest.raises(TaskRefused, match="no host of order_cluster"):
        run.execute(f"{CLUSTER}.plan")
    with pytest.raises(TaskRefused, match="needs a reason"):
        Run(dag("abandon_tasks"), host="node03", mode="plan").execute(f"{CLUSTER}.plan")


def test_where_there_are_several_clusters_one_has_to_be_chosen_for_what_nobody_means_for_all() -> None:
    from oncluster_airflow.errors import TaskRefused

    made = dag("keeper_restore")
    assert "all" not in made.params.get_param("cluster").schema["enum"]
    with pytest.raises(TaskRefused, match="Choose a cluster"):
        Run(made, cluster="").execute("choose")


def test_a_restore_takes_a_file_of_the_folder_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from oncluster_airflow.errors import TaskRefused

    monkeypatch.setenv("ONCLUSTER_BACKUP_FOLDER", str(world.folder / "backups"))
    for name in ("", "../records.db", "/etc/passwd", "keeper-20260101T000000Z.keeper.zst"):
        with pytest.raises(TaskRefused, match="no backup"):
            Run(dag("keeper_restore"), file=name, root="/restored", mode="plan").execute(f"{CLUSTER}.plan")


# --- a real ZooKeeper ---------------------------------------------------------------------------------------


def test_keeper_is_backed_up_checked_and_restored_beside_itself(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.standard.operators import hitl

    from oncluster_airflow.errors import TaskRefused

    folder = tmp_path / "backups"
    monkeypatch.setenv("ONCLUSTER_BACKUP_FOLDER", str(folder))
    monkeypatch.setenv("ONCLUSTER_RECORDS_URL", f"sqlite:///{tmp_path / 'records.db'}")
    monkeypatch.setattr(hitl, "upsert_hitl_detail", lambda **_: None)
    host, port = zookeeper.hosts[0]
    client = KazooClient(f"{host}:{port}")
    client.start()
    try:
        client.create("/clickhouse/tables/01/t/metadata", b"columns", makepath=True)
        client.create("/clickhouse/alive", b"", ephemeral=True)
        run = Run(dag("keeper_backup"), root="/clickhouse")
        dumped = run.execute("dump")
        # A task that died after its last step finds its file; nothing is written twice.
        assert run.execute("dump") == dumped
        assert run.execute("verify") == dumped["nodes"] == 6
        assert run.execute("prune") == []
        assert [path.name for path in folder.iterdir()] == ["keeper-clickhouse-20260301T120000Z.keeper.zst"]

        restore = Run(dag("keeper_restore"), file=dumped["file"], root="/restored")
        restore.execute(f"{CLUSTER}.plan")
        assert "Restore 5 nodes" in restore.ask()["body"]
        restore.approve(APPROVE)
        restore.execute(f"{CLUSTER}.act")
        assert client.get("/restored/tables/01/t/metadata")[0] == b"columns"
        assert client.exists("/restored/alive") is None
        # The same again, as after a kill: the records know that it is done.
        restore.execute(f"{CLUSTER}.act")

        # Bytes that are not what was written: the file is not restored, and the check says so.
        path = folder / dumped["file"]
        path.write_bytes(path.read_bytes()[:-20] + b"x" * 20)
        with pytest.raises(TaskRefused):
            run.execute("verify")
    finally:
        client.stop()
        client.close()


def test_the_tasks_take_keeper_and_nodes_from_airflows_connections(
    zookeeper: ZooKeeper, connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a Keeper that is away is tried again, with what was out of reach in the error."""
    from oncluster_airflow.errors import TaskUnavailable

    monkeypatch.setenv("ONCLUSTER_RECORDS_URL", f"sqlite:///{tmp_path / 'records.db'}")
    nodes = {f"node0{n}": "http://127.0.0.1:1" for n in range(1, 7)}
    connection("clickhouse_default", conn_type="clickhouse", host="127.0.0.1", extra={"nodes": nodes})
    run = Run(dag("replica_health"))
    run.execute(f"{CLUSTER}.check")
    found = {f["kind"]: f["what"] for f in run.xcoms[f"{CLUSTER}.check", "findings"]}
    assert "127.0.0.1:1" in found["host-down"] and "keeper-down" not in found

    connection(
        "zookeeper_default",
        conn_type="zookeeper",
        host="127.0.0.1",
        port=1,
        extra={"session_timeout_ms": 1000, "operation_timeout_ms": 1000},
    )
    with pytest.raises(TaskUnavailable, match=r"127\.0\.0\.1:1"):
        Run(dag("cleanup"), mode="plan").execute(f"{CLUSTER}.plan")
