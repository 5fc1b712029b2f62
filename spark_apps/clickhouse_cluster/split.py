"""Rows of a task, cut by shard, in the form in which a server takes them.

chDB evaluates the sharding key on values as the table stores them, so any expression works and the shard is
the one that a server would choose. It is loaded inside the task: a process that was forked from one in which
chDB runs would hang.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from engine.distributed.sharding import slot_expression
from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from spark_apps.clickhouse_cluster.expressions import write_expression
from spark_apps.clickhouse_cluster.options import Placement
from spark_apps.clickhouse_cluster.ranges import require_values
from spark_apps.clickhouse_cluster.target import Target

_connection: Any = None
_turn = threading.Lock()
_key_types: dict[str, str] = {}
"""By the statement that asks for it. A process that Spark gives many tasks asks once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows for one shard (counted from 0), in the target's insert format."""

    shard: int
    rows: int
    body: bytes


def chdb_connection() -> Any:
    """This process's chDB."""
    global _connection
    if _connection is None:
        import chdb

        library: Any = chdb  # its functions have no types
        place = tempfile.mkdtemp(prefix="oncluster-")
        try:
            _connection = library.connect(place)
        finally:
            # Only what sorts or groups more than memory holds would use it, and Spark ends a worker without a
            # chance to remove it.
            shutil.rmtree(place, ignore_errors=True)
    return _connection


def close_chdb() -> None:
    """A process has one chDB at a time: whoever wants another one afterwards ends this one."""
    global _connection
    connection, _connection = _connection, None
    if connection is not None:
        connection.close()


def chdb_query(sql: str, form: str, _oncluster_rows: pa.Table | None = None) -> bytes:
    """The whole answer. chDB finds the rows by the name that they have here, and would take a column of the
    same name for the table, or the rows of another thread that is here too: one at a time. Raises
    RuntimeError."""
    with _turn:
        try:
            return bytes(chdb_connection().query(sql, form).bytes())
        except RuntimeError:
            # What chDB 4.4 has put out of an ArrowStream that failed is the beginning of its next answer.
            close_chdb()
            raise


class Splitter:
    """Cuts tables whose columns are `names`, in that order."""

    def __init__(self, target: Target, names: Sequence[str]) -> None:
        self._target = target
        columns = {column.name: column for column in target.columns}
        self._columns = [columns[name] for name in names if name in columns]
        self._casts = ", ".join(
            f"{write_expression(name, column.type)} AS {name}"
            for column in self._columns
            if (name := quote_identifier(column.name))
        )
        zone = quote_string(target.timezone)
        self._settings = (
            f"SETTINGS max_threads = 1, max_block_size = 1048576, session_timezone = {zone}, "
            "allow_suspicious_low_cardinality_types = 1, allow_suspicious_fixed_string_types = 1"
        )

    @property
    def format(self) -> str:
        """Servers before 20.3 know other serializations of some types in Native."""
        return "RowBinary" if self._target.is_old else "Native"

    def split(self, rows: pa.Table) -> Iterator[Piece]:
        """One piece for each shard that gets any of `rows`.

        Raises SqlError: 349, 691 and 321 as `require_values`, 53 for a key that is no integer, 36 for one
        that gives more or less than one for each row, others where a value does not fit or the key cannot be
        evaluated.
        """
        require_values(rows, self._columns, self._target.table, self._target.years)
        if self._target.placement is Placement.EVERY_SHARD:
            body = self._encode(rows)
            yield from (Piece(shard, rows.num_rows, body) for shard in range(len(self._target.shards)))
            return
        owners = self._owners(rows)
        if owners is None:
            yield Piece(self._target.owners[0], rows.num_rows, self._encode(rows))
            return
        import numpy as np

        for shard in self._target.owners:
            chosen = np.flatnonzero(owners == shard)
            if len(chosen):
                part = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
                yield Piece(shard, len(chosen), self._encode(part))

    def _owners(self, rows: pa.Table) -> Any:
        """By row, the shard; None when there is only one."""
        if len(self._target.owners) == 1:
            return None
        ends = self._target.ends_of_slots
        import numpy as np

        key = self._target.sharding_key
        inner = f"(SELECT {self._casts} FROM Python(_oncluster_rows))"
        slot = slot_expression(key, self._key_type(key, inner, rows), ends[-1])
        answer = self._of_key(f"SELECT {slot} AS slot FROM {inner} {self._settings}", "ArrowStream", rows)
        found = pa.ipc.open_stream(pa.py_buffer(answer)).read_all()["slot"].to_numpy()
        if len(found) != rows.num_rows:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"The sharding key {key} gives {len(found)} numbers for {rows.num_rows} rows.",
                hint="Write an expression that gives one integer for each row, such as cityHash64(column).",
            )
        return np.searchsorted(np.array(ends, np.uint64), found.astype(np.uint64), side="right")

    def _key_type(self, key: str, inner: str, rows: pa.Table) -> str:
        asking = f"SELECT toTypeName({key}) FROM {inner} LIMIT 1 {self._settings}"
        if asking not in _key_types:
            _key_types[asking] = self._of_key(asking, "TSVRaw", rows).decode().strip()
        return _key_types[asking]

    def _of_key(self, sql: str, form: str, rows: pa.Table) -> bytes:
        try:
            return chdb_query(sql, form, rows)
        except RuntimeError as error:
            self._encode(rows)  # which says it where a value does not fit
            raise SqlError(
                _code(str(error)),
                f"The sharding key {self._target.sharding_key} cannot be evaluated: {error}",
                hint="Spark's workers evaluate it, away from the servers: from columns of the frame and "
                "functions of ClickHouse, without dictionaries, tables or functions that somebody made.",
            ) from error

    def _encode(self, rows: pa.Table) -> bytes:
        return self._query(
            f"SELECT {self._casts} FROM Python(_oncluster_rows) {self._settings}", self.format, rows
        )

    def _query(self, sql: str, form: str, rows: pa.Table) -> bytes:
        try:
            return chdb_query(sql, form, rows)
        except RuntimeError as error:
            raise SqlError(
                _code(str(error)), f"Rows do not fit into {self._target.table}: {error}"
            ) from error


def _code(text: str) -> int:
    import re

    found = re.search(r"Code: (\d+)", text)
    return int(found.group(1)) if found else Code.UNKNOWN_EXCEPTION
