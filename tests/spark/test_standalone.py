"""On a cluster of Spark's own: two hosts, speculation, lost shuffle files, killed executors and drivers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.spark import latched
from tests.spark.conftest import Servers
from tests.spark.latched import Fault, Job, Latches, Rows, write_at_once
from tests.spark.standalone import Driver, standalone

pytestmark = [pytest.mark.extended, pytest.mark.timeout(900)]

ROWS = 400


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


@pytest.fixture(scope="module")
def driver(work: Path) -> Iterator[Driver]:
    """Two executors with one core each, on two hosts."""
    conf = {
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        # On a busy machine nothing is started twice that is only slow: what loses may leave its staging.
        "spark.speculation.minTaskRuntime": "4s",
    }
    with (
        standalone(work / "spark", hosts=("127.0.0.1", "127.0.0.2"), cores=1) as master,
        Driver(master, work, conf=conf) as one,
    ):
        yield one


@pytest.fixture
def latches(tmp_path: Path) -> Latches:
    return Latches(tmp_path)


@pytest.fixture
def table(nodes: Servers) -> str:
    return nodes.table("a UInt32, s String", rest="PARTITION BY a % 2 ORDER BY a")


def options(servers: Servers, **more: str) -> dict[str, str]:
    return {"shards": servers.option, **more}


def job(servers: Servers, table: str, latches: Latches, fault: Fault, **more: Any) -> Job:
    given = options(servers, sharding_key="cityHash64(a)", job_id=table)
    return Job(table=table, options=given, latches=latches.directory, fault=fault, number=ROWS, **more)


def is_once(servers: Servers, table: str) -> bool:
    return servers.ask(f"SELECT a FROM {table}") == sorted(map(str, range(ROWS)))


def test_executors_write_and_read(
    driver: Driver, work: Path, nodes: Servers, table: str, latches: Latches
) -> None:
    driver.run(job(nodes, table, latches, Fault.NONE).write)
    rows = driver.run(latched.read, table, options(nodes))
    assert sorted(a for a, _, _ in rows) == list(range(ROWS))
    places = {Path(place) for _, _, place in rows}
    assert len(places) == 2  # one shard each
    assert all(place.is_relative_to(work / "spark" / "work") for place in places)
    assert is_once(nodes, table)
    assert nodes.staging() == []


def test_of_two_attempts_that_posted_everything_one_is_written(
    driver: Driver, nodes: Servers, table: str, latches: Latches
) -> None:
    """1. Task 0 has posted its rows, and waits. 2. Spark starts it once more on the other host: its rows are
    other ones. 3. That has posted everything, too. 4. Both report."""
    driver.run(job(nodes, table, latches, Fault.TWO_ATTEMPTS).write)
    assert len(latches.reached("posted-0-")) == 2
    assert is_once(nodes, table)
    assert len(set(nodes.ask(f"SELECT DISTINCT s FROM {table} WHERE a < {ROWS // 2}"))) == 1
    assert nodes.staging() == []


def test_tasks_that_read_a_shuffle_that_was_made_again_write_each_row_once(
    driver: Driver, nodes: Servers, table: str, latches: Latches
) -> None:
    """1. Of four tasks after a shuffle the first has posted. 2. The files of the shuffle are lost. 3. The
    next tasks do not find them: Spark runs the map stage again, and the rest of this stage after that."""
    driver.run(job(nodes, table, latches, Fault.SHUFFLE_LOST, rows=Rows.SAME, shuffled=True).write)
    assert latches.reached("lost-")
    assert len(latches.reached("made-")) > 2
    assert is_once(nodes, table)
    assert nodes.staging() == []


def test_a_shuffle_that_was_made_again_with_other_rows_ends_the_job_and_nothing_is_written(
    driver: Driver, nodes: Servers, table: str, latches: Latches
) -> None:
    """As before, but the map tasks make other rows when they are run again, which Spark finds out."""
    with pytest.raises(RuntimeError, match="indeterminate output"):
        driver.run(job(nodes, table, latches, Fault.SHUFFLE_LOST, shuffled=True).write)
    assert latches.reached("posted-0-")
    assert sum(nodes.counts(table)) == 0
    again = Latches(latches.directory / "again")
    again.directory.mkdir()
    driver.run(job(nodes, table, again, Fault.TOGETHER).write)
    assert is_once(nodes, table)
    assert nodes.staging() == []


def test_an_executor_that_was_killed_after_it_posted_leaves_nothing(
    driver: Driver, nodes: Servers, table: str, latches: Latches
) -> None:
    driver.run(job(nodes, table, latches, Fault.EXECUTOR_KILLED).write)
    assert len(latches.reached("killed-")) == 1
    assert len(latches.reached("posted-0-")) == 2
    assert is_once(nodes, table)
    assert nodes.staging() == []


def test_a_driver_that_was_killed_is_started_again_and_its_loads_end(nodes: Servers, tmp_path: Path) -> None:
    """1. Loads are held at several moments of their commits. 2. SIGKILL to their driver and its Java, with
    which Spark's processes for commits end. 3. The loads are started again, by another driver. Nobody
    speculates: a losing attempt may post after the commit, and leaves its staging to the next load."""
    held = []
    for number, (fault, replicated) in enumerate(
        (
            (Fault.HELD_BEFORE_COMMIT, True),
            (Fault.HELD_IN_COMMIT, True),
            (Fault.HELD_IN_COMMIT, False),
            (Fault.HELD_AFTER_MOVE, False),
        )
    ):
        latches = Latches(tmp_path / str(number))
        latches.directory.mkdir()
        servers = nodes if replicated else nodes.one_each
        table = servers.table(
            "a UInt32, s String", rest="PARTITION BY a % 2 ORDER BY a", replicated=replicated
        )
        held.append(job(servers, table, latches, fault))
    with Driver("local[4,4]", tmp_path) as killed:
        killed.begin(write_at_once, held)
        for one in held:
            Latches(one.latches).wait("held-")
        killed.kill()
    again = [replace(one, fault=Fault.NONE, latches=tmp_path) for one in held]
    with Driver("local[4]", tmp_path) as started_again:
        started_again.run(write_at_once, again)
    assert [is_once(nodes, one.table) for one in held] == [True] * 4
    assert nodes.staging() == []
