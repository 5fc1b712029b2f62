"""Data directories that a crash left without metadata, set aside before chDB starts.

CREATE makes a table's directory `store/abc/<uuid>` first and commits its metadata last. A crash in between
leaves a directory that belongs to nothing, and a second CREATE with the same UUID (that of an entry in the
DDL queue, which is the same on all hosts) is refused with TABLE_ALREADY_EXISTS for ever.

Safety argument. It runs before chDB starts, when nobody creates anything. A directory is an orphan only if no
metadata file, current or dropped, names its UUID, and it holds no metadata itself. Nothing is deleted but
empty directories: an orphan is moved to `oncluster/orphans`, where a person can look at it.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from engine.storage.layout import private_directory

log = logging.getLogger(__name__)

_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")


def set_orphans_aside(path: Path) -> list[str]:
    """Returns the UUIDs of what was moved away; empty directories are removed without a word."""
    directories = [d for d in sorted((path / "store").glob("*/*")) if d.is_dir() and _NAME.match(d.name)]
    if not directories:
        return []
    known = _named_in_metadata(path, directories)
    moved = []
    for directory in directories:
        if directory.name in known or any(directory.glob("*.sql")):
            continue
        if not any(directory.iterdir()):
            directory.rmdir()
            continue
        aside = private_directory(path) / "orphans"
        aside.mkdir(parents=True, exist_ok=True)
        directory.rename(_free_name(aside, directory.name))
        log.warning("storage.orphan_set_aside uuid=%s to=%s", directory.name, aside)
        moved.append(directory.name)
    return moved


def _named_in_metadata(path: Path, directories: list[Path]) -> frozenset[str]:
    """Every UUID that stands in a metadata file: of databases, of their tables, of what is being dropped."""
    files = [*(path / "metadata").glob("*.sql"), *(path / "metadata_dropped").glob("*.sql")]
    for directory in [*(path / "metadata").iterdir(), *directories]:
        if directory.is_dir():
            files += directory.glob("*.sql")
    found = {match.decode() for file in files for match in _UUID.findall(file.read_bytes())}
    # A dropped table's file may carry its UUID in its name only.
    found |= {match.decode() for file in files for match in _UUID.findall(file.name.encode())}
    return frozenset(found)


def _free_name(aside: Path, name: str) -> Path:
    target, number = aside / name, 1
    while target.exists():
        target = aside / f"{name}.{number}"
        number += 1
    return target
