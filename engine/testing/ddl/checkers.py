"""Does a history of the queue keep its promises? One checker for each, pure, each tested with bad histories.

D1  effects of an entry on a host ≤ 1, = 1 when its outcome is done
D2  at most one entry for a token, ever, and everybody is told the same one
D3  entries on one object take effect in queue order on each host
D4  done is visible only after the effect is on disk
D5  in the end every entry has an outcome on every live host it lists
D6  a once-per-shard statement takes effect once for each shard
C1  no entry is removed that is active, or that has a host without outcome unless it was old and is
    recorded as expired for that host
C2  an entry and its outcomes go in one transaction
C3  nothing is made below an entry that is being removed
C4  an entry is removed once, and its record says what its hosts had said
    S1  no instant at which an entry of ours has only one of `active` and `finished`: a worker of ClickHouse
        18.16 that meets such an entry dies
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import token_of
from engine.ddl.outcome import HostState
from engine.ddl.outcome_record import OutcomeRecord
from engine.ddl.status import ExecutionStatus
from engine.errors import Code, MalformedEntry
from engine.names import entry_number, unescape_for_file_name
from engine.testing.ddl.history import Created, History, Removed
from engine.testing.simulation_report import Violation

OUTCOME_UNKNOWN = "Outcome unknown"


def _host_effects(history: History) -> Counter[tuple[str, str]]:
    return Counter((s.effect.entry, s.effect.host) for s in history.effects if not s.shard)


def _readable(host_id: str) -> str:
    """`node01:9000` as the model knows it: its name."""
    return unescape_for_file_name(host_id.rpartition(":")[0])


def check_d1(history: History) -> Iterator[Violation]:
    effects = _host_effects(history)
    for (entry, host), count in sorted(effects.items()):
        if count > 1:
            yield Violation("D1", f"{entry} took effect {count} times on {host}")
    for (entry, host_id), (_, data) in history.outcomes().items():
        expected = history.expectations.get(entry)
        if expected is None or expected.runs_once_per_shard:
            continue
        status = ExecutionStatus.from_bytes(data)
        count = effects[entry, _readable(host_id)]
        if status.is_success and expected.is_certain and count == 0:
            yield Violation("D1", f"{entry} is done on {host_id} without effect")
        if not status.is_success and count and OUTCOME_UNKNOWN not in status.message:
            yield Violation("D1", f"{entry} failed on {host_id} with {status.code} and yet took effect")


def check_d2(history: History) -> Iterator[Violation]:
    entries: dict[str, set[str]] = defaultdict(set)
    for _, event in history.events():
        name, rest = history.entry_of(event.path)
        if isinstance(event, Created) and not rest and entry_number(name) is not None:
            try:
                token = token_of(DDLLogEntry.from_bytes(event.data))
            except MalformedEntry:
                continue
            if token is not None:
                entries[token].add(name)
    for token, names in sorted(entries.items()):
        if len(names) > 1:
            yield Violation("D2", f"token {token} was enqueued as {sorted(names)}")
    for told in history.acknowledged:
        if told.entry and told.entry not in entries[told.token]:
            yield Violation("D2", f"token {told.token} was acknowledged as {told.entry}")


def _diverged(history: History, entry: str, shard: str) -> bool:
    """Whether a replica of the shard did not have the table when the entry's turn came. It then ran
    nothing for the shard, and went on to later entries without the others."""
    for (name, host), (_, data) in history.outcomes().items():
        is_of_shard = name == entry and history.shard_of.get(_readable(host)) == shard
        if is_of_shard and ExecutionStatus.from_bytes(data).code == Code.UNKNOWN_TABLE:
            return True
    return False


def check_d3(history: History) -> Iterator[Violation]:
    latest: dict[tuple[str, str], tuple[int, str]] = {}
    for seen in sorted(history.effects, key=lambda s: s.at):
        number = entry_number(seen.effect.entry)
        if number is None:
            continue
        expected = history.expectations.get(seen.effect.entry)
        for name in expected.objects if expected and expected.objects else (seen.effect.object,):
            key = (seen.shard or seen.effect.host, name)
            if key in latest and latest[key][0] > number:
                if seen.shard and _diverged(history, seen.effect.entry, seen.shard):
                    continue
                yield Violation(
                    "D3", f"{seen.effect.entry} took effect on {name} at {key[0]} after {latest[key][1]}"
                )
            else:
                latest[key] = (number, seen.effect.entry)


def check_d4(history: History) -> Iterator[Violation]:
    when: dict[tuple[str, str], int] = {}
    for seen in history.effects:
        if not seen.shard:
            when.setdefault((seen.effect.entry, seen.effect.host), seen.at)
    for (entry, host_id), (transaction, data) in history.outcomes().items():
        at = when.get((entry, _readable(host_id)))
        if ExecutionStatus.from_bytes(data).is_success and at is not None and at > transaction.at:
            yield Violation("D4", f"{entry} was reported done on {host_id} before its effect")


def check_d5(history: History) -> Iterator[Violation]:
    outcomes = history.outcomes()
    removed = {
        history.entry_of(event.path)[0]
        for _, event in history.events()
        if isinstance(event, Removed) and not history.entry_of(event.path)[1]
    }
    for entry, expected in sorted(history.expectations.items()):
        if entry in removed:
            continue
        for host in expected.hosts:
            if _readable(host) in history.live_hosts and (entry, host) not in outcomes:
                yield Violation("D5", f"{entry} has no outcome on {host}, which lives")


def check_d6(history: History) -> Iterator[Violation]:
    effects = Counter((s.effect.entry, s.shard) for s in history.effects if s.shard)
    for (entry, shard), count in sorted(effects.items()):
        if count > 1:
            yield Violation("D6", f"{entry} took effect {count} times on shard {shard}")
    executed: dict[tuple[str, str], str] = {}
    for _, event in history.events():
        name, rest = history.entry_of(event.path)
        if isinstance(event, Created) and rest.startswith("shards/") and rest.endswith("/executed"):
            executed[name, rest.split("/")[1]] = event.data.decode()
    outcomes = history.outcomes()
    for (entry, _), host in sorted(executed.items()):
        shard = history.shard_of.get(_readable(host), "")
        expected = history.expectations.get(entry)
        status = outcomes.get((entry, host))
        if expected is None or status is None or not expected.is_certain:
            continue
        if ExecutionStatus.from_bytes(status[1]).is_success and not effects[entry, shard]:
            yield Violation("D6", f"{entry} was executed by {host} for shard {shard} without effect")


def check_c1(history: History) -> Iterator[Violation]:
    yield from _claims_taken_away(history)
    present: dict[str, set[str]] = defaultdict(set)
    created: dict[str, tuple[float, tuple[str, ...]]] = {}
    records: dict[str, OutcomeRecord] = {}
    largest = -1
    for transaction in history.transactions:
        gone = [e for e in transaction.events if isinstance(e, Removed) and not history.entry_of(e.path)[1]]
        before = {name: set(paths) for name, paths in present.items()} if gone else {}
        for event in transaction.events:
            name, rest = history.entry_of(event.path)
            if event.path.startswith(history.paths.outcomes_root + "/query-") and not isinstance(
                event, Removed
            ):
                records[event.path.rpartition("/")[2]] = OutcomeRecord.from_bytes(event.data)
            if entry_number(name) is None:
                continue
            if isinstance(event, Created):
                present[name].add(rest)
                if not rest:
                    created[name] = (transaction.time_s, _listed_hosts(event.data))
                    largest = max(largest, entry_number(name) or 0)
            elif isinstance(event, Removed):
                present[name].discard(rest)
        for event in gone:
            name, _ = history.entry_of(event.path)
            if name not in created:
                continue
            yield from _check_removal(history, name, transaction.time_s, created, before, records, largest)


def _claims_taken_away(history: History) -> Iterator[Violation]:
    """`active/<host>` goes with its session or by its own host; nobody else may take it away."""
    for transaction, event in history.events():
        name, rest = history.entry_of(event.path)
        if not isinstance(event, Removed) or not rest.startswith("active/") or transaction.by_session_end:
            continue
        owner = _readable(rest.removeprefix("active/"))
        if transaction.actor not in ("", owner):
            yield Violation("C1", f"{transaction.actor} took {name}/{rest} away")


def _check_removal(
    history: History,
    name: str,
    time_s: float,
    created: dict[str, tuple[float, tuple[str, ...]]],
    before: dict[str, set[str]],
    records: dict[str, OutcomeRecord],
    largest: int,
) -> Iterator[Violation]:
    created_s, hosts = created[name]
    paths = before.get(name, set())
    active = sorted(path for path in paths if path.startswith("active/"))
    if active:
        yield Violation("C1", f"{name} was removed while {active} was there")
    is_old = time_s - created_s > history.lifetime_s
    is_far_behind = (entry_number(name) or 0) + history.max_tasks < largest
    unfinished = [host for host in hosts if f"finished/{host}" not in paths]
    if unfinished and not is_old and not is_far_behind:
        yield Violation("C1", f"{name} was removed young, {unfinished} had no outcome")
    record = records.get(name)
    missing = sorted(set(unfinished) - {str(o.host) for o in record.hosts} if record else set(unfinished))
    if missing:
        yield Violation("C1", f"{name} was removed without a record for {missing}")


def check_c2(history: History) -> Iterator[Violation]:
    """`finished`, or a single outcome, is never missing from an entry that had it and still stands."""
    for transaction in history.transactions:
        removed = [history.entry_of(e.path) for e in transaction.events if isinstance(e, Removed)]
        whole = {name for name, rest in removed if not rest}
        for name, rest in removed:
            if entry_number(name) is not None and rest.startswith("finished") and name not in whole:
                yield Violation("C2", f"{name}/{rest} was removed before the entry")


def check_c3(history: History) -> Iterator[Violation]:
    being_removed: set[str] = set()
    for transaction, event in history.events():
        name, rest = history.entry_of(event.path)
        if entry_number(name) is None:
            continue
        if isinstance(event, Removed) and rest in ("active", ""):
            being_removed.add(name)
        elif isinstance(event, Created) and name in being_removed and rest:
            yield Violation("C3", f"{name}/{rest} was made at {transaction.at}, during or after removal")


def check_c4(history: History) -> Iterator[Violation]:
    said: dict[str, dict[str, bool]] = defaultdict(dict)
    removals: Counter[str] = Counter()
    creations: Counter[str] = Counter()
    for _, event in history.events():
        name, rest = history.entry_of(event.path)
        if entry_number(name) is not None:
            if rest.startswith("finished/") and not isinstance(event, Removed):
                status = ExecutionStatus.from_bytes(event.data)
                said[name][rest.removeprefix("finished/")] = status.is_success
            elif not rest:
                creations[name] += isinstance(event, Created)
                removals[name] += isinstance(event, Removed)
        if event.path.startswith(history.paths.outcomes_root + "/query-") and not isinstance(event, Removed):
            record = OutcomeRecord.from_bytes(event.data)
            for outcome in record.hosts:
                known = said[record.entry].get(str(outcome.host))
                wanted = (
                    {True: HostState.DONE, False: HostState.FAILED}.get(known) if known is not None else None
                )
                if wanted is not None and outcome.state is not wanted:
                    yield Violation(
                        "C4", f"the record of {record.entry} says {outcome.state} for {outcome.host}"
                    )
    for name, count in sorted(removals.items()):
        if count > max(1, creations[name]):
            yield Violation("C4", f"{name} was removed {count} times")


def check_s1(history: History) -> Iterator[Violation]:
    present: dict[str, set[str]] = defaultdict(set)
    for transaction in history.transactions:
        touched = set()
        for event in transaction.events:
            name, rest = history.entry_of(event.path)
            if rest in ("active", "finished") and entry_number(name) is not None:
                touched.add(name)
                if isinstance(event, Created):
                    present[name].add(rest)
                elif isinstance(event, Removed):
                    present[name].discard(rest)
        for name in sorted(touched - history.foreign):
            if len(present[name]) == 1:
                yield Violation("S1", f"{name} has only {present[name]} at {transaction.at}")


def _listed_hosts(data: bytes) -> tuple[str, ...]:
    try:
        return tuple(str(host) for host in DDLLogEntry.from_bytes(data).hosts)
    except MalformedEntry:
        return ()


CHECKERS: dict[str, Callable[[History], Iterator[Violation]]] = {
    "D1": check_d1,
    "D2": check_d2,
    "D3": check_d3,
    "D4": check_d4,
    "D5": check_d5,
    "D6": check_d6,
    "C1": check_c1,
    "C2": check_c2,
    "C3": check_c3,
    "C4": check_c4,
    "S1": check_s1,
}


def violations(history: History) -> list[Violation]:
    """All broken promises of a history."""
    return [violation for check in CHECKERS.values() for violation in check(history)]
