"""Names of files that peers and lists of checksums tell of.

ClickHouse writes most names escaped (`a%20b.bin`), but not those of projections' directories, and, as a
table's settings say, not those of indexes (before 26.1 always) and of the types in a Variant.
"""

from __future__ import annotations

MAX_NAME_BYTES = 255
"""What file systems have."""


def is_plain_name(name: str) -> bool:
    """Whether a name from somebody else may become a file's: one step of a path that leads nowhere else, and
    that can stand in a line of a log."""
    return (
        0 < len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME_BYTES
        and name not in (".", "..")
        and "/" not in name
        and all(char >= " " and char != "\x7f" for char in name)
    )
