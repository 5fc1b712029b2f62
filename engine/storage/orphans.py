"""What a crash left of a CREATE, set aside before chDB starts.

CREATE makes a table's directory `store/abc/<uuid>` first and commits its metadata last. A crash in between
leaves a directory that belongs to nothing. CREATE … AS SELECT and CREATE OR REPLACE do all that under a name
of their own, `_tmp_replace_…`, which they exchange for the wanted one at the end: a crash leaves a table of
that name, the unfinished new one or the old one that was to be dropped. After either a second CREATE with the
same UUID (that of an entry in the DDL queue, which is the same on all hosts) would be refused with
TABLE_ALREADY_EXISTS for ever.

Safety argument. It runs before chDB starts, when nobody creates anything, so that no statement that made a
`_tmp_replace_…` goes on. A directory is an orphan only if no other metadata file, current or dropped, names
its UUID, and it holds no metadata itself. As long as a table's metadata is damaged, so that its UUID cannot
be read, there are none: its data would not be there when the file is put back. Nothing is deleted but empty
directories: an orphan is moved to `oncluster/orphans`, where a person can look at it, the metadata first.

Source: ClickHouse's InterpreterCreateQuery::doCreateOrReplaceTable.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from engine.errors import Corrupt
from engine.storage.late_tables import FLAG
from engine.storage.layout import private_directory

log = logging.getLogger(__name__)

_UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_UNFINISHED = re.compile(r"_tmp_replace_[0-9a-f]{16}_[0-9a-z]{16}\.sql\Z")
"""chDB's own; those that the node's replacements have look otherwise and are finished by the node."""


def set_orphans_aside(path: Path) -> list[str]:
    """Returns the UUIDs of directories that were moved away; empty ones are removed without a word.

    Raises Corrupt for metadata of a table that names no UUID; no data has been moved then.
    """
    directories = [d for d in sorted((path / "store").glob("*/*")) if d.is_dir() and _NAME.match(d.name)]
    if not directories:
        return []
    aside = private_directory(path) / "orphans"
    for directory in directories:
        _set_unfinished_aside(directory, aside)
    known = _named_in_metadata(path, directories)
    moved = []
    for directory in directories:
        if directory.name in known or any(directory.glob("*.sql")):
            continue
        if not any(directory.iterdir()):
            directory.rmdir()
            continue
        _move(directory, aside)
        moved.append(directory.name)
    return moved


def set_orphan_aside(path: Path, uuid: str) -> bool:
    """The same of one table's data while chDB runs, for who has been refused to CREATE a table of that UUID:
    an attempt before, for which descriptors ran out, has left it. Whether there was such an orphan. Raises
    Corrupt, and OSError."""
    data = path / "store" / uuid[:3] / uuid
    directories = [d for d in sorted((path / "store").glob("*/*")) if d.is_dir() and _NAME.match(d.name)]
    if data not in directories or any(data.glob("*.sql")) or uuid in _named_in_metadata(path, directories):
        return False
    if any(data.iterdir()):
        _move(data, private_directory(path) / "orphans")
    else:
        data.rmdir()
    return True


def set_table_aside(path: Path, definition: Path, uuid: str) -> Path:
    """One that chDB does not have, since it could not be loaded: chDB can neither drop nor rename it. Returns
    where its definition is.

    The flag that holds it back goes first, the data last: a crash in between leaves what the next start holds
    back again, or an orphan.
    """
    aside = private_directory(path) / "orphans"
    definition.with_name(f"{definition.name}{FLAG}").unlink(missing_ok=True)
    moved = _move(definition, aside)
    data = path / "store" / uuid[:3] / uuid
    if data.is_dir():
        _move(data, aside)
    return moved


def _set_unfinished_aside(database: Path, aside: Path) -> None:
    for file in sorted(database.glob("_tmp_replace_*.sql")):
        if _UNFINISHED.match(file.name):
            _move(file, aside)


def _move(what: Path, aside: Path) -> Path:
    aside.mkdir(parents=True, exist_ok=True)
    moved = what.rename(_free_name(aside, what.name))
    log.warning("storage.orphan_set_aside name=%s to=%s", what.name, aside)
    return moved


def _named_in_metadata(path: Path, directories: list[Path]) -> frozenset[str]:
    """Every UUID that stands in a metadata file: of databases, of their tables, of what is being dropped."""
    files = [*(path / "metadata").glob("*.sql"), *(path / "metadata_dropped").glob("*.sql")]
    for directory in (path / "metadata").iterdir():
        if directory.is_dir():
            files += directory.glob("*.sql")
    found = {match for file in files for match in _UUID.findall(file.read_bytes())}
    # A dropped table's file may carry its UUID in its name only.
    found |= {match for file in files for match in _UUID.findall(file.name.encode())}
    for file in (file for directory in directories for file in sorted(directory.glob("*.sql"))):
        named = _UUID.findall(file.read_bytes())
        if not named:
            raise Corrupt(
                f"The definition of a table in {file} is damaged: it names no UUID.",
                hint="Put the file back from a backup; or move it away: the node starts without the table, "
                f"and sets its data aside to {private_directory(path) / 'orphans'}.",
            )
        found.update(named)
    return frozenset(match.decode() for match in found)


def _free_name(aside: Path, name: str) -> Path:
    target, number = aside / name, 1
    while target.exists():
        target = aside / f"{name}.{number}"
        number += 1
    return target
