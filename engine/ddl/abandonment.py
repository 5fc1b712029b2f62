"""A person's word that a host will never do its part of an entry, so that nobody waits for it.

Safety argument.
1. The word stands outside the queue's directory (`abandoned/<entry>`), with who gave it and why. `finished/`
   and `active/` of the entry are not touched: for ClickHouse the host has not answered, which is true. Only
   an `active/<host>` that no session owns is removed, since nobody is behind it.
2. It is written in one multi with a check that the entry is there. An entry that was removed meanwhile has a
   record of its outcomes; there *expired* of this host becomes *abandoned*, by the record's version.
3. It counts for nothing as soon as the host says something itself: readers take `finished/` first, then
   `active/`, then this. A host that comes back and executes is *done*, as it should be.
A crash leaves the word given or not; giving it again changes nothing.

It never turns an outcome into another, and never makes one that looks like success.

A host that is there does by itself what stands in the queue. Of what expired for it a person may only say
that it is dealt with: it stays *expired*, and their word stands in the record (`settle_expired`).
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.ddl.entry import DDLLogEntry
from engine.ddl.outcome import HostOutcome, HostState
from engine.ddl.outcome_record import OutcomeRecord
from engine.errors import BadVersion, Code, Corrupt, MultiFailed, NodeExists, NoNode, Refused
from engine.keeper.base import Check, Create, Keeper, Op, SetData
from engine.keeper.recipes import create_ancestors, remove_unowned
from engine.names import HostId, QueuePaths

_TRIES = 20


@dataclass(frozen=True, slots=True)
class Abandonment:
    """Who said so, why, and when (Unix milliseconds)."""

    by: str
    reason: str
    at_ms: int

    def outcome(self, host: HostId) -> HostOutcome:
        """As the host's part of an entry. Its code is ClickHouse's for what was not finished."""
        return HostOutcome(
            host,
            HostState.ABANDONED,
            code=Code.UNFINISHED,
            error=f"Abandoned by {self.by}: {self.reason}",
            finished_ms=self.at_ms,
        )


@dataclass(frozen=True, slots=True)
class AbandonedHosts:
    """What is said about one entry. `czxid` is the entry's: a later one of the same name is another."""

    czxid: int
    hosts: Mapping[HostId, Abandonment] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        facts = {
            "czxid": self.czxid,
            "hosts": {str(host): [said.by, said.reason, said.at_ms] for host, said in self.hosts.items()},
        }
        return json.dumps(facts, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> AbandonedHosts:
        """Raises Corrupt."""
        try:
            facts = json.loads(data)
            hosts = {
                HostId.parse(host): Abandonment(str(by), str(reason), int(at_ms))
                for host, (by, reason, at_ms) in facts["hosts"].items()
            }
            return cls(int(facts["czxid"]), hosts)
        except (ValueError, KeyError, TypeError, AttributeError, Refused) as error:
            raise Corrupt(f"What is abandoned cannot be read: {data[:80]!r}") from error


class Abandoning(enum.StrEnum):
    """What became of the attempt."""

    ABANDONED = "abandoned"
    SETTLED = "settled"
    """It stays expired, and is dealt with."""
    ALREADY = "already"
    """Somebody had said so before; their word stays."""
    HAS_OUTCOME = "has-outcome"
    """The host is done, or failed, by itself."""
    ACTIVE = "active"
    """The host is executing the entry right now."""
    NOT_LISTED = "not-listed"
    """The entry is not for this host."""
    GONE = "gone"
    """The entry is not in the queue, and nothing was recorded about it."""


async def abandon(
    keeper: Keeper, paths: QueuePaths, entry: str, host: HostId, said: Abandonment
) -> Abandoning:
    """Say that `host` will never do its part of `entry`. Raises MalformedEntry for a text nobody can read.

    After UnknownOutcome call it again.
    """
    for _ in range(_TRIES):
        await keeper.sync(paths.root)
        try:
            node = await keeper.get(paths.entry(entry))
        except NoNode:
            answer = await _abandon_in_record(keeper, paths, entry, host, said)
            if answer is not None:
                return answer
            continue
        if host not in DDLLogEntry.from_bytes(node.data, where=entry).hosts:
            return Abandoning.NOT_LISTED
        finished, active = await keeper.exists_many([paths.finished(entry, host), paths.active(entry, host)])
        if finished is not None:
            return Abandoning.HAS_OUTCOME
        if active is not None and (
            active.ephemeral_owner or not await remove_unowned(keeper, paths.active(entry, host))
        ):
            return Abandoning.ACTIVE
        path = paths.abandoned(entry)
        write: Op
        try:
            earlier = await keeper.get(path)
        except NoNode:
            await create_ancestors(keeper, path)
            write = Create(path, AbandonedHosts(node.stat.czxid, {host: said}).to_bytes())
        else:
            known = AbandonedHosts.from_bytes(earlier.data)
            hosts = dict(known.hosts) if known.czxid == node.stat.czxid else {}
            if host in hosts:
                return Abandoning.ALREADY
            now = AbandonedHosts(node.stat.czxid, {**hosts, host: said})
            write = SetData(path, now.to_bytes(), earlier.stat.version)
        try:
            await keeper.multi([Check(paths.entry(entry)), write])
        except MultiFailed as failed:
            if isinstance(failed.error, NoNode | NodeExists | BadVersion):
                continue  # the entry went, or somebody else said something: look again
            raise
        return Abandoning.ABANDONED
    raise Corrupt(f"{paths.abandoned(entry)} changes whenever it is looked at")


async def _abandon_in_record(
    keeper: Keeper, paths: QueuePaths, entry: str, host: HostId, said: Abandonment
) -> Abandoning | None:
    """None: somebody was faster, look again."""
    try:
        node = await keeper.get(paths.outcome(entry))
    except NoNode:
        return Abandoning.GONE
    record = OutcomeRecord.from_bytes(node.data)
    outcome = next((o for o in record.hosts if o.host == host), None)
    match outcome:
        case None:
            return Abandoning.NOT_LISTED
        case HostOutcome(state=HostState.ABANDONED):
            return Abandoning.ALREADY
        case HostOutcome(state=HostState.EXPIRED):
            hosts = tuple(said.outcome(host) if o.host == host else o for o in record.hosts)
            corrected = dataclasses.replace(record, hosts=hosts)
            try:
                await keeper.set(paths.outcome(entry), corrected.to_bytes(), version=node.stat.version)
            except (BadVersion, NoNode):
                return None
            return Abandoning.ABANDONED
        case _:
            return Abandoning.HAS_OUTCOME


async def settle_expired(
    keeper: Keeper, paths: QueuePaths, entry: str, host: HostId, said: Abandonment
) -> Abandoning:
    """Say that what expired for `host` is dealt with. Touches nothing that stands in the queue.

    After UnknownOutcome call it again.
    """
    for _ in range(_TRIES):
        try:
            node = await keeper.get(paths.outcome(entry))
        except NoNode:
            return Abandoning.GONE
        record = OutcomeRecord.from_bytes(node.data)
        outcome = next((o for o in record.hosts if o.host == host), None)
        if outcome is None:
            return Abandoning.NOT_LISTED
        if outcome.state is not HostState.EXPIRED:
            return Abandoning.HAS_OUTCOME
        if outcome.error:
            return Abandoning.ALREADY
        settled = dataclasses.replace(outcome, error=f"Dealt with by {said.by}: {said.reason}")
        hosts = tuple(settled if o.host == host else o for o in record.hosts)
        changed = dataclasses.replace(record, hosts=hosts).to_bytes()
        try:
            await keeper.set(paths.outcome(entry), changed, version=node.stat.version)
        except (BadVersion, NoNode):
            continue
        return Abandoning.SETTLED
    raise Corrupt(f"{paths.outcome(entry)} changes whenever it is looked at")


async def read_abandoned(
    keeper: Keeper, paths: QueuePaths, entry: str, czxid: int
) -> Mapping[HostId, Abandonment]:
    """What was said about the hosts of the entry that was made by the transaction `czxid`."""
    try:
        node = await keeper.get(paths.abandoned(entry))
    except NoNode:
        return {}
    said = AbandonedHosts.from_bytes(node.data)
    return said.hosts if said.czxid == czxid else {}
