"""From a write that was carried out in memory to one transaction of etcd.

The transaction compares what the outcome depends on, then writes each key once. etcd takes a limited number
of comparisons and of operations (128, `--max-txn-ops`); a larger write is folded:

    operations     into transactions within the transaction, which etcd executes as one; their number may be
                   the limit again
    comparisons    of many children of one node into one: no key of the children was written since the write
                   was prepared. A removal leaves no key that could tell, but it moves the parent's counts,
                   which are compared then
    if still too   into one: nobody has written anything (the event key is as it was)
    many
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import BadArguments
from engine.keeper.etcd import messages
from engine.keeper.etcd.layout import Layout
from engine.keeper.etcd.overlay import Overlay, PendingStat, Touched
from engine.keeper.etcd.record import SELF, Count, Family

_FEW_CHILDREN = 4
"""So many children are compared one by one."""


@dataclass(frozen=True, slots=True)
class Guard:
    """What has to hold for a write besides what it depends on."""

    compares: tuple[Any, ...]
    read_on_failure: tuple[Any, ...]
    event_revision: int
    """When somebody wrote last, as of the same moment as everything that the write was prepared on; -1 when
    that is not one moment."""


class TooLarge(Exception):
    """It has to be prepared on one moment's state, so that fewer comparisons will do."""


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Plan:
    """The transaction for an overlay that ran. With `number_giver` it is a `step` of a larger one, where that
    node's count of children made is compared by what it counts (see `engine.keeper.etcd.turns`)."""

    def __init__(self, layout: Layout, overlay: Overlay, max_txn_ops: int, *, number_giver: str = "") -> None:
        self._layout = layout
        self._overlay = overlay
        self._max_ops = max_txn_ops
        self._number_giver = number_giver

    def step(self, value: bytes, results: Sequence[object]) -> tuple[list[Any], list[Any]]:
        """As `request`, without a guard: the comparisons and the operations."""
        compares = []
        for path, node in self._overlay.nodes.items():
            if path == self._number_giver:
                assert node.before.created is not None
                key = self._layout.created(self._layout.node(path))
                compares.append(messages.compare_version(key, node.before.created.version))
            else:
                compares += self._compares_of(node)
        writes = [*self._writes(), messages.put_op(self._layout.event, value)]
        return compares, [*self._reads(results), *writes]

    def shared_compares(self) -> list[Any]:
        """What all steps have to compare besides: that the number giver is the same, and counts from the same
        number."""
        before = self._overlay.nodes[self._number_giver].before
        assert before.created is not None
        key = self._layout.node(self._number_giver)
        return [
            messages.compare_mod(key, before.mod),
            messages.compare_value(self._layout.created(key), b"%d" % before.created.base),
        ]

    def _reads(self, results: Sequence[object]) -> list[Any]:
        return [self._layout.family_op(result.path) for result in results if isinstance(result, PendingStat)]

    def request(self, guard: Guard, value: bytes, results: Sequence[object], extra: Sequence[Any]) -> Any:
        """`value` is the event; `extra` are more operations. The answers of the first operations are the
        families of the PendingStats in `results`. Raises TooLarge, BadArguments."""
        reads = self._reads(results)
        writes = [*self._writes(), messages.put_op(self._layout.event, value), *extra]
        compares = [*guard.compares, *self._compares()]
        failure = list(guard.read_on_failure)
        if len(compares) <= self._max_ops and len(reads) + len(writes) <= self._max_ops:
            return messages.TxnRequest(compare=compares, success=reads + writes, failure=failure)
        room = self._max_ops // 2
        if len(compares) > room:
            compares = [*guard.compares, *self._few_compares(room - len(guard.compares), guard)]
        success = [*self._folded(reads, room), *self._folded(writes, room)]
        if len(success) > room:
            raise BadArguments(
                next(iter(self._overlay.nodes)),
                f"The request changes {len(writes)} keys at once, and etcd takes {room * room}. Start etcd "
                f"with a larger --max-txn-ops and say so in <max_txn_ops>, now {self._max_ops}",
            )
        return messages.TxnRequest(compare=compares, success=success, failure=failure)

    @staticmethod
    def _folded(ops: Sequence[Any], size: int) -> list[Any]:
        return [
            messages.txn_op(messages.TxnRequest(success=ops[at : at + size]))
            for at in range(0, len(ops), size)
        ]

    # --- comparisons --------------------------------------------------------------------------------------

    def _compares(self) -> Iterable[Any]:
        for node in self._overlay.nodes.values():
            yield from self._compares_of(node)

    def _compares_of(self, node: Touched) -> Iterable[Any]:
        before, key = node.before, self._layout.node(node.path)
        yield messages.compare_mod(key, before.mod)
        needs_created = node.needs_created or (not node.is_new and _rewrites(before.created, node.created))
        needs_removed = node.needs_removed or (not node.is_new and _rewrites(before.removed, node.removed))
        if node.is_new and before.record is not None:
            needs_created = needs_removed = True
        if needs_created and needs_removed and before.created is None and before.removed is None:
            yield messages.compare_mod(self._layout.created(key), 0)  # none was created, so none removed
        else:
            if needs_created:
                yield messages.compare_mod(self._layout.created(key), _mod(before.created))
            if needs_removed:
                yield messages.compare_mod(self._layout.removed(key), _mod(before.removed))

    def _few_compares(self, room: int, guard: Guard) -> list[Any]:
        nodes = self._overlay.nodes
        siblings: dict[str, list[Touched]] = defaultdict(list)
        for path, node in nodes.items():
            if path != "/":
                siblings[parent_of(path)].append(node)
        folded = {path for path, group in siblings.items() if len(group) > _FEW_CHILDREN}
        if guard.event_revision < 0 or any(path not in self._overlay.families for path in folded):
            raise TooLarge
        compares: list[Any] = []
        for path, node in nodes.items():
            if path == "/" or parent_of(path) not in folded:
                compares += self._compares_of(node)
        for path in folded:
            parent, key = self._overlay.families[path], self._layout.node(path)
            revision = min(node.before.revision for node in siblings[path])
            compares.append(messages.compare_untouched(*self._layout.children(path), revision))
            compares.append(messages.compare_mod(key, parent.mod))
            compares.append(messages.compare_untouched(*self._layout.counts(key), revision))
        if len(compares) > room:
            return [messages.compare_mod(self._layout.event, guard.event_revision)]
        return compares

    # --- writes -------------------------------------------------------------------------------------------

    def _writes(self) -> Iterable[Any]:
        layout = self._layout
        for node in self._overlay.nodes.values():
            before, key = node.before, layout.node(node.path)
            if node.record is None:
                if before.record is not None:
                    yield messages.delete_op(*layout.family(key))
                continue
            if node.is_written:
                yield messages.put_op(key, node.record.to_bytes())
            yield from _count_ops(layout.created(key), before.created, node.created, is_new=node.is_new)
            yield from _count_ops(layout.removed(key), before.removed, node.removed, is_new=node.is_new)
        for (session_id, path), is_there in self._overlay.ephemerals.items():
            entry = layout.ephemeral(session_id, path)
            yield messages.put_op(entry, b"") if is_there else messages.delete_op(entry)

    # --- afterwards ---------------------------------------------------------------------------------------

    def families_after(self, revision: int) -> dict[str, Family]:
        """What is known of the touched nodes when the transaction was executed at `revision`."""
        return {path: _after(node, revision) for path, node in self._overlay.nodes.items()}


def _rewrites(count: Count | None, added: int) -> bool:
    """Whether the count cannot simply be touched."""
    return bool(added) and (added > 1 or count is None)


def _mod(count: Count | None) -> int:
    return count.mod if count else 0


def _count_ops(key: bytes, before: Count | None, added: int, *, is_new: bool) -> Iterable[Any]:
    if is_new and not added:
        if before is not None:
            yield messages.delete_op(key)
    elif added == 1 and before is not None and not is_new:
        yield messages.touch_op(key)
    elif added:
        version = before.version + 1 if before else 1
        base = added - version if is_new else (before.base if before else 0) + added - 1
        yield messages.put_op(key, b"%d" % base)


def _after(node: Touched, revision: int) -> Family:
    before = node.before
    if node.record is None:
        return Family(None, 0, None, None, revision)
    record = node.record if node.is_written else before.record
    assert record is not None
    if node.is_written:  # as a reader would find it
        record = record._replace(czxid=SELF if node.czxid == SELF else node.czxid)
    return Family(
        record,
        revision if node.is_written else before.mod,
        _count_after(before.created, node.created, revision, node.needs_created, is_new=node.is_new),
        _count_after(before.removed, node.removed, revision, node.needs_removed, is_new=node.is_new),
        before.revision,
    )


def _count_after(
    before: Count | None, added: int, revision: int, is_exact: bool, *, is_new: bool
) -> Count | None:
    if is_new:
        if not added:
            return None
        version = before.version + 1 if before else 1
        return Count(added - version, version, revision)
    if not added:
        return before
    if before is None:
        return Count(added - 1, 1, revision)
    is_known = is_exact or added > 1
    return Count(before.base + added - 1, before.version + 1, revision if is_known else -1)
