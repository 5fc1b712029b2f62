"""What holds for every test: no test fails for being slow, and none leaves a process behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests import warm, zookeeper_classes
from tests.quick_java import QUICK_JAVA, QUICK_SPARK

# A busy machine must not make a property false; how many examples there are is each test's business.
settings.register_profile("oncluster", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("oncluster")

# Hundreds of processes are started here. Where this is set, each would compile every module anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell has what it runs in the background ignore Ctrl-C, and so would everything that tests start.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["SPARK_SUBMIT_OPTS"] = QUICK_SPARK
os.environ["SPARK_LAUNCHER_OPTS"] = QUICK_JAVA

TOGETHER = ("tests/spark/",)
"""The files of such a directory go to one worker: they share servers that take half a minute to start."""

LONG_FILES = (
    "spark/test_standalone.py",
    "process/test_demo.py",
    "spark/test_load_flights.py",
    "simulation/test_replication_simulation.py",
    "airflow/test_real_airflow.py",
    "process/test_demo_failures.py",
    "simulation/test_ddl_simulation.py",
    "airflow/test_cluster_page_in_chromium.py",
    "process/test_replication_kill9.py",
    "migrations/test_crashes.py",
    "airflow/test_etl_spark.py",
    "process/test_replication_network.py",
    "simulation/test_replication_deliberate_bugs.py",
    "migrations/test_command_line.py",
    "node/test_replicated_tables.py",
    "node/test_replicated_starts.py",
    "node/test_replicated_readers.py",
    "process/test_kill9.py",
    "simulation/test_ddl_deliberate_bugs.py",
    "node/test_replication_streams.py",
    "migrations/test_lease.py",
    "process/test_up_and_down.py",
    "node/test_cluster.py",
    "node/test_part_store_kill9.py",
    "node/test_kill9.py",
    "node/test_life.py",
)
"""They begin first, so that no worker is alone with one of them at the end. Those that wait for processes
stand between those that compute: the workers share two cores."""


class _Scheduling(LoadFileScheduling):
    """`--dist loadfile`, with `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        together = (directory for directory in TOGETHER if nodeid.startswith(directory))
        return next(together, super()._split_scope(nodeid))


def pytest_configure(config: pytest.Config) -> None:
    """Before there are workers, which take over the environment. Few fast tests start servers."""
    if config.option.markexpr in (SLOW, EXTENDED):
        zookeeper_classes.make_archive()
    zookeeper_classes.use_archive()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return _Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


FAST = "not slow and not extended"
SLOW = "slow and not extended"
EXTENDED = "extended"
"""What the Makefile gives to pytest's `-m` for each of the three runs of which all tests consist."""

_SOME = {
    SLOW: re.compile(rb"mark\.slow"),
    EXTENDED: re.compile(rb"mark\.extended|few_first\(|each_in_turn\("),
}
_ALL_LATER = re.compile(rb"^pytestmark = \[?\s*pytest\.mark\.(slow|extended)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """No worker imports a file whose text tells that the run takes no test of it."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    # The conftest.py beside it marks some by their parameters, or all of them.
    said = [collection_path, *collection_path.parent.glob("conftest.py")]
    chosen = config.option.markexpr
    if chosen == FAST:
        is_left_out = _ALL_LATER.search(collection_path.read_bytes()) is not None
    elif chosen in _SOME:
        is_left_out = not any(_SOME[chosen].search(file.read_bytes()) for file in said)
    else:
        is_left_out = False
    return is_left_out or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which `--dist loadfile` gives files to workers (with `--no-loadscope-reorder`)."""
    here = Path(__file__).parent
    places = {here / name: number for number, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: nobody needs to look through it for garbage again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Whatever a test started is gone at the end of the session."""
    mine = psutil.Process(os.getpid())
    before = {child.pid for child in mine.children(recursive=True)}
    yield
    warm.close()
    left = []
    for child in mine.children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.pid not in before and child.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{child.pid} {command[:200]}")
        except psutil.NoSuchProcess:
            continue
    # Python's own helper for multiprocessing, which ends with us.
    left = [line for line in left if "multiprocessing.resource_tracker" not in line]
    assert left == []
