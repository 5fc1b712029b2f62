"""Saying of a host's tasks that they will never be done, so that nobody waits for them.

Safety argument. The word, who gave it and why go beside the queue, never into `finished/`; it counts only as
long as the host itself says nothing (`engine.ddl.abandonment`). It is taken only for a host that gives no
answer over HTTP and is not active in the queue, both when it is planned and when it is done.
A crash leaves some entries marked; the same act marks the rest.

It never ends a wait for a host that is there. Of what expired for such a host a person may say that it is
dealt with: nobody waits for that, and only the record of the removed entry is written.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from engine.ddl.abandonment import Abandoning, Abandonment, abandon, read_abandoned, settle_expired
from engine.ddl.entry import DDLLogEntry
from engine.ddl.outcome_record import OutcomeRecord
from engine.errors import Code, Corrupt, NoNode, Refused
from engine.keeper.base import Node
from engine.names import HostId, entry_number
from engine.operations.act import Act, ActResult, ActState, Danger, Plan
from engine.operations.carrying_out import Performer
from engine.operations.site import Site
from engine.wording import count, listed

OPERATION = "abandon"
ENTRIES_AN_ACT = 100
_BATCH = 500


class AbandonAct(enum.StrEnum):
    """Acts of this operation."""

    ABANDON = "abandon-tasks"
    SETTLE = "settle-expired"


async def plan_abandon(site: Site, host: HostId, *, reason: str, entries: Sequence[str] = ()) -> Plan:
    """Every entry that waits for the host, or expired for it; or those of them that are named. Of a host
    that is there those that expired.

    Raises Refused without a reason, for a host that is there and has missed nothing, and for one that nobody
    knows.
    """
    if not reason.strip():
        raise Refused("Abandoning tasks needs a reason; it stays with them.", code=Code.BAD_ARGUMENTS)
    missed = await _expired(site, host)
    if there := await _is_there(site, host):
        if missed:
            return _settling(site, host, missed, reason, wanted=set(entries))
        raise Refused(
            f"{host.readable} {there}: its tasks cannot be abandoned.",
            code=Code.BAD_ARGUMENTS,
            hint="It executes them by itself. If it cannot, look at its log, or stop it for good.",
        )
    asked = await _asked(site, host)
    waiting = await _waiting(site, host, asked)
    if not asked and not missed and host not in site.hosts:
        raise Refused(
            f"{site.cluster} has no host {host.readable}, and no task in the queue is for it.",
            code=Code.BAD_ARGUMENTS,
            hint=f"Hosts: {', '.join(known.readable for known in site.hosts)}.",
        )
    wanted = set(entries)
    chosen = [name for name in sorted({*waiting, *missed}) if not wanted or name in wanted]
    acts = [
        Act(
            kind=AbandonAct.ABANDON,
            subject=_span(batch),
            host=host.readable,
            what=f"Abandon {count(len(batch), 'task')} of {host.readable}: {listed(batch, most=3)}.",
            why=f"{reason.rstrip('.')}. It gives no answer and is not active in the queue. Nobody waits "
            "for it any more; for ClickHouse it has not answered.",
            payload={"host": str(host), "entries": batch, "reason": reason},
            danger=Danger.REPAIRS,
        )
        for batch in _batches(chosen)
    ]
    unknown = sorted(wanted - {*waiting, *missed})
    notes = (f"Nothing waits for {host.readable} in {listed(unknown)}.",) if unknown else ()
    return Plan(OPERATION, site.cluster, tuple(acts), notes=notes)


def _settling(
    site: Site, host: HostId, missed: Sequence[str], reason: str, *, wanted: Collection[str]
) -> Plan:
    chosen = [name for name in missed if not wanted or name in wanted]
    acts = [
        Act(
            kind=AbandonAct.SETTLE,
            subject=_span(batch),
            host=host.readable,
            what=f"Record as dealt with what expired for {host.readable}: {listed(batch, most=3)}.",
            why=f"{reason.rstrip('.')}. It stays expired, and is no finding any more.",
            payload={"host": str(host), "entries": batch, "reason": reason},
            danger=Danger.REPAIRS,
        )
        for batch in _batches(chosen)
    ]
    notes = [f"{host.readable} is there: what waits for it in the queue it executes by itself."]
    if others := sorted(set(wanted) - set(missed)):
        notes.append(f"Nothing expired for {host.readable} in {listed(others)}.")
    return Plan(OPERATION, site.cluster, tuple(acts), notes=tuple(notes))


def _batches(entries: Sequence[str]) -> list[list[str]]:
    return [list(entries[start : start + ENTRIES_AN_ACT]) for start in range(0, len(entries), ENTRIES_AN_ACT)]


def _span(batch: Sequence[str]) -> str:
    return f"{batch[0]} to {batch[-1]}" if len(batch) > 1 else batch[0]


def abandon_performer(site: Site) -> Performer:
    """For `carry_out`."""
    return _Performer(site)


class _Performer:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, act: Act) -> ActResult:
        """Raises Keeper's errors, MalformedEntry."""
        site = self._site
        host = HostId.parse(str(act.payload["host"]))
        is_settled = act.kind == AbandonAct.SETTLE
        if not is_settled and (there := await _is_there(site, host)):
            return ActResult(ActState.REFUSED, f"{host.readable} {there}.")
        said = Abandonment(site.operator, str(act.payload["reason"]), int(site.env.now_s() * 1000))
        found: Counter[Abandoning] = Counter()
        say = settle_expired if is_settled else abandon
        for entry in act.payload["entries"]:
            found[await say(site.keeper, site.queue.paths, str(entry), host, said)] += 1
        detail = ", ".join(f"{number} {what}" for what, number in sorted(found.items()))
        if found[Abandoning.ACTIVE]:
            return ActResult(ActState.REFUSED, detail)
        is_new = found[Abandoning.ABANDONED] or found[Abandoning.SETTLED]
        return ActResult(ActState.DONE if is_new else ActState.NOT_NEEDED, detail)


async def _is_there(site: Site, host: HostId) -> str:
    """What shows that the host is there; empty if nothing does."""
    if await site.keeper.exists(site.queue.paths.replica_active(host)) is not None:
        return "is active in the queue"
    if host in site.clients:
        answer = await site.ask(host, lambda client: client.version())
        if isinstance(answer, tuple):
            return "answers"
    return ""


async def _asked(site: Site, host: HostId) -> dict[str, int]:
    """Entries in the queue that list the host, each with the transaction that made it."""
    keeper, paths = site.keeper, site.queue.paths
    await keeper.sync(paths.root)
    try:
        names = [n for n in (await keeper.children(paths.root)).names if entry_number(n) is not None]
    except NoNode:
        return {}
    found: dict[str, int] = {}
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        nodes = await keeper.get_many([paths.entry(name) for name in batch])
        for name, node in zip(batch, nodes, strict=True):
            if isinstance(node, Node) and _lists(node.data, name, host):
                found[name] = node.stat.czxid
    return found


async def _waiting(site: Site, host: HostId, asked: Mapping[str, int]) -> list[str]:
    """Those of the entries that the host has not answered, nor anybody for it."""
    keeper, paths = site.keeper, site.queue.paths
    names, found = list(asked), []
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        finished = await keeper.exists_many([paths.finished(name, host) for name in batch])
        for name, outcome in zip(batch, finished, strict=True):
            if outcome is None and host not in await read_abandoned(keeper, paths, name, asked[name]):
                found.append(name)
    return found


def _lists(data: bytes, name: str, host: HostId) -> bool:
    try:
        return host in DDLLogEntry.from_bytes(data, where=name).hosts
    except Corrupt:
        return False


async def _expired(site: Site, host: HostId) -> list[str]:
    keeper, paths = site.keeper, site.queue.paths
    try:
        names = (await keeper.children(paths.outcomes_root)).names
    except NoNode:
        return []
    found: list[str] = []
    for start in range(0, len(names), _BATCH):
        batch = names[start : start + _BATCH]
        nodes = await keeper.get_many([paths.outcome(name) for name in batch])
        for name, node in zip(batch, nodes, strict=True):
            if isinstance(node, Node):
                try:
                    if host in OutcomeRecord.from_bytes(node.data).expired:
                        found.append(name)
                except Corrupt:
                    continue
    return found
