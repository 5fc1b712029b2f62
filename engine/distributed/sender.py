"""Sends the files of one directory of a spool: in their order, each until it is proven to be there.

Safety argument. 1. A file is read whole and compared with its checksum. 2. In batch mode the batch is
recorded (`batches`). 3. The block is sent; its token is the file's or the batch's, the same at every attempt.
4. The receiver confirms. 5. In batch mode the proof is recorded. 6. The files are removed.
A crash, a lost answer or an error before 4 leaves the files, which are sent again with the same token: the
receiver knows what it has. A crash behind 4 does the same once more, or finds the proof.
A broken file is moved to `broken/` before anything of it is sent; it stays there, counted, until a person
removes it. When a file of a recorded batch is broken, the batch as it was cannot be sent again, and its other
files cannot be sent alone without the danger of writing them twice: all of them go to `broken/`.
A batch that the receiver refuses as too large (`split_on_failure`) is sent file by file, each recorded as a
batch of its own, with its own token. Only a batch that was never sent before: one of an earlier run, or whose
answer was lost, may be there, and the receiver would not know its files.
A disk too full for the record of a batch must not keep its files there: they go one by one, each renamed
before (`alone_name`), which needs no room and says durably that it must never go with others.
Files that were delivered and could not be removed are remembered: in this process they are not sent again.
Nothing is sent from a directory out of which nothing can be removed.
Never: a file removed without 4; a file sent past an earlier one that failed; a new token for an old file.

Source: ClickHouse's DistributedAsyncInsertDirectoryQueue.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from engine.distributed.batches import BatchLimits, BatchRecord, can_join, is_full, token_of
from engine.distributed.spool_disk import SpoolDisk
from engine.distributed.spool_file import FileHead, SpoolFile, body_of, check_file
from engine.distributed.spool_names import BROKEN, alone_name, file_name
from engine.distributed.spool_table import TableSpool, size_of
from engine.env import Env
from engine.errors import Code, Corrupt, OnclusterError, SqlError
from engine.lifetime import end_if_cancelled

log = logging.getLogger(__name__)

ERROR_HALVING_S = 300.0
_TOO_LARGE = frozenset(
    {
        Code.ARGUMENT_OUT_OF_BOUND,
        Code.TOO_MANY_ROWS,
        Code.MEMORY_LIMIT_EXCEEDED,
        Code.TOO_MANY_PARTS,
        Code.TOO_MANY_BYTES,
        Code.TOO_MANY_ROWS_OR_BYTES,
        Code.TOO_MANY_PARTITIONS,
        Code.DISTRIBUTED_TOO_MANY_PENDING_BYTES,
    }
)
"""What a smaller INSERT may be spared. Source: ClickHouse's isSplittableErrorCode."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_KEPT_BYTES = 16 << 20
"""Of files that go together, as they are in memory between check and sending; the rest is read again."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is handed to the receiver; `body` opens the rows anew at each call."""

    token: str
    head: FileHead
    rows: int
    body: Callable[[], AsyncIterator[bytes]]


Deliver = Callable[[Outgoing], Awaitable[None]]
"""Returns when the receiver has confirmed. Raises OnclusterError."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """`background_insert_*` of the table. `batch` None sends each file alone.

    `waits_for_more`: for `sleep_s` after the first new file, so that more of them go together.
    `splits_on_failure`: files of a batch that is refused as too large go alone.
    """

    sleep_s: float = 0.1
    waits_for_more: bool = True
    max_sleep_s: float = 30.0
    batch: BatchLimits | None = None
    splits_on_failure: bool = False
    fsync_directories: bool = False


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A row of `system.distribution_queue`, but for the names."""

    is_blocked: bool
    error_count: int
    data_files: int
    data_bytes: int
    broken_files: int
    broken_bytes: int
    last_exception: str
    last_exception_s: float
    """Wall clock, Unix seconds; 0 for none."""


class DirectorySender:
    """One directory's. `run` it as a task; `send_all` may be called meanwhile."""

    def __init__(
        self,
        spool: TableSpool,
        directory: str,
        deliver: Deliver,
        env: Env,
        options: SenderOptions,
        *,
        is_blocked: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spool = spool
        self._disk: SpoolDisk = spool.disk
        self.directory = directory
        self._deliver = deliver
        self._env = env
        self._options = options
        self._is_blocked = is_blocked
        self._record = BatchRecord(spool.disk, directory)
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._delivered: set[int] = set()
        self._errors = 0
        self._errors_since_s = env.monotonic_s()
        self._last_exception = ""
        self._last_exception_s = 0.0
        self._is_without_error = self._has_delivered = False
        """The round that is under way, or was last."""

    # -- the loop --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There is a new file, or sends were started again."""
        self._wake.set()

    async def run(self) -> None:
        """Send until cancelled; errors are counted and tried again later."""
        while True:
            if not self._is_blocked():
                try:
                    await self.send_all()
                except Exception as error:  # a defect, too: nobody else would send it before the next start
                    end_if_cancelled()
                    if not isinstance(error, OnclusterError | OSError):
                        log.exception("distributed.not_sent directory=%s", self.directory)
                    await self._env.sleep(self._pause_s())
                    continue
            await self._wake.wait()
            self._wake.clear()
            if self._options.waits_for_more:
                await self._env.sleep(self._options.sleep_s)

    def _pause_s(self) -> float:
        return float(min(self._options.sleep_s * 2 ** min(self._errors, 32), self._options.max_sleep_s))

    async def send_all(self) -> None:
        """Send what is there now. Raises the first error; what was sent until then is gone. An error is shown
        until files were sent without one, as by a server."""
        async with self._turn:
            self._is_without_error, self._has_delivered = True, False
            try:
                self._disk.check_writable(self.directory)
                await self._settle()
                if self._options.batch is None:
                    await self._one_by_one()
                else:
                    await self._in_batches(self._options.batch)
            except Exception as error:
                self._failed(error)
                raise
            if self._is_without_error and self._has_delivered:
                self._last_exception = ""

    def facts(self) -> QueueFacts:
        files, size = size_of(self._disk, self.directory)
        broken, broken_size = size_of(self._disk, f"{self.directory}/{BROKEN}")
        self._decay()
        return QueueFacts(
            is_blocked=self._is_blocked(),
            error_count=self._errors,
            data_files=files,
            data_bytes=size,
            broken_files=broken,
            broken_bytes=broken_size,
            last_exception=self._last_exception,
            last_exception_s=self._last_exception_s,
        )

    def _failed(self, error: Exception) -> None:
        self._decay()
        self._errors += 1
        self._is_without_error = False
        self._last_exception = str(error)
        self._last_exception_s = self._env.now_s()

    def _decay(self) -> None:
        now_s = self._env.monotonic_s()
        halvings = int((now_s - self._errors_since_s) / ERROR_HALVING_S)
        if halvings:
            self._errors >>= min(halvings, 64)
            self._errors_since_s = now_s

    # -- sending ---------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """What an earlier run, or round, left in the middle."""
        try:
            sent = self._record.sent()
            current = self._record.current()
        except Corrupt:
            # Which files were sent is not known any more, so none of those there may be sent as they are.
            self._give_up(self._spool.pending(self.directory))
            self._record.finish()
            self._record.forget()
            raise
        if sent:
            self._remove(sent)
            await self._disk.sync_directory(self.directory)
            self._record.finish()
        elif current:
            await self._send_recorded(current)
        for number in self._spool.alone(self.directory):
            file = await self._checked(number, name=alone_name(number))
            if file is not None:
                await self._deliver_alone(number, file)

    async def _one_by_one(self) -> None:
        for number in self._spool.pending(self.directory):
            file = await self._checked(number)
            if file is not None:
                await self._deliver_once([number], [file])
                self._remove([number])
                self._delivered.discard(number)
                await self._forced()

    async def _in_batches(self, limits: BatchLimits) -> None:
        batch: list[tuple[int, SpoolFile]] = []
        for number in self._spool.pending(self.directory):
            file = await self._checked(number, [file for _, file in batch])
            if file is None:
                continue
            if batch and not can_join(batch[0][1].head, file.head):
                await self._send_batch(batch)
                batch = []
            batch.append((number, file))
            if is_full([file for _, file in batch], limits):
                await self._send_batch(batch)
                batch = []
        if batch:
            await self._send_batch(batch)

    async def _send_batch(self, batch: Sequence[tuple[int, SpoolFile]]) -> None:
        numbers = [number for number, _ in batch]
        try:
            await self._record.begin(numbers)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            log.info("distributed.no_room_for_record directory=%s files=%s", self.directory, len(batch))
            self._record.forget()
            for number, file in batch:
                await self._send_alone(number, file)
            return
        try:
            await self._deliver_batch(numbers, [file for _, file in batch])
        except SqlError as error:
            if not self._options.splits_on_failure or error.code not in _TOO_LARGE or len(batch) == 1:
                raise
            log.info("distributed.split directory=%s files=%s error=%s", self.directory, len(batch), error)
            self._record.forget()
            await self._disk.sync_directory(self.directory)
            for one in batch:
                await self._send_batch([one])

    async def _send_recorded(self, numbers: Sequence[int]) -> None:
        """A batch that may have been sent before."""
        files: list[SpoolFile] = []
        for number in numbers:
            try:
                files.append(await check_file(self._disk, self._path(number), keep_bytes=_room(files)))
            except (Corrupt, FileNotFoundError) as error:
                self._give_up(numbers)
                self._record.forget()
                raise Corrupt(
                    f"The batch {list(numbers)} of {self.directory} cannot be sent again as it was: {error}",
                    code=Code.DISTRIBUTED_BROKEN_BATCH_INFO,
                    hint="Its files are in broken/. Whether their rows were written is not known.",
                ) from error
        await self._deliver_batch(numbers, files)

    async def _send_alone(self, number: int, file: SpoolFile) -> None:
        path = f"{self.directory}/{alone_name(number)}"
        self._disk.rename(self._path(number), path)
        await self._disk.sync_directory(self.directory)
        await self._deliver_alone(number, replace(file, path=path))

    async def _deliver_alone(self, number: int, file: SpoolFile) -> None:
        await self._deliver_once([number], [file])
        with suppress(FileNotFoundError):
            self._disk.remove(file.path)
        self._delivered.discard(number)
        await self._disk.sync_directory(self.directory)

    async def _deliver_batch(self, numbers: Sequence[int], files: Sequence[SpoolFile]) -> None:
        await self._deliver_once(numbers, files)
        await self._record.confirm()
        self._remove(numbers)
        # A file that comes back after a loss of power must find the proof.
        await self._disk.sync_directory(self.directory)
        self._record.finish()
        self._delivered.difference_update(numbers)

    async def _deliver_once(self, numbers: Sequence[int], files: Sequence[SpoolFile]) -> None:
        if not self._delivered.issuperset(numbers):
            await self._deliver(self._outgoing(files))
            self._delivered.update(numbers)
            self._has_delivered = True

    def _outgoing(self, files: Sequence[SpoolFile]) -> Outgoing:
        async def body() -> AsyncIterator[bytes]:
            for file in files:
                async for chunk in body_of(self._disk, file):
                    yield chunk

        heads = [file.head for file in files]
        return Outgoing(token_of(heads), heads[0], sum(head.rows for head in heads), body)

    async def _checked(
        self, number: int, others: Sequence[SpoolFile] = (), *, name: str = ""
    ) -> SpoolFile | None:
        """None when it is broken, and has been put aside. `others` go with it."""
        path = f"{self.directory}/{name}" if name else self._path(number)
        try:
            return await check_file(self._disk, path, keep_bytes=_room(others))
        except Corrupt as error:
            self._give_up([number], paths=[path])
            self._failed(error)
            return None

    def _give_up(self, numbers: Sequence[int], *, paths: Sequence[str] = ()) -> None:
        """Put files aside where everybody can see them."""
        self._disk.make_directory(f"{self.directory}/{BROKEN}")
        for number, path in zip(numbers, paths or map(self._path, numbers), strict=True):
            with suppress(FileNotFoundError):
                self._disk.rename(path, f"{self.directory}/{BROKEN}/{file_name(number)}")

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with suppress(FileNotFoundError):
                self._disk.remove(self._path(number))

    async def _forced(self) -> None:
        if self._options.fsync_directories:
            await self._disk.sync_directory(self.directory)

    def _path(self, number: int) -> str:
        return f"{self.directory}/{file_name(number)}"


def _room(files: Sequence[SpoolFile]) -> int:
    """How many bytes more may be kept in memory."""
    return _KEPT_BYTES - sum(len(file.data) for file in files if file.data is not None)
