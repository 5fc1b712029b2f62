"""Detached parts that servers set aside by themselves, and that are old.

Safety argument. A detached part is not read by anybody, but may be the only one with its rows. By itself
only that goes of which this is ruled out: parts of replicated tables that were broken (`broken-on-start_`,
`covered-by-broken_`), which the replica has fetched again or could not have, and those whose INSERT was never
acknowledged (`noquorum_`). A broken part of any other table stays: nobody else has it. So do whole parts that
nobody else knew when they were set aside (`clone_`, `ignored_`, `unexpected_`), and what a person detached,
which has no prefix; they go when a person names them. The age is by the server's own clock, asked in the same
query, and is looked at again before the part is dropped, by `ALTER TABLE … DROP DETACHED PART` there. A part
that is gone when it is dropped is as good as dropped. A lost answer is looked up. A crash leaves parts that
the same act drops.

It never joins a path, and never drops a part whose age the server cannot say.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.client.node_client import NodeClient
from engine.errors import Code, OnclusterError, ReplyLost, SqlError
from engine.names import HostId, TableName, quote_string
from engine.operations.act import Act, ActResult, ActState, Danger
from engine.operations.cleanup.asking import told
from engine.operations.cleanup.found import Found
from engine.operations.cleanup.settings import MAYBE_ONLY_COPIES, CleanupSettings
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.site import Site
from engine.replication.part_name import PartName
from engine.wording import count, duration, listed, size

PARTS_AN_ACT = 50
_KNOWN = (
    *("broken-on-start", "covered-by-broken", "broken-from-backup", "merge-not-byte-identical"),
    *("mutate-not-byte-identical", "tmp-fetch", "unexpected", "noquorum", "attaching", "deleting", "ignored"),
    *("clone", "broken"),
)
_BROKEN = ("broken-on-start", "covered-by-broken", "broken-from-backup", "broken")
_ALLOWED = {"allow_drop_detached": "1"}


class DetachedAct(enum.StrEnum):
    """Acts of this kind."""

    DROP = "drop-detached-parts"


@dataclass(frozen=True, slots=True)
class Detached:
    """One directory in `detached/` of a table. `age_s` is None where the server cannot say it."""

    table: TableName
    name: str
    prefix: str | None
    """Empty for one without; None for a name that is no part's."""
    age_s: float | None
    size_bytes: int
    is_replicated: bool = True
    """Of a replicated table: other replicas have the rows of a part that was broken."""


async def plan_detached(site: Site, settings: CleanupSettings) -> Found:
    """Old detached parts of all hosts that answer."""
    acts: list[Act] = []
    findings: list[Finding] = []
    notes: list[str] = []
    unknown: dict[str, list[str]] = defaultdict(list)
    answers = await site.ask_all(lambda _, client: read_detached(client))
    for host, answer in answers.items():
        if isinstance(answer, OnclusterError):
            unknown[answer.message.rstrip(".")].append(host.readable)
            continue
        tables: dict[TableName, list[Detached]] = defaultdict(list)
        for part in answer:
            tables[part.table].append(part)
        if any(part.age_s is None for part in answer):
            notes.append(f"{host.readable} does not say how old detached parts are; they stay.")
        for table, parts in sorted(tables.items(), key=lambda item: str(item[0])):
            due = [part for part in parts if is_due(part, settings)]
            rest = [part for part in parts if part not in due]
            precious = [part for part in rest if _may_be_the_only_copy(part, settings)]
            others = len(rest) - len(precious)
            if due:
                findings.append(_finding(site, host, table, due))
                acts += _acts(host, table, due, settings)
            if precious:
                notes.append(
                    f"{count(len(precious), 'detached part')} of {table} on "
                    f"{host.readable} stay: they may hold the only copy of their rows "
                    f"({_prefixes(precious)}). See the runbook old-detached-parts."
                )
            if others:
                notes.append(
                    f"{count(others, 'detached part')} of {table} on {host.readable} stay: "
                    "younger, or detached by a person."
                )
    notes += [f"Detached parts of {listed(hosts)} are not known: {why}." for why, hosts in unknown.items()]
    return Found(tuple(acts), tuple(findings), tuple(notes))


async def perform_detached(site: Site, act: Act) -> ActResult:
    """Drop those of the act's parts that are still there and old."""
    settings = CleanupSettings(
        detached_after_s=float(act.payload["older_than_s"]),
        detached_prefixes=tuple(act.payload["prefixes"]),
    )
    host, table = HostId.parse(str(act.payload["host"])), TableName(*act.payload["table"])
    there = {part.name: part for part in await told(site, host, read_detached) if part.table == table}
    due = [n for n in act.payload["parts"] if n in there and is_due(there[n], settings)]
    young = [n for n in act.payload["parts"] if n in there and n not in due]
    for name in due:
        await _drop(site, host, table, name)
    detail = f"{len(due)} dropped"
    if gone := len(act.payload["parts"]) - len(due) - len(young):
        detail += f"; {gone} were gone"
    if young:
        detail += f"; {len(young)} left, not due any more: {listed(young)}"
    if due:
        return ActResult(ActState.DONE, detail)
    return ActResult(ActState.REFUSED if young else ActState.NOT_NEEDED, detail)


async def _drop(site: Site, host: HostId, table: TableName, name: str) -> None:
    try:
        await site.client(host).command(
            f"ALTER TABLE {table.quoted} DROP DETACHED PART {quote_string(name)}", settings=_ALLOWED
        )
    except SqlError as error:
        if error.code not in (Code.NO_SUCH_DATA_PART, Code.BAD_DATA_PART_NAME):
            raise
        if await _is_there(site, host, table, name):
            raise
    except ReplyLost:
        if await _is_there(site, host, table, name):
            raise


async def _is_there(site: Site, host: HostId, table: TableName, name: str) -> bool:
    return any(p.name == name and p.table == table for p in await told(site, host, read_detached))


async def read_detached(client: NodeClient) -> list[Detached]:
    """All detached parts of one server; names that are no part's included. Raises as the client does."""
    known = {
        str(name)
        for (name,) in (
            await client.query_rows(
                "SELECT name FROM system.columns WHERE database = 'system' AND table = 'detached_parts'"
            )
        ).rows
    }
    if not known:
        raise SqlError(Code.UNKNOWN_TABLE, "The server has no system.detached_parts.")
    age_s = "toInt64(now()) - toInt64(modification_time)" if "modification_time" in known else "toInt64(-1)"
    bytes_ = "bytes_on_disk" if "bytes_on_disk" in known else "toUInt64(0)"
    rows = await client.query_rows(
        f"SELECT database, table, name, {age_s} AS age_s, {bytes_} AS size_bytes, "
        "(database, table) IN (SELECT database, table FROM system.replicas) AS is_replicated "
        "FROM system.detached_parts"
    )
    has_age = "modification_time" in known
    return [
        Detached(
            TableName(str(database), str(table)),
            str(name),
            prefix_of(str(name)),
            float(age) if has_age else None,
            int(size_bytes),
            bool(is_replicated),
        )
        for database, table, name, age, size_bytes, is_replicated in rows.rows
    ]


def prefix_of(directory: str) -> str | None:
    """`broken-on-start` of `broken-on-start_all_1_1_0`, empty for `all_1_1_0`, None for no part's name.

    Known prefixes come first, as in ClickHouse: `ignored_1_1_1_2` is part `1_1_1_2`, not one of a partition
    `ignored`.
    """
    for prefix in _KNOWN:
        rest = directory.removeprefix(f"{prefix}_")
        if rest != directory and _is_part(rest):
            return prefix
    return "" if _is_part(directory) else None


def _is_part(name: str) -> bool:
    plain, _, number = name.rpartition("_try")
    return PartName.try_parse(plain if plain and number.isdigit() else name) is not None


def is_due(part: Detached, settings: CleanupSettings) -> bool:
    """Whether it may go."""
    return (
        part.prefix is not None
        and part.prefix in settings.detached_prefixes
        and (part.is_replicated or part.prefix not in _BROKEN)
        and part.age_s is not None
        and part.age_s >= settings.detached_after_s
    )


def _may_be_the_only_copy(part: Detached, settings: CleanupSettings) -> bool:
    """Set aside by the server, and not to go without a person's word, or by this way at all."""
    if part.prefix in _BROKEN:
        return not part.is_replicated
    return part.prefix in MAYBE_ONLY_COPIES and part.prefix not in settings.detached_prefixes


def _acts(
    host: HostId, table: TableName, due: Sequence[Detached], settings: CleanupSettings
) -> Iterable[Act]:
    by_name = sorted(due, key=lambda part: part.name)
    for start in range(0, len(by_name), PARTS_AN_ACT):
        batch = by_name[start : start + PARTS_AN_ACT]
        names = [part.name for part in batch]
        yield Act(
            kind=DetachedAct.DROP,
            subject=str(table),
            host=host.readable,
            what=f"Drop {count(len(batch), 'detached part')} of {table} on "
            f"{host.readable}, {size(sum(part.size_bytes for part in batch))}: {listed(names, most=3)}.",
            why=f"Set aside by the server ({_prefixes(batch)}) and older than "
            f"{duration(settings.detached_after_s)}; nobody reads them.",
            payload={
                "host": str(host),
                "table": [table.database, table.table],
                "parts": names,
                "older_than_s": settings.detached_after_s,
                "prefixes": list(settings.detached_prefixes),
            },
            danger=Danger.DESTROYS,
        )


def _finding(site: Site, host: HostId, table: TableName, due: Sequence[Detached]) -> Finding:
    total = sum(part.size_bytes for part in due)
    oldest_s = max(part.age_s or 0.0 for part in due)
    return Finding(
        FindingKind.OLD_DETACHED_PARTS,
        Severity.INFO,
        site.cluster,
        f"{count(len(due), 'part')} of {table} that {host.readable} set aside by itself "
        f"({_prefixes(due)}) lie there for up to {duration(oldest_s)}, {size(total)}.",
        "Look why they were set aside, then drop them: `oncluster cleanup plan --kind detached`.",
        host=host.readable,
        subject=str(table),
        evidence={"parts": len(due), "size_bytes": total, "oldest_s": round(oldest_s)},
    )


def _prefixes(parts: Sequence[Detached]) -> str:
    return ", ".join(sorted({part.prefix or "detached by a person" for part in parts}))
