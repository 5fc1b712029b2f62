"""A new pair of files behind the last one of a folder, named as the others are."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from engine.errors import SqlError
from engine.migrations.errors import MigrationRefused
from engine.migrations.files import FIRST_TIMESTAMP, MAX_VERSION, Direction, parse_file_name

_WIDTH = 4
"""Digits of the versions of a folder that has none yet."""
_AS_CALENDAR = {14: "%Y%m%d%H%M%S", 12: "%Y%m%d%H%M", 8: "%Y%m%d"}
"""Timestamps that are read as dates, by their number of digits. Others count seconds."""
_TEXT = {
    Direction.UP: "-- What changes, and why.\n",
    Direction.DOWN: "-- What takes it back.\n",
}


def write_new(folder: Path, title: str, *, now_s: float) -> tuple[Path, Path]:
    """Write an up and a down file that hold a comment, and make the folder if there is none.

    `now_s`: seconds since 1970, for folders whose versions are timestamps. Raises MigrationRefused when the
    title has nothing to make a name of, when no version is left, or when the files cannot be written.
    """
    stem = f"{_next_version(folder, now_s)}_{_as_name(title)}"
    up, down = (folder / f"{stem}.{direction}.sql" for direction in Direction)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, direction in ((up, Direction.UP), (down, Direction.DOWN)):
            with path.open("x", encoding="utf-8") as file:
                file.write(_TEXT[direction])
    except OSError as error:
        why = error.strerror or error
        raise MigrationRefused(f"{error.filename or folder} cannot be written: {why}.") from error
    return up, down


def _as_name(title: str) -> str:
    name = re.sub(r"[\W_]+", "_", title.lower()).strip("_")
    if not name:
        raise MigrationRefused(f"The title {title!r} has no letters and no digits.")
    return name


def _next_version(folder: Path, now_s: float) -> str:
    """The digits of the version, as wide as those of the last one."""
    last, width = max(_versions(folder), default=(0, _WIDTH))
    version = last + 1
    if last >= FIRST_TIMESTAMP:
        format_of_dates = _AS_CALENDAR.get(len(str(last)))
        if format_of_dates is None:
            version = max(version, int(now_s))
        else:
            version = max(version, int(datetime.fromtimestamp(now_s, UTC).strftime(format_of_dates)))
    if version > MAX_VERSION:
        raise MigrationRefused(f"The last version in {folder} is {last}, and there is none behind it.")
    return f"{version:0{width}}"


def _versions(folder: Path) -> list[tuple[int, int]]:
    """(version, digits) of each file that is a migration."""
    found = []
    for path in folder.glob("*.sql") if folder.is_dir() else ():
        try:
            version, _, _ = parse_file_name(path.name)
        except SqlError:
            continue
        found.append((version, path.name.index("_")))
    return found
