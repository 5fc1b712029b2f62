"""What tells the rows of a batch from others that are as many.

A batch that is repeated has the same rows, but tasks may be cut in another way, and rows come in any order.
So each row is hashed, by the names of its columns and as Spark has the values, and the sums are compared:
what the table makes of a value may change with an ALTER in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from spark_apps.clickhouse_cluster.collector import spare_the_modules
from spark_apps.clickhouse_cluster.options import RepeatedBatch
from spark_apps.clickhouse_cluster.split import chdb_query

_DIGESTS = 1 << 64


@dataclass(frozen=True, slots=True)
class Content:
    """How many rows, and their digest; None where nobody has made it."""

    rows: int = 0
    digest: int | None = 0

    def __add__(self, other: Content) -> Content:
        digests = self.digest, other.digest
        known = None if digests[0] is None or digests[1] is None else (digests[0] + digests[1]) % _DIGESTS
        return Content(self.rows + other.rows, known)

    def may_be(self, other: Content) -> bool:
        """Whether nothing tells the two apart."""
        is_known = self.digest is not None and other.digest is not None
        return self.rows == other.rows and (not is_known or self.digest == other.digest)


class Counted:
    """Rows on their way, of columns that are called `names`, and what has passed by."""

    def __init__(self, rows: Iterator[pa.RecordBatch], names: Sequence[str], how: RepeatedBatch) -> None:
        self._rows = rows
        self._names = names
        self._how = how
        self.content = Content(0, 0 if how is RepeatedBatch.COMPARED else None)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._rows)
        is_compared = self._how is RepeatedBatch.COMPARED
        self.content += Content(batch.num_rows, _digest(batch, self._names) if is_compared else None)
        return batch


def content_of(frame: DataFrame, how: RepeatedBatch) -> Content:
    """Of all rows of a frame, which Spark makes for this."""
    if how is RepeatedBatch.COUNTED:
        return Content(frame.count(), None)
    names = frame.columns

    def of_task(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_the_modules()
        counted = Counted(rows, names, how)
        deque(counted, maxlen=0)  # rows are made, counted and forgotten
        found = counted.content
        yield pa.RecordBatch.from_pydict({"rows": [found.rows], "digest": [str(found.digest)]})

    tasks = frame.mapInArrow(of_task, "rows long, digest string").collect()
    return sum((Content(task.rows, int(task.digest)) for task in tasks), Content())


def _digest(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    if not batch.num_rows:
        return 0
    order = sorted(range(len(names)), key=lambda at: names[at])
    columns = [f"c{at}" for at in range(len(order))]
    rows = pa.table([batch.column(at) for at in order], names=columns)
    row = f"formatRow('RowBinary', {', '.join(columns)})"
    found = chdb_query(
        f"SELECT sum(sipHash64({row})) FROM Python(_oncluster_rows) SETTINGS max_threads = 1", "TSVRaw", rows
    )
    return int(found)
