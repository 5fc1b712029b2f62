"""How `oncluster ddl` shows entries: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.cli.output import print_table
from engine.ddl import CleanedEntry, EntryStatus
from engine.errors import Refused
from engine.sql import parse_statement, redact, redact_prose
from engine.wording import shortened

_QUERY_WIDTH = 70


def print_hosts(status: EntryStatus) -> None:
    print_table(
        ("host", "state", "ms", "error"),
        [
            (o.host.readable, o.state.value, o.duration_ms, _first_line(redact_prose(o.error)))
            for o in status.hosts
        ],
    )


def entry_row(status: EntryStatus) -> tuple[str, str, str, str]:
    counts: dict[str, int] = {}
    for outcome in status.hosts:
        counts[outcome.state.value] = counts.get(outcome.state.value, 0) + 1
    hosts = ", ".join(f"{count} {state}" for state, count in counts.items())
    return status.entry, _cluster_of(status.query), hosts, shortened(redact(status.query), most=_QUERY_WIDTH)


def _cluster_of(query: str) -> str:
    try:
        return parse_statement(query).on_cluster or ""
    except Refused:
        return ""


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def status_as_json(status: EntryStatus) -> dict[str, Any]:
    return {
        "entry": status.entry,
        "is_gone": status.is_gone,
        "created_ms": status.entry_created_ms,
        "query": redact(status.query),
        "initiator": status.initiator,
        "is_complete": status.is_complete,
        "hosts": [
            {
                "host": outcome.host.host,
                "port": outcome.host.port,
                "state": outcome.state,
                "code": outcome.code,
                "error": redact_prose(outcome.error),
                "finished_ms": outcome.finished_ms,
                "duration_ms": outcome.duration_ms,
            }
            for outcome in status.hosts
        ],
        "shards": [
            {"shard": shard.shard, "executed_by": shard.executed_by.readable if shard.executed_by else None}
            for shard in status.shards
        ],
    }


def print_cleaned(cleaned: Sequence[CleanedEntry]) -> None:
    print_table(
        ("entry", "because of", "result", "hosts without outcome"),
        [
            (c.entry, c.reason.value, c.removal.value, ", ".join(host.readable for host in c.expired))
            for c in cleaned
        ],
        empty="(nothing to remove)",
    )


def cleaned_as_json(cleaned: CleanedEntry) -> dict[str, Any]:
    return {
        "entry": cleaned.entry,
        "reason": cleaned.reason,
        "removal": cleaned.removal,
        "expired": [host.readable for host in cleaned.expired],
    }
