"""A write that takes a sequence number, prepared for several numbers at once.

Whoever creates sequential nodes below one parent at the same time as others knows the number that was next a
moment ago. A transaction for that number alone would mostly come too late, and be tried again. So it is
prepared for the likely numbers behind it, each for the case that the parent's count has got there; etcd takes
the one whose turn it is. It is one transaction still, so that no number is given that has no node.

    guard → count is n?  → the write with n
            count is n+1? → the write with n+1
            …
            none: read what is there, as after any comparison that failed

The count is compared by what it counts (its key's version and value, see `engine.keeper.etcd.record`), for
nobody can know at which revision others will have written it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import KeeperAnswer
from engine.keeper.etcd import messages
from engine.keeper.etcd.overlay import NotRead, Overlay, PendingResult, Request, Touched
from engine.keeper.etcd.plan import Guard, Plan

_SPREAD, _MOST_OTHERS = 3, 16
_MOST_BYTES = 128 * 1024
_FEW = 0.1


@dataclass(frozen=True, slots=True)
class Turn:
    """The write as it is when `others` came first. `event` is the value of the event key."""

    plan: Plan
    results: Sequence[PendingResult]
    event: bytes
    others: int = 0


@dataclass(frozen=True, slots=True)
class InTurn:
    """One transaction for several turns."""

    request: Any
    turns: Sequence[Turn]

    @property
    def premises(self) -> list[Any]:
        """Comparisons that do not hold any more once it was carried out. The count only grows: as long as it
        is what the first turn waits for, it was nobody's."""
        return [*self.request.compare, *self.request.success[0].request_txn.compare]

    def outcome(self, answer: Any) -> tuple[Turn | None, Any]:
        """Whose turn it was, None if nobody's; and the answers of its operations, or those of the reads."""
        if answer.succeeded:
            for turn in self.turns:
                answer = answer.responses[0].response_txn
                if answer.succeeded:
                    return turn, answer.responses
        return None, answer.responses


def number_giver(overlay: Overlay) -> Touched | None:
    """The one node whose next number the write takes; None if there is none, or several."""
    found = [node for node in overlay.nodes.values() if node.needs_created and not node.is_new]
    if len(found) != 1 or found[0].needs_removed or found[0].before.created is None:
        return None
    return found[0]


def later(
    overlay: Overlay, giver: Touched, requests: Sequence[Request], *, is_multi: bool, expected: range
) -> Iterator[tuple[int, Overlay, list[PendingResult]]]:
    """The same write for when the count has gone on as expected."""
    created = giver.before.created
    assert created is not None
    for ahead in expected:
        family = replace(giver.before, created=replace(created, version=created.version + ahead))
        other = Overlay({**overlay.families, giver.path: family}, overlay.caller)
        try:
            yield ahead, other, other.run(requests, is_multi=is_multi)
        except (NotRead, KeeperAnswer):
            return


def in_turn(turns: Iterable[Turn], guard: Guard, max_ops: int) -> InTurn | None:
    """As many of the turns as etcd takes at once; None if that is one at most.

    A transaction within another one counts against the same limit.
    """
    reads = guard.read_on_failure
    request = messages.TxnRequest(compare=guard.compares, failure=reads)
    at = request.success  # filled in place: a message that is put into another is copied
    taken: list[Turn] = []
    left, bytes_left = max_ops - max(len(guard.compares) + 2, len(reads)), _MOST_BYTES
    for turn in turns:
        compares, ops = turn.plan.step(turn.event, turn.results)
        left -= max(len(compares), len(ops), len(reads))
        if left < 0 or bytes_left < 0:
            break
        step = at.add().request_txn
        step.compare.extend(compares)
        step.success.extend(ops)
        bytes_left -= step.ByteSize()
        at = step.failure
        if not taken:
            request.compare.extend(turn.plan.shared_compares())
        taken.append(turn)
    if len(taken) < 2:
        return None
    at.extend(reads)
    return InTurn(request, taken)


class Crowd:
    """How many others take numbers at the same time, as far as one session has met them."""

    def __init__(self) -> None:
        self._others = 0.0

    def expected(self, *, is_sure: bool) -> range:
        """How far the count will have gone on when a write arrives that is sent now; only what is likely.
        `is_sure`: the count is known of this moment, and nothing may be missed once more."""
        if self._others < _FEW:
            return range(1)
        first = 0 if is_sure else max(0, int(self._others) - _SPREAD)
        return range(first, int(self._others) + _SPREAD + 1)

    def met(self, others: int) -> None:
        """So many came first."""
        self._others += (min(others, _MOST_OTHERS) - self._others) / 4
