"""Results on standard output: a table, or one JSON document with `--json`.

Progress and errors go to standard error, so that output can be piped.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

JsonValue = Any
"""What `json.dumps` takes; enums and paths are written as their text."""

_LEGIBLE = 5
_BETWEEN_COLUMNS = 3


def prepare_streams() -> None:
    """Whatever is printed can be printed: also where standard output is closed, or takes no Unicode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper) and (
            stream.errors == "strict" or (stream.errors == "surrogateescape" and not _is_unicode(stream))
        ):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """A rich console; when its stream is no terminal, lines are as long as they need to be."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 200, highlight=False)


def print_json(data: JsonValue) -> None:
    """One JSON document on standard output, indented; enums and paths as their text."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=not _is_unicode(sys.stdout), default=str))


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", empty: str = "(nothing)"
) -> None:
    """A table on standard output; `empty` is said when there are no rows. Cells are text, not markup.

    On a terminal on which its columns would be too narrow to read, a row is several lines instead.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    lines = [list(map(_cell_text, row)) for row in rows]
    if not lines:
        click.echo(empty)
        return
    shown = console()
    if _table_width(columns, lines, column_most=_LEGIBLE) > shown.width:
        _print_records(columns, lines, title=title)
        return
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(*line)
    shown.print(table)


def fits_as_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Whether `print_table` would show the rows without cutting a cell in two."""
    return _table_width(columns, [list(map(_cell_text, row)) for row in rows]) <= console().width


def _cell_text(cell: object) -> Text:
    from rich.text import Text

    return Text("" if cell is None else str(cell))


def _table_width(
    columns: Sequence[str], lines: Sequence[Sequence[Text]], *, column_most: int = sys.maxsize
) -> int:
    """What a table needs when no column is wider than `column_most`: longer cells are cut into lines."""
    widths = (
        max([_cell_text(name).cell_len, *(line[number].cell_len for line in lines)])
        for number, name in enumerate(columns)
    )
    return sum(min(width, column_most) + _BETWEEN_COLUMNS for width in widths)


def _print_records(columns: Sequence[str], lines: Sequence[Sequence[Text]], *, title: str) -> None:
    if title:
        click.echo(f"{title}\n")
    for line in lines:
        print_facts({name: cell.plain for name, cell in zip(columns, line, strict=True) if cell.plain})
        click.echo()


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line, values aligned."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {'' if value is None else value}")
