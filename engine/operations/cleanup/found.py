"""What a look at one kind of rubbish found."""

from __future__ import annotations

from dataclasses import dataclass

from engine.operations.act import Act
from engine.operations.finding import Finding


@dataclass(frozen=True, slots=True)
class Found:
    """`acts` may be done now; `notes` say what was not looked at, or stays, and why."""

    acts: tuple[Act, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
