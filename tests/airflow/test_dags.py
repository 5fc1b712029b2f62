"""Reading the DAG files: no connections, no network, no folder that spoils another's DAG."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def dag_bag(folder: Path) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(str(folder))


def test_every_dag_imports_without_connections_or_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("reading a DAG file opened a connection")

    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    bag = dag_bag(ROOT / "dags")

    assert bag.import_errors == {}
    assert {"migrate_log_cluster", "migrate_order_cluster"} <= set(bag.dags)


def test_the_form_is_written_down_once_for_each_dag_and_known_to_all_its_tasks() -> None:
    """Airflow's own way, a copy in every task, took most of the time of reading these files."""
    from airflow.sdk.definitions.param import process_params
    from airflow.serialization.serialized_objects import DagSerialization

    found = dag_bag(ROOT / "dags").dags
    for dag in found.values():
        assert len(dag.params) > 0
        tasks = DagSerialization.to_dict(dag)["dag"]["tasks"]
        assert tasks and not any("params" in task["__var"] for task in tasks), dag.dag_id
    migrate = found["migrate_order_cluster"]
    given = process_params(migrate, migrate.get_task("plan"), {"timeout": 7}, suppress_exception=False)
    assert given == {**migrate.params.dump(), "timeout": 7}


def write(folder: Path, name: str, sql: str = "CREATE DATABASE IF NOT EXISTS a;") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(sql)


def dags(root: Path) -> dict[str, Any]:
    from oncluster_airflow.migration_dag import migration_dags

    return {dag.dag_id: dag for dag in migration_dags(root)}


def test_a_folder_that_is_a_link_has_the_name_of_the_link(tmp_path: Path) -> None:
    """As the worker looks for it, which reads the file for one DAG only."""
    write(tmp_path / "versions" / "v3", "0001_a.up.sql")
    write(tmp_path / "versions" / "v4", "wrong.sql")
    root = tmp_path / "migrations"
    root.mkdir()
    (root / "shop").symlink_to(tmp_path / "versions" / "v3")
    (root / "bad").symlink_to(tmp_path / "versions" / "v4")

    found = dags(root)
    assert set(found) == {"migrate_shop", "migrate_bad"}
    assert found["migrate_shop"].get_task("plan").cluster == "shop"


def test_a_run_does_not_go_well_because_its_folder_became_unusable(tmp_path: Path) -> None:
    """Airflow drops the tasks of a run that its DAG has no more: what is left must not all be done."""
    write(tmp_path / "shop", "0001_a.up.sql")
    good = set(dags(tmp_path)["migrate_shop"].task_ids)
    write(tmp_path / "shop", "wrong.sql")
    assert good.isdisjoint(dags(tmp_path)["migrate_shop"].task_ids)


def test_a_folder_that_cannot_be_read_says_why_and_leaves_the_others_alone(tmp_path: Path) -> None:
    from oncluster_airflow.errors import TaskRefused

    write(tmp_path / "good", "0001_a.up.sql")
    write(tmp_path / "bad", "1-wrong.sql")
    (tmp_path / "empty").mkdir()
    found = dags(tmp_path)

    assert set(found) == {"migrate_good", "migrate_bad", "migrate_empty"}
    assert "1-wrong.sql" in found["migrate_bad"].doc_md
    assert "there is no migration here" in found["migrate_empty"].doc_md
    with pytest.raises(TaskRefused, match=r"1-wrong\.sql"):
        found["migrate_bad"].get_task("unusable").execute({"params": {}})


def test_whatever_task_of_a_migration_dag_fails_people_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oncluster_airflow.notifier import OnclusterNotifier

    monkeypatch.setenv("ONCLUSTER_DAG_MIGRATIONS", "1")
    for name, sql in {"1_a": "CREATE DATABASE a", "2_b": "CREATE DATABASE b"}.items():
        write(tmp_path / "good", f"{name}.up.sql", sql)
        write(tmp_path / "good", f"{name}.down.sql", sql.replace("CREATE", "DROP"))
    write(tmp_path / "bad", "wrong.sql")
    tasks = [task for dag in dags(tmp_path).values() for task in dag.tasks]

    assert {task.task_id for task in tasks} == {
        *("lint", "plan", "rehearse", "approve", "begin", "applied", "close", "verdict", "unusable"),
        *("up.earlier", "up.v0002_b.submit_1", "up.v0002_b.wait_1"),
        *("down.earlier", "down.v0002_b.submit_1", "down.v0002_b.wait_1"),
    }
    # What has failed by then was told, and who ended the run knows.
    for task in (task for task in tasks if task.task_id != "verdict"):
        assert [type(callback) for callback in task.on_failure_callback] == [OnclusterNotifier], task.task_id


def test_a_folder_nobody_may_list_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "good", "0001_a.up.sql")
    write(tmp_path / "shut", "0001_a.up.sql")
    listing = Path.iterdir

    def iterdir(path: Path) -> Any:  # the superuser, who runs tests in containers, may list everything
        if path.name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    found = dags(tmp_path)
    assert set(found) == {"migrate_good", "migrate_shut"}
    assert "Permission denied" in found["migrate_shut"].doc_md


def test_a_folder_of_which_no_dag_can_be_made_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import Asset

    from oncluster_airflow import migration_dag

    write(tmp_path / "good", "0001_a.up.sql")
    write(tmp_path / "odd", "0001_a.up.sql")
    places = {"good": "oncluster://good/schema", "odd": "   "}  # Airflow refuses the second
    monkeypatch.setattr(
        migration_dag, "schema_asset", lambda cluster: Asset(name=cluster, uri=places[cluster])
    )
    assert set(dags(tmp_path)) == {"migrate_good"}


def test_folders_whose_names_differ_only_behind_a_question_mark_have_assets_of_their_own(
    tmp_path: Path,
) -> None:
    for name in ("a?b", "a#b", "a"):
        write(tmp_path / name, "0001_a.up.sql")
    found = [dag.get_task("applied").outlets for dag in dags(tmp_path).values()]
    assert len({(asset.name, asset.uri) for (asset,) in found}) == 3
    assert len({asset.uri for (asset,) in found}) == 3


def test_a_name_longer_than_airflow_allows_is_shortened_to_one_that_is_still_its_own(tmp_path: Path) -> None:
    for last in "ab":
        write(tmp_path / ("c" * 249 + last), "0001_a.up.sql")
    found = dags(tmp_path)
    assert len(found) == 2
    assert all(len(dag_id) < 250 for dag_id in found)


def test_a_parameter_that_the_form_lacks_is_refused_because_a_misspelt_target_means_everything(
    tmp_path: Path,
) -> None:
    from oncluster_airflow.errors import TaskRefused
    from oncluster_airflow.form import refuse_unknown_parameters

    write(tmp_path / "good", "0001_a.up.sql")
    (dag,) = dags(tmp_path).values()

    def context(**conf: object) -> Any:
        return {"dag": dag, "dag_run": SimpleNamespace(conf=conf)}

    refuse_unknown_parameters(context())
    refuse_unknown_parameters(context(target_version=1, direction="down", _trace="0af7"))
    with pytest.raises(TaskRefused, match=r"no parameter target; there are .*target_version"):
        refuse_unknown_parameters(context(target=1))


def test_a_task_reads_its_own_dag_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "one", "0001_a.up.sql")
    write(tmp_path / "two", "0001_a.up.sql")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "migrate_two")

    assert set(dags(tmp_path)) == {"migrate_two"}


def test_a_task_of_a_statement_is_read_without_other_migrations_and_is_the_same_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every other task needs the whole DAG: it names what it skips."""
    from oncluster_airflow.migration_dag import migration_dag, migration_dags

    folder = ROOT / "migrations" / "order_cluster"
    whole = migration_dag(folder)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", whole.dag_id)
    own = len([task for task in whole.task_ids if "." not in task])
    statements = [task for task in whole.task_ids if task.count(".") == 2]
    assert len(statements) > 40 and own + len(statements) == len(whole.task_ids)
    for task_id in statements:
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", task_id)
        (read,) = migration_dags(folder.parent)
        group = task_id.rpartition(".")[0]
        assert {task for task in read.task_ids if "." in task} == {
            task for task in statements if task.startswith(f"{group}.")
        }
        task, same = read.get_task(task_id), whole.get_task(task_id)
        assert (type(task), task.task_display_name, task.trigger_rule, task.doc_md) == (
            type(same),
            same.task_display_name,
            same.trigger_rule,
            same.doc_md,
        )
        assert [(name, getattr(task, name)) for name in ("version", "direction", "statement", "folder")] == [
            (name, getattr(same, name)) for name in ("version", "direction", "statement", "folder")
        ]
    for task_id in ("lint", "begin", "close"):
        monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", task_id)
        (read,) = migration_dags(folder.parent)
        assert read.task_ids == whole.task_ids


def test_no_folder_at_all_is_no_error(tmp_path: Path) -> None:
    assert dags(tmp_path / "nowhere") == {}


def test_statements_stand_in_one_chain_up_by_version_and_down_in_reverse(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    write(folder, "2_b.up.sql", "CREATE DATABASE b; CREATE DATABASE c;")
    write(folder, "2_b.down.sql", "DROP DATABASE b;")
    write(folder, "10_d.up.sql")
    write(folder, "10_d.down.sql", "DROP DATABASE a;")
    dag = dags(tmp_path)["migrate_c"]

    def chain(start: str) -> list[str]:
        seen = [start]
        while following := [t for t in dag.get_task(seen[-1]).downstream_task_ids if t.startswith(start[:2])]:
            (following_id,) = following
            seen.append(following_id)
        return seen

    assert chain("up.v0002_b.submit_1") == [
        "up.v0002_b.submit_1",
        "up.v0002_b.wait_1",
        "up.v0002_b.submit_2",
        "up.v0002_b.wait_2",
        "up.v0010_d.submit_1",
        "up.v0010_d.wait_1",
    ]
    assert chain("down.v0010_d.submit_1")[-1] == "down.v0002_b.wait_1"
    assert dag.get_task("up.v0002_b.submit_1").upstream_task_ids == {"begin"}
    assert dag.get_task("down.v0010_d.submit_1").upstream_task_ids == {"begin"}


def test_applied_waits_for_every_migration_because_the_last_may_be_skipped_first(tmp_path: Path) -> None:
    write(tmp_path / "c", "1_a.up.sql")
    write(tmp_path / "c", "2_b.up.sql")
    dag = dags(tmp_path)["migrate_c"]

    assert {"up.v0001_a.wait_1", "up.v0002_b.wait_1"} <= dag.get_task("applied").upstream_task_ids


def test_tasks_are_named_after_what_they_do(tmp_path: Path) -> None:
    write(tmp_path / "c", "1_a.up.sql", "ALTER TABLE shop.orders ADD COLUMN x UInt8;")
    dag = dags(tmp_path)["migrate_c"]

    assert "shop.orders" in dag.get_task("up.v0001_a.submit_1").task_display_name
    assert "ALTER" in dag.get_task("up.v0001_a.submit_1").task_display_name


def test_the_form_offers_what_a_run_can_be_asked_for() -> None:
    from oncluster_airflow.migration_dag import parameters

    form = parameters()
    assert {"target_version", "direction", "plan_only", "timeout", "output_mode"} <= set(form)
    assert form["timeout"].value == 180
    assert form["direction"].schema["enum"] == ["up", "down"]
    assert len(form["output_mode"].schema["enum"]) == 7


def test_no_form_takes_a_number_that_airflow_cannot_carry() -> None:
    """Of more than 64 bits it ends every task without a word, and Airflow's DAG processor."""
    from airflow.sdk.exceptions import ParamValidationError

    numbers = [
        (dag.dag_id, name, param)
        for dag in dag_bag(ROOT / "dags").dags.values()
        for name, param in dag.params.items()
        if any(kind in param.schema.get("type", ()) for kind in ("integer", "number"))
    ]
    assert {"timeout", "target_version", "gone_after_hours", "keep"} <= {name for _, name, _ in numbers}
    for dag_id, name, param in numbers:
        for value in (10**30, -(10**30)):
            with pytest.raises(ParamValidationError):
                param.resolve(value)
                pytest.fail(f"{dag_id} takes {value} for {name}")


def test_odd_names_of_folders_and_titles_make_usable_ids(tmp_path: Path) -> None:
    write(tmp_path / "söme cluster", "1_a title, with: signs.up.sql")
    write(tmp_path / "same cluster".replace("a", "ä"), "1_a.up.sql")
    found = dags(tmp_path)
    (dag,) = (dag for dag in found.values() if "up.v0001_a_title_with_signs.submit_1" in dag.task_ids)

    assert len(found) == 2
    assert dag.dag_id.startswith("migrate_s_me_cluster_")


def test_a_long_history_is_read_in_linear_size(tmp_path: Path) -> None:
    for version in range(1, 61):
        write(tmp_path / "c", f"{version:04d}_m.up.sql", "CREATE DATABASE IF NOT EXISTS a;")
    dag = dags(tmp_path)["migrate_c"]
    edges = sum(len(task.downstream_task_ids) for task in dag.tasks)

    assert edges < 5 * len(dag.tasks)


@pytest.mark.slow
def test_the_dag_survives_its_way_through_airflows_database(airflow_db: Path) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    shutil.copy(ROOT / "dags" / "migrate.py", airflow_db / "migrate.py")
    for dag in dag_bag(airflow_db).dags.values():
        stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert stored.task_dict.keys() == dag.task_dict.keys()
