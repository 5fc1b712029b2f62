"""Folders of migrations in golang-migrate's naming, read into values.

    migrations/order_cluster/0001_databases.up.sql
    migrations/order_cluster/0001_databases.down.sql

The grammar is that tool's: `{version}_{title}.up.sql` and `.down.sql`, the version any unsigned 64-bit
integer, padded or not, a counter or a timestamp. The order is the numbers', not the names'. A down file may
be missing or empty. An up file may be missing: nothing is run upwards then, and the version counts as applied
when a run has passed it, as in that tool. A file holds any number of statements, separated by `;`. Options
stand in comments (`engine.migrations.options`). The folder's name is the cluster's.

Checksums. A statement's is over its significant tokens and the options that change its meaning: comments and
layout do not count. A file's is over its text without byte order mark, carriage returns and the blank lines
at its end.

Reading collects every problem with its file and line. `read_folder` returns them beside what could be read,
for `lint`; `load_folder` raises them all together.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.ddl.text import storable
from engine.errors import Code, SqlError
from engine.migrations.both_directions import where_it_turns
from engine.migrations.errors import MigrationFilesError, Problem
from engine.migrations.options import Options
from engine.migrations.placeholders import where_filled_in
from engine.migrations.script_text import StatementText, take_apart, unclosed_line
from engine.sql.tokens import Token, tokenize

MAX_VERSION = 2**64 - 1
MAX_FILE_BYTES = 16 * 1024 * 1024
# A counter with a hole means a lost file. Nobody counts to ten million, and no timestamp is that small: the
# shortest in use are dates such as 20240131.
FIRST_TIMESTAMP = 10_000_000
GAP_RULE = "version-gap"
"""Lint's name for such a hole, by which the file behind it says that it is meant."""

_NAME = re.compile(r"(?P<version>[0-9]+)_(?P<title>.*)\.(?P<direction>up|down)\.sql\Z", re.DOTALL)

_OTHER_SUFFIX = re.compile(r"[0-9]+_.*\.(?:up|down)\.[A-Za-z0-9]+\Z", re.DOTALL)
"""A migration for golang-migrate, which takes any suffix; editors' copies (`.sql.bak`, `.sql~`) are none."""


class Direction(enum.StrEnum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """One statement of a file. `index` counts from 1, `line` is where its first word stands.

    `options` are those of the file and of the statement together; `sql` has no comments before or after it.
    """

    index: int
    line: int
    sql: str
    options: Options
    checksum: str


@dataclass(frozen=True, slots=True)
class Script:
    """One file. `is_there` is false of an up file that is missing: it has no statements. `no_ops` is how many
    `SELECT 1;` stand in it, which are none either: they say that there is nothing to do."""

    path: Path
    direction: Direction
    statements: tuple[ScriptStatement, ...]
    options: Options
    checksum: str
    is_there: bool = True
    no_ops: int = 0


@dataclass(frozen=True, slots=True)
class Migration:
    """One version. `down` is None when there is no down file. `up` is None when it cannot be used."""

    version: int
    title: str
    up: Script | None
    down: Script | None

    def script(self, direction: Direction) -> Script | None:
        return self.up if direction is Direction.UP else self.down

    @property
    def first_file(self) -> Script | None:
        """The file in which what is said of the version as a whole stands."""
        return self.up if self.up is not None and self.up.is_there else self.down

    @property
    def name(self) -> str:
        return f"{self.version}_{self.title}"


@dataclass(frozen=True, slots=True)
class MigrationSet:
    """A folder, in order of versions. `ignored` are files that are no SQL."""

    folder: Path
    cluster: str
    migrations: tuple[Migration, ...]
    ignored: tuple[str, ...] = ()

    def get(self, version: int) -> Migration | None:
        return next((item for item in self.migrations if item.version == version), None)

    def script(self, version: int, direction: Direction) -> Script | None:
        migration = self.get(version)
        return None if migration is None else migration.script(direction)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(item.version for item in self.migrations)


@dataclass(slots=True)
class _Found:
    """The files of one version while the folder is read."""

    title: str = ""
    scripts: dict[Direction, Script | None] = field(default_factory=dict)
    paths: dict[Direction, Path] = field(default_factory=dict)


def cluster_folders(root: Path) -> list[Path]:
    """The folders of migrations in `root`, one for each cluster, by name. What begins with `.` or `_` is
    another tool's."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))


def load_folder(folder: Path, *, cluster: str = "") -> MigrationSet:
    """Read a folder; `cluster` defaults to the folder's name. Raises MigrationFilesError with all
    problems."""
    migrations, problems = read_folder(folder, cluster=cluster)
    if problems:
        raise MigrationFilesError(str(folder), problems)
    return migrations


def read_folder(folder: Path, *, cluster: str = "") -> tuple[MigrationSet, tuple[Problem, ...]]:
    """What can be read of a folder, and what is wrong with the rest."""
    cluster = cluster or folder.resolve().name
    problems: list[Problem] = []
    found: dict[int, _Found] = {}
    ignored: list[str] = []
    if not folder.is_dir():
        message = "is a file, not a folder" if folder.exists() else "there is no such folder"
        return MigrationSet(folder, cluster, ()), (Problem(str(folder), 0, "empty-folder", message),)
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        return MigrationSet(folder, cluster, ()), (Problem(str(folder), 0, "unreadable", message),)
    for path in paths:
        if path.name.startswith(".") or path.is_dir() or not path.name.endswith(".sql"):
            if _OTHER_SUFFIX.match(path.name) and not path.is_dir():
                message = "golang-migrate would run it, and here only names that end in .sql are migrations"
                problems.append(Problem(storable(str(path)), 0, "file-name", message))
            ignored.append(storable(path.name))
            continue
        try:
            version, title, direction = parse_file_name(path.name)
        except SqlError as error:
            problems.append(Problem(storable(str(path)), 0, "file-name", error.message, error.code))
            continue
        entry = found.setdefault(version, _Found())
        if direction in entry.paths:
            problems.append(
                Problem(
                    str(path),
                    0,
                    "duplicate-version",
                    f"version {version} already has an {direction} file: {entry.paths[direction].name}",
                )
            )
            continue
        entry.paths[direction] = path
        script, script_problems = read_script(path, direction)
        problems += script_problems
        entry.scripts[direction] = script
        if direction is Direction.UP or not entry.title:
            entry.title = title
    for entry in found.values():
        if Direction.UP not in entry.paths:
            entry.scripts[Direction.UP] = _missing_up(entry.paths[Direction.DOWN])
    migrations = tuple(
        Migration(version, entry.title, entry.scripts.get(Direction.UP), entry.scripts.get(Direction.DOWN))
        for version, entry in sorted(found.items())
    )
    if not found and not problems:
        problems.append(
            Problem(
                str(folder),
                0,
                "empty-folder",
                "there is no migration here; the first could be 0001_create_tables.up.sql",
            )
        )
    return MigrationSet(folder, cluster, migrations, tuple(ignored)), tuple(sorted(problems))


def _missing_up(down: Path) -> Script:
    """What stands for an up file that is not there. One that is written later is a change of it."""
    path = down.with_name(f"{down.name.removesuffix('.down.sql')}.up.sql")
    return Script(path, Direction.UP, (), Options(), file_checksum(""), is_there=False)


def parse_file_name(name: str) -> tuple[int, str, Direction]:
    """(version, title, direction). Raises SqlError 36 that says what the grammar is."""
    if storable(name) != name:
        raise SqlError(Code.BAD_ARGUMENTS, "the name is not UTF-8")
    match = _NAME.match(name)
    if match is None:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            "the name of a migration is {version}_{title}.up.sql or {version}_{title}.down.sql",
        )
    digits = match["version"].lstrip("0") or "0"
    if len(digits) > 20 or int(digits) > MAX_VERSION:
        raise SqlError(Code.ARGUMENT_OUT_OF_BOUND, f"the version is greater than {MAX_VERSION}")
    return int(digits), match["title"], Direction(match["direction"])


def gaps(versions: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of neighbours between which a counter jumps; timestamps have no gaps. `versions` is sorted."""
    return [
        (before, after)
        for before, after in itertools.pairwise(versions)
        if after < FIRST_TIMESTAMP and after != before + 1
    ]


def read_script(path: Path, direction: Direction) -> tuple[Script | None, list[Problem]]:
    """One file, or None with the reasons why it cannot be used."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # a pipe would be read for ever
            return None, [Problem(str(path), 0, "unreadable", "is no regular file")]
        if about.st_size > MAX_FILE_BYTES:
            return None, [Problem(str(path), 0, "unreadable", f"is larger than {MAX_FILE_BYTES} bytes")]
        raw = path.read_bytes()
    except OSError as error:
        return None, [Problem(str(path), 0, "unreadable", f"cannot be read: {error.strerror or error}")]
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return None, [Problem(str(path), line, "encoding", f"is not UTF-8 (byte {error.start + 1})")]
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        return None, [Problem(str(path), line, "encoding", "contains a NUL character")]
    return parse_script(text, path, direction)


def parse_script(text: str, path: Path, direction: Direction) -> tuple[Script | None, list[Problem]]:
    """The text of a file. Problems: text that cannot be tokenised, holds both directions or is to be
    filled in, and options that cannot be read."""
    text = text.replace("\r\n", "\n")
    try:
        tokens = tokenize(text)
    except SqlError as error:
        return None, [Problem(str(path), unclosed_line(text), "syntax", error.message, error.code)]
    if turn := where_it_turns(text, tokens, direction.value):
        return None, [Problem(str(path), turn[0], "both-directions", turn[1])]
    if place := where_filled_in(text, tokens):
        return None, [Problem(str(path), place[0], "placeholder", place[1])]
    script = take_apart(text, tokens)
    if script.problems:
        return None, [
            Problem(str(path), line, "options", error.message, error.code) for line, error in script.problems
        ]
    base = script.options
    return (
        Script(
            path=path,
            direction=direction,
            statements=tuple(
                _statement(index, each, each.options.over(base))
                for index, each in enumerate(script.statements, start=1)
            ),
            options=base,
            checksum=file_checksum(text),
            no_ops=script.no_ops,
        ),
        [],
    )


def _statement(index: int, text: StatementText, options: Options) -> ScriptStatement:
    return ScriptStatement(index, text.line, text.sql, options, statement_checksum(text.words, options))


def file_checksum(text: str) -> str:
    """SHA-256 of a file's text, the same whatever editor wrote its line ends."""
    return hashlib.sha256(
        text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n\r\t ").encode()
    ).hexdigest()


def statement_checksum(words: Iterable[Token], options: Options) -> str:
    """SHA-256 of the significant tokens and of what the options add to their meaning."""
    digest = hashlib.sha256()
    for word in words:
        data = word.text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data) + data)
    digest.update(b"\0" + options.meaning.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
