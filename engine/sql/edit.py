"""Applying edits to text; everything outside the edited ranges stays byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replace the characters from `start` to `end` by `text`; an insertion where both are equal."""

    start: int
    end: int
    text: str


def apply_edits(sql: str, edits: Iterable[Edit]) -> str:
    """`sql` with all edits done. They may not overlap."""
    pieces: list[str] = []
    at = 0
    for edit in sorted(edits):
        pieces.append(sql[at : edit.start])
        pieces.append(edit.text)
        at = edit.end
    pieces.append(sql[at:])
    return "".join(pieces)
