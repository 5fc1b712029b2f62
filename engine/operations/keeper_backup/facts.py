"""What a backup says about itself, and the phases that its commands go through."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from engine.errors import Corrupt


class Phase(enum.StrEnum):
    """What is under way, in words for people."""

    TAKING_UP = "taking up what is there"
    LISTING = "listing nodes"
    READING = "reading values"
    SETTLING = "finishing the file"
    LOOKING = "looking at the target"
    CREATING = "creating nodes"
    RAISING = "raising counters"
    COMPARING = "comparing"


Progress = Callable[[Phase, int, int], None]
"""Told the phase, how much is done, and of how much (0 where that is not known)."""


def no_progress(_phase: Phase, _done: int, _total: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """The trailer of a backup.

    - `at_ms`: the instant of the backup by the clock of whoever made it (Unix milliseconds); `zxid`: the
      last transaction that the tree shows.
    - `changing_count` nodes, of which `changing` names up to 10,000, are of a later moment.
    - `ephemeral` nodes are in the file and are never restored; `unreadable` ones are named without value;
      of `hidden_acls` nodes the ACL's digest was kept from whoever made the backup.
    - `skipped`: the server's own subtrees that stand below the root.
    - `raises`: how often versions and counters are raised by a restore, about.
    - `digest` is the file's, 64 hex digits; it stands in the file's last check, not in its text.
    """

    root: str
    source: str
    nodes: int
    ephemeral: int
    unreadable: int
    hidden_acls: int
    value_bytes: int
    zxid: int
    at_ms: int
    rounds: int
    changing_count: int
    changing: tuple[str, ...]
    skipped: tuple[str, ...]
    raises: int
    digest: str = ""

    @property
    def is_of_one_instant(self) -> bool:
        return not self.changing_count

    def to_json(self) -> dict[str, Any]:
        raw = asdict(self)
        if not self.digest:
            del raw["digest"]
        return raw

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> BackupFacts:
        """Raises Corrupt."""
        try:
            return cls(**{**raw, "changing": tuple(raw["changing"]), "skipped": tuple(raw["skipped"])})
        except (TypeError, KeyError) as error:
            raise Corrupt(f"The trailer of the backup does not parse: {error}") from error

    def with_digest(self, digest: str) -> BackupFacts:
        return replace(self, digest=digest)
