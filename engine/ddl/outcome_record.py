"""What became of an entry that is not in the queue any more.

The cleaner writes it, outside the queue's directory, before it removes an entry: the outcomes that hosts
reported, *abandoned* for those of which a person said that they never will, and *expired* for the others.
`done` or `failed` in a record is never turned into anything else later.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import token_of, without_token
from engine.ddl.outcome import EntryStatus, HostOutcome, HostState
from engine.errors import BadVersion, Corrupt, NoNode, Refused
from engine.keeper.base import Keeper, Stat
from engine.names import HostId, QueuePaths

_LONGEST_ERROR = 2000
_LONGEST_QUERY = 10_000


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """One removed entry."""

    entry: str
    czxid: int
    created_ms: int
    token: str
    initiator: str
    query: str
    hosts: tuple[HostOutcome, ...]

    def to_bytes(self) -> bytes:
        facts = {
            "entry": self.entry,
            "czxid": self.czxid,
            "created_ms": self.created_ms,
            "token": self.token,
            "initiator": self.initiator,
            "query": self.query[:_LONGEST_QUERY],
            "hosts": [
                [str(o.host), o.state.value, o.code, o.error[:_LONGEST_ERROR], o.finished_ms]
                for o in self.hosts
            ],
        }
        return json.dumps(facts, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> OutcomeRecord:
        """Raises Corrupt."""
        try:
            facts = json.loads(data)
            created_ms = int(facts["created_ms"])
            hosts = tuple(
                HostOutcome(
                    HostId.parse(host),
                    HostState(state),
                    code=int(code),
                    error=str(error),
                    finished_ms=finished_ms,
                    duration_ms=None if finished_ms is None else max(0, int(finished_ms) - created_ms),
                )
                for host, state, code, error, finished_ms in facts["hosts"]
            )
            return cls(
                entry=str(facts["entry"]),
                czxid=int(facts["czxid"]),
                created_ms=created_ms,
                token=str(facts["token"]),
                initiator=str(facts["initiator"]),
                query=str(facts["query"]),
                hosts=hosts,
            )
        except (ValueError, KeyError, TypeError, Refused) as error:
            raise Corrupt(f"An outcome record cannot be read: {data[:80]!r}") from error

    @classmethod
    def of(
        cls, name: str, stat: Stat, entry: DDLLogEntry | None, outcomes: Mapping[HostId, HostOutcome]
    ) -> OutcomeRecord:
        """The record of an entry about to be removed; `entry` None when its text cannot be read."""
        hosts = entry.distinct_hosts if entry is not None else tuple(outcomes)
        expired = HostState.EXPIRED
        return cls(
            entry=name,
            czxid=stat.czxid,
            created_ms=stat.ctime_ms,
            token=(token_of(entry) or "") if entry is not None else "",
            initiator=(entry.initiator or "") if entry is not None else "",
            query=without_token(entry.query) if entry is not None else "",
            hosts=tuple(outcomes.get(host) or HostOutcome(host, expired) for host in hosts),
        )

    def merged(self, earlier: OutcomeRecord | None) -> OutcomeRecord:
        """This record, with outcomes that an earlier record of the same entry knows and this one lacks."""
        if earlier is None or earlier.czxid != self.czxid:
            return self
        known = {o.host: o for o in earlier.hosts if o.state is not HostState.EXPIRED}
        hosts = tuple(o if o.state.is_reported else known.get(o.host, o) for o in self.hosts)
        return dataclasses.replace(self, hosts=hosts)

    @property
    def expired(self) -> tuple[HostId, ...]:
        """Hosts for which it expired, and nobody has said that it is dealt with (`abandonment`)."""
        return tuple(o.host for o in self.hosts if o.state is HostState.EXPIRED and not o.error)

    @property
    def unreported(self) -> tuple[HostId, ...]:
        """Hosts that have not said anything themselves."""
        return tuple(o.host for o in self.hosts if not o.state.is_reported)

    def to_status(self) -> EntryStatus:
        return EntryStatus(
            entry=self.entry,
            entry_created_ms=self.created_ms,
            query=self.query,
            hosts=self.hosts,
            initiator=self.initiator,
            czxid=self.czxid,
            is_gone=True,
            token=self.token,
        )


async def read_outcome_record(keeper: Keeper, paths: QueuePaths, entry: str) -> OutcomeRecord | None:
    """The record of a removed entry, None if there is none."""
    try:
        return OutcomeRecord.from_bytes((await keeper.get(paths.outcome(entry))).data)
    except NoNode:
        return None


async def correct_outcome_record(
    keeper: Keeper, paths: QueuePaths, entry: str, czxid: int, outcome: HostOutcome
) -> bool:
    """A host comes late with an outcome for an entry that was recorded as expired (or abandoned) for it: the
    truth goes in.

    False when there is no such record, or it already holds an outcome of that host.
    """
    while True:
        try:
            node = await keeper.get(paths.outcome(entry))
        except NoNode:
            return False
        record = OutcomeRecord.from_bytes(node.data)
        if record.czxid != czxid or outcome.host not in record.unreported:
            return False
        hosts = tuple(outcome if o.host == outcome.host else o for o in record.hosts)
        corrected = dataclasses.replace(record, hosts=hosts)
        try:
            await keeper.set(paths.outcome(entry), corrected.to_bytes(), version=node.stat.version)
        except (BadVersion, NoNode):
            continue
        return True
