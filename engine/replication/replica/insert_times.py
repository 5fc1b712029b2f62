"""Times of inserts, as entries and the two `…_insert_time` nodes of a replica hold them.

An entry's create time is wall time of whoever wrote it, without a zone; it is read as UTC, which is what this
project writes.
"""

from __future__ import annotations

from datetime import UTC, datetime


def unix_s(create_time: str) -> float:
    """Unix seconds; 0 for an entry of version 1, which has no time."""
    if not create_time:
        return 0.0
    return datetime.fromisoformat(create_time).replace(tzinfo=UTC).timestamp()


def unix_text(create_time: str) -> bytes:
    """As `min_unprocessed_insert_time` and `max_processed_insert_time` hold it; empty for no time."""
    return str(int(unix_s(create_time))).encode() if create_time else b""
