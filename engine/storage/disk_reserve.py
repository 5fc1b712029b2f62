"""A little room on the disk for what makes room, and for what must not be cut short.

To drop a partition or a table, a few small files have to be written first. On a disk without a byte left that
would fail, and nobody could drop anything. So a file without use takes some room from the start, and gives it
to whoever drops something.

Definitions need it, too. Of a disk that is full chDB (26.9) takes no notice while it writes a definition, or
the text of a mutation: an empty file, or the beginning of the text, takes the old one's place, and the
statement succeeds. The table works until chDB is started again, and then nothing does. So such a statement
has room before it begins, or is refused. What chDB writes rows to, and what comes from other replicas, ends
`KEPT_BYTES` before the disk does, so that it is not rows that take that room away.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from engine.errors import Code, SqlError
from engine.storage.layout import KEPT_BYTES, SCRATCH_DATABASE, private_directory

SIZE_BYTES = 2 * KEPT_BYTES
_NEEDED_BYTES = 1 << 20
"""Of a definition, beside its text: files and directories of a new table."""

_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*|#[^\n]*|/\*.*?\*/)*+([A-Z]+)", re.IGNORECASE | re.DOTALL)
_NOT_ON_DISK = re.compile(
    r"\s+(?:OR\s+REPLACE\s+)?(?:TEMPORARY\b|(?:TABLE|VIEW|DATABASE)\s+(?:IF\s+NOT\s+EXISTS\s+)?"
    rf"`?(?:{SCRATCH_DATABASE}|system)`?(?:\.|\s))",
    re.IGNORECASE,
)
_MAKING_ROOM = frozenset({"DROP", "TRUNCATE"})
_DEFINING = frozenset({"ALTER", "ATTACH", "CREATE", "DELETE", "REPLACE", "RESTORE", "UNDROP", "UPDATE"})


class DiskReserve:
    """Of the data directory of a node; called on any thread."""

    def __init__(self, pool_path: Path) -> None:
        self._path = pool_path
        self._file = private_directory(pool_path) / "reserve"
        self._lock = threading.Lock()
        self._borrowers = 0

    def take(self) -> None:
        """Have the room, or as much of it as the disk has."""
        with suppress(OSError):
            descriptor = os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600)
            try:
                if not self._holds(descriptor, SIZE_BYTES):
                    self._holds(descriptor, self._free_bytes() * 7 // 8)
            finally:
                os.close(descriptor)

    def _holds(self, descriptor: int, size: int) -> bool:
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.ftruncate(descriptor, 0)  # what a file system has taken of it
            return False
        return True

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Its room is free for the length of a `with` block, and taken back when the last one ends."""
        with self._lock:
            self._borrowers += 1
            self._file.unlink(missing_ok=True)
        try:
            yield
        finally:
            with self._lock:
                self._borrowers -= 1
                if not self._borrowers:
                    self.take()

    @contextmanager
    def for_statement(self, sql: str | bytes) -> Iterator[None]:
        """There is room for what a statement defines, or for what makes some. Raises SqlError 243."""
        text = sql if isinstance(sql, str) else sql.decode("utf-8", "surrogateescape")
        found = _FIRST_WORD.match(text)
        word = found[1].upper() if found else ""
        if found and word in _DEFINING and not self._is_not_on_disk(text, found.end()):
            with self._for_definition(len(text)):
                yield
        elif word in _MAKING_ROOM:
            with self._lent_if_short():
                yield
        else:
            yield

    @contextmanager
    def _for_definition(self, length: int) -> Iterator[None]:
        needed = _NEEDED_BYTES + 4 * length
        with self._lent_if_short(needed):
            if (free := self._free_bytes()) < needed:
                raise SqlError(
                    Code.NOT_ENOUGH_SPACE,
                    f"Not enough space for a definition: {free} bytes are free, {needed} are needed",
                    hint="Make room on the disk of the node.",
                )
            yield

    def _is_not_on_disk(self, text: str, behind_word: int) -> bool:
        """The scratch database itself is, once."""
        has_scratch = (self._path / "metadata" / f"{SCRATCH_DATABASE}.sql").exists()
        return has_scratch and _NOT_ON_DISK.match(text, behind_word) is not None

    def _lent_if_short(self, needed: int = _NEEDED_BYTES) -> AbstractContextManager[None]:
        return self.lent() if self._free_bytes() < needed + SIZE_BYTES else nullcontext()

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._path).free
