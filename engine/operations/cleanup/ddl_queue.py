"""Old entries of the DDL queue, and what expired for a host that had not answered.

Safety argument. Entries go by `engine.ddl.cleaner`, whose argument holds here: one transaction that checks
what was read and writes the record of outcomes; never an entry that a host is executing. On top of that an
entry that a host has no outcome for goes by the queue's age limit only, never by number and never earlier
because somebody wants less kept; such acts are separate and need approval. An act names its entries; whether
each is due is decided anew when it is carried out. Servers and other cleaners may work at the same time:
what they removed is gone, what they are at is left.

What expired is read from the records of outcomes, whoever removed the entry: a finding for each host, until a
person says that it is dealt with (`abandoned`), or the record is older than `expired_shown_s`.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from engine.config.model import DistributedDdl
from engine.ddl.cleaner import LANES, CleanedEntry, DDLCleaner, Expiry, Reason, Removal
from engine.ddl.outcome_record import OutcomeRecord
from engine.errors import Corrupt, NoNode
from engine.keeper.base import Node
from engine.names import HostId
from engine.operations.act import Act, ActResult, ActState, Danger
from engine.operations.cleanup.found import Found
from engine.operations.cleanup.settings import CleanupSettings
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.site import Site
from engine.sql import redact
from engine.wording import count, duration, listed, shortened

ENTRIES_AN_ACT = 100
_BATCH = 500
_SHORT = 120


class DdlAct(enum.StrEnum):
    """Acts of this kind."""

    REMOVE = "remove-ddl-entries"
    EXPIRE = "expire-ddl-entries"
    PRESENCE = "remove-stale-presence"


async def plan_ddl(site: Site, settings: CleanupSettings) -> Found:
    """What would go, what expired in the last days, and what is over its number and yet stays."""
    cleaner = _cleaner(site, keep_entries=settings.ddl_keep_entries)
    report = await cleaner.clean(dry_run=True, expiry=Expiry.BY_AGE, lanes=LANES)
    by_removal: dict[Removal, list[CleanedEntry]] = defaultdict(list)
    for cleaned in report.entries:
        by_removal[cleaned.removal].append(cleaned)
    planned = by_removal[Removal.PLANNED]
    finished = [entry for entry in planned if not entry.expired]
    unfinished = [entry for entry in planned if entry.expired]
    keep = settings.ddl_keep_entries
    acts = [*_removals(finished, keep), *_expiries(unfinished, keep, site.queue)]
    if report.stale_replicas:
        acts.append(_presence(report.stale_replicas))
    return Found(
        tuple(acts), await expired_findings(site, settings), tuple(_notes(by_removal, report.forbidden))
    )


async def perform_ddl(site: Site, act: Act) -> ActResult:
    """Remove what is still due of the act's entries. Raises Keeper's errors."""
    if act.kind == DdlAct.PRESENCE:
        stale = (await _cleaner(site).clean(only=())).stale_replicas
        state = ActState.DONE if stale else ActState.NOT_NEEDED
        return ActResult(state, ", ".join(stale))
    names = frozenset(act.payload["entries"])
    # An act of finished entries expires nothing: an entry that was finished stays so.
    expiry = Expiry.NEVER if act.kind == DdlAct.REMOVE else Expiry.BY_AGE
    cleaner = _cleaner(site, keep_entries=act.payload["keep_entries"])
    report = await cleaner.clean(only=names, expiry=expiry, lanes=LANES)
    removed = [entry for entry in report.entries if entry.removal is Removal.REMOVED]
    left = {e.entry: e.removal for e in report.entries if e.removal not in (Removal.REMOVED, Removal.GONE)}
    return ActResult(_state(removed, left), _detail(removed, left, len(names)))


async def expired_findings(site: Site, settings: CleanupSettings) -> tuple[Finding, ...]:
    """One for each host that has missed entries, from the records of the last `expired_shown_s`."""
    missed: dict[HostId, list[OutcomeRecord]] = defaultdict(list)
    since_ms = site.env.now_s() * 1000 - settings.expired_shown_s * 1000
    elsewhere = {host for cluster in site.config.topology.clusters.values() for host in cluster.host_ids}
    elsewhere -= set(site.hosts)
    for record, written_ms in await _records(site):
        if written_ms >= since_ms:
            for host in record.expired:
                if host not in elsewhere:  # a queue may serve several clusters
                    missed[host].append(record)
    return tuple(_expired_finding(site, host, records) for host, records in sorted(missed.items(), key=_name))


# --- looking ----------------------------------------------------------------------------------------------


def _cleaner(site: Site, *, keep_entries: int | None = None) -> DDLCleaner:
    queue = site.queue
    if keep_entries is not None:
        most = min(queue.max_tasks_in_queue, keep_entries)
        queue = dataclasses.replace(queue, max_tasks_in_queue=most)
    return DDLCleaner(site.keeper, site.env, queue)


async def _records(site: Site) -> list[tuple[OutcomeRecord, int]]:
    """The records of removed entries and when they were written; those that nobody can read are left out."""
    paths = site.queue.paths
    try:
        names = (await site.keeper.children(paths.outcomes_root)).names
    except NoNode:
        return []
    found = []
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        for node in await site.keeper.get_many([paths.outcome(name) for name in batch]):
            if isinstance(node, Node):
                try:
                    found.append((OutcomeRecord.from_bytes(node.data), node.stat.mtime_ms))
                except Corrupt:
                    continue
    return found


# --- acts -------------------------------------------------------------------------------------------------


def _removals(entries: Sequence[CleanedEntry], keep_entries: int | None) -> Iterable[Act]:
    for batch in _batches(entries):
        reasons = Counter(entry.reason for entry in batch)
        yield Act(
            kind=DdlAct.REMOVE,
            subject=_span(batch),
            what=f"Remove {count(len(batch), 'finished entry', 'finished entries')} {_span(batch)} from the "
            "DDL queue.",
            why=f"Every host has answered; {_because(reasons)}. What they answered is kept in the records.",
            payload={"entries": [entry.entry for entry in batch], "keep_entries": keep_entries},
        )


def _expiries(
    entries: Sequence[CleanedEntry], keep_entries: int | None, queue: DistributedDdl
) -> Iterable[Act]:
    for batch in _batches(entries):
        hosts = ", ".join(sorted({host.readable for entry in batch for host in entry.expired}))
        limit = duration(queue.task_max_lifetime_s)
        yield Act(
            kind=DdlAct.EXPIRE,
            subject=_span(batch),
            what=f"Remove {count(len(batch), 'unfinished entry', 'unfinished entries')} {_span(batch)}; "
            f"recorded as expired for {hosts}.",
            why=f"Older than the queue's age limit of {limit}, by which ClickHouse removes entries itself. "
            "These hosts will never execute them.",
            payload={"entries": [entry.entry for entry in batch], "keep_entries": keep_entries},
            danger=Danger.DESTROYS,
        )


def _presence(names: Sequence[str]) -> Act:
    return Act(
        kind=DdlAct.PRESENCE,
        subject="replicas",
        what=f"Remove {count(len(names), 'directory', 'directories')} of hosts that are not there any more: "
        f"{listed(names)}.",
        why="No server was active under these names for a day; a server makes its own again when it starts.",
        payload={"hosts": list(names)},
    )


def _state(removed: Sequence[CleanedEntry], left: Mapping[str, Removal]) -> ActState:
    if removed:
        return ActState.DONE
    return ActState.REFUSED if left else ActState.NOT_NEEDED


def _detail(removed: Sequence[CleanedEntry], left: Mapping[str, Removal], asked: int) -> str:
    """For people: what went, what stays and why, what nobody found, for whom something expired."""
    parts = [f"{len(removed)} removed"]
    for removal, names in sorted(_by_removal(left).items()):
        parts.append(f"{len(names)} left ({_WORDS[removal]}: {listed(names)})")
    if others := asked - len(removed) - len(left):
        parts.append(f"{others} were gone, or are not due")
    expired: dict[HostId, list[str]] = defaultdict(list)
    for entry in removed:
        for host in entry.expired:
            expired[host].append(entry.entry)
    parts += [
        f"expired for {host.readable}: {listed(names)}" for host, names in sorted(expired.items(), key=_name)
    ]
    return "; ".join(parts)


_WORDS = {
    Removal.ACTIVE: "a host is executing it",
    Removal.LOCKED: "a server is cleaning it",
    Removal.CHANGING: "it changed whenever it was looked at",
    Removal.UNFINISHED: "a host has not answered yet",
    Removal.FORBIDDEN: "Keeper forbids it: its ACL is for somebody else",
    Removal.PLANNED: "planned",
}


def _by_removal(left: Mapping[str, Removal]) -> dict[Removal, list[str]]:
    found: dict[Removal, list[str]] = defaultdict(list)
    for name, removal in left.items():
        found[removal].append(name)
    return found


def _notes(by_removal: dict[Removal, list[CleanedEntry]], forbidden: Sequence[str]) -> Iterable[str]:
    if forbidden:
        yield (
            f"{count(len(forbidden), 'entry', 'entries')} that Keeper lets us not look at, and so left: "
            f"{listed(forbidden)}. Their ACL is for somebody else, such as servers with another <identity>."
        )
    for removal in (Removal.ACTIVE, Removal.LOCKED, Removal.CHANGING, Removal.FORBIDDEN):
        names = [entry.entry for entry in by_removal[removal]]
        if names:
            how_many = count(len(names), "entry", "entries")
            yield f"{how_many} due and left: {_WORDS[removal]} ({listed(names)})."
    unfinished = by_removal[Removal.UNFINISHED]
    if unfinished:
        hosts = sorted({host.readable for entry in unfinished for host in entry.expired})
        yield (
            f"{count(len(unfinished), 'entry', 'entries')} over the queue's number and left, because "
            f"{', '.join(hosts)} did not answer: {listed([entry.entry for entry in unfinished])}. They go by "
            "age, or when `oncluster cleanup abandon` says that a host is gone. Servers may be faster."
        )


def _expired_finding(site: Site, host: HostId, records: Sequence[OutcomeRecord]) -> Finding:
    first, last = records[0], records[-1]
    which = f"{first.entry}: " if len(records) == 1 else f"{first.entry} to {last.entry}, the last of them "
    return Finding(
        FindingKind.EXPIRED_DDL,
        Severity.CRITICAL,
        site.cluster,
        f"{host.readable} never answered {count(len(records), 'entry', 'entries')} that "
        f"{'was' if len(records) == 1 else 'were'} removed from the DDL queue ({which}"
        f"{shortened(redact(last.query), most=_SHORT)}).",
        "Compare its schema with the others (`oncluster drift`) and run there what is missing. When that is "
        "done, or if the host is gone for good, say so: `oncluster cleanup abandon`.",
        host=host.readable,
        evidence={
            "entries": len(records),
            "first_entry": first.entry,
            "last_entry": last.entry,
            "last_created_ms": last.created_ms,
        },
        since_ms=min(record.created_ms for record in records),
    )


# --- words ------------------------------------------------------------------------------------------------


def _batches(entries: Sequence[CleanedEntry]) -> Iterable[Sequence[CleanedEntry]]:
    for start in range(0, len(entries), ENTRIES_AN_ACT):
        yield entries[start : start + ENTRIES_AN_ACT]


def _span(entries: Sequence[CleanedEntry]) -> str:
    first, last = entries[0].entry, entries[-1].entry
    return first if first == last else f"{first} to {last}"


def _because(reasons: Counter[Reason]) -> str:
    words = {Reason.AGE: "over the age limit", Reason.NUMBER: "over the number kept"}
    return ", ".join(
        f"{count} {words.get(reason, reason.value)}" for reason, count in sorted(reasons.items())
    )


def _name(item: tuple[HostId, object]) -> str:
    return item[0].readable
