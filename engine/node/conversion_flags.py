"""The files `convert_to_replicated`, taken away before chDB starts: it would act on them itself.

Step 1 of `engine.node.replicated.convert`, which does the rest.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.node.whole_files import write_whole
from engine.storage.layout import private_directory

FLAG = "convert_to_replicated"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def take_flags(path: Path) -> None:
    """`path` is the data directory of a node whose chDB does not run."""
    wanted = taken_flags(path)
    for flag in sorted((path / "store").glob(f"*/*/{FLAG}")):
        if not _UUID.match(flag.parent.name):
            continue
        wanted.mkdir(parents=True, exist_ok=True)
        write_whole(wanted / flag.parent.name, b"")
        flag.unlink()


def taken_flags(path: Path) -> Path:
    """The directory where a file named after its UUID stands for each table that is to be converted."""
    return private_directory(path) / "replicated" / "convert"
