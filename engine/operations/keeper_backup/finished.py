"""A finished backup as a tree that can be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from engine.errors import Corrupt, Refused
from engine.operations.keeper_backup.backup_file import Chunk, ChunkKind, Gone, entry_of, read_chunks
from engine.operations.keeper_backup.facts import BackupFacts
from engine.operations.keeper_backup.record import NodeRecord


class BackupFile:
    """Opening it checks the whole file, from the first byte to the last; see `open_backup`."""

    def __init__(self, path: Path, facts: BackupFacts) -> None:
        self.path = path
        self.facts = facts

    def batches(self) -> Iterator[list[NodeRecord]]:
        """The nodes, in order, a chunk at a time; checked again as they are read. Raises Corrupt."""
        for chunk in read_chunks(self.path):
            if chunk.kind is ChunkKind.NODES:
                yield _records(self.path, chunk)

    async def records(self) -> AsyncIterator[NodeRecord]:
        for batch in self.batches():
            for record in batch:
                yield record


def open_backup(path: Path) -> BackupFile:
    """Check a backup. Raises Corrupt, which says where the damage is; Refused (no backup, not finished)."""
    if not path.is_file():
        raise Refused(f"There is no file {path}.")
    nodes = 0
    last_order = ""
    trailer: BackupFacts | None = None
    is_first = True
    for chunk in read_chunks(path):
        if trailer is not None:
            raise Corrupt(f"The backup {path} goes on behind its trailer, at byte {chunk.ends_at}.")
        if is_first != (chunk.kind is ChunkKind.HEAD):
            raise Corrupt(f"The backup {path} has no head, or two.")
        is_first = False
        if chunk.kind is ChunkKind.TRAILER:
            line = chunk.lines[0] if len(chunk.lines) == 1 else {}
            trailer = BackupFacts.from_json(line).with_digest(chunk.digest.hex())
        elif chunk.kind is ChunkKind.NODES:
            for record in _records(path, chunk):
                if nodes and record.order <= last_order:
                    raise Corrupt(f"The backup {path} is out of order at {record.path}.")
                last_order = record.order
                nodes += 1
    if trailer is None:
        raise Corrupt(
            f"The backup {path} has no trailer: it is cut off, or was never finished.",
            hint="Give the command that made it again: it continues an unfinished file.",
        )
    if trailer.nodes != nodes:
        raise Corrupt(f"The backup {path} has {nodes} nodes, and its trailer says {trailer.nodes}.")
    return BackupFile(path, trailer)


def _records(path: Path, chunk: Chunk) -> list[NodeRecord]:
    entries = [entry_of(line) for line in chunk.lines]
    records = [entry for entry in entries if not isinstance(entry, Gone)]
    if chunk.run or len(records) < len(entries):
        raise Corrupt(f"The backup {path} was not finished: it has several runs.")
    return records
