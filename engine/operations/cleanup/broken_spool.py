"""Files of Distributed tables that their servers could not read again: acknowledged rows, on no shard.

Safety argument. They are counted, with their size and place, and stay until a person decides, because nobody
else can: what such a file holds is lost unless it is inserted again from its source, and a file that is whole
but was part of a batch may have been delivered with it.
`restore` has the node check each file and send again what is whole (rows may come twice); `drop` has it
remove all of a table's, and is refused when there are others than in the plan. Both are done by the node that
has them (`engine.distributed.broken_files`); a crash leaves each file broken, or sent, or removed.
ClickHouse servers have no such commands; there it is done by hand, and the act says so.

Source: ClickHouse's system.distribution_queue.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.client.node_client import NodeClient
from engine.errors import Code, OnclusterError, ReplyLost, SqlError
from engine.names import HostId, TableName
from engine.operations.act import Act, ActResult, ActState, Danger
from engine.operations.cleanup.asking import told
from engine.operations.cleanup.found import Found
from engine.operations.cleanup.settings import BrokenFilesFate, CleanupSettings
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.site import Site
from engine.wording import count, listed, size


class SpoolAct(enum.StrEnum):
    """Acts of this kind."""

    RESTORE = "restore-broken-files"
    DROP = "drop-broken-files"


@dataclass(frozen=True, slots=True)
class BrokenFiles:
    """One directory of a spool with broken files."""

    table: TableName
    data_path: str
    files: int
    size_bytes: int
    last_exception: str


async def plan_spool(site: Site, settings: CleanupSettings) -> Found:
    """A finding for each directory; acts only if the settings say what becomes of the files."""
    acts: list[Act] = []
    findings: list[Finding] = []
    unknown: dict[str, list[str]] = defaultdict(list)
    for host, answer in (await site.ask_all(lambda _, client: _read(client))).items():
        if isinstance(answer, SqlError) and answer.code in (Code.UNKNOWN_TABLE, Code.UNKNOWN_IDENTIFIER):
            unknown["too old to say; look into broken/ below their data directories"].append(host.readable)
        elif isinstance(answer, OnclusterError):
            unknown[answer.message.rstrip(".")].append(host.readable)
        else:
            findings += [_finding(site, host, broken) for broken in answer]
            acts += _acts(host, answer, settings.broken_files)
    notes = [f"Broken files of {listed(hosts)} are not known: {why}." for why, hosts in unknown.items()]
    return Found(tuple(acts), tuple(findings), tuple(notes))


async def perform_spool(site: Site, act: Act) -> ActResult:
    """Have the node do it, and look what it did."""
    host, table = HostId.parse(str(act.payload["host"])), TableName(*act.payload["table"])
    before = _counts(await told(site, host, _read), table)
    if not before:
        return ActResult(ActState.NOT_NEEDED, "There are none any more.")
    planned = {str(path): int(files) for path, files in act.payload["files"].items()}
    if act.kind == SpoolAct.DROP and before != planned:
        return ActResult(ActState.REFUSED, f"There are others than were planned: {_total(before)} files.")
    verb = "DROP" if act.kind == SpoolAct.DROP else "RESTORE"
    try:
        await site.client(host).command(f"SYSTEM {verb} BROKEN DISTRIBUTED FILES {table.quoted}")
    except SqlError as error:
        if error.code == Code.SYNTAX_ERROR:
            return ActResult(ActState.REFUSED, "The server has no such command: do it by hand, in broken/.")
        raise
    except ReplyLost:
        if _counts(await told(site, host, _read), table) == before:
            raise
    after = _total(_counts(await told(site, host, _read), table))
    gone = _total(before) - after
    if act.kind == SpoolAct.DROP:
        return ActResult(ActState.DONE, f"{count(gone, 'file')} removed")
    detail = f"{count(gone, 'file')} will be sent again, {after} cannot be read"
    return ActResult(ActState.DONE if gone else ActState.REFUSED, detail)


# --- inside -----------------------------------------------------------------------------------------------


async def _read(client: NodeClient) -> list[BrokenFiles]:
    rows = await client.query_rows(
        "SELECT database, table, data_path, broken_data_files, broken_data_compressed_bytes, last_exception "
        "FROM system.distribution_queue WHERE broken_data_files > 0"
    )
    return [
        BrokenFiles(TableName(str(database), str(table)), str(path), int(files), int(bytes_), str(why))
        for database, table, path, files, bytes_, why in rows.rows
    ]


def _counts(found: Iterable[BrokenFiles], table: TableName) -> dict[str, int]:
    return {broken.data_path: broken.files for broken in found if broken.table == table}


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def _acts(host: HostId, found: Sequence[BrokenFiles], fate: BrokenFilesFate) -> Iterable[Act]:
    if fate is BrokenFilesFate.STAY:
        return
    for table in sorted({broken.table for broken in found}, key=str):
        counts = _counts(found, table)
        total = count(_total(counts), "broken file")
        bytes_ = sum(broken.size_bytes for broken in found if broken.table == table)
        is_drop = fate is BrokenFilesFate.DROP
        yield Act(
            kind=SpoolAct.DROP if is_drop else SpoolAct.RESTORE,
            subject=str(table),
            host=host.readable,
            what=f"{'Remove' if is_drop else 'Check and send again'} {total} of {table} on {host.readable}, "
            f"{size(bytes_)}.",
            why="Asked for: their rows were inserted again, or are not needed."
            if is_drop
            else "Asked for: what is whole is sent again. Of a batch that had arrived, rows come twice.",
            payload={
                "host": str(host),
                "table": [table.database, table.table],
                "files": {path: counts[path] for path in sorted(counts)},
            },
            danger=Danger.DESTROYS if is_drop else Danger.REPAIRS,
        )


def _finding(site: Site, host: HostId, broken: BrokenFiles) -> Finding:
    because = f" Last error: {' '.join(broken.last_exception.split())[:200]}" if broken.last_exception else ""
    return Finding(
        FindingKind.BROKEN_SPOOL,
        Severity.CRITICAL,
        site.cluster,
        f"{count(broken.files, 'file')} of {broken.table} on {host.readable}, "
        f"{size(broken.size_bytes)}, could not be read and {'was' if broken.files == 1 else 'were'} put "
        f"aside: rows that were acknowledged and reached no shard.{because}",
        f"Look into {broken.data_path}broken/ on that host. `oncluster cleanup plan --kind spool "
        "--broken-files restore` sends again what is whole; for the rest, insert the rows from their source "
        "and drop the files.",
        host=host.readable,
        subject=broken.data_path,
        evidence={
            "database": broken.table.database,
            "table": broken.table.table,
            "broken_files": broken.files,
            "broken_bytes": broken.size_bytes,
        },
    )
