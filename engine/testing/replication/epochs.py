"""A history of replicated tables, cut where Keeper's tree of the table was made anew.

After SYSTEM RESTORE REPLICA without a table in Keeper names and numbers begin anew: each *epoch* is judged by
itself, as if it were all there is. What began in one and ended in another is in neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from engine.replication.log_actions import AttachPart, GetPart
from engine.testing.keeper_history import Created, Removed, Transaction
from engine.testing.replication.history import History, LostReplica
from engine.testing.replication.model import TableModel
from engine.testing.replication.rows import Row
from engine.testing.simulation_report import Violation


@dataclass(frozen=True, slots=True)
class Epoch:
    """`history` is what happened in it; `founder` the replica that restored the table, empty in the first."""

    history: History
    founder: str = ""


def epochs(history: History) -> list[Epoch]:
    """In order; the last has all that is known of the end."""
    births = [t for t in history.transactions if _creates(t, history.paths.log)]
    deaths = [t.at for t in history.transactions if _removes(t, history.paths.log)]
    if len(births) < 2:
        return [Epoch(history)]
    found = []
    for number, birth in enumerate(births):
        begins = birth.at if number else 0
        ends = births[number + 1].at if number + 1 < len(births) else None
        if ends is not None:
            ends = min((at for at in deaths if begins < at < ends), default=ends)
            # When the last of its replicas was lost, nothing could be done with it any more.
            ends = min((lost.at for lost in _all_lost(history, begins, ends)), default=ends)
        founder = "" if not number else _founder(history, birth)
        found.append(Epoch(_part(history, begins, ends), founder))
    return found


def check_restored(history: History, epoch: Epoch, model: TableModel) -> Iterator[Violation]:
    """The replica that made the table again has put in every row that it had, and none twice. `history` is
    the whole one, `epoch` a later one of it."""
    began = epoch.history.transactions[0].at if epoch.history.transactions else 0
    before = [lost for lost in history.lost if lost.replica == epoch.founder and lost.at < began]
    hurt = [at for at, replica, _ in history.harmed if replica == epoch.founder]
    if not before or any(at > before[-1].at for at in [*hurt, *history.disks_lost.get(epoch.founder, ())]):
        return
    if epoch.history.lost or not epoch.history.final:
        return  # it was interrupted
    restored: Counter[Row] = Counter()
    repeated: Counter[Row] = Counter()
    for logged in model.log:
        match logged.entry.action:
            case AttachPart(part, _) | GetPart(part) if logged.entry.block_id:
                rows = model.blocks[part.partition_id, part.min_block].rows
                is_founders = (
                    isinstance(logged.entry.action, AttachPart)
                    and logged.entry.source_replica == epoch.founder
                )
                (restored if is_founders else repeated).update(rows)
            case _:
                pass
    # What a user had inserted again before it came to it was not put in a second time.
    missing = before[-1].rows - restored - repeated
    extra = restored - before[-1].rows - before[-1].staged
    if missing or extra:
        yield Violation(
            "R3",
            f"RESTORE REPLICA on {epoch.founder} left out {sorted(missing.elements())} and "
            f"doubled {sorted(extra.elements())}",
        )


def _creates(transaction: Transaction, path: str) -> bool:
    return any(isinstance(event, Created) and event.path == path for event in transaction.events)


def _removes(transaction: Transaction, path: str) -> bool:
    return any(isinstance(event, Removed) and event.path == path for event in transaction.events)


def _founder(history: History, birth: Transaction) -> str:
    prefix = history.paths.replicas + "/"
    for event in birth.events:
        if isinstance(event, Created) and event.path.startswith(prefix):
            return event.path[len(prefix) :].partition("/")[0]
    return ""


def _all_lost(history: History, begins: int, ends: int) -> Iterator[LostReplica]:
    """The losses after which no replica was left in Keeper."""
    there: set[str] = set()
    events: list[tuple[int, bool, str]] = []
    for at, name, _ in history.created_below(history.paths.replicas):
        events.append((at, True, name))
    for at, name in history.removed_below(history.paths.replicas):
        if "/" not in name:
            events.append((at, False, name))
    for at, is_made, name in sorted(events):
        (there.add if is_made else there.discard)(name)
        if not there and begins < at < ends:
            yield from [lost for lost in history.lost if begins < lost.at <= at][-1:]


def _part(history: History, begins: int, ends: int | None) -> History:
    def inside(at: int) -> bool:
        return begins <= at and (ends is None or at < ends)

    # A replica's readers see what it had before until it has joined.
    never = history.clock + 1 if begins else 0
    joined: dict[str, int] = {}
    for at, name, _ in history.created_below(history.paths.replicas):
        if inside(at):
            joined.setdefault(name, at)
    return History(
        paths=history.paths,
        transactions=[each for each in history.transactions if inside(each.at)],
        staged=[each for each in history.staged if inside(each.at)],
        visible=[
            each for each in history.visible if inside(each.at) and joined.get(each.replica, never) <= each.at
        ],
        inserts=[each for each in history.inserts if inside(each.started_at) and inside(each.ended_at)],
        reads=[each for each in history.reads if inside(each.at)],
        sequential_reads=[
            each for each in history.sequential_reads if inside(each.started_at) and inside(each.ended_at)
        ],
        alters=[each for each in history.alters if inside(each.started_at) and inside(each.ended_at)],
        final=history.final if ends is None else {},
        definition=history.definition if ends is None else None,
        lost=[each for each in history.lost if inside(each.at)],
        wiped=[each for each in history.wiped if inside(each[0])],
        harmed=[each for each in history.harmed if inside(each[0])],
        notes=history.notes if ends is None else [],
        clock=history.clock,
    )
