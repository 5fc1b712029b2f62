"""What came of a rehearsal: each statement in each phase, what differs behind one, and what to do then."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from engine.errors import Code
from engine.migrations.files import Direction
from engine.migrations.rehearse_compare import changes

_IN_ALL_VERSIONS = frozenset(
    {
        Code.UNKNOWN_TABLE,
        Code.UNKNOWN_DATABASE,
        Code.NOT_IMPLEMENTED,
        Code.SYNTAX_ERROR,
        Code.TABLE_ALREADY_EXISTS,
        Code.DATABASE_ALREADY_EXISTS,
        Code.DUPLICATE_COLUMN,
    }
)
"""Refusals that are the file's own fault; others may be those of a newer ClickHouse."""


class Phase(enum.StrEnum):
    GROUND = "ground"
    UP = "up"
    UP_AGAIN = "up again"
    DOWN = "down"
    UP_FOR_THE_NEXT = "up for the next"
    DOWN_AT_THE_END = "down at the end"

    @property
    def direction(self) -> Direction:
        return Direction.DOWN if self in (Phase.DOWN, Phase.DOWN_AT_THE_END) else Direction.UP


class RehearsalState(enum.StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_REHEARSED = "not rehearsed"
    NOT_REPEATABLE = "not repeatable"


@dataclass(frozen=True, slots=True)
class RehearsedStatement:
    """One statement in one phase. `duration_ms` is the scratch's time."""

    version: int
    title: str
    phase: Phase
    statement: int
    path: str
    line: int
    state: RehearsalState
    code: int = 0
    error: str = ""
    note: str = ""
    duration_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "title": self.title,
            "phase": self.phase.value,
            "statement": self.statement,
            "path": self.path,
            "line": self.line,
            "state": self.state.value,
            "code": self.code,
            "error": self.error,
            "note": self.note,
            "duration_ms": self.duration_ms,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """An object whose definition is not what it has to be after a phase. None: there is no such object."""

    version: int
    phase: Phase
    name: str
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"after {self.version} {self.phase}: {self.name} is gone"
        if self.expected is None:
            return f"after {self.version} {self.phase}: {self.name} is left over"
        lines = [f"after {self.version} {self.phase}: {self.name} differs (- as it has to be, + as it is)"]
        return "\n".join(lines + changes(self.expected, self.found))

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "phase": self.phase.value,
            "name": self.name,
            "expected": self.expected,
            "found": self.found,
        }


@dataclass(frozen=True, slots=True)
class Rehearsal:
    statements: tuple[RehearsedStatement, ...]
    differences: tuple[Difference, ...]

    @property
    def failures(self) -> tuple[RehearsedStatement, ...]:
        return tuple(s for s in self.statements if s.state is RehearsalState.FAILED)

    @property
    def not_rehearsed(self) -> tuple[RehearsedStatement, ...]:
        return tuple(s for s in self.statements if s.state is RehearsalState.NOT_REHEARSED)

    @property
    def not_repeatable(self) -> tuple[RehearsedStatement, ...]:
        return tuple(s for s in self.statements if s.state is RehearsalState.NOT_REPEATABLE)

    @property
    def is_ok(self) -> bool:
        return not self.failures and not self.differences

    @property
    def advice(self) -> str:
        """What to do about it; empty where nothing is to be done."""
        if self.is_ok:
            return ""
        told = ["Correct the files"]
        if self.differences:
            told.append("say in them why what differs is meant (allow=down-incomplete, allow=not-repeatable)")
        if any(s.phase is Phase.UP and s.code not in _IN_ALL_VERSIONS for s in self.failures):
            told.append(
                "say before the statement (allow=not-rehearsed) that all hosts are servers of an older "
                "ClickHouse, which may take what chDB (and with it a node of oncluster) refuses"
            )
        return ", or ".join(told) + "."

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.is_ok,
            "advice": self.advice,
            "statements": [statement.to_json() for statement in self.statements],
            "differences": [difference.to_json() for difference in self.differences],
        }
