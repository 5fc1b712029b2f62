"""Numbers, ages and lists as people read them."""

from __future__ import annotations

from collections.abc import Sequence

_UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))


def count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first few, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def age(seconds: float) -> str:
    """`3 d`, `5 h`, `40 min`, `12 s`: in the largest unit that fits."""
    for unit, length_s in _UNITS:
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def size(size_bytes: int) -> str:
    """`3.2 MiB`."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
