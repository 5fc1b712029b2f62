"""Options for programs of Java that end before they would have been optimized.

Compiling them again and again takes half of their processor time. Loading Spark's classes takes half of what
is then left: they come from archives (class data sharing), which `tests.spark.classes` and
`tests.zookeeper_classes` make where there are none. A Java that finds no archive, or one of another Java or
another Spark, does without.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from engine.errors import ConfigError
from engine.keeper.java import find_java

_ROOT = Path(__file__).resolve().parents[1]

QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Java says on its standard output why it does without an archive.
SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def _archive(program: str) -> Path:
    """Beside what pytest remembers, one for each Java and each installation of Spark."""
    spark = importlib.util.find_spec("pyspark")
    used = [Path(spark.origin)] if spark is not None and spark.origin is not None else []
    try:
        used.append(find_java().resolve())
    except ConfigError:
        pass
    key = repr([(str(file), file.stat().st_mtime_ns) for file in used])
    name = f"{program}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
    return _ROOT / ".pytest_cache" / "java" / name


SPARK_CLASSES = _archive("spark")
ZOOKEEPER_CLASSES = _archive("zookeeper")
QUICK_SPARK = f'{QUICK_JAVA} {SILENT} "-XX:SharedArchiveFile={SPARK_CLASSES}"'
"""For whatever has all of Spark's jars on its class path."""
