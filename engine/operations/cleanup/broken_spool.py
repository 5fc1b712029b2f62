"""Files of Distributed tables that their servers could not read again: acknowledged rows, on no shard.

Reads only. What can be saved out of such a file, and whether its rows were written already, is not known
without looking into it, so nothing here removes one: they are counted, with their size and the place, until a
person has looked. They are acknowledged rows, and stay visibly broken until then.

Source: ClickHouse's system.distribution_queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.client.node_client import NodeClient
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId, TableName
from engine.operations.cleanup.words import count, size
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.site import Site


@dataclass(frozen=True, slots=True)
class BrokenFiles:
    """One directory of a spool with broken files."""

    table: TableName
    data_path: str
    files: int
    size_bytes: int
    last_exception: str


async def find_broken(site: Site) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """A finding for each directory, and notes about hosts that could not be asked."""
    findings: list[Finding] = []
    notes: list[str] = []
    answers = await site.ask_all(lambda _, client: _read(client))
    for host, answer in answers.items():
        if isinstance(answer, SqlError) and answer.code in (Code.UNKNOWN_TABLE, Code.UNKNOWN_IDENTIFIER):
            notes.append(
                f"{host.readable} is too old to count broken files of Distributed tables; look into broken/ "
                "below its data directory."
            )
        elif isinstance(answer, OnclusterError):
            notes.append(f"Broken files of {host.readable} are not known: {answer.message.rstrip('.')}.")
        else:
            findings += [_finding(site, host, broken) for broken in answer]
    return tuple(findings), tuple(notes)


async def _read(client: NodeClient) -> list[BrokenFiles]:
    rows = await client.query_rows(
        "SELECT database, table, data_path, broken_data_files, broken_data_compressed_bytes, last_exception "
        "FROM system.distribution_queue WHERE broken_data_files > 0"
    )
    return [
        BrokenFiles(TableName(str(database), str(table)), str(path), int(files), int(bytes_), str(why))
        for database, table, path, files, bytes_, why in rows.rows
    ]


def _finding(site: Site, host: HostId, broken: BrokenFiles) -> Finding:
    because = f" Last error: {' '.join(broken.last_exception.split())[:200]}" if broken.last_exception else ""
    return Finding(
        FindingKind.BROKEN_SPOOL,
        Severity.CRITICAL,
        site.cluster,
        f"{count(broken.files, 'file', 'files')} of {broken.table} on {host.readable}, "
        f"{size(broken.size_bytes)}, could not be read and {'was' if broken.files == 1 else 'were'} put "
        f"aside: rows that were acknowledged and reached no shard.{because}",
        f"Look into {broken.data_path}broken/ on that host: what can be saved is inserted again, then the "
        "files are removed by hand.",
        host=host.readable,
        subject=broken.data_path,
        evidence={
            "database": broken.table.database,
            "table": broken.table.table,
            "broken_files": broken.files,
            "broken_bytes": broken.size_bytes,
        },
    )
