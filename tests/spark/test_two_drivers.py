"""Two drivers at the same table at the same time, processes of their own; one is killed, and run again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from spark_apps.clickhouse_cluster.decisions import Progress
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.writer import Job, TaskStaged, finish
from tests.few import few_first
from tests.spark.conftest import Servers
from tests.spark.latched import Fault, Latches, held_where
from tests.spark.test_faults import ROWS, attempt, begin, is_once, make_table

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a driver does: two tasks stage rows `a` from `first`, each with `s`; then it commits."""

    servers: Servers
    table: str
    job_id: str
    latches: Path
    s: str
    first: int = 0
    mode: Mode = Mode.APPEND
    fault: Fault = Fault.NONE

    def stage(self) -> tuple[Job, list[TaskStaged]]:
        job = begin(self.servers, self.table, job_id=self.job_id, mode=self.mode)
        half = self.first + ROWS // 2
        return job, [
            attempt(job, task=0, number=0, first=self.first, last=half, s=self.s),
            attempt(job, task=1, number=1, first=half, last=self.first + ROWS, s=self.s),
        ]

    def run(self) -> None:
        """Says `staged` and waits for `go`; says `held-…` where it is held."""
        latches = Latches(self.latches)
        job, messages = self.stage()
        latches.reach("staged")
        latches.wait("go")
        with held_where(self.fault, latches):
            finish(job, messages)


@pytest.fixture
def start() -> Iterator[Callable[[Load], SpawnProcess]]:
    """Starts drivers; those that still run at the end are killed."""
    started: list[SpawnProcess] = []

    def begin_one(load: Load) -> SpawnProcess:
        process = multiprocessing.get_context("spawn").Process(target=load.run)
        process.start()
        started.append(process)
        return process

    yield begin_one
    for process in started:
        process.kill()
        process.join()


def kill(process: SpawnProcess) -> None:
    assert process.is_alive()
    process.kill()
    process.join()


def tags(servers: Servers, table: str) -> list[str]:
    """Whose rows are there."""
    return sorted(set(servers.ask(f"SELECT DISTINCT replaceRegexpOne(s, '[0-9]+', '') FROM {table}")))


@pytest.mark.parametrize(
    ("kind", "replicated", "fault"),
    few_first(
        [
            ("nodes", True, Fault.HELD_BEFORE_COMMIT),
            ("nodes", True, Fault.HELD_IN_COMMIT),
            ("nodes", False, Fault.HELD_AFTER_MOVE),
            ("real", True, Fault.HELD_AFTER_MOVE),
            ("real", False, Fault.HELD_IN_COMMIT),
        ],
        few=1,
    ),
)
def test_of_two_drivers_of_one_job_one_is_killed_and_started_again(
    request: pytest.FixtureRequest,
    start: Callable[[Load], SpawnProcess],
    tmp_path: Path,
    kind: str,
    replicated: bool,
    fault: Fault,
) -> None:
    """1. Two drivers with one job id have staged, each rows of its own. 2. The first gets to the fault, and
    SIGKILL. 3. The second commits: what the first decided, if it did. 4. The first is started again."""
    servers: Servers = request.getfixturevalue(kind)
    servers = servers if replicated else servers.one_each
    latches = Latches(tmp_path)
    first = Load(
        servers=servers, table=make_table(servers, replicated=replicated), job_id="job", latches=tmp_path,
        s="one", fault=fault,
    )  # fmt: skip
    killed = start(first)
    job, messages = replace(first, s="two").stage()
    latches.wait("staged")
    latches.reach("go")
    latches.wait("held-")
    kill(killed)
    finish(job, messages)
    whose = tags(servers, first.table)
    assert whose == ["two" if fault is Fault.HELD_BEFORE_COMMIT else "one"]
    again = begin(servers, first.table)
    assert again.before is Progress.DONE
    finish(again, [])
    assert is_once(servers, first.table)
    assert tags(servers, first.table) == whose
    assert servers.staging() == []


@pytest.mark.extended
def test_two_jobs_stage_into_one_table_and_one_is_killed_before_it_commits(
    servers: Servers, start: Callable[[Load], SpawnProcess], tmp_path: Path
) -> None:
    """1. Two jobs have staged. 2. SIGKILL to the first. 3. The second commits. 4. The first is run again."""
    latches = Latches(tmp_path)
    first = Load(servers=servers, table=make_table(servers), job_id="first", latches=tmp_path, s="one")
    second = replace(first, job_id="second", s="two", first=ROWS)
    killed = start(first)
    job, messages = second.stage()
    latches.wait("staged")
    kill(killed)
    finish(job, messages)
    assert tags(servers, first.table) == ["two"]
    finish(*first.stage())
    assert is_once(servers, first.table, rows=2 * ROWS)
    assert servers.staging() == []


@pytest.mark.extended
def test_two_jobs_that_replace_one_partition_at_once_leave_the_rows_of_one_on_each_shard(
    nodes: Servers, start: Callable[[Load], SpawnProcess], tmp_path: Path
) -> None:
    """1. Two jobs with rows for the same partitions have staged. 2. Both commit. 3. Each is run again.

    A real 18.16 may keep the rows of both: its REPLACE PARTITION knows nothing of another one beside it."""
    latches = Latches(tmp_path)
    one = Load(
        servers=nodes, table=make_table(nodes), job_id="one", latches=tmp_path, s="one",
        mode=Mode.OVERWRITE_PARTITIONS,
    )  # fmt: skip
    both = [one, replace(one, job_id="two", s="two")]
    other = start(one)
    job, messages = both[1].stage()
    latches.wait("staged")
    latches.reach("go")
    finish(job, messages)
    other.join()
    assert other.exitcode == 0
    for shard in nodes.shards:
        for partition in range(2):
            whose = "arraySort(groupUniqArray(replaceRegexpOne(s, '[0-9]+', '')))"
            found = shard[0].text(f"SELECT {whose} FROM {one.table} WHERE a % 2 = {partition}")
            assert found in ("['one']", "['two']"), (shard, partition)
    there = nodes.ask(f"SELECT a, s FROM {one.table}")
    assert is_once(nodes, one.table)
    for load in both:
        finish(begin(nodes, load.table, job_id=load.job_id, mode=load.mode), [])
    assert nodes.ask(f"SELECT a, s FROM {one.table}") == there
    assert nodes.staging() == []


@pytest.mark.extended
def test_a_load_that_was_killed_while_it_replaced_a_partition_replaces_what_came_after_it_when_run_again(
    nodes: Servers, start: Callable[[Load], SpawnProcess], tmp_path: Path
) -> None:
    """1. Two jobs with rows for the same partitions have staged. 2. The first has replaced some, which is
    not recorded: SIGKILL. 3. The second replaces them. 4. The first is run again."""
    latches = Latches(tmp_path)
    first = Load(
        servers=nodes, table=make_table(nodes), job_id="one", latches=tmp_path, s="one",
        mode=Mode.OVERWRITE_PARTITIONS, fault=Fault.HELD_AFTER_MOVE,
    )  # fmt: skip
    killed = start(first)
    job, messages = replace(first, job_id="two", s="two").stage()
    latches.wait("staged")
    latches.reach("go")
    latches.wait("held-")
    kill(killed)
    finish(job, messages)
    assert (is_once(nodes, first.table), tags(nodes, first.table)) == (True, ["two"])
    finish(begin(nodes, first.table, job_id="one", mode=first.mode), [])
    assert (is_once(nodes, first.table), tags(nodes, first.table)) == (True, ["one"])
    assert nodes.staging() == []
