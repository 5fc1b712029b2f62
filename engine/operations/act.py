"""Plans: what an operation would do, said before it is done.

An act is one change to one thing. Its id is made of what it does, so that the same act planned twice is the
same act, and a plan's checksum is made of its acts: what was approved is what runs, or nothing does.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.operations.finding import Finding, digest


class Danger(enum.StrEnum):
    """What an act can cost."""

    SAFE = "safe"
    """Nothing that anybody could miss."""

    REPAIRS = "repairs"
    """Work for the servers, and no data lost."""

    DESTROYS = "destroys"
    """Something is gone afterwards."""


class ActState(enum.StrEnum):
    """How far an act came."""

    PLANNED = "planned"
    STARTED = "started"
    DONE = "done"
    NOT_NEEDED = "not-needed"
    """It was done already, or what it was for is no more."""
    FAILED = "failed"
    REFUSED = "refused"
    """The proof that it rests on did not hold when it was looked at again."""
    ABANDONED = "abandoned"
    """A person decided that it will not be waited for."""

    @property
    def is_final(self) -> bool:
        return self not in (ActState.PLANNED, ActState.STARTED)

    @property
    def is_good(self) -> bool:
        return self in (ActState.DONE, ActState.NOT_NEEDED, ActState.ABANDONED)


@dataclass(frozen=True, slots=True)
class Act:
    """One change.

    - `kind` names the performer; each operation lists its own in an enum.
    - `host` is where it happens, empty for Keeper and for the cluster as a whole.
    - `what` is one sentence for people, `why` the proof that it is right.
    - `payload` is what the performer needs: JSON values, no secrets.
    """

    kind: str
    subject: str
    what: str
    why: str
    host: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)
    danger: Danger = Danger.SAFE

    @property
    def act_id(self) -> str:
        """32 hex digits of what it does; its words may change without changing it."""
        return digest([self.kind, self.host, self.subject, dict(self.payload), self.danger.value])

    def to_json(self) -> dict[str, Any]:
        return {
            "act_id": self.act_id,
            "kind": self.kind,
            "host": self.host,
            "subject": self.subject,
            "what": self.what,
            "why": self.why,
            "payload": dict(self.payload),
            "danger": self.danger.value,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Act:
        """Raises KeyError and ValueError on what `to_json` has not written."""
        return cls(
            kind=data["kind"],
            subject=data["subject"],
            what=data["what"],
            why=data["why"],
            host=data["host"],
            payload=dict(data["payload"]),
            danger=Danger(data["danger"]),
        )


@dataclass(frozen=True, slots=True)
class ActResult:
    """What became of an act. `detail` is for people."""

    state: ActState
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operation would do to a cluster, in order. `notes` say what was not looked at, and why."""

    operation: str
    cluster: str
    acts: tuple[Act, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def checksum(self) -> str:
        """32 hex digits of the operation, the cluster and the acts."""
        return digest([self.operation, self.cluster, [act.act_id for act in self.acts]])

    @property
    def needs_approval(self) -> bool:
        return any(act.danger is not Danger.SAFE for act in self.acts)

    def to_json(self) -> dict[str, Any]:
        return {
            "operation": self.operation,
            "cluster": self.cluster,
            "checksum": self.checksum,
            "acts": [act.to_json() for act in self.acts],
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Raises KeyError and ValueError on what `to_json` has not written, also when acts were edited."""
        plan = cls(
            operation=data["operation"],
            cluster=data["cluster"],
            acts=tuple(Act.from_json(item) for item in data["acts"]),
            findings=tuple(Finding.from_json(item) for item in data["findings"]),
            notes=tuple(data["notes"]),
        )
        if plan.checksum != data["checksum"]:
            raise ValueError("The plan's acts do not fit its checksum: it was changed after it was made.")
        return plan
