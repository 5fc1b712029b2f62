"""Where a raw file is, and how Spark is told.

Spark knows a packed file by its name's end, and reads it where it is; one that is cut short fails the load,
and is named (`java_errors`). A zip it does not know: that is unpacked first. By .lz4 and .snappy it means
forms that no other program writes, so these are not taken.
"""

from __future__ import annotations

import re
import shutil
import zipfile
import zlib
from pathlib import Path

from engine.errors import ConfigError

_READ_BY_SPARK = ("", ".gz", ".bz2", ".zst", ".deflate")
_PATTERN = re.compile(r"[\\\[\]{}*?,]")
"""What is more than itself in a path that Spark is given."""


def raw_file(source: Path, name: str, scratch: Path) -> str:
    """`name`.csv of the folder, packed or not; a zip is unpacked into `scratch`.

    Raises ConfigError where it is not there, or more than once: one of them would be old.
    """
    ends = (*_READ_BY_SPARK, ".zip")
    found = [file for end in ends if (file := source / f"{name}.csv{end}").is_file()]
    if not found:
        raise ConfigError(
            f"There is no {name}.csv in {source}.", hint=f"It may be packed: {', '.join(ends[1:])}."
        )
    if len(found) > 1:
        raise ConfigError(
            f"{source} has more than one {name}.csv: {', '.join(file.name for file in found)}.",
            hint="Leave the one that is to be loaded.",
        )
    return _unpacked(found[0], name, scratch) if found[0].suffix == ".zip" else str(found[0])


def as_path(file: str) -> str:
    """For Spark, which takes a path for a pattern."""
    return _PATTERN.sub(r"\\\g<0>", file)


def _unpacked(packed: Path, name: str, scratch: Path) -> str:
    try:
        with zipfile.ZipFile(packed) as archive:
            members = [one for one in archive.namelist() if Path(one).name == f"{name}.csv"]
            if len(members) != 1:
                raise ConfigError(f"{packed} has {len(members)} files {name}.csv, not one.")
            with archive.open(members[0]) as packed_lines, (scratch / f"{name}.csv").open("wb") as lines:
                shutil.copyfileobj(packed_lines, lines)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # the last: a password
        raise ConfigError(f"{packed} cannot be unpacked: {error}.", hint="Fetch it again.") from error
    return str(scratch / f"{name}.csv")
