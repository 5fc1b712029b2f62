"""Files by which an operator says something to the next start, taken away before chDB starts: it would act on
them itself, and remove them.

    flags/force_restore_data                  sanity checks of replicated tables are skipped, once
    store/<3>/<uuid>/convert_to_replicated    step 1 of `engine.node.replicated.definitions.convert`

What was taken stands in the node's own directory until it is done: a crash in between loses nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.node.whole_files import write_whole
from engine.storage.layout import private_directory

CONVERT = "convert_to_replicated"
FORCE = "force_restore_data"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def take_flags(path: Path) -> None:
    """`path` is the data directory of a node whose chDB does not run."""
    for flag in sorted((path / "store").glob(f"*/*/{CONVERT}")):
        if _UUID.match(flag.parent.name):
            _take(flag, to_be_converted(path) / flag.parent.name)
    force = path / "flags" / FORCE
    if force.exists():
        _take(force, is_forced(path))


def to_be_converted(path: Path) -> Path:
    """The directory where a file named after its UUID stands for each table that is to be converted."""
    return private_directory(path) / "replicated" / "convert"


def is_forced(path: Path) -> Path:
    """The file that stands for a start without sanity checks, until there was one."""
    return private_directory(path) / "replicated" / FORCE


def _take(flag: Path, taken: Path) -> None:
    taken.parent.mkdir(parents=True, exist_ok=True)
    write_whole(taken, b"")
    flag.unlink()
