"""The archive of Spark's classes that the tests' Javas share.

A session does a little of everything, and writes down at its end what it has loaded: 17 s of processor time.
Each session that finds the archive takes 4 s less, of 7; there are a dozen and a half.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.quick_java import QUICK_JAVA, SILENT, SPARK_CLASSES

ROOT = Path(__file__).resolve().parents[2]


def make_archive() -> None:
    """If there is none. Where Java cannot make one, there is none afterwards either, which a
    warning says."""
    if SPARK_CLASSES.exists():
        return
    SPARK_CLASSES.parent.mkdir(parents=True, exist_ok=True)
    new = SPARK_CLASSES.with_name(f"{SPARK_CLASSES.name}.{os.getpid()}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment["SPARK_SUBMIT_OPTS"] = QUICK_JAVA  # a Java that is to use an archive makes none
    command = [sys.executable, "-m", "tests.spark.classes", str(new)]
    made = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if new.exists():
        new.replace(SPARK_CLASSES)
    else:
        output = (made.stdout + made.stderr)[-2000:]
        warnings.warn(f"No archive of Spark's classes (exit {made.returncode}): {output}", stacklevel=2)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _main(archive: str) -> None:
    java = f'{QUICK_JAVA} {SILENT} "-XX:ArchiveClassesAtExit={archive}"'
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    frame = spark.range(100, numPartitions=2).selectExpr("id AS a", "concat('x', id) AS s")
    frame = frame.mapInArrow(_same, frame.schema).repartition(2, "a").join(frame, "a")
    frame.groupBy("a").count().orderBy("a").collect()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # which is how the JVM is told to end
    gateway.proc.wait()


if __name__ == "__main__":
    _main(sys.argv[1])
