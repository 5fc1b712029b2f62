"""What drift is made of: objects, what each host has of them, and where hosts differ."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.names import HostId
from engine.operations.drift.normalise import Definition


class Space(enum.StrEnum):
    """Which names share one list. A table, a view and a dictionary cannot have the same name."""

    DATABASE = "database"
    TABLE = "table"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True, order=True)
class ObjectName:
    """An object of the schema. `database` is that of a table, empty for others."""

    space: Space
    database: str
    name: str

    def __str__(self) -> str:
        return f"{self.database}.{self.name}" if self.database else f"{self.space.value} {self.name}"

    def to_json(self) -> list[str]:
        return [self.space.value, self.database, self.name]

    @classmethod
    def from_json(cls, raw: list[str]) -> ObjectName:
        return cls(Space(raw[0]), raw[1], raw[2])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replicated table is in Keeper. `keeper` names an auxiliary one, empty for the usual."""

    path: str
    replica: str
    keeper: str = ""


@dataclass(frozen=True, slots=True)
class HostSchema:
    """What one host has. `gaps` say what it could not be asked."""

    host: HostId
    version: tuple[int, ...]
    objects: Mapping[ObjectName, Definition]
    places: Mapping[ObjectName, Place] = field(default_factory=dict)
    macros: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaTexts:
    """`columns` and `metadata` of one place in Keeper; None where there is no such node."""

    columns: bytes | None
    metadata: bytes | None


@dataclass(frozen=True, slots=True)
class KeeperTable:
    """A replicated table in Keeper: what all replicas agreed on, and how far each of them has come."""

    path: str
    shared: ReplicaTexts
    replicas: Mapping[str, ReplicaTexts]


@dataclass(frozen=True, slots=True)
class Schemas:
    """All that was looked at. `silent` hosts gave no answer; `shards` are the cluster's, in order."""

    cluster: str
    hosts: Mapping[HostId, HostSchema]
    silent: Mapping[HostId, str]
    shards: tuple[tuple[HostId, ...], ...]
    keeper: Mapping[str, KeeperTable] = field(default_factory=dict)
    keeper_error: str = ""
    """Why Keeper was not looked at."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not looked at, besides hosts."""
        return (f"Keeper was not looked at: {self.keeper_error}",) if self.keeper_error else ()


class DriftKind(enum.StrEnum):
    """How a host is apart from the others."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERS = "differs"
    KEEPER = "differs from Keeper"
    BEHIND = "replica is behind Keeper"
    PATH = "another path than its shard"


@dataclass(frozen=True, slots=True)
class PartDifference:
    """One part of a definition; None where it is absent."""

    part: str
    wanted: str | None
    found: str | None

    def __str__(self) -> str:
        if self.wanted is not None and self.wanted == self.found:
            return f"{self.part}: another secret in `{self.found}`"
        return f"{self.part}: wanted {_shown(self.wanted)}, found {_shown(self.found)}"

    def to_json(self) -> dict[str, Any]:
        return {"part": self.part, "wanted": self.wanted, "found": self.found}


def _shown(text: str | None) -> str:
    return "nothing" if text is None else f"`{text}`" if text else "it without more"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the ledger knows. `will_catch_up`: the host has the change before it in the queue. `is_ahead`: it
    has done what others have not, so that it is not the one to be set right."""

    migration: str
    statement: int
    state: str
    what: str
    entry: str = ""
    will_catch_up: bool = False
    is_ahead: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "migration": self.migration,
            "statement": self.statement,
            "state": self.state,
            "what": self.what,
            "entry": self.entry,
            "will_catch_up": self.will_catch_up,
            "is_ahead": self.is_ahead,
        }


@dataclass(frozen=True, slots=True)
class Drift:
    """One object on one host. `reference` is a host that has it as it should be, where there is one;
    `agree` says how many do, of how many that were looked at. `rival` is how many are of one other mind, and
    `silent` how many gave no answer."""

    kind: DriftKind
    host: HostId
    object: ObjectName
    parts: tuple[PartDifference, ...] = ()
    reference: HostId | None = None
    agree: int = 0
    of: int = 0
    note: str = ""
    explanation: Explanation | None = None
    rival: int = 0
    silent: int = 0

    @property
    def is_settled(self) -> bool:
        """What is wanted stays so, whatever the hosts have that gave no answer."""
        return self.agree >= self.rival + self.silent

    @property
    def what(self) -> str:
        """One sentence."""
        where = self.host.readable
        match self.kind:
            case DriftKind.MISSING:
                text = f"{where} lacks {self.object}, which {self.agree} of {self.of} hosts have"
            case DriftKind.EXTRA:
                text = f"{where} has {self.object}, which {self.agree} of {self.of} hosts lack"
            case DriftKind.DIFFERS:
                text = f"{self.object} on {where} is not what it is on {self.agree} of {self.of} hosts"
            case DriftKind.KEEPER:
                text = f"{self.object} on {where} is not what Keeper says it is"
            case DriftKind.BEHIND:
                text = f"{self.object} on {where} has not taken over what Keeper has for its replicas"
            case DriftKind.PATH:
                text = f"{self.object} on {where} is not a replica of what the other hosts of its shard have"
        if self.of and not self.is_settled:
            text += f" ({self.silent} more did not answer, and may be of another mind)"
        details = "; ".join(map(str, self.parts[:3])) or self.note
        more = f" and {len(self.parts) - 3} more" if len(self.parts) > 3 else ""
        return f"{text}: {details}{more}." if details else f"{text}."

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "host": self.host.readable,
            "object": str(self.object),
            "what": self.what,
            "parts": [part.to_json() for part in self.parts],
            "reference": self.reference.readable if self.reference else None,
            "explanation": self.explanation.to_json() if self.explanation else None,
        }
