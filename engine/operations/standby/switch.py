"""Switching writers from one cluster to its standby: the one procedure, and how far it has come.

    1 writers stand still      no INSERT runs or waits on the old cluster, no table changes between two looks
    2 DDL is through           no entry of the old cluster's queue waits for a host
    3 replicas are level       no replication queue or mutation has work, no replica is read-only or behind
    4 spools are empty         no Distributed table has files to send or broken ones, no Buffer table has rows
    5 the standby is equal     every object on every host, every row (`engine.operations.standby.check`)
    6 the standby can work     all its hosts answer, its queues are empty, no replica is read-only
    7 writers are switched     what writers connect to answers as a host of the standby

This module only looks. Each step is looked at when those before it are done: a step that is seen done while
an earlier one is not says nothing. People do the steps (docs/how-to/standby.md); nothing here stops a writer
or changes an address, because both are outside of the clusters.

Why this order: rows that wait in a spool or a queue reach their table only while the old cluster runs; so
these are emptied after the writers stopped and before the two are compared, and the comparison is the last
word before writers go on. Going back before step 7 costs nothing: let writers go on where they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engine.client import NodeClient
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId
from engine.operations.health.ask_ddl import read_waiting
from engine.operations.health.ask_host import ask_host
from engine.operations.health.facts import Gap, HostFacts
from engine.operations.site import Site
from engine.operations.standby.check import Tell, check_standby
from engine.operations.standby.model import DataDepth, Step, StepState
from engine.wording import count, size

WATCH_S = 5.0
_NAMED_AT_MOST = 3
_SPOOLS = "system.distribution_queue"
_INSERTS = (
    "SELECT count() FROM system.processes WHERE upper(substring(query, 1, 6)) = 'INSERT' AND is_initial_query"
)
_WAITING_INSERTS = "SELECT sum(length(entries.query_id)) FROM system.asynchronous_inserts"
_BUFFERED_ROWS = "SELECT sum(value) FROM system.metrics WHERE metric = 'StorageBufferRows'"
_MARK = (
    "SELECT count(), sum(rows), toInt64(toUInt32(max(modification_time))) FROM system.parts WHERE active "
    "AND database NOT IN ('system')"
)
_IDENTITIES = (
    "SELECT toString(serverUUID())",
    "SELECT concat(hostName(), ' ', toString(tcpPort()))",
    "SELECT arrayStringConcat(arraySort(groupArray(concat(macro, '=', substitution)))) FROM system.macros",
)


@dataclass(frozen=True, slots=True)
class _Seen:
    state: StepState
    seen: str


Look = Callable[[], Awaitable[_Seen]]


async def switch_steps(
    primary: Site,
    standby: Site,
    *,
    depth: DataDepth = DataDepth.HASHES,
    writers: NodeClient | None = None,
    watch_s: float = WATCH_S,
    tell: Tell = lambda _: None,
) -> tuple[Step, ...]:
    """All steps in order. `writers` is a client of what writers connect to, None where nobody named it."""
    looks: tuple[tuple[str, str, Look], ...] = (
        (
            "Writers of the old cluster stand still",
            "Stop them, or take their INSERT right away; then look again.",
            lambda: _writers_stand_still(primary, watch_s),
        ),
        (
            "The old cluster's DDL queue is through",
            "Wait, bring the hosts back, or give them up: `oncluster ddl list`, `oncluster cleanup`.",
            lambda: _ddl_is_through(primary),
        ),
        (
            "The old cluster's replicas are level",
            "Wait until their queues are empty: `oncluster health check`.",
            lambda: _replicas_are_level(primary),
        ),
        (
            "The old cluster's spools are empty",
            "SYSTEM FLUSH DISTRIBUTED, OPTIMIZE TABLE for each Buffer table; look at broken files by hand.",
            lambda: _spools_are_empty(primary),
        ),
        (
            "The standby is equal",
            "Bring over what is missing: `oncluster standby check` names it.",
            lambda: _standby_is_equal(primary, standby, depth, tell),
        ),
        (
            "The standby can work",
            "Repair it first: `oncluster health check` with its configuration.",
            lambda: _standby_can_work(standby),
        ),
        (
            "Writers are switched to the standby",
            "Change the connection or the name that they use; look again; then start them.",
            lambda: _writers_are_switched(primary, standby, writers),
        ),
    )
    steps: list[Step] = []
    for number, (title, advice, look) in enumerate(looks, start=1):
        if steps and steps[-1].state not in (StepState.DONE, StepState.BY_HAND):
            steps.append(Step(number, title, StepState.LATER, "", advice))
            continue
        tell(f"{number}. {title}")
        try:
            seen = await look()
        except OnclusterError as error:
            seen = _Seen(StepState.UNKNOWN, str(error))
        steps.append(Step(number, title, seen.state, seen.seen, advice))
    return tuple(steps)


# --- the old cluster --------------------------------------------------------------------------------------


async def _writers_stand_still(site: Site, watch_s: float) -> _Seen:
    async def running(_host: HostId, client: NodeClient) -> int:
        now = int((await client.query_rows(_INSERTS)).scalar)
        try:
            return now + int((await client.query_rows(_WAITING_INSERTS)).scalar)
        except SqlError as error:
            if error.code != Code.UNKNOWN_TABLE:
                raise
            return now  # the server is too old for asynchronous inserts

    async def mark(_host: HostId, client: NodeClient) -> tuple[int, ...]:
        return tuple(int(value or 0) for value in (await client.query_rows(_MARK)).rows[0])

    before = await site.ask_all(mark)
    inserts = await site.ask_all(running)
    await site.env.sleep(watch_s)
    after = await site.ask_all(mark)
    away = [host for host, answer in after.items() if isinstance(answer, OnclusterError)]
    busy = [f"{host.readable} runs {n} INSERTs" for host, n in inserts.items() if isinstance(n, int) and n]
    for host, answer in after.items():
        was = before[host]
        if (
            not isinstance(answer, OnclusterError)
            and not isinstance(was, OnclusterError)
            and answer[1] != was[1]
        ):
            busy.append(f"{host.readable} went from {was[1]} to {answer[1]} rows in {watch_s:g} s")
    if busy:
        return _Seen(StepState.OPEN, _list(busy))
    still = f"no INSERT and no change of rows in {watch_s:g} s"
    if away:
        # Who is down takes no writes; what it has not told the others is found by the comparison.
        return _Seen(StepState.DONE, f"{still}; {_list([host.readable for host in away])} did not answer")
    return _Seen(StepState.DONE, still)


async def _ddl_is_through(site: Site) -> _Seen:
    waiting = await read_waiting(site.keeper, site.queue.paths)
    if not waiting:
        return _Seen(StepState.DONE, "no entry waits for a host")
    named = [
        f"{entry.entry} waits for {', '.join(host.host.readable for host in entry.waiting)}"
        for entry in waiting
    ]
    return _Seen(StepState.OPEN, _list(named))


async def _replicas_are_level(site: Site) -> _Seen:
    facts = await _facts(site)
    trouble = list(_replica_trouble(facts))
    unknown = [*_unknown(facts, "system.replicas"), *_unknown(facts, "system.mutations")]
    if trouble:
        return _Seen(StepState.OPEN, _list(trouble))
    if unknown:
        return _Seen(StepState.UNKNOWN, _list(unknown))
    replicas = sum(len(each.replicas) for each in facts)
    return _Seen(StepState.DONE, f"nothing to do for {count(replicas, 'replica')}")


async def _spools_are_empty(site: Site) -> _Seen:
    facts = await _facts(site)
    full = [
        f"{each.host.readable} has {count(spool.files, 'file')} ({size(spool.size_bytes)}) and "
        f"{spool.broken_files} broken ones for {spool.table}"
        for each in facts
        for spool in each.spools
        if spool.files or spool.broken_files
    ]
    full += await _full_buffers(site)
    if full:
        return _Seen(StepState.OPEN, _list(full))
    silent = [
        each.host.readable
        for each in facts
        if any(gap.what == _SPOOLS and gap.gap is Gap.ABSENT for gap in each.not_said)
    ]
    if silent:
        where = "look for files in the directories of Distributed tables there"
        return _Seen(StepState.BY_HAND, f"{_list(silent)} cannot tell ({_SPOOLS} is not there): {where}")
    if unknown := _unknown(facts, _SPOOLS):
        return _Seen(StepState.UNKNOWN, _list(unknown))
    return _Seen(StepState.DONE, "nothing waits to be sent")


async def _full_buffers(site: Site) -> list[str]:
    async def rows(_host: HostId, client: NodeClient) -> int:
        return int((await client.query_rows(_BUFFERED_ROWS)).scalar)

    answers = await site.ask_all(rows)
    return [
        f"{host.readable} has {count(answer, 'row')} in Buffer tables"
        for host, answer in answers.items()
        if not isinstance(answer, OnclusterError) and answer
    ]


# --- the standby ------------------------------------------------------------------------------------------


async def _standby_is_equal(primary: Site, standby: Site, depth: DataDepth, tell: Tell) -> _Seen:
    report = await check_standby(primary, standby, depth=depth, tell=tell)
    if report.is_equal:
        return _Seen(
            StepState.DONE,
            f"{report.objects} objects and {report.rows} rows in {report.tables} tables ({report.depth})",
        )
    return _Seen(StepState.OPEN, _list(report.lines))


async def _standby_can_work(site: Site) -> _Seen:
    facts = await _facts(site)
    trouble = [
        f"{each.host.readable} does not answer: {each.error}" for each in facts if each.silence is not None
    ]
    trouble += _replica_trouble(facts)
    waiting = await read_waiting(site.keeper, site.queue.paths)
    trouble += [f"{entry.entry} waits for hosts" for entry in waiting]
    if trouble:
        return _Seen(StepState.OPEN, _list(trouble))
    return _Seen(StepState.DONE, f"{len(facts)} hosts answer, their queues are empty")


async def _writers_are_switched(primary: Site, standby: Site, writers: NodeClient | None) -> _Seen:
    """By a question that every server answers differently; which one that is depends on what they are."""
    if writers is None:
        return _Seen(StepState.BY_HAND, "nobody said what writers connect to (--writers URL)")
    for question in _IDENTITIES:
        try:
            theirs = str((await writers.query_rows(question)).scalar)
        except (SqlError, IndexError):
            continue
        new = await _who_answers(standby, question, theirs)
        old = await _who_answers(primary, question, theirs)
        if new and old:
            continue  # it tells no server from another
        if new:
            return _Seen(StepState.DONE, f"{writers.url} is {new[0].readable} of {standby.cluster}")
        where = f"{old[0].readable} of {primary.cluster}" if old else f"no host of {standby.cluster}"
        return _Seen(StepState.OPEN, f"{writers.url} is {where}")
    return _Seen(StepState.UNKNOWN, f"{writers.url} does not say which server it is")


async def _who_answers(site: Site, question: str, identity: str) -> list[HostId]:
    async def ask(_host: HostId, client: NodeClient) -> str:
        return str((await client.query_rows(question)).scalar)

    answers = await site.ask_all(ask)
    return [host for host, answer in answers.items() if answer == identity]


# --- what they share --------------------------------------------------------------------------------------


async def _facts(site: Site) -> list[HostFacts]:
    return list(await asyncio.gather(*(ask_host(site, host) for host in site.hosts)))


def _replica_trouble(facts: list[HostFacts]) -> list[str]:
    found = []
    for each in facts:
        for replica in each.replicas:
            where = f"{replica.table} on {each.host.readable}"
            if replica.is_readonly:
                found.append(f"{where} is read-only")
            if replica.queue_size:
                found.append(f"{where} has {count(replica.queue_size, 'entry', 'entries')} in its queue")
            elif replica.absolute_delay_s:
                found.append(f"{where} is {replica.absolute_delay_s} s behind")
        for mutation in each.mutations:
            found.append(
                f"{mutation.table} on {each.host.readable} has mutation {mutation.mutation_id} to do"
            )
    return found


def _unknown(facts: list[HostFacts], what: str) -> list[str]:
    found = [f"{each.host.readable} does not answer" for each in facts if each.silence is not None]
    for each in facts:
        found += [f"{each.host.readable}: {gap.what}: {gap.why}" for gap in each.not_said if gap.what == what]
    return found


def _list(items: list[str]) -> str:
    more = f"; and {len(items) - _NAMED_AT_MOST} more" if len(items) > _NAMED_AT_MOST else ""
    return "; ".join(items[:_NAMED_AT_MOST]) + more
