"""Numbers, sizes, times and lists as people read them: for messages, tables and pages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

_UNITS_OF_TIME = (("d", 86_400), ("h", 3600), ("min", 60))
_UNITS_OF_SIZE = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def count(number: int, one: str, many: str = "") -> str:
    """`1 task`, `2 tasks`; `many` where an s is not enough."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """The first few, and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more


def enumerated(names: Iterable[str], *, most: int = 3) -> str:
    """As in a sentence: `a`, `a and b`, `a, b and c`, `a, b, c and 4 more`."""
    all_names = list(names)
    if len(all_names) > most:
        return listed(all_names, most=most)
    return " and ".join([", ".join(all_names[:-1]), all_names[-1]] if len(all_names) > 1 else all_names)


def shortened(text: str, *, most: int = 300) -> str:
    """On one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def duration(seconds: float) -> str:
    """`12 s`, `90 min`, `5 h`, `2 d`: in the largest unit of which there are two."""
    for unit, length_s in _UNITS_OF_TIME:
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def size(size_bytes: float) -> str:
    """`512 B`, `3.2 MiB`."""
    for unit, length in _UNITS_OF_SIZE:
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def moment(unix_ms: int) -> str:
    """`2026-01-31 12:00:00 UTC`."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
