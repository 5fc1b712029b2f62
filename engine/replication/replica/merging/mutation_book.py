"""The mutations of a table as one replica sees them, and what each means for a part.

Pure. A mutation has a number of its own (its znode's, which orders all mutations of the table) and, in each
partition it concerns, a block number: it applies to the parts there whose data version is smaller.

Numbers and block numbers have the same order. So one that cannot be read (`unreadable`) may apply to any
part, but comes after those with a smaller number, which are done as ever, and before those with a larger one,
which wait. Parts are not merged meanwhile: which of them it applies to would be forgotten.

Source: ClickHouse's ReplicatedMergeTreeQueue.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import MalformedEntry
from engine.replication.mutation_entry import MutationEntry
from engine.replication.part_name import PartName


@dataclass(slots=True)
class MutationState:
    """A mutation as this replica sees it. `number` is that of its znode (its id has ten digits)."""

    number: int
    entry: MutationEntry
    is_done: bool = False
    finished_s: float = 0.0
    """Unix time at which this replica found it done, 0 while it is not; of what an earlier process or term
    has found, when the last of these was."""
    latest_failed_part: str = ""
    latest_fail_s: float = 0.0
    latest_fail_reason: str = ""
    latest_fail_error: str = ""
    """The name of ClickHouse's code; empty where it has none."""

    def forget_failure(self) -> None:
        """The part was done in the end."""
        self.latest_failed_part, self.latest_fail_s = "", 0.0
        self.latest_fail_reason = self.latest_fail_error = ""

    @property
    def alter_version(self) -> int | None:
        """The version of the ALTER that it is a part of; None for a mutation that stands by itself."""
        version = self.entry.alter_version
        return None if version is None or version < 0 else version


def _block_of(mutation: tuple[int, MutationState]) -> int:
    return mutation[0]


class MutationBook:
    """Mirrors `mutations/` of the table."""

    def __init__(self) -> None:
        self._states: dict[int, MutationState] = {}
        self._by_partition: dict[str, list[tuple[int, MutationState]]] = {}
        self.unreadable: Mapping[int, MalformedEntry] = {}
        """Mutations that are not done and that this version does not understand, by number, ascending."""

    def is_hidden(self, number: int) -> bool:
        """Whether a mutation comes after one that cannot be read, and waits for it."""
        return bool(self.unreadable) and number > min(self.unreadable)

    @property
    def states(self) -> Mapping[int, MutationState]:
        """By number, ascending."""
        return self._states

    def set(self, present: Mapping[int, MutationEntry]) -> Sequence[int]:
        """What is there now; returns the numbers that were there before and are gone. The entry of a number
        never changes."""
        if present.keys() == self._states.keys():
            return []
        gone = [number for number in self._states if number not in present]
        self._states = {
            number: self._states.get(number) or MutationState(number, entry)
            for number, entry in sorted(present.items())
        }
        self._by_partition = {}
        for state in self._states.values():
            for partition_id, block in state.entry.block_numbers:
                self._by_partition.setdefault(partition_id, []).append((block, state))
        for mutations in self._by_partition.values():
            mutations.sort(key=_block_of)
        return gone

    def clear(self) -> None:
        self._states, self._by_partition, self.unreadable = {}, {}, {}

    def version_of(self, part: PartName) -> int:
        """The block number of the last mutation that is already in `part`, 0 if none is."""
        at = self._first_after(part)
        return self._by_partition[part.partition_id][at - 1][0] if at else 0

    def _first_after(self, part: PartName) -> int:
        """The place, among its partition's, of the first mutation that is not in `part`."""
        mutations = self._by_partition.get(part.partition_id, [])
        return bisect.bisect_right(mutations, part.data_version, key=_block_of)

    def _after(self, part: PartName) -> Sequence[tuple[int, MutationState]]:
        return self._by_partition.get(part.partition_id, [])[self._first_after(part) :]

    def pending_alters(self) -> Sequence[int]:
        """Versions of the ALTERs whose data is not rewritten yet."""
        return [
            state.alter_version
            for state in self._states.values()
            if state.alter_version is not None and not state.is_done
        ]

    def commands(self, source: PartName, target_version: int) -> Sequence[MutationState]:
        """The mutations that make the part of data version `target_version` out of `source`, in order."""
        return [state for block, state in self._after(source) if block <= target_version]

    def why_unknown(self, partition_id: str, target_version: int) -> str:
        """What keeps this replica from knowing which mutations make a part of that data version; empty if
        it knows."""
        if not self.unreadable:
            return ""
        for block, state in self._by_partition.get(partition_id, []):
            if block == target_version and not self.is_hidden(state.number):
                return ""
        return self.reason

    @property
    def reason(self) -> str:
        """Which mutation cannot be read, and what to do; empty if all can."""
        return next((str(error) for error in self.unreadable.values()), "")

    def target_version(self, part: PartName) -> int | None:
        """To which version `part` can be mutated next: the largest, but not past the first ALTER.

        An ALTER's rewriting needs the metadata of that ALTER on every replica, and ALTERs are done one after
        another. None if nothing is to be done, or not before somebody has mended a mutation.
        """
        target = None
        for block, state in self._after(part):
            if self.is_hidden(state.number):
                break
            target = block
            if state.alter_version is not None:
                break
        return target
