"""Which part was staged of which directory in `detached/`: durable, beside the parts (`attaching.json`).

The directory stays until the part is Keeper's and is shown. A crash in between would leave the same rows in
both places, and whoever attaches the directory once more would have them twice. So the name is noted before
the part is staged, and who knows what Keeper has decides at the next start what becomes of the directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType

from engine.part_storage.disk import write_durably
from engine.part_storage.table_state import TableState
from engine.replication.part_name import PartName

_FILE = "attaching.json"


class AttachingNotes:
    """Of one table. Changed on worker threads."""

    def __init__(self, state: TableState) -> None:
        self._state = state
        self.parts: Mapping[str, PartName] = MappingProxyType({})

    def load(self) -> None:
        """What an earlier process has noted."""
        try:
            notes = json.loads((self._state.staged_root / _FILE).read_text())
        except (FileNotFoundError, ValueError):
            return
        self.parts = MappingProxyType({str(each): PartName.parse(text) for each, text in notes.items()})

    def note(self, directory: str, part: PartName) -> None:
        with self._state.lock:
            self._change({**self.parts, directory: part})

    def discarded(self, part: PartName) -> None:
        """What is staged under this name from now on is something else."""
        with self._state.lock:
            self._change({each: noted for each, noted in self.parts.items() if noted != part})

    def renamed(self, before: PartName, after: PartName) -> None:
        """A staged part has another name."""
        with self._state.lock:
            self._change({each: after if part == before else part for each, part in self.parts.items()})

    def forget(self, directory: str) -> None:
        """Nothing if there is no note."""
        with self._state.lock:
            self._change({each: part for each, part in self.parts.items() if each != directory})

    def _change(self, parts: Mapping[str, PartName]) -> None:
        if parts == self.parts:
            return
        notes = {each: str(part) for each, part in parts.items()}
        path = self._state.staged_root / _FILE
        write_durably(path, json.dumps(notes, sort_keys=True).encode(), self._state.durability)
        self.parts = MappingProxyType(dict(parts))
