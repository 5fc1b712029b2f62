"""The entry of the log that a replica carries out, written down before it begins.

A statement that a replica was carrying out when its process ended is carried out again, unless a later one
was begun since. Of what changes definitions the definitions tell whether it was done. Of a mutation of a
plain table, which must not run twice (UPDATE x = x + 1 is another thing then), its id in chDB does.

Safety argument. 1. The entry's number, of a mutation with the ids that the table has, is written down, whole
and forced to the disk. 2. chDB takes the mutation, durably. 3. The entry is recorded in Keeper. A crash
between 2 and 3 leaves one id more than was written down: it is not done again. Before 2 there is none: it is.

Of an ALTER of a plain table the digest of the other definitions is written down: if at the next start these
are the same and the table's is not, it was done (`engine.databases.unrecorded`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from engine.node.whole_files import write_whole


class BegunEntry:
    """One database's, of which one statement is carried out at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @property
    def number(self) -> int:
        """0: none is known."""
        return self._read()[0]

    def begins(self, entry: int) -> None:
        if self.number != entry:
            self._write({"entry": entry})

    def alters(self, entry: int, before: int, others: int) -> None:
        """Digests of all definitions, and of those that the ALTER is not about."""
        if self.altered(entry) is None:
            self._write({"entry": entry, "digests": [before, others]})

    def altered(self, entry: int) -> tuple[int, int] | None:
        """What `alters` was told of this entry."""
        facts = self._facts()
        digests = facts.get("digests")
        if facts.get("entry") != entry or not isinstance(digests, list) or len(digests) != 2:
            return None
        return int(digests[0]), int(digests[1])

    def is_done(self, entry: int, mutations: Collection[str]) -> bool:
        """Whether the mutation of this entry is among those of its table now. If not, it is written down that
        it begins."""
        number, begun = self._read()
        if number == entry and begun is not None:
            return not set(mutations) <= begun
        self._write({"entry": entry, "mutations": sorted(mutations)})
        return False

    def _write(self, facts: Mapping[str, object]) -> None:
        write_whole(self._file, json.dumps(facts).encode() + b"\n")

    def _read(self) -> tuple[int, set[str] | None]:
        facts = self._facts()
        try:
            mutations = facts.get("mutations")
            return int(facts["entry"]), None if mutations is None else set(map(str, mutations))
        except (ValueError, KeyError, TypeError):
            return 0, None

    def _facts(self) -> Mapping[str, Any]:
        try:
            facts = json.loads(self._file.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
