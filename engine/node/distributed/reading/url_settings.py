"""Settings of a statement about what it reads from URLs and files, kept from the answers of shards.

Shards are read by `url()` in the Native format, and chDB takes such settings for these answers, too: it
refuses a column that the statement turned out not to need, or how often a request may be tried. So where a
statement says something else than shards have to be read with, a SETTINGS clause behind `url()` says that.
"""

from __future__ import annotations

from collections.abc import Mapping

_READ_WITH = {
    "glob_expansion_max_elements": "1000",
    "http_make_head_request": "0",
    "http_max_tries": "1",
    "http_retry_initial_backoff_ms": "100",
    "http_retry_max_backoff_ms": "10000",
    "input_format_max_block_wait_ms": "0",
    "input_format_skip_unknown_fields": "1",
}
_SKIPS_FIELDS = "input_format_skip_unknown_fields"
_SKIPS_SINCE = (22, 6)


def settings_of_reads(settings: Mapping[str, str]) -> str:
    """What stands behind `SELECT … FROM url(…)` in a statement with `settings`; empty for nothing."""
    told = {name: value for name, value in settings.items() if name in _READ_WITH}
    if _is_older(settings.get("compatibility", ""), _SKIPS_SINCE):
        told.setdefault(_SKIPS_FIELDS, "0")
    listed = [f"{name} = {_READ_WITH[name]}" for name in sorted(told) if told[name] != _READ_WITH[name]]
    return f" SETTINGS {', '.join(listed)}" if listed else ""


def _is_older(compatibility: str, version: tuple[int, int]) -> bool:
    parts = compatibility.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return False
    return (int(parts[0]), int(parts[1])) < version
