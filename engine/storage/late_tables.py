"""Tables that chDB may be unable to load are attached right after it has started.

A subquery in a CONSTRAINT or a TTL, and joinGet, dictGet or IN of a table in a TTL, a key or an index, are
evaluated when the table is loaded. chDB loads tables before it has the database `system` and a query to
evaluate a subquery in, and starts only with all of them: one whose other table was dropped would keep the
node from starting. So would a table with more projections than its `max_projections`, to which chDB lets
anybody set it. A server starts without such a table (`async_load_databases`).

Safety argument. (1) Before chDB starts, the flag of a permanently detached table (`t.sql.detached`) is put
beside the table's file, with a text of our own: chDB's own flags, which users' DETACH … PERMANENTLY leaves,
are empty and stay. (2) chDB starts without the table. (3) It is attached, by which chDB removes the flag. A
crash at any point leaves our flag or none, and the next start goes on from there; nobody is served before
(3). A table that cannot be attached stays out, with our flag: each start tries again, and so may anybody with
ATTACH TABLE. No definition and no data is touched.

Source: ClickHouse's DatabaseOnDisk::detachTablePermanently, LocalServer::processConfig, AsyncLoader.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import SqlError
from engine.names import TableName
from engine.storage.layout import private_directory

log = logging.getLogger(__name__)

FLAG = ".detached"
"""Behind the name of a table's file."""
_OURS = b"attached right after the start\n"
_CLAUSE = re.compile(
    rb"^    CONSTRAINT .*(?:\n    [ )].*)*|^    INDEX .*|^    .* TTL .*"
    rb"|^(?:PARTITION BY|PRIMARY KEY|ORDER BY|SAMPLE BY|TTL) .*(?:\n[ )].*)*",
    re.MULTILINE,
)
"""As chDB writes them: a clause begins a line, and what belongs to it is indented more or begins with `)`."""
_EVALUATED = re.compile(
    rb"\n *(?:SELECT|WITH)\b|\b(?:system|information_schema)\.|\bhasColumnInTable\(|\bjoinGet"
    rb"|\bdict[A-Z]\w*\(|\bIN \(?[a-z_`]",
    re.I,
)
"""Also what only looks so: a table is as well attached late."""
_LIMITED = re.compile(rb"^SETTINGS .*\bmax_projections = ", re.MULTILINE)

_DETACHED = (
    "SELECT database, table, metadata_path FROM system.detached_tables ORDER BY ALL FORMAT JSONCompactEachRow"
)


def hold_back(path: Path) -> Sequence[Path]:
    """Flag them before chDB starts on `path`; returns their files, as chDB names them. Raises OSError."""
    held = []
    ordinary = [each for each in path.glob("metadata/*") if each.is_dir() and not each.is_symlink()]
    for file in [*path.glob("store/*/*/*.sql"), *(file for each in ordinary for file in each.glob("*.sql"))]:
        flag = file.with_name(file.name + FLAG)
        content = file.read_bytes()
        if not content.startswith(b"ATTACH TABLE ") or not _is_late(content):
            continue
        if not flag.exists():
            _put(flag, private_directory(path) / "late_table")
        elif not is_held_back(flag):
            continue
        held.append(file.relative_to(path))
    return held


def attach(held: Sequence[Path], query: Callable[[str], str]) -> None:
    """With chDB started. One may read another, so each is tried until none is left that can be attached.
    Raises SqlError where chDB cannot be asked at all."""
    if not held:
        return
    rows = [json.loads(row) for row in query(_DETACHED).splitlines()]
    left = {TableName(database, table): file for database, table, file in rows if Path(file) in held}
    while left:
        errors: dict[TableName, SqlError] = {}
        for table in left:
            try:
                query(f"ATTACH TABLE {table.quoted}")
            except SqlError as failed:
                errors[table] = failed
        if len(errors) == len(left):
            for table, error in errors.items():
                log.critical(
                    "storage.table_not_loaded table=%s file=%s error=%s hint=ATTACH TABLE it when what it "
                    "asks is there, or with a setting corrected in the file; with the file moved away it is "
                    "no table any more.",
                    table,
                    left[table],
                    error,
                )
            return
        left = {table: left[table] for table in errors}


def is_held_back(flag: Path) -> bool:
    """Whether the flag beside a table's file says that it is to be attached, and not that somebody has
    detached it. So does one that is gone meanwhile: the table is attached. Raises OSError."""
    try:
        return flag.read_bytes() == _OURS
    except FileNotFoundError:
        return True


def move_held_back(path: Path, file: Path, to: Path) -> None:
    """A table that chDB does not have gets another name, in Atomic databases: its definition says neither of
    them. `file` and `to` are its definition's, `path` is chDB's. Raises OSError.

    The flag goes first and comes last: what a crash leaves in between the next start holds back again.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    file.with_name(file.name + FLAG).unlink(missing_ok=True)
    file.rename(to)
    _put(to.with_name(to.name + FLAG), private_directory(path) / "late_table")


def _is_late(definition: bytes) -> bool:
    is_evaluated = any(_EVALUATED.search(clause) for clause in _CLAUSE.findall(definition))
    return is_evaluated or _LIMITED.search(definition) is not None


def _put(flag: Path, temporary: Path) -> None:
    """Whole or not at all: an empty one would be a user's."""
    with temporary.open("wb") as out:
        out.write(_OURS)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(flag)
