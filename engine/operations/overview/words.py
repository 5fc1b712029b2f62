"""Words for the states of a task on a host, and for errors."""

from __future__ import annotations

from collections.abc import Mapping

from engine.operations.overview.model import Cell
from engine.wording import shortened

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


def said(error: str) -> str:
    """What a server says, as far as there is room for it."""
    return shortened(error, most=400)
