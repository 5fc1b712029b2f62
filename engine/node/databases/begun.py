"""The entry of the log that a replica carries out, written down before it begins.

A statement that a replica was carrying out when its process ended is carried out again, unless a later one
was begun since. Of what changes definitions the definitions tell whether it was done. Of a mutation of a
plain table, which must not run twice (UPDATE x = x + 1 is another thing then), its id in chDB does.

Safety argument. 1. The entry's number, of a mutation with the ids that the table has, is written down, whole
and forced to the disk. 2. chDB takes the mutation, durably. 3. The entry is recorded in Keeper. A crash
between 2 and 3 leaves one id more than was written down: it is not done again. Before 2 there is none: it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

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
        try:
            facts = json.loads(self._file.read_bytes())
            mutations = facts.get("mutations")
            return int(facts["entry"]), None if mutations is None else set(map(str, mutations))
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return 0, None

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
