"""Mutations of plain tables, which must not run twice: UPDATE x = x + 1 is another thing then.

A statement of the log that a replica was carrying out when its process ended is carried out again. Of what
changes definitions the definitions tell whether it was done; of a mutation its id in chDB does, which stays.

Safety argument. 1. The ids that the table has are written down with the entry's number, whole and forced to
the disk. 2. chDB takes the mutation, durably. 3. The entry is recorded in Keeper. A crash between 2 and 3
leaves one id more than was written down: it is not done again. Before 2 there is none: it is.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from engine.node.whole_files import write_whole


class BegunMutations:
    """One database's, of which one statement is carried out at a time."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def is_done(self, entry: int, mutations: Collection[str]) -> bool:
        """Whether the mutation of this entry is among those of its table now. If not, it is written down that
        it begins."""
        begun = self._read()
        if begun is not None and begun[0] == entry:
            return not set(mutations) <= begun[1]
        facts = {"entry": entry, "mutations": sorted(mutations)}
        write_whole(self._file, json.dumps(facts).encode() + b"\n")
        return False

    def _read(self) -> tuple[int, set[str]] | None:
        try:
            facts = json.loads(self._file.read_bytes())
            return int(facts["entry"]), set(map(str, facts["mutations"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        self._file.unlink(missing_ok=True)
