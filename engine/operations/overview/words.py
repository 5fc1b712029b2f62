"""Words for states and for lengths of time."""

from __future__ import annotations

from collections.abc import Mapping

from engine.operations.overview.model import Cell

WORDS_OF_CELLS: Mapping[Cell, str] = {
    Cell.DONE: "done",
    Cell.FAILED: "failed",
    Cell.RUNNING: "executing",
    Cell.WAITING: "waiting",
    Cell.AWAY: "waiting, host off line",
    Cell.ABANDONED: "abandoned by a person",
    Cell.UNREAD: "ended, outcome not read yet",
    Cell.NONE: "not for this host",
}


def words_of(age_s: float) -> str:
    """An age for people: "12 s", "3 min", "5 h", "2 d"."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if age_s >= 2 * length_s:
            return f"{age_s / length_s:.0f} {unit}"
    return f"{max(0, age_s):.0f} s"
