"""Hashes of definitions that a database's replicated tables had before an ALTER, or will have behind one.

The own replication of such a table alters it, and its database says so in Keeper, by the digest, at another
moment: afterwards, or on the initiator of the ALTER before that. Where the process ends between the two, the
digest is not that of the definitions, and a recovery would move plain tables aside that others have changed
since, with their rows.

Safety argument. The other hash is written down, forced to the disk, before either of the two happens. Any
that was once the table's proves as much (`may_be_digest_of`), so none has to be taken away in time; the last
few are kept. Where it cannot be written, a recovery is all that comes of it.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from engine.node.whole_files import write_whole

log = logging.getLogger(__name__)

_KEPT = 8
"""Of all tables together; all that they can mean together are tried, 256 at most."""


class OtherHashes:
    """One database's."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, table: str, other: int) -> None:
        """Durable when this returns."""
        kept, pair = self._read(), (table, other)
        if kept[-1:] == [pair]:
            return
        kept = [*(each for each in kept if each != pair), pair][-_KEPT:]
        try:
            write_whole(self._file, json.dumps(kept).encode() + b"\n")
        except OSError as error:
            log.warning("databases.hash_not_kept table=%s error=%s", table, error)

    def all(self) -> Mapping[str, Collection[int]]:
        """By table."""
        hashes: dict[str, set[int]] = defaultdict(set)
        for table, other in self._read():
            hashes[table].add(other)
        return hashes

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def _read(self) -> list[tuple[str, int]]:
        try:
            return [(str(table), int(other)) for table, other in json.loads(self._file.read_bytes())]
        except (FileNotFoundError, ValueError, TypeError):
            return []
