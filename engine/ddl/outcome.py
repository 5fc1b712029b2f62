"""What became of an entry: one outcome for each host, as values.

A timeout is not among the states: whoever waits may stop waiting, the entry goes on.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engine.ddl.status import UNREADABLE_CODE
from engine.errors import Code
from engine.names import HostId

_LEFT_TO_ANOTHER = "Cannot execute replicated DDL query"
"""ClickHouse's words where no replica of the shard has executed for as long as the host waited. The code is
48, 49, 159 or 341, by version, and says less."""


class HostState(enum.StrEnum):
    """Where one host stands with one entry."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    WAITING = "waiting"
    INACTIVE = "inactive"
    """Not started, and away: the host does not show itself in Keeper, although others do or it once did."""
    EXPIRED = "expired"
    """The entry was removed, by age or number, before the host had an outcome."""
    UNKNOWN = "unknown"
    """The entry is not in the queue any more and nothing was recorded about it: Keeper has lost its data, or
    a cleaner that keeps no records removed it; or the host failed in doubt. It may have done it. Only who
    remembers the entry says so, such as the ledger of migrations."""
    ABANDONED = "abandoned"
    """A person said, with a reason, that the host will never do it; nobody has to wait for it."""

    @property
    def is_final(self) -> bool:
        """Nothing has to be waited for. `is_given_up` may still turn into what the host says of itself."""
        return self.is_reported or self.is_given_up

    @property
    def is_given_up(self) -> bool:
        """Others have said so, not the host: it may have done it, or come back and do it."""
        return self in (HostState.EXPIRED, HostState.UNKNOWN, HostState.ABANDONED)

    @property
    def is_reported(self) -> bool:
        """The host itself has said so."""
        return self in (HostState.DONE, HostState.FAILED)


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """One host's part. `code` and `error` are the text of `finished/`; times are Keeper's, Unix milliseconds.

    `duration_ms` counts from the entry's creation to the outcome, as `system.distributed_ddl_queue` does.
    """

    host: HostId
    state: HostState
    code: int = 0
    error: str = ""
    started_ms: int | None = None
    finished_ms: int | None = None
    duration_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """Of a once-per-shard statement: which replica of the shard executed it, None while nobody has."""

    shard: str
    executed_by: HostId | None


@dataclass(frozen=True, slots=True)
class EntryStatus:
    """One entry and all its hosts, in the order of the entry. `query` still has its ON CLUSTER.

    `is_gone` says that the entry itself is not in the queue any more and that this is what was recorded
    about it. `num_active` counts the children of `active`, hosts outside the entry's list included. `token`
    is the one it was submitted with, empty for an entry of anybody else.
    """

    entry: str
    entry_created_ms: int
    query: str
    hosts: tuple[HostOutcome, ...]
    initiator: str = ""
    czxid: int = 0
    is_gone: bool = False
    num_active: int = 0
    shards: tuple[ShardOutcome, ...] = ()
    token: str = ""

    @property
    def is_complete(self) -> bool:
        """Every host has an outcome that will not change."""
        return all(outcome.state.is_final for outcome in self.hosts)

    @property
    def failed(self) -> tuple[HostOutcome, ...]:
        """Hosts that reported an error."""
        return tuple(o for o in self.hosts if o.state is HostState.FAILED)

    @property
    def unfinished(self) -> tuple[HostOutcome, ...]:
        """Hosts that may still report."""
        return tuple(o for o in self.hosts if not o.state.is_final)

    @property
    def abandoned(self) -> tuple[HostOutcome, ...]:
        """Hosts that a person said not to wait for."""
        return tuple(o for o in self.hosts if o.state is HostState.ABANDONED)

    @property
    def is_done_on_all_hosts(self) -> bool:
        return all(outcome.state is HostState.DONE for outcome in self.hosts)

    def is_in_doubt(self, outcome: HostOutcome) -> bool:
        """Whether a host failed in words that leave open if the statement took effect, there or for its
        shard.

        It died over it, or left it to another, which may have done it since or be at it still.
        """
        if outcome.state is not HostState.FAILED:
            return False
        if outcome.code in (Code.UNFINISHED, UNREADABLE_CODE):
            return True
        return _LEFT_TO_ANOTHER in outcome.error and len(self.failed) < len(self.hosts)

    def outcome(self, host: HostId) -> HostOutcome:
        """Raises KeyError for a host that the entry does not list."""
        for outcome in self.hosts:
            if outcome.host == host:
                return outcome
        raise KeyError(str(host))
