"""The flights load: every raw line is a flight or in quarantine, and a repeated load changes nothing."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import os
import re
import signal
import subprocess
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from engine.errors import Code, ConfigError, SqlError
from engine.etl.launch import SparkSettings, command_line, spark_environment
from engine.etl.request import LoadRequest
from engine.testing.local_cluster import LocalCluster
from spark_apps.flights import COLUMNS, JOINED, raw_flights
from spark_apps.java_errors import RawFileDamaged, told_in_one_line
from spark_apps.load_flights import Load, Request, _packaged
from spark_apps.raw_files import raw_file
from tests.few import few_first
from tests.quick_java import QUICK_SPARK
from tests.spark.conftest import Servers, staging_of
from tests.spark.standalone import wait_until_ended

pytestmark = pytest.mark.slow

TABLES = {
    "airlines": "(carrier LowCardinality(String), name String) ORDER BY carrier",
    "airports": "(faa LowCardinality(String), name String, lat Float64, lon Float64, alt Int32, tz Int8, "
    "dst LowCardinality(String), tzone LowCardinality(String)) ORDER BY faa",
    "aircraft": "(tailnum String, year Nullable(UInt16), type LowCardinality(String), manufacturer String, "
    "model String, engines UInt8, seats UInt16, speed Nullable(UInt16), engine String) ORDER BY tailnum",
    "weather": "(origin LowCardinality(String), year UInt16, month UInt8, day UInt8, hour UInt8, "
    "temp Nullable(Float32), dewp Nullable(Float32), humid Nullable(Float32), wind_dir Nullable(Float32), "
    "wind_speed Nullable(Float32), wind_gust Nullable(Float32), precip Float32, pressure Nullable(Float32), "
    "visib Float32, time_hour DateTime('UTC')) ORDER BY (origin, time_hour)",
    "flights": "(year UInt16, month UInt8, day UInt8, dep_time Nullable(UInt16), sched_dep_time UInt16, "
    "dep_delay Nullable(Int16), is_cancelled UInt8 ALIAS dep_time IS NULL, arr_time Nullable(UInt16), "
    "sched_arr_time UInt16, arr_delay Nullable(Int16), "
    "is_late UInt8 MATERIALIZED ifNull(arr_delay, 0) > 15, carrier LowCardinality(String), flight UInt16, "
    "tailnum String, origin LowCardinality(String), dest LowCardinality(String), air_time Nullable(UInt16), "
    "distance UInt16, hour UInt8, minute UInt8, time_hour DateTime('UTC'), "
    "airline LowCardinality(String), dest_name LowCardinality(String), plane_year Nullable(UInt16), "
    "plane_model LowCardinality(String), seats Nullable(UInt16), temp Nullable(Float32), "
    "wind_speed Nullable(Float32), precip Nullable(Float32), visib Nullable(Float32), "
    "INDEX tailnum_bloom tailnum TYPE bloom_filter(0.01) GRANULARITY 4) "
    "PARTITION BY toYYYYMM(time_hour) ORDER BY (origin, carrier, time_hour, flight)",
    "flights_quarantine": "(job_id String, loaded_for Date, line_number UInt64, "
    "reason LowCardinality(String), line String CODEC(ZSTD(3))) "
    "PARTITION BY toYYYYMM(loaded_for) ORDER BY (reason, line_number)",
    "daily_delays": "(day Date, origin LowCardinality(String), carrier LowCardinality(String), "
    "flights UInt32, cancelled UInt32, late UInt32, delay_sum Int64, seats UInt64, in_rain UInt32) "
    "PARTITION BY toYYYYMM(day) ORDER BY (origin, carrier, day)",
}
KEYS = {
    "flights": "cityHash64(tailnum, time_hour)",
    "flights_quarantine": "line_number",
    "daily_delays": "cityHash64(origin, carrier, day)",
}
GOOD = (
    "2013,1,{day},517,515,2,830,819,11,UA,{flight},N14228,EWR,IAH,227,1400,5,15,2013-01-{day:02d}T10:00:00Z"
)
CANCELLED = "2013,1,3,NA,1900,NA,NA,2211,NA,UA,9,NA,EWR,IAH,NA,1400,19,0,2013-01-04T00:00:00Z"
FEBRUARY = "2013,2,1,517,515,2,830,819,11,UA,7,N14228,EWR,IAH,227,1400,5,15,2013-02-01T10:00:00Z"
SOME_DAYS = re.compile(r",2013-0[2-5]-(?:0[1-6]|28|29|3\d)T[\d:]+Z$")
BAD = {
    "2013,1,1": "wrong number of fields",
    GOOD.format(day=1, flight=1): "the same flight again",
    GOOD.format(day=1, flight=50).replace("UA", "ZZ"): "unknown carrier",
    GOOD.format(day=1, flight=51).replace("N14228", "NA"): "left without a tail number",
    GOOD.format(day=1, flight=52).replace("517", "5h17"): "dep_time is no number",
    GOOD.format(day=1, flight=53).replace("2013-01-01T10:00:00Z", "soon"): "time_hour is no time",
    GOOD.format(day=1, flight=54).replace("2013-01-01T10:00:00Z", "10:00:00Z"): "time_hour is no time",
    GOOD.format(day=1, flight=55).replace("2013,1,1", "-2013,1,1"): "year is out of range",
    GOOD.format(day=1, flight=56).replace("2013,1,1", "2013,13,1"): "month is out of range",
    GOOD.format(day=1, flight=57).replace(",5,15,", ",300,15,"): "hour is out of range",
    GOOD.format(day=1, flight=58).replace(",5,15,", ",5,300,"): "minute is out of range",
}


@pytest.fixture(scope="module")
def flights(nodes: Servers) -> Iterator[Servers]:
    for number, shard in enumerate(nodes.shards, start=1):
        for replica, server in enumerate(shard, start=1):
            server.execute("CREATE DATABASE flights")
            for name, text in TABLES.items():
                columns, rest = text[: text.rindex(")", 0, _clause(text)) + 1], text[_clause(text) :]
                engine = f"ReplicatedMergeTree('/flights/{number}/{name}', 'r{replica}')"
                server.execute(f"CREATE TABLE flights.{name} {columns} ENGINE = {engine} {rest}")
            for name, key in KEYS.items():
                engine = f"Distributed(two, flights, {name}, {key})"
                server.execute(f"CREATE TABLE flights.{name}_all AS flights.{name} ENGINE = {engine}")
    yield nodes
    for server in nodes.all:  # else all later tests' questions about replicas and tables are about these, too
        server.execute("DROP DATABASE flights")


def _clause(text: str) -> int:
    """Where PARTITION BY or ORDER BY begins."""
    found = text.find("PARTITION BY")
    return found if found >= 0 else text.index("ORDER BY")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return with_raw_files(tmp_path)


def with_raw_files(directory: Path) -> Path:
    good = [GOOD.format(day=day, flight=flight) for day in range(1, 4) for flight in range(1, 41)]
    lines = [",".join(COLUMNS), *good, CANCELLED, FEBRUARY, *BAD]
    (directory / "flights.csv").write_text("\n".join(lines) + "\n")
    (directory / "airlines.csv").write_text("carrier,name\nUA,United\n")
    (directory / "airports.csv").write_text(
        "faa,name,lat,lon,alt,tz,dst,tzone\nEWR,Newark,40.6,-74.1,18,-5,A,America/New_York\n"
        "IAH,Houston,29.9,-95.3,97,-6,A,America/Chicago\n"
    )
    (directory / "planes.csv").write_text(
        "tailnum,year,type,manufacturer,model,engines,seats,speed,engine\nN14228,1999,Fixed,B,7,2,149,NA,Fan\n"
    )
    (directory / "weather.csv").write_text(
        "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour\n"
        "EWR,2013,1,1,5,39.5,26.06,59.37,270,10.25,NA,0.25,1012,7,2013-01-01T10:00:00Z\n"
        "EWR,2013,1,1,5,41,26.06,59.37,270,10.25,NA,0,1012,10,2013-01-01T10:00:00Z\n"
        "EWR,2013,1,2,5,NA,26.06,59.37,270,NA,NA,0,1012,10,2013-01-02T10:00:00Z\n"
    )
    return directory


def arguments(local: LocalCluster, source: Path, *more: str) -> Sequence[str]:
    return (
        *("--config", str(local.config_file), "--cluster", "two", "--source", str(source)),
        *("--from", "2013-01-01", "--to", "2013-01-31", "--report", str(source / "report.json"), *more),
    )


def load(spark: SparkSession, local: LocalCluster, source: Path, *more: str) -> dict[str, Any]:
    return Load(spark, Request.parse(arguments(local, source, *more)), source).run()


def contents(flights: Servers) -> list[list[str]]:
    """Everything that a load writes, but for its own id."""
    quarantine = "SELECT loaded_for, line_number, reason, line FROM flights.flights_quarantine"
    return [
        flights.ask(sql)
        for sql in ("SELECT * FROM flights.flights", "SELECT * FROM flights.daily_delays", quarantine)
    ]


@pytest.fixture(scope="module")
def january(
    spark: SparkSession, local: LocalCluster, flights: Servers, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], list[list[str]]]:
    """The first load of the month: its report, and what it wrote."""
    directory = with_raw_files(tmp_path_factory.mktemp("january"))
    return load(spark, local, directory, "--job-id", "january"), contents(flights)


def test_every_line_is_a_flight_or_in_quarantine_and_repeating_changes_nothing(
    spark: SparkSession,
    local: LocalCluster,
    flights: Servers,
    source: Path,
    january: tuple[dict[str, Any], list[list[str]]],
) -> None:
    report, before = january
    assert (report["read"], report["written"], report["quarantined"]) == (121 + len(BAD), 121, len(BAD))
    assert flights.ask("SELECT reason, line FROM flights.flights_quarantine") == sorted(
        f"{reason}\t{line}" for line, reason in BAD.items()
    )
    sums = flights.ask(
        "SELECT sum(flights), sum(cancelled), sum(delay_sum), sum(seats), sum(in_rain) "
        "FROM flights.daily_delays"
    )
    by_shard = [list(map(int, line.split("\t"))) for line in sums]
    assert list(map(sum, zip(*by_shard, strict=True))) == [121, 1, 240, 120 * 149, 40]
    for table in report["tables"]:
        for number, shard in enumerate(flights.shards, start=1):
            where = f" WHERE {table['where']}" if table["where"] else ""
            count = int(shard[0].text(f"SELECT count() FROM {table['local']}{where}"))
            assert count == table["rows_per_shard"][str(number)], table
    again = load(spark, local, source, "--job-id", "january")
    assert (again["repeated"], again["written"]) == (True, 121)
    assert contents(flights) == before


def pack(file: Path, end: str) -> None:
    """As the program of that name would; the file itself goes."""
    text, packed = file.read_bytes(), file.with_name(file.name + end)
    match end:
        case ".gz":  # of two members, as `cat a.gz b.gz` makes it
            packed.write_bytes(gzip.compress(text[:100]) + gzip.compress(text[100:]))
        case ".bz2":
            packed.write_bytes(bz2.compress(text))
        case ".deflate":
            packed.write_bytes(zlib.compress(text))
        case ".zst":
            with pa.CompressedOutputStream(str(packed), "zstd") as out:
                out.write(text)
        case _:
            with zipfile.ZipFile(packed, "w") as archive:
                archive.writestr(file.name, text)
    file.unlink()


@pytest.mark.parametrize("end", few_first([".gz", ".zip", ".bz2", ".zst", ".deflate"], few=2))
def test_raw_files_may_be_packed_and_their_folder_called_like_a_pattern(
    spark: SparkSession, tmp_path: Path, end: str
) -> None:
    folder = tmp_path / "da ta[1] {x}, *\\?%20 ä"
    folder.mkdir()
    lines = (with_raw_files(folder) / "flights.csv").read_text().splitlines()
    pack(folder / "flights.csv", end)
    flights = raw_flights(spark, raw_file(folder, "flights", folder))
    assert [tuple(row) for row in flights.select("line_number", "line").collect()] == list(
        enumerate(lines, start=1)
    )[1:]


@pytest.mark.extended
def test_packed_files_are_loaded_as_they_are_and_one_that_is_cut_short_loads_nothing(
    spark: SparkSession,
    local: LocalCluster,
    flights: Servers,
    source: Path,
    january: tuple[dict[str, Any], list[list[str]]],
) -> None:
    report, before = january
    for file in list(source.glob("*.csv")):
        pack(file, ".gz")
    again = load(spark, local, source, "--job-id", "packed")
    assert (again["read"], again["repeated"]) == (report["read"], False)
    assert contents(flights) == before
    packed = source / "flights.csv.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(RawFileDamaged) as damaged:
        load(spark, local, source, "--job-id", "cut short")
    assert damaged.value.message == f"{packed} cannot be read: Unexpected end of input stream."
    assert contents(flights) == before


def test_a_raw_file_that_is_not_there_or_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no flights\.csv in") as refused:
        raw_file(tmp_path, "flights", tmp_path)
    assert ".gz" in refused.value.hint
    for end in ("", ".gz"):
        (tmp_path / f"flights.csv{end}").touch()
    with pytest.raises(ConfigError, match=r"more than one flights\.csv: flights\.csv, flights\.csv\.gz"):
        raw_file(tmp_path, "flights", tmp_path)


def test_a_zip_that_is_damaged_or_has_not_the_one_file_is_refused(tmp_path: Path) -> None:
    packed, scratch = tmp_path / "flights.csv.zip", tmp_path / "scratch"
    scratch.mkdir()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/flights.csv", "year\n" * 1000)
    assert Path(raw_file(tmp_path, "flights", scratch)).read_text() == "year\n" * 1000
    whole = packed.read_bytes()
    for damaged in (whole[:-30], whole[:60] + b"xxxx" + whole[64:]):
        packed.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"flights\.csv\.zip cannot be unpacked"):
            raw_file(tmp_path, "flights", scratch)
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("other.csv", "")
    with pytest.raises(ConfigError, match=r"has 0 files flights\.csv, not one"):
        raw_file(tmp_path, "flights", scratch)


@pytest.mark.usefixtures("january")
@pytest.mark.parametrize("header", few_first(["", ",".join(reversed(COLUMNS)), "year,month"], few=2))
def test_a_file_without_the_header_of_flights_is_refused(
    spark: SparkSession, tmp_path: Path, header: str
) -> None:
    """One that came empty would empty the months that it is loaded for."""
    (tmp_path / "flights.csv").write_text(header and f"{header}\n")
    with pytest.raises(ConfigError, match=r"flights\.csv begins with .* not with the header of the flights"):
        raw_flights(spark, str(tmp_path / "flights.csv"))


def test_a_header_may_have_a_byte_order_mark_quotes_and_line_ends_of_two_characters(
    spark: SparkSession, tmp_path: Path
) -> None:
    header = ",".join(f'"{name}"' for name in COLUMNS)
    (tmp_path / "flights.csv").write_bytes(f"\ufeff{header}\r\n".encode())
    assert raw_flights(spark, str(tmp_path / "flights.csv")).count() == 0


def test_a_line_is_cut_once_however_many_conditions_are_about_its_fields(
    spark: SparkSession, source: Path
) -> None:
    at = F.col("time_hour")
    lines = raw_flights(spark, str(source / "flights.csv")).where(at.isNull() | (at > "2013-01-02"))

    plan = lines._jdf.queryExecution().optimizedPlan().toString()  # type: ignore[operator]

    assert "time_hour" in plan
    assert plan.count("split(") == 1


@pytest.mark.usefixtures("january")
def test_each_flight_has_what_the_small_files_know_of_it(flights: Servers) -> None:
    """Also where a small file has a key twice, or not at all."""
    known = ["United", "Houston", "1999", "7", "149"]
    assert {
        tuple(line.split("\t"))
        for line in flights.ask(
            f"SELECT DISTINCT toDayOfMonth(time_hour), {', '.join(JOINED)} FROM flights.flights"
        )
    } == {
        ("1", *known, "39.5", "10.25", "0.25", "7"),
        ("2", *known, "\\N", "\\N", "0", "10"),
        ("3", *known, "\\N", "\\N", "\\N", "\\N"),
        ("4", "United", "Houston", "\\N", "", "\\N", "\\N", "\\N", "\\N", "\\N"),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    few_first(
        [
            ("N2,1999,Fixed,B,7,2,many,NA,Fan", "seats in planes.csv is no int: many"),
            (",1999,Fixed,B,7,2,149,NA,Fan", "A line of planes.csv has no tailnum."),
        ],
        few=1,
    ),
)
def test_a_small_file_with_a_line_that_does_not_fit_fails_the_load(
    spark: SparkSession, local: LocalCluster, source: Path, line: str, message: str
) -> None:
    with (source / "planes.csv").open("a") as file:
        file.write(f"{line}\n")
    request = Request.parse(arguments(local, source, "--job-id", "j"))
    with pytest.raises(RawFileDamaged, match=rf"\A{message}\Z"), told_in_one_line():
        Load(spark, request, source)._reference("planes").collect()


@pytest.mark.usefixtures("flights")
def test_a_table_without_a_column_of_the_load_refuses_it_before_spark_begins_to_write(
    spark: SparkSession, local: LocalCluster, source: Path
) -> None:
    loading = Load(spark, Request.parse(arguments(local, source, "--job-id", "wider")), source)
    wider = spark.range(1).select(F.lit("AA").alias("carrier"), F.lit("n").alias("name"), F.lit(1).alias("x"))
    with pytest.raises(SqlError, match="has no column x") as refused:
        loading._write_reference(wider, "airlines")
    assert refused.value.code == Code.NO_SUCH_COLUMN_IN_TABLE


def stop_when_it_has_staged(
    local: LocalCluster, flights: Servers, source: Path, job: str, stop: Callable[[int], None]
) -> None:
    """Start the load as a process; returns when all of its processes have ended, and left no files."""
    settings = SparkSettings(
        source, local.config_file, master="local[2]", conf={"spark.driver.extraJavaOptions": QUICK_SPARK}
    )
    request = LoadRequest(
        cluster="two", first=date(2013, 1, 1), last=date(2013, 1, 31), source=source, job_id=job
    )
    scratch = source / "scratch"
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, **spark_environment(settings, master=settings.master)}
    environment["TMPDIR"] = str(scratch)
    server = flights.shards[-1][0]  # its shard's only replica: one of the tables stages here, if any does
    staged_before = set(staging_of(server))
    process = subprocess.Popen(command_line(settings, request), env=environment, start_new_session=True)
    while set(staging_of(server)) <= staged_before and process.poll() is None:
        time.sleep(0.2)  # to ask takes processor time that Spark needs to start
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    stop(process.pid)
    assert process.wait() != 0
    wait_until_ended(family)
    assert not settings.report_file(request).exists()
    assert list(scratch.glob("oncluster-flights-*")) == []


@pytest.mark.extended
def test_a_load_that_is_stopped_leaves_nothing_running_and_goes_on_when_it_is_started_again(
    spark: SparkSession,
    local: LocalCluster,
    flights: Servers,
    source: Path,
    january: tuple[dict[str, Any], list[list[str]]],
) -> None:
    """1. Of a month that is there, a load with another id has staged rows. 2. Ctrl-C, which reaches its whole
    process group: all of its processes end. 3. It is started again, and ended with SIGTERM, which reaches one
    process; and with one that reaches all. 4. It is started once more: the month is as it was."""
    stop_when_it_has_staged(local, flights, source, "stopped", lambda pid: os.killpg(pid, signal.SIGINT))
    stop_when_it_has_staged(local, flights, source, "stopped", lambda pid: os.kill(pid, signal.SIGTERM))
    stop_when_it_has_staged(local, flights, source, "stopped", lambda pid: os.killpg(pid, signal.SIGTERM))
    visible = flights.counts("flights.flights")
    again = load(spark, local, source, "--job-id", "stopped")
    assert (again["written"], again["quarantined"]) == (121, len(BAD))
    now = flights.counts("flights.flights")
    assert sum(now) == 121
    assert all(rows in (0, all_rows) for rows, all_rows in zip(visible, now, strict=True))
    assert contents(flights) == january[1]
    assert set(flights.ask("SELECT job_id FROM flights.flights_quarantine")) == {"stopped"}
    assert flights.staging() == []


def real_files(directory: Path) -> Path:
    """Those of the package, packed as they are there. Of flights and weather ten days of each month of
    spring: March and April have 17,000 flights then, more than Spark and the source take at once."""
    directory.mkdir()
    for path in _packaged().glob("*.csv*"):
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as packed, zipfile.ZipFile(directory / path.name, "w") as cut:
                for name in packed.namelist():
                    cut.writestr(name, _some_days(packed.read(name).decode()))
        else:
            (directory / path.name).write_text(_some_days(path.read_text(encoding="utf-8")), encoding="utf-8")
    return directory


def _some_days(text: str) -> str:
    header, *lines = text.splitlines(keepends=True)
    if not header.rstrip().endswith(",time_hour"):
        return text
    return header + "".join(filter(SOME_DAYS.search, lines))


def lines_of(source: Path, name: str) -> Iterator[dict[str, str]]:
    """The lines of a raw file, as Python reads them."""
    [path] = source.glob(f"{name}.csv*")
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
            yield from csv.DictReader(io.TextIOWrapper(file, "utf-8"))
    else:
        with path.open(encoding="utf-8") as file:
            yield from csv.DictReader(file)


@pytest.mark.extended
def test_two_months_of_the_real_files_are_there_with_what_was_joined_and_one_loaded_again_changes_nothing(
    spark: SparkSession, local: LocalCluster, flights: Servers, tmp_path: Path
) -> None:
    """1. March and April are loaded. 2. Some days of April are loaded under another id, which is all of April
    again. 3. Python, which knows nothing of Spark, counts the files."""

    source = real_files(tmp_path / "source")

    def run(first: str, last: str, job: str) -> dict[str, Any]:
        given = arguments(local, source, "--job-id", job)
        days = ("--from", first, "--to", last, "--report", str(tmp_path / "report.json"))
        return Load(spark, Request.parse((*given, *days)), tmp_path).run()

    def found() -> list[str]:
        digest = "count(), sum(cityHash64(formatRow('TSV', *)))"
        return [
            line
            for table, day in (("flights", "time_hour"), ("daily_delays", "day"))
            for line in flights.ask(
                f"SELECT {digest} FROM flights.{table} WHERE toYYYYMM({day}) IN (201303, 201304)"
            )
        ]

    report = run("2013-03-01", "2013-04-30", "spring")
    loaded = found()
    again = run("2013-04-10", "2013-04-11", "april")
    assert found() == loaded

    seats = {plane["tailnum"]: int(plane["seats"]) for plane in lines_of(source, "planes")}
    rain = {
        (hour["origin"], hour["time_hour"]): float(hour["precip"]) for hour in lines_of(source, "weather")
    }
    lines = [line for line in lines_of(source, "flights") if line["time_hour"][:7] in ("2013-03", "2013-04")]
    assert len(lines) > 15_000
    april = [line for line in lines if line["time_hour"][:7] == "2013-04"]
    assert (report["read"], report["written"], report["quarantined"]) == (len(lines), len(lines), 0)
    assert (again["read"], again["repeated"]) == (len(april), False)
    left = [line for line in lines if line["dep_time"] != "NA"]
    sums = flights.ask(
        "SELECT sum(flights), sum(seats), sum(in_rain) FROM flights.daily_delays "
        "WHERE toYYYYMM(day) IN (201303, 201304)"
    )
    assert list(map(sum, zip(*(map(int, line.split("\t")) for line in sums), strict=True))) == [
        len(lines),
        sum(seats.get(line["tailnum"], 0) for line in left),
        sum(rain.get((line["origin"], line["time_hour"]), 0) > 0 for line in left),
    ]
    assert flights.staging() == []
