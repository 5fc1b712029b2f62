"""Raw lines of flights as frames: cut, cast, judged, joined, aggregated. No line is lost on the way.

A line that is a flight has no `reason`; any other says the first thing that is wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from engine.errors import ConfigError
from spark_apps.raw_files import as_path

_MARK = "\ufeff"
"""Of the order of bytes, which some programs put before a file."""

_NUMBERS = {
    "year": "int", "month": "int", "day": "int", "dep_time": "int", "sched_dep_time": "int",
    "dep_delay": "int", "arr_time": "int", "sched_arr_time": "int", "arr_delay": "int", "flight": "int",
    "air_time": "int", "distance": "int", "hour": "int", "minute": "int",
}  # fmt: skip
_LIMITS = {
    "year": (1, 65535), "month": (1, 12), "day": (1, 31), "flight": (0, 65535), "air_time": (0, 65535),
    "distance": (0, 65535), "hour": (0, 24), "minute": (0, 59), "dep_delay": (-32768, 32767),
    "arr_delay": (-32768, 32767),
}  # fmt: skip
"""What the tables hold and calendars and clocks have: one line beyond would fail the load of all others."""
_A_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?$"
"""Of a text without a date Spark makes one of today, which no load of its month would meet."""
_MAY_BE_ABSENT = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
COLUMNS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time",
    "arr_delay", "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute",
    "time_hour",
)  # fmt: skip


def raw_flights(spark: SparkSession, file: str) -> DataFrame:
    """Every line but the header, with its number (the header has 1), cut at commas.

    Raises ConfigError where the first line is no header of these columns: a file that came empty would empty
    whole months, and fields in another order would stand in each other's columns.
    """
    text = spark.read.text(as_path(file))
    _require_header(text.head(), file)
    lines = text.select(F.col("value").alias("line"), "_metadata.file_block_start")
    # Cut beside the number, past which Spark moves no condition: one would cut for each mention of a field.
    cut = lines.select("line", _line_number(lines), F.split("line", ",", -1).alias("fields"))
    columns = [_field(F.col("fields"), number).alias(name) for number, name in enumerate(COLUMNS)]
    return cut.where("line_number > 1").select(
        "line_number", "line", F.size("fields").alias("width"), *columns
    )


def _require_header(first: Row | None, file: str) -> None:
    found = [name.strip(' "') for name in ("" if first is None else first.value).lstrip(_MARK).split(",")]
    if found != list(COLUMNS):
        raise ConfigError(
            f"{file} begins with {'nothing' if first is None else repr(first.value[:200])}, "
            "not with the header of the flights.",
            hint=f"Its columns are {','.join(COLUMNS)}, in this order.",
        )


def _line_number(lines: DataFrame) -> Column:
    """From 1. A partition is a piece of the file, and knows its own lines only."""
    piece = F.spark_partition_id()
    sizes = lines.groupBy(piece.alias("piece")).agg(
        F.min("file_block_start").alias("at"), F.count("*").alias("n")
    )
    before, first = 0, {}
    for row in sorted(sizes.collect(), key=lambda row: row["at"]):
        first[row["piece"]] = before
        before += row["n"]
    offset = F.coalesce(*(F.when(piece == number, F.lit(lines)) for number, lines in first.items()), F.lit(0))
    # The lower 33 bits of the id count within a partition.
    within = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1)
    return (offset + within + 1).alias("line_number")


def _field(fields: Column, number: int) -> Column:
    text = F.trim(F.get(fields, F.lit(number)))
    return F.when(text.isin("", "NA"), None).otherwise(text)


def judged(raw: DataFrame, airlines: DataFrame, airports: DataFrame) -> DataFrame:
    """The raw lines with columns of the right types and `reason`: NULL for a flight, else why it is none."""
    # Cast once, in a projection of its own: a condition that names a cast would cast again.
    casts = {
        **{name: f"try_cast({name} AS {kind})" for name, kind in _NUMBERS.items()},
        "time_hour": f"if(time_hour RLIKE r'{_A_TIME}', try_cast(time_hour AS timestamp), NULL)",
    }
    cast = raw.select("*", *(F.expr(text).alias(f"cast_{name}") for name, text in casts.items()))
    numbers = {name: F.col(f"cast_{name}") for name in _NUMBERS}
    at = F.col("cast_time_hour")
    problems: list[tuple[Column, str]] = [(F.col("width") != len(COLUMNS), "wrong number of fields")]
    problems.append((F.col("time_hour").isNull(), "no time_hour"))
    problems.append((at.isNull(), "time_hour is no time"))
    for name, number in numbers.items():
        if name not in _MAY_BE_ABSENT:
            problems.append((F.col(name).isNull(), f"no {name}"))
        problems.append((F.col(name).isNotNull() & number.isNull(), f"{name} is no number"))
    for name in ("dep_time", "sched_dep_time", "arr_time", "sched_arr_time"):
        problems.append((~numbers[name].between(0, 2400), f"{name} is no time of day"))
    for name, (least, most) in _LIMITS.items():
        problems.append((~numbers[name].between(least, most), f"{name} is out of range"))
    problems.append((F.col("tailnum").isNull() & F.col("dep_time").isNotNull(), "left without a tail number"))
    problems.append((F.col("is_carrier").isNull(), "unknown carrier"))
    problems.append((F.col("is_origin").isNull(), "unknown origin"))
    problems.append((F.col("dest").isNull(), "no dest"))
    reason = F.coalesce(*(F.when(wrong, F.lit(text)) for wrong, text in problems))
    known = cast.join(
        F.broadcast(one_of_each(airlines.select("carrier"), "carrier").withColumn("is_carrier", F.lit(1))),
        "carrier",
        "left",
    ).join(
        F.broadcast(
            one_of_each(airports.select(F.col("faa").alias("origin")), "origin").withColumn(
                "is_origin", F.lit(1)
            )
        ),
        "origin",
        "left",
    )
    return known.select(
        "line_number",
        "line",
        reason.alias("reason"),
        *(F.col(f"cast_{name}" if name in casts else name).alias(name) for name in COLUMNS),
    )


_FLIGHT = ("time_hour", "carrier", "flight", "origin", "dest")
"""What two lines about the same flight have in common."""


def counted(lines: DataFrame) -> tuple[int, bool]:
    """How many lines there are, and whether two that are right may be about the same flight."""
    flight = F.when(F.col("reason").isNull(), F.xxhash64(*_FLIGHT)).alias("flight")
    by_flight = lines.groupBy(flight).count()
    most = F.max(F.when(F.col("flight").isNotNull(), F.col("count")))
    rows, most_lines = by_flight.agg(F.sum("count"), most).collect()[0]
    return int(rows or 0), int(most_lines or 0) > 1


def first_of_each_flight(lines: DataFrame) -> DataFrame:
    """The first line of a flight counts. Lines that are wrong anyway keep their own reason."""
    same = Window.partitionBy("reason", *_FLIGHT).orderBy("line_number")
    again = F.col("reason").isNull() & (F.row_number().over(same) > 1)
    reason = F.when(again, F.lit("the same flight again")).otherwise(F.col("reason"))
    return lines.withColumn("reason", reason)


JOINED = (
    "airline", "dest_name", "plane_year", "plane_model", "seats", "temp", "wind_speed", "precip", "visib",
)  # fmt: skip
"""What is known of a flight from the small files."""


def joined(flights: DataFrame, references: Mapping[str, DataFrame]) -> DataFrame:
    """The flights with `JOINED`: names, the plane, and the weather at the airport in the hour of departure.

    None is lost and none is there twice, whatever the small files have: what is not known is NULL, or an
    empty text, and of lines with equal keys one is taken, always the same. Give it what is cached: Spark
    plans joins over the reasons of `judged` for minutes.
    """
    airlines = references["airlines"].select("carrier", F.col("name").alias("airline"))
    airports = references["airports"].select(F.col("faa").alias("dest"), F.col("name").alias("dest_name"))
    planes = references["planes"].select(
        "tailnum", F.col("year").alias("plane_year"), F.col("model").alias("plane_model"), "seats"
    )
    weather = references["weather"].select("origin", "time_hour", "temp", "wind_speed", "precip", "visib")
    for other, key in (
        (airlines, ["carrier"]),
        (airports, ["dest"]),
        (planes, ["tailnum"]),
        (weather, ["origin", "time_hour"]),
    ):
        flights = flights.join(F.broadcast(one_of_each(other, *key)), key, "left")
    return flights.select(*COLUMNS, *JOINED).fillna("", ["airline", "dest_name", "plane_model"])


def one_of_each(frame: DataFrame, *key: str) -> DataFrame:
    """Of a small frame one row of each key: the least, by its other columns."""
    frame = frame.coalesce(1)  # so that nothing is shuffled
    others = [name for name in frame.columns if name not in key]
    if not others:
        return frame.distinct()
    least = F.min(F.struct(*others)).alias("least")
    return frame.groupBy(*key).agg(least).select(*key, "least.*")


def daily_delays(flights: DataFrame) -> DataFrame:
    """By day, airport and airline, of flights with what was joined: flights, cancelled, late, the minutes of
    delay at departure, seats of the planes that left, and departures in an hour with rain or snow."""

    def number(condition: str) -> Column:
        return F.count_if(F.expr(condition))

    return flights.groupBy(F.to_date("time_hour").alias("day"), "origin", "carrier").agg(
        F.count("*").alias("flights"),
        number("dep_time IS NULL").alias("cancelled"),
        number("coalesce(arr_delay, 0) > 15").alias("late"),
        F.coalesce(F.sum(F.col("dep_delay").cast("long")), F.lit(0)).alias("delay_sum"),
        F.coalesce(F.sum(F.expr("if(dep_time IS NULL, 0, seats)").cast("long")), F.lit(0)).alias("seats"),
        number("dep_time IS NOT NULL AND precip > 0").alias("in_rain"),
    )
