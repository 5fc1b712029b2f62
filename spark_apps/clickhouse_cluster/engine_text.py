"""What a table's `engine_full` says of parts that may be moved into it."""

from __future__ import annotations

import re

_SETTING = re.compile(r"\b(\w+) = (\d+|true|false|'[^']*')")
_IS_COPIED = re.compile(
    r"(index_granularity(_bytes)?|enable_mixed_granularity_parts|storage_policy|allow_\w+)\Z"
)
_VERSIONED = re.compile(
    r"VersionedCollapsingMergeTree\(.*?([^,()']+, [^,()']+)\) (?:PARTITION|PRIMARY|ORDER)"
)


def deduplicates(engine_full: str, *, is_replicated: bool) -> bool:
    """Whether the table stores blocks with a known token once."""
    name = "replicated_deduplication_window" if is_replicated else "non_replicated_deduplication_window"
    found = re.search(rf"\b{name} = (\d+)", engine_full)
    return int(found.group(1)) > 0 if found else is_replicated


def sign_and_version(engine_full: str) -> str:
    found = _VERSIONED.search(engine_full)
    return found.group(1).strip() if found else ""


def settings(engine_full: str) -> str:
    """Those that tables need to have in common with this one, as they may follow SETTINGS."""
    tail = engine_full.rpartition(" SETTINGS ")[2]
    found = {name: value for name, value in _SETTING.findall(tail) if _IS_COPIED.match(name)}
    return ", ".join(f"{name} = {value}" for name, value in ({"index_granularity": "8192"} | found).items())
