"""The data source with latches: a writer that stops at a named point until a file is there, or ends there.

`format("clickhouse_latched")` writes with the source's own writer. Its option `latches` is a folder, through
which a test and the processes of Spark tell one another how far they are. What is to happen stands in the
option `fault`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_apps.clickhouse_cluster import records, register
from spark_apps.clickhouse_cluster.http import Server
from spark_apps.clickhouse_cluster.moves import Moves
from spark_apps.clickhouse_cluster.records import Event
from spark_apps.clickhouse_cluster.source import ClickHouseClusterSource
from spark_apps.load_flights import make_active

_GIVE_UP_S = 120.0


class Fault(enum.Enum):
    """What happens to a load, and when."""

    NONE = "none"
    TOGETHER = "both tasks report when both have posted: nobody else uses the executors then"
    TWO_ATTEMPTS = "task 0 reports when two attempts of it have posted everything"
    SHUFFLE_LOST = "when task 0 has posted, the files of the shuffle before it are deleted"
    EXECUTOR_KILLED = "when task 0 has posted, its executor is killed"
    BATCHES_KILLED = "commits are killed: of batch 0 before it begins, of batch 1 when intents are recorded"
    HELD_BEFORE_COMMIT = "the commit waits before it begins"
    HELD_IN_COMMIT = "the commit waits when its intents are recorded, before it moves anything"
    HELD_AFTER_MOVE = "the commit waits when partitions are moved, before that is recorded"


class Latches:
    """Files that say how far somebody is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def reach(self, name: str) -> None:
        (self.directory / name).touch()

    def wait(self, name: str, *, times: int = 1) -> None:
        """Until so many names begin like this. Raises TimeoutError."""
        deadline_s = time.monotonic() + _GIVE_UP_S
        while len(self.reached(name)) < times:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{name}: {self.reached(name)}")
            time.sleep(0.02)

    def reached(self, name: str) -> list[str]:
        return sorted(path.name for path in self.directory.glob(f"{name}*"))


class LatchedSource(ClickHouseClusterSource):
    """See the module."""

    def __init__(self, options: Mapping[str, str]) -> None:
        values = {key.lower(): value for key, value in options.items()}
        self._latches = Latches(Path(values.pop("latches")))
        self._fault = Fault[values.pop("fault")]
        super().__init__(values)

    @classmethod
    def name(cls) -> str:
        return "clickhouse_latched"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return LatchedWriter(super().writer(schema, overwrite), self._fault, self._latches)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return LatchedStreamWriter(super().streamWriter(schema, overwrite), self._fault, self._latches)


class _Latched:
    """`inner` does the work."""

    def __init__(self, inner: Any, fault: Fault, latches: Latches) -> None:
        self._inner = inner
        self._fault = fault
        self._latches = latches


class LatchedWriter(_Latched, DataSourceArrowWriter):
    """A load's."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        task = context.partitionId()
        if self._fault is Fault.SHUFFLE_LOST and task > 0:
            # Else a host that is faster may have read all of the shuffle before task 0 has posted.
            self._latches.wait("lost-")
        message: WriterCommitMessage = self._inner.write(iterator)
        is_first = not self._latches.reached(f"posted-{task}-")
        self._latches.reach(f"posted-{task}-{context.taskAttemptId()}")
        if self._fault is Fault.TOGETHER:
            self._latches.wait(f"posted-{1 - task}-")
        elif task == 0:
            self._when_posted(is_first=is_first)
        return message

    def _when_posted(self, *, is_first: bool) -> None:
        if self._fault is Fault.TWO_ATTEMPTS:
            self._latches.wait("posted-0-", times=2)
        elif self._fault is Fault.SHUFFLE_LOST and is_first:
            files = shuffle_files()
            for file in files:
                file.unlink(missing_ok=True)
            self._latches.reach(f"lost-{len(files)}")
        elif self._fault is Fault.EXECUTOR_KILLED and is_first:
            parents = psutil.Process().parents()
            executor = next(one for one in parents if one.name() == "java")
            self._latches.reach(f"killed-{executor.pid}")
            executor.send_signal(signal.SIGKILL)
            executor.wait()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with held_where(self._fault, self._latches):
            self._inner.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._inner.abort(messages)


class LatchedStreamWriter(_Latched, DataSourceStreamArrowWriter):
    """A stream's. Each of the two kills takes place once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message: WriterCommitMessage = self._inner.write(iterator)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        is_killed = self._fault is Fault.BATCHES_KILLED and not self._latches.reached(f"killed-{batchId}")
        if is_killed and batchId == 0:
            self._kill(batchId)
        elif is_killed and batchId == 1:
            Moves._alter = lambda *_: self._kill(batchId)  # type: ignore[method-assign]
        self._inner.commit(messages, batchId)

    def _kill(self, batch: int) -> None:
        self._latches.reach(f"killed-{batch}")
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def held_where(fault: Fault, latches: Latches) -> Iterator[None]:
    """A commit in here is held as the fault says: `held-…` is reached."""

    def hold() -> None:
        latches.reach(f"held-{os.getpid()}")
        latches.wait("never")

    def record(server: Server, job: str, event: Event, facts: Mapping[str, Mapping[str, Any]]) -> None:
        if event is Event.ATTACHED:
            hold()
        true_record(server, job, event, facts)

    true_record, true_alter = records.record, Moves._alter
    match fault:
        case Fault.HELD_BEFORE_COMMIT:
            hold()
        case Fault.HELD_IN_COMMIT:
            Moves._alter = lambda *_: hold()  # type: ignore[method-assign]
        case Fault.HELD_AFTER_MOVE:
            records.record = record
    try:
        yield
    finally:
        records.record, Moves._alter = true_record, true_alter  # type: ignore[method-assign]


def shuffle_files() -> set[Path]:
    """Of this executor, and of those beside it: `<scratch>/spark-…/executor-…/blockmgr-…/00/shuffle_…`."""
    mine = os.environ["SPARK_EXECUTOR_DIRS"].split(os.pathsep)
    tops = {Path(one).parents[1] for one in mine}
    return {file for top in tops for file in top.glob("spark-*/executor-*/blockmgr-*/*/shuffle_*")}


class Rows(enum.Enum):
    """What a task that is run again makes: `s` is always "x", or says which attempt made the row."""

    SAME = "same"
    OTHER = "other"


def made(latches: Path, rows: Rows) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow`: rows `a`, with `s`."""

    def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        Latches(latches).reach(f"made-{context.taskAttemptId()}")
        tag = "x" if rows is Rows.SAME else str(context.taskAttemptId())
        for batch in batches:
            yield pa.record_batch({"a": batch.column(0), "s": [tag] * batch.num_rows})

    return make


def session() -> SparkSession:
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    spark.dataSource.register(LatchedSource)
    return spark


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Rows 0 to before `number` in two tasks, or in four that come out of a shuffle."""

    table: str
    options: Mapping[str, str]
    latches: Path
    fault: Fault = Fault.NONE
    number: int
    rows: Rows = Rows.OTHER
    shuffled: bool = False

    def write(self) -> None:
        spark = session()
        frame = spark.range(self.number, numPartitions=2)
        frame = frame.mapInArrow(made(self.latches, self.rows), "a long, s string")
        if self.shuffled:
            frame = frame.repartition(4, "a")
        given = {**self.options, "latches": str(self.latches), "fault": self.fault.name}
        frame.write.format("clickhouse_latched").options(**given).mode("append").save(self.table)


def write_at_once(jobs: Sequence[Job]) -> None:
    spark = session()
    with ThreadPoolExecutor(len(jobs), initializer=make_active, initargs=(spark,)) as pool:
        list(pool.map(Job.write, jobs))


def read(table: str, options: Mapping[str, str]) -> list[tuple[int, str, str]]:
    """The rows, each with the working directory of the process that read it."""

    def here(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            places = pa.array([str(Path.cwd())] * batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, places], ["a", "s", "place"])

    frame = session().read.format("clickhouse_cluster").options(**options).load(table)
    rows = frame.select("a", "s").mapInArrow(here, "a long, s string, place string").collect()
    return [(row.a, row.s, row.place) for row in rows]
