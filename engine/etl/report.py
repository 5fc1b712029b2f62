"""What the Spark application says at its end, and whether that adds up.

The file is JSON; the application writes it whole, by renaming, after its commit:

    {"version": 1, "job_id": "…", "mode": "overwrite", "from": "2013-01-01", "to": "2013-12-31",
     "repeated": false, "read": 336776, "written": 336000, "quarantined": 776,
     "tables": [{"table": "flights.flights_all", "local": "flights.flights", "rows": 336000,
                 "rows_per_shard": {"1": 168000, "2": 168000}, "where": "time_hour >= …", "exact": true}]}

A table that stands on each shard in full, such as a small one to join with, has `table` and `local` alike.
`where` selects the rows of a table that the load answers for; with `exact` false (rows were added to others)
a replica may hold more of them than were written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import Corrupt
from engine.etl.request import LoadMode

VERSION = 1


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table. Shards count from 1; `local` is the table on each shard, `table` the Distributed one."""

    table: str
    local: str
    rows: int
    rows_per_shard: Mapping[int, int]
    where: str = ""
    exact: bool = True

    @property
    def is_on_each_shard_in_full(self) -> bool:
        return self.table == self.local

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "local": self.local,
            "rows": self.rows,
            "rows_per_shard": {str(shard): rows for shard, rows in self.rows_per_shard.items()},
            "where": self.where,
            "exact": self.exact,
        }


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Counts of raw rows, and of what went to each table. `first` and `last` are the days in fact loaded."""

    job_id: str
    mode: str
    first: str
    last: str
    repeated: bool
    read: int
    written: int
    quarantined: int
    tables: tuple[TableReport, ...]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the counts cannot be true; empty when they add up."""
        found = []
        if self.read != self.written + self.quarantined:
            found.append(
                f"read {self.read:,} rows, but wrote {self.written:,} and put aside {self.quarantined:,}"
            )
        for table in self.tables:
            if table.is_on_each_shard_in_full:
                if any(rows != table.rows for rows in table.rows_per_shard.values()):
                    counts = ", ".join(f"{rows:,}" for rows in table.rows_per_shard.values())
                    found.append(f"{table.table}: {table.rows:,} rows on each shard, but they have {counts}")
            elif sum(table.rows_per_shard.values()) != table.rows:
                counts = ", ".join(f"{rows:,}" for rows in table.rows_per_shard.values())
                found.append(f"{table.table}: {table.rows:,} rows, but its shards have {counts}")
        if not self.tables:
            found.append("no table was loaded")
        return tuple(found)

    @property
    def emptied(self) -> str:
        """A warning where months were replaced by nothing, which a wrong folder or a wrong day does; else
        empty."""
        if self.mode != LoadMode.OVERWRITE or self.read:
            return ""
        return (
            f"The raw files have no line of {self.first} to {self.last}: these days have no flights in the "
            "tables any more. Is that the right folder, and are these the right days?"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "job_id": self.job_id,
            "mode": self.mode,
            "from": self.first,
            "to": self.last,
            "repeated": self.repeated,
            "read": self.read,
            "written": self.written,
            "quarantined": self.quarantined,
            "tables": [table.to_json() for table in self.tables],
        }

    @classmethod
    def from_json(cls, raw: Any, *, where: str = "The report") -> LoadReport:
        """Raises Corrupt that names the fault."""
        try:
            if raw["version"] != VERSION:
                raise ValueError(f"version {raw['version']}, not {VERSION}")
            return cls(
                job_id=str(raw["job_id"]),
                mode=str(raw["mode"]),
                first=str(raw["from"]),
                last=str(raw["to"]),
                repeated=bool(raw["repeated"]),
                read=int(raw["read"]),
                written=int(raw["written"]),
                quarantined=int(raw["quarantined"]),
                tables=tuple(_table(item) for item in raw["tables"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Corrupt(
                f"{where} of the Spark application cannot be read: {type(error).__name__}: {error}."
            ) from error

    @classmethod
    def read_file(cls, path: Path) -> LoadReport:
        """Raises Corrupt, also when there is no file: an application that ended well has written it."""
        try:
            text = path.read_text()
        except OSError as error:
            raise Corrupt(
                f"The Spark application has ended and left no report in {path}: {error.strerror}.",
                hint="In cluster deploy mode the driver needs a file system that it shares with this host.",
            ) from error
        try:
            return cls.from_json(json.loads(text), where=str(path))
        except ValueError as error:
            raise Corrupt(f"{path} is no JSON: {error}.") from error


def _table(raw: Any) -> TableReport:
    return TableReport(
        table=str(raw["table"]),
        local=str(raw["local"]),
        rows=int(raw["rows"]),
        rows_per_shard={int(shard): int(rows) for shard, rows in sorted(raw["rows_per_shard"].items())},
        where=str(raw.get("where", "")),
        exact=bool(raw.get("exact", True)),
    )
