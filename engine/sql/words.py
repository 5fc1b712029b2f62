"""Whether a word stands in a statement, found without taking the statement apart."""

from __future__ import annotations

import re

_AS = re.compile(r"\bAS\b", re.IGNORECASE)


def mentions_as(sql: str) -> bool:
    """Whether the word AS stands anywhere in it, be it in a comment or a string."""
    return (
        "AS" in sql.upper() and _AS.search(sql) is not None
    )  # the first is many times quicker on long texts
