"""Checks of replication queues and mutations: what was tried in vain, or waits for too long."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from engine.config.health_model import HealthSettings, TableLimits
from engine.names import TableName
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.health.damage import DAMAGED_FILES
from engine.operations.health.facts import (
    ClusterFacts,
    HostFacts,
    MutationFacts,
    QueueEntryFacts,
    ReplicaFacts,
)
from engine.operations.health.making import about, finding, place
from engine.sql import redact
from engine.wording import count, duration, listed, shortened

_MUTATE = "MUTATE_PART"
_CODE = re.compile(r"Code: (\d+)")


def check_queues(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """STUCK_QUEUE and BROKEN_PARTS, one for each replica; STUCK_MUTATION, one for each mutation."""
    for host in facts.hosts.values():
        yield from _queue_of(facts, host, settings)
    yield from _mutations(facts, settings)


def error_code(exception: str) -> int:
    """ClickHouse's code in an exception's text, 0 without one."""
    match = _CODE.search(exception)
    return int(match.group(1)) if match else 0


def _queue_of(facts: ClusterFacts, host: HostFacts, settings: HealthSettings) -> Iterator[Finding]:
    stuck: dict[TableName, list[QueueEntryFacts]] = defaultdict(list)
    failing_mutations = {mutation.table for mutation in host.mutations if mutation.fail_reason}
    for entry in host.queue:
        if entry.type == _MUTATE and entry.table in failing_mutations:
            continue  # that the mutation fails is a finding of its own
        if _is_stuck(entry, settings.of(entry.table), facts.now_ms / 1000):
            stuck[entry.table].append(entry)
    for table, entries in stuck.items():
        replica = host.replica(table)
        if replica is None or replica.is_readonly:
            continue  # a queue of a read-only replica stands still; that it is read-only is the finding
        damaged = [entry for entry in entries if error_code(entry.exception) in DAMAGED_FILES]
        yield _stuck(facts, host, replica, damaged or entries, is_damage=bool(damaged))


def _is_stuck(entry: QueueEntryFacts, limits: TableLimits, now_s: float) -> bool:
    age_s = now_s - entry.created_s
    if entry.exception:
        return _is_over(entry.tries, limits.queue_tries) or _is_over(age_s, limits.queue_age_s)
    return not entry.is_executing and _is_over(age_s, limits.queue_wait_s)


def _is_over(value: float, limit: int | None) -> bool:
    return limit is not None and value > limit


def _stuck(
    facts: ClusterFacts,
    host: HostFacts,
    replica: ReplicaFacts,
    entries: list[QueueEntryFacts],
    *,
    is_damage: bool,
) -> Finding:
    worst = max(entries, key=lambda entry: (bool(entry.exception), entry.tries))
    oldest_s = min(entry.created_s for entry in entries)
    reason = worst.exception or worst.postpone_reason or "it gives no reason"
    where = f"{replica.table} on {host.host.readable}"
    tried = f"{worst.type} {worst.part} was tried {count(worst.tries, 'time')}"
    if is_damage:
        what = f"{where} cannot read its files: {tried}: "
        advice = "Have its parts checked (CHECK TABLE): broken ones are fetched from another replica."
    else:
        what = (
            f"{count(len(entries), 'entry is', 'entries are')} stuck in the queue of {where} for "
            f"{duration(_age_s(facts, oldest_s))}; {tried}: "
        )
        advice = (
            "Remove the reason that the exception names, then SYSTEM RESTART REPLICA, which tries at once."
            if worst.exception
            else "Look for SYSTEM STOP MERGES, FETCHES or REPLICATION QUEUES that nobody took back."
        )
    return finding(
        facts,
        FindingKind.BROKEN_PARTS if is_damage else FindingKind.STUCK_QUEUE,
        Severity.CRITICAL if worst.exception else Severity.WARNING,
        what + shortened(reason),
        advice,
        host=host.host,
        subject=str(replica.table),
        since_s=oldest_s,
        more=about(replica, facts, host.host),
        entries=len(entries),
        tries=worst.tries,
        part=worst.part,
        code=error_code(worst.exception),
        has_exception="yes" if worst.exception else "no",
    )


def _mutations(facts: ClusterFacts, settings: HealthSettings) -> Iterator[Finding]:
    """A mutation of a replicated table is one thing, told by every replica."""
    told: dict[tuple[str, str], list[tuple[HostFacts, ReplicaFacts | None, MutationFacts]]] = defaultdict(
        list
    )
    for host in facts.hosts.values():
        for mutation in host.mutations:
            replica = host.replica(mutation.table)
            where = replica.path if replica else f"{host.host.readable} {mutation.table}"
            told[where, mutation.mutation_id].append((host, replica, mutation))
    for tellers in told.values():
        host, replica, mutation = max(tellers, key=lambda teller: bool(teller[2].fail_reason))
        limits = settings.of(mutation.table)
        age_s = _age_s(facts, mutation.created_s)
        is_failing = bool(mutation.fail_reason)
        if not _is_over(age_s, limits.mutation_fail_s if is_failing else limits.mutation_age_s):
            continue
        hosts = listed(each.host.readable for each, _, _ in tellers)
        to_do = f", {count(mutation.parts_to_do, 'part')} to do" if mutation.parts_to_do >= 0 else ""
        yield finding(
            facts,
            FindingKind.STUCK_MUTATION,
            Severity.CRITICAL if is_failing else Severity.WARNING,
            f"Mutation {mutation.mutation_id} of {mutation.table} ({hosts}) is not done after "
            f"{duration(age_s)}{to_do}: {shortened(redact(mutation.command), most=100)}"
            + (f". It fails: {shortened(mutation.fail_reason)}" if is_failing else "."),
            "KILL MUTATION, then a corrected one; parts that it has changed stay changed."
            if is_failing
            else "Wait, or look at the queue: mutations wait for merges, and merges for disk space.",
            host=host.host if replica is None else None,
            subject=f"{replica.path if replica else mutation.table} mutation {mutation.mutation_id}",
            since_s=mutation.created_s,
            more=place(mutation.table, replica.path if replica else "", replica.name if replica else ""),
            shard=facts.shard_of(host.host),
            teller=host.host.readable,
            mutation_id=mutation.mutation_id,
            is_failing="yes" if is_failing else "no",
            parts_to_do=mutation.parts_to_do,
        )


def _age_s(facts: ClusterFacts, since_s: float) -> float:
    return max(0.0, facts.now_ms / 1000 - since_s)
