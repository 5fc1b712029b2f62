"""What the load task gives to `spark-submit`: a stand-in for that program writes down how it was called."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.test_etl_dag import context, report

STAND_IN = """#!/bin/sh
printf '%s\\n' "$@" > "{directory}/arguments"
env > "{directory}/environment"
[ -f "{directory}/fails" ] && {{ echo "the table is gone" >&2; exit $(cat "{directory}/fails"); }}
while [ $# -gt 0 ]; do
    [ "$1" = --report ] && [ -f "{directory}/report.json" ] && cp "{directory}/report.json" "$2"
    shift
done
exit 0
"""


@dataclass
class Submitted:
    """How `spark-submit` was called last. `fails`, with an exit code, and `report.json` in its
    directory say what it does."""

    directory: Path

    @property
    def arguments(self) -> list[str]:
        return (self.directory / "arguments").read_text().splitlines()

    @property
    def environment(self) -> dict[str, str]:
        lines = (self.directory / "environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def value(self, option: str) -> str:
        return self.arguments[self.arguments.index(option) + 1]

    @property
    def conf(self) -> dict[str, str]:
        return dict(
            following.split("=", 1)
            for one, following in itertools.pairwise(self.arguments)
            if one == "--conf"
        )


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: Any) -> Submitted:
    directory = tmp_path / "bin"
    directory.mkdir()
    program = directory / "spark-submit"
    program.write_text(STAND_IN.format(directory=directory))
    program.chmod(0o755)
    (directory / "report.json").write_text(json.dumps(report(4)))
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    connection(
        "clickhouse_default", conn_type="clickhouse", host="127.0.0.1", login="loader", password="secret"
    )
    return Submitted(directory)


def load(**form: object) -> Any:
    from oncluster_airflow.etl_dag import etl_dag

    return etl_dag().get_task("load").execute(context(**form))


def test_the_application_is_submitted_for_the_days_of_the_form_under_the_run_s_id(
    submitted: Submitted, tmp_path: Path
) -> None:
    from engine.etl.launch import APPLICATION

    assert load(last_day="2013-02-28") == report(4)
    application = submitted.arguments.index(str(APPLICATION))
    given = submitted.arguments[application + 1 :]
    asked = dict(zip(given[::2], given[1::2], strict=True))
    job = asked["--job-id"]
    assert job.startswith("manual__1-")
    assert asked == {
        "--config": os.environ["ONCLUSTER_CONFIG"],
        "--cluster": "order_cluster",
        "--from": "2013-01-01",
        "--to": "2013-02-28",
        "--mode": "overwrite",
        "--job-id": job,
        "--report": str(tmp_path / "run" / "etl" / f"{job}.json"),
    }
    assert submitted.value("--name") == f"load {job}"
    load()
    assert submitted.value("--job-id") == job, "a retry is the same load"


def test_a_run_that_is_cleared_after_its_files_have_changed_loads_them(
    submitted: Submitted, tmp_path: Path
) -> None:
    (tmp_path / "flights.csv").write_text("a\n")
    load(source=str(tmp_path))
    job = submitted.value("--job-id")
    load(source=str(tmp_path))
    assert submitted.value("--job-id") == job, "a retry is the same load"
    (tmp_path / "flights.csv").write_text("another\n")
    load(source=str(tmp_path))
    assert submitted.value("--job-id") != job


def test_without_a_connection_spark_runs_here_and_the_password_is_on_no_command_line(
    submitted: Submitted, capsys: pytest.CaptureFixture[str]
) -> None:
    load()
    assert submitted.value("--master") == "local[*,4]"
    out, err = capsys.readouterr()
    assert "local[*,4]" in out + err, "the log has the provider's words"
    assert "yarn" not in out + err
    assert submitted.conf["spark.sql.session.timeZone"] == "UTC"
    assert submitted.conf["spark.driver.host"] == "127.0.0.1"
    assert submitted.conf["spark.speculation"] == "false"
    assert submitted.environment["ONCLUSTER_USER"] == "loader"
    assert submitted.environment["ONCLUSTER_PASSWORD"] == "secret"
    assert "secret" not in "\n".join(submitted.arguments)


def test_the_spark_connection_names_the_master(submitted: Submitted, connection: Any) -> None:
    connection("spark_default", conn_type="spark", host="spark://spark-master", port=7077)
    load()
    assert submitted.value("--master") == "spark://spark-master:7077"
    assert "spark.driver.host" not in submitted.conf


def test_an_application_that_fails_fails_the_task_and_no_earlier_report_is_believed(
    submitted: Submitted,
) -> None:
    from oncluster_airflow.errors import TaskRefused
    from oncluster_airflow.operators.etl import LoadFailed

    load()
    (submitted.directory / "fails").write_text("1")
    with pytest.raises(LoadFailed, match="the table is gone"):
        load()
    (submitted.directory / "fails").unlink()
    (submitted.directory / "report.json").unlink()
    with pytest.raises(TaskRefused, match="report"):
        load()


def test_a_load_that_the_application_refuses_is_not_tried_again(submitted: Submitted) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    (submitted.directory / "fails").write_text("5")
    with pytest.raises(AirflowFailException, match=r"refuses the load.* the table is gone"):
        load()


def test_without_a_connection_to_the_nodes_the_load_is_refused_and_names_it(
    submitted: Submitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    monkeypatch.delenv("AIRFLOW_CONN_CLICKHOUSE_DEFAULT")
    with pytest.raises(AirflowFailException, match="no connection 'clickhouse_default'"):
        load()


def test_people_are_told_what_the_application_said_and_not_how_it_was_called(submitted: Submitted) -> None:
    from oncluster_airflow.notification import from_context
    from oncluster_airflow.operators.etl import LoadFailed

    (submitted.directory / "fails").write_text("1")
    with pytest.raises(LoadFailed, match="exit code 1") as failed:
        load()
    told = from_context({"exception": failed.value}).to_slack()
    assert "the table is gone" in json.dumps(told)
    assert "--conf" not in str(failed.value)


def test_a_load_that_was_done_before_says_that_nothing_was_written(
    submitted: Submitted, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "nothing was written now"
    load()
    assert said not in capsys.readouterr().out
    (submitted.directory / "report.json").write_text(json.dumps(report(4) | {"repeated": True}))
    load()
    assert said in capsys.readouterr().out


def test_a_load_that_replaces_days_by_nothing_warns_of_it(
    submitted: Submitted, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "no line of 2013-01-01 to 2013-01-31"
    days = {"from": "2013-01-01", "to": "2013-01-31"}
    (submitted.directory / "report.json").write_text(json.dumps(report(4) | days))
    load()
    assert said not in capsys.readouterr().out
    (submitted.directory / "report.json").write_text(json.dumps(report(0) | days))
    load()
    assert said in capsys.readouterr().out


def test_the_load_is_repeated_and_the_check_follows_it() -> None:
    from oncluster_airflow.etl_dag import etl_dag

    dag = etl_dag()
    assert dag.get_task("load").retries == 2
    assert dag.get_task("check").upstream_task_ids == {"load"}
    assert [outlet.uri for outlet in dag.get_task("check").outlets] == ["oncluster://order_cluster/data"]
    assert dag.get_task("load").outlets == [], "what was not checked sets off nobody"
