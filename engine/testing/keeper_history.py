"""What happened to a memory Keeper's tree, as an observer who sees every transaction at once.

`ObservedTree` takes the place of the tree and tells a `KeeperHistory` about each transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine.keeper.base import Create, Op, OpResult, Remove, SetData
from engine.keeper.tree import Caller, Tree


@dataclass(frozen=True, slots=True)
class Created:
    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Changed:
    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Removed:
    path: str


Event = Created | Changed | Removed


@dataclass(frozen=True, slots=True)
class Transaction:
    """Events at one instant. `at` orders it among effects, too; `by_session_end`: nobody asked for it.

    `actor` is the host that asked for it, empty where that is not known.
    """

    at: int
    time_s: float
    events: tuple[Event, ...]
    by_session_end: bool = False
    actor: str = ""


@dataclass(slots=True, kw_only=True)
class KeeperHistory:
    """All transactions; `clock` numbers the moments, those of effects outside Keeper among them."""

    transactions: list[Transaction] = field(default_factory=list)
    clock: int = 0

    def tick(self) -> int:
        """The next moment."""
        self.clock += 1
        return self.clock

    def record(
        self, time_s: float, events: Sequence[Event], *, by_session_end: bool = False, actor: str = ""
    ) -> None:
        self.transactions.append(Transaction(self.tick(), time_s, tuple(events), by_session_end, actor))


class ObservedTree(Tree):
    """A tree that tells a history about each of its transactions."""

    def __init__(
        self,
        history: KeeperHistory,
        now_s: Callable[[], float],
        on_event: Callable[[Event], None] = lambda event: None,
        actor_of: Callable[[int], str] = lambda session_id: "",
    ) -> None:
        super().__init__()
        self._history = history
        self._now_s = now_s
        self._on_event = on_event
        self._actor_of = actor_of

    def write(self, op: Op, caller: Caller) -> OpResult:
        result = super().write(op, caller)
        self._tell([op], [result], caller)
        return result

    def multi(self, ops: Sequence[Op], caller: Caller) -> list[OpResult]:
        results = super().multi(ops, caller)
        self._tell(ops, results, caller)
        return results

    def end_session(self, session_id: int) -> None:
        paths = list(self.ephemerals.get(session_id, {}))
        super().end_session(session_id)
        if paths:
            self._history.record(self._now_s(), [Removed(path) for path in paths], by_session_end=True)

    def _tell(self, ops: Sequence[Op], results: Iterable[OpResult], caller: Caller) -> None:
        events: list[Event] = []
        for op, result in zip(ops, results, strict=True):
            if isinstance(op, Create):
                events.append(Created(str(result), op.data))
            elif isinstance(op, SetData):
                events.append(Changed(op.path, op.data))
            elif isinstance(op, Remove):
                events.append(Removed(op.path))
        if events:
            self._history.record(self._now_s(), events, actor=self._actor_of(caller.session_id))
            for event in events:
                self._on_event(event)
