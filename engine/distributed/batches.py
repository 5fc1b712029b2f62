"""Which files go together, and how that is remembered.

Safety argument. A batch has one token, made of those of its files. A batch that was sent and not answered may
have been written; sent again with other files, or its files one by one, it would be written twice. So what is
sent is recorded first (`current_batch.txt`: temporary file, fsync, rename, fsync of the directory), and as
long as there is a record nothing else is sent. When the receiver has confirmed, the record is renamed to
`sent_batch.txt`, which is the proof; then the files go, then the proof. A crash before the rename sends the
same batch again with the same token; a crash behind it removes the rest of the files and sends nothing.

A batch's token hides those of its files. So a file whose rows may come again under the INSERT's own token is
in no batch: the receiver would not know the token, and write the rows twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from engine.distributed.spool_disk import SpoolDisk
from engine.distributed.spool_file import FileHead, SpoolFile
from engine.distributed.spool_names import CURRENT_BATCH, SENT_BATCH
from engine.errors import Code, Corrupt


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """A batch is sent when it has so many rows or bytes, or when there is no more."""

    min_rows: int = 1_048_449
    min_bytes: int = 256 << 20


def token_of(heads: Sequence[FileHead]) -> str:
    """The identity of these files in this order. A file alone has its own."""
    if len(heads) == 1:
        return heads[0].token
    digest = hashlib.sha256()
    for head in heads:
        digest.update(head.token.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def can_join(one: FileHead, other: FileHead) -> bool:
    """Whether two files can be one INSERT."""
    is_alone = one.is_repeatable or other.is_repeatable
    return not is_alone and one.columns == other.columns and dict(one.settings) == dict(other.settings)


def is_full(files: Sequence[SpoolFile], limits: BatchLimits) -> bool:
    rows = sum(file.head.rows for file in files)
    size = sum(file.body_bytes for file in files)
    return rows >= limits.min_rows or size >= limits.min_bytes


class BatchRecord:
    """The two files of one directory."""

    def __init__(self, disk: SpoolDisk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._current = f"{directory}/{CURRENT_BATCH}"
        self._sent = f"{directory}/{SENT_BATCH}"

    def current(self) -> Sequence[int]:
        """The files of a batch that may have been sent; none if there is no record. Raises Corrupt 588."""
        return self._read(CURRENT_BATCH)

    def sent(self) -> Sequence[int]:
        """The files of a batch that was confirmed. Raises Corrupt 588."""
        return self._read(SENT_BATCH)

    async def begin(self, numbers: Sequence[int]) -> None:
        """Durable when this returns. Raises OSError."""
        temporary = f"{self._current}.tmp"
        if f"{CURRENT_BATCH}.tmp" in self._disk.names(self._directory):
            self._disk.remove(temporary)
        # The count tells a record that is whole from one that is cut off between two lines.
        text = "".join(f"{number}\n" for number in (len(numbers), *numbers))
        self._disk.append(temporary, text.encode())
        await self._disk.sync(temporary)
        self._disk.rename(temporary, self._current)
        await self._disk.sync_directory(self._directory)

    async def confirm(self) -> None:
        """The receiver has the batch. Raises OSError."""
        self._disk.rename(self._current, self._sent)
        await self._disk.sync_directory(self._directory)

    def finish(self) -> None:
        """The files are gone."""
        with suppress(FileNotFoundError):
            self._disk.remove(self._sent)

    def forget(self) -> None:
        """Nothing of the batch is sent any more."""
        with suppress(FileNotFoundError):
            self._disk.remove(self._current)

    def _read(self, name: str) -> Sequence[int]:
        if name not in self._disk.names(self._directory):
            return ()
        path = f"{self._directory}/{name}"
        text = self._disk.read(path, 0, self._disk.size_bytes(path)).decode("ascii", "replace")
        lines = text.split("\n")
        if lines[-1] == "" and all(line.isdigit() for line in lines[:-1]) and len(lines) > 1:
            count, *numbers = (int(line) for line in lines[:-1])
            if count == len(numbers):
                return tuple(numbers)
        raise Corrupt(f"The record {path} cannot be read.", code=Code.DISTRIBUTED_BROKEN_BATCH_INFO)
