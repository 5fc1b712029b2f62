"""What every benchmark ends with: one table for people and one JSON file for programs.

A benchmark collects `Row`s in a `Report` and calls `finish`, which prints and writes. The JSON file is a list
of rows with the keys `name`, `unit`, `ours`, `peer`, `peer_name`, `ratio` and `better`. Printed only: the
machine, `notes` (what a reader has to know, for example that there was no peer to compare with) and `aims`
(what was wanted and whether it was met). Whether an aim is met is reported and is no exit code: figures of a
shared machine prove nothing by themselves.

    report = Report("simulate")
    report.add(Row("keeper operations per host, 10 nodes", "ops", ours=4.0, better=Better.LOWER))
    report.aim("constant per host from 10 to 1,000 nodes", met=True)
    report.finish(json_file)
"""

from __future__ import annotations

import enum
import json
import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from rich.table import Table

from engine.cli import output


class Better(enum.StrEnum):
    """Which way a figure should go."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of ours and, where there is one, the peer's from the same run, in the same unit.

    `peer` None: nothing to compare with; say why in a note of the report.
    """

    name: str
    unit: str
    ours: float | None
    better: Better = Better.LOWER
    peer: float | None = None
    peer_name: str | None = None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the peer's; None without a peer."""
        if self.ours is None or not self.peer:
            return None
        return self.ours / self.peer

    def to_json(self) -> dict[str, str | float | None]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "ratio": self.ratio,
            "better": self.better.value,
        }


class Report:
    """The rows, notes and aims of one run of one benchmark."""

    def __init__(self, benchmark: str) -> None:
        self.benchmark = benchmark
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.aims: list[tuple[str, bool | None]] = []
        self._started_s = time.monotonic()

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def note(self, text: str) -> None:
        """Something that a reader of the figures has to know."""
        self.notes.append(text)

    def aim(self, text: str, *, met: bool | None) -> None:
        """What was wanted; `met` is None where this run could not tell."""
        self.aims.append((text, met))

    def to_json(self) -> list[dict[str, str | float | None]]:
        return [row.to_json() for row in self.rows]

    def finish(self, json_file: Path | None = None) -> None:
        """Print the table; write the JSON file if one is wanted (its directory is made)."""
        console = output.console()
        console.print(self.table())
        for text, met in self.aims:
            mark = {True: "[green]met    [/]", False: "[red]not met[/]", None: "[yellow]unknown[/]"}[met]
            console.print(f"  aim {mark}  {text}")
        for text in self.notes:
            console.print(f"  [bold yellow]note[/]  {text}")
        console.print(f"  [dim]{machine()}, took {time.monotonic() - self._started_s:.0f} s[/]")
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps(self.to_json(), indent=2) + "\n")
            console.print(f"  written to {json_file}")

    def table(self) -> Table:
        """The rows as a rich table; the peer's columns are left out where no row has a peer."""
        peers = sorted({row.peer_name for row in self.rows if row.peer_name})
        table = Table(title=self.benchmark, title_justify="left")
        table.add_column("what")
        table.add_column("unit")
        table.add_column("ours", justify="right")
        if peers:
            table.add_column(" / ".join(peers), justify="right")
            table.add_column("ours ÷ peer", justify="right")
        table.add_column("better", justify="center")
        for row in self.rows:
            cells = [row.name, row.unit, _figure(row.ours)]
            if peers:
                cells += [_figure(row.peer), "–" if row.ratio is None else f"{row.ratio:.2f}"]
            table.add_row(*cells, "↓" if row.better is Better.LOWER else "↑")
        return table


def machine() -> str:
    """Where the figures come from, as far as a reader needs it to judge them."""
    return (
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}"
    )


def median(values: Sequence[float]) -> float | None:
    """The median; None of nothing."""
    return statistics.median(values) if values else None


json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write the figures to this file, too.",
)
"""The option every benchmark takes: `--json FILE`, passed on as `json_file`."""


def _figure(value: float | None) -> str:
    """Three significant digits for small figures, whole numbers with separators for large ones."""
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"
