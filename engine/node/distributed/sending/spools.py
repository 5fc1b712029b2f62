"""What Distributed tables still have to send, and the senders that do.

A table's spool is `<path>/oncluster/distributed/<uuid>/`, so that RENAME leaves it where it is. It is opened
at the node's start, so that what was acknowledged before goes on being sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from engine.distributed import broken_files
from engine.distributed.batches import BatchLimits
from engine.distributed.definition import DistributedDefinition
from engine.distributed.delivery import Block, Deliveries
from engine.distributed.peers import PeerShard
from engine.distributed.sender import Deliver, DirectorySender, Outgoing, QueueFacts, SenderOptions
from engine.distributed.spool_disk import LocalDisk
from engine.distributed.spool_names import destination_of, is_destination
from engine.distributed.spool_table import SpoolBlock, SpoolLimits, SpoolOptions, TableSpool
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError, disk_error
from engine.names import TableName
from engine.node.distributed.registry.tables import DistributedTable, DistributedTables
from engine.node.distributed.sending.policy import policy_of, timeouts_of, without_policy

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Open:
    """One table's spool while it is used."""

    disk: LocalDisk
    spool: TableSpool
    senders: dict[str, tuple[DirectorySender, asyncio.Task[None]]] = field(default_factory=dict)
    flushing: set[asyncio.Task[None]] = field(default_factory=set)
    """What statements have their senders do."""
    is_blocked: bool = False


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One directory."""

    table: TableName
    data_path: str
    facts: QueueFacts


class Spools:
    """Of all tables of the node."""

    def __init__(
        self,
        directory: Path,
        *,
        tables: DistributedTables,
        deliveries: Deliveries,
        shards_of: Callable[[str], Sequence[PeerShard]],
        env: Env,
    ) -> None:
        self._directory = directory
        self._tables = tables
        self._deliveries = deliveries
        self._shards_of = shards_of
        self._env = env
        self._open: dict[UUID, _Open] = {}
        self._are_all_blocked = False

    # -- life ------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Open the spools of tables that are attached, stop those of tables that are not."""
        attached = {table.uuid: table for table in await self._tables.all()}
        for uuid in [uuid for uuid in self._open if uuid not in attached]:
            await self.stop(uuid)
        for table in attached.values():
            with contextlib.suppress(SqlError):  # `rows` says so; it keeps nobody else from being served
                self._opened(table)

    async def stop(self, uuid: UUID) -> None:
        """The table is detached, or the node stops; files stay."""
        found = self._open.pop(uuid, None)
        if found is not None:
            await self._stop_senders(found)

    async def stop_all(self) -> None:
        for uuid in list(self._open):
            await self.stop(uuid)

    async def remove(self, uuid: UUID) -> None:
        """The table is dropped: what it still had to send goes with it."""
        await self.stop(uuid)
        LocalDisk(self._directory / str(uuid)).destroy()

    def _opened(self, table: DistributedTable) -> _Open:
        """Raises SqlError 1001 and others when the table's directory cannot be used."""
        found = self._open.get(table.uuid)
        if found is None:
            definition = table.definition
            disk = LocalDisk(self._directory / str(table.uuid))
            spool = TableSpool(disk, spool_options_of(definition))
            try:
                directories = spool.load()
            except OSError as error:
                problem = disk_error(error, f"The directory of what {table.name} has to send cannot be used")
                log.error("distributed.unusable_spool table=%s error=%s", table.name, problem)
                raise problem from error
            found = self._open[table.uuid] = _Open(disk, spool)
            for directory in directories:
                if is_destination(directory):
                    self._sender(found, definition, directory)
        return found

    def _sender(self, found: _Open, definition: DistributedDefinition, directory: str) -> DirectorySender:
        known = found.senders.get(directory)
        if known is not None:
            return known[0]
        sender = DirectorySender(
            found.spool,
            directory,
            self._deliver_to(definition, directory),
            self._env,
            options_of(definition),
            is_blocked=lambda: found.is_blocked or self._are_all_blocked,
        )
        task = asyncio.get_running_loop().create_task(sender.run(), name=f"send {directory}")
        found.senders[directory] = (sender, task)
        return sender

    def _deliver_to(self, definition: DistributedDefinition, directory: str) -> Deliver:
        async def deliver(out: Outgoing) -> None:
            # The cluster's configuration may have changed since the file was written.
            to = destination_of(directory, self._shards_of(definition.cluster))
            send_s, receive_s = timeouts_of(out.head.settings)
            block = Block(
                database=definition.database,
                table=definition.table,
                columns=out.head.columns,
                token=out.token,
                body=out.body,
                rows=out.rows,
                settings=without_policy(out.head.settings),
                send_timeout_s=send_s,
                receive_timeout_s=receive_s,
            )
            try:
                await self._deliveries.to_any(to.peers, block, policy_of(out.head.settings))
            except OnclusterError as error:
                log.warning(
                    "distributed.not_sent directory=%s token=%s error=%s", directory, out.token, error
                )
                raise

        return deliver

    async def _stop_senders(self, found: _Open) -> None:
        """Also what sends for a statement: whoever opens the spool next would send the same beside it."""
        tasks = [*(task for _, task in found.senders.values()), *found.flushing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found.senders.clear()

    # -- for INSERT ------------------------------------------------------------------------------------------

    async def check(self, table: DistributedTable) -> None:
        """Raises SqlError 574 when too much is pending, after waiting if the table's settings say so."""
        definition = table.definition
        limits = SpoolLimits(
            throw_bytes=definition.number("bytes_to_throw_insert", 0),
            delay_bytes=definition.number("bytes_to_delay_insert", 0),
            max_delay_s=definition.number("max_delay_to_insert", 60),
        )
        await self._opened(table).spool.admit(limits, self._env)

    async def put(
        self, table: DistributedTable, blocks: Sequence[SpoolBlock], *, after: Awaitable[None] | None = None
    ) -> None:
        """Keep the blocks, but not before `after` has ended well; they will be sent. Raises SqlError 243,
        1001."""
        found = self._opened(table)
        await found.spool.put(blocks, after=after)
        for directory in sorted({name for block in blocks for name in block.directories}):
            self._sender(found, table.definition, directory).wake()

    # -- for SYSTEM ------------------------------------------------------------------------------------------

    async def flush(self, table: DistributedTable) -> None:
        """Send everything now, also while sends are stopped. Raises the first error, 243
        and 1001 for the disk, 236 when the table is taken away or emptied meanwhile."""
        found = self._opened(table)
        flushing = [asyncio.create_task(found.senders[name][0].send_all()) for name in sorted(found.senders)]
        found.flushing.update(flushing)
        try:
            results = await asyncio.gather(*flushing, return_exceptions=True)
        finally:
            found.flushing.difference_update(flushing)
        for result in results:
            if isinstance(result, asyncio.CancelledError):
                raise SqlError(
                    Code.ABORTED, f"{table.name} was detached or emptied while its rows were sent."
                )
            if isinstance(result, OSError):
                raise disk_error(result, f"Cannot send the rows that wait for {table.name}") from result
            if isinstance(result, BaseException):
                raise result

    async def settle(self, table: DistributedTable) -> None:
        """Send everything, for somebody who takes the table away. Raises SqlError 279 and others when that
        fails, 48 when broken files are left."""
        try:
            await self.flush(table)
        except OnclusterError as error:
            raise SqlError(
                error.code or Code.NETWORK_ERROR,
                f"{table.name} has rows that could not be sent: {error.message}",
                hint="Nothing was changed. SYSTEM FLUSH DISTRIBUTED says when they are gone; TRUNCATE TABLE "
                "gives them up.",
            ) from error
        senders = [sender for sender, _ in self._opened(table).senders.values()]
        files = sum(sender.facts().data_files + sender.facts().broken_files for sender in senders)
        if files:
            raise SqlError(
                Code.NOT_IMPLEMENTED,
                f"{table.name} has {files} files that are not delivered, broken ones among them.",
                hint="Nothing was changed. Look at system.distribution_queue, then SYSTEM RESTORE or DROP "
                "BROKEN DISTRIBUTED FILES.",
            )

    async def truncate(self, table: DistributedTable) -> None:
        """Forget what is pending, broken files too."""
        found = self._opened(table)
        await self._stop_senders(found)
        with contextlib.suppress(FileNotFoundError):
            found.spool.truncate()

    async def restore_broken(self, table: DistributedTable) -> None:
        """Send again what was put aside and can be read. Raises SqlError 74 when the disk cannot be."""
        found = self._opened(table)
        for directory in _destinations(found.disk):
            with _disk_errors(directory):
                await broken_files.restore(found.disk, directory)
            self._sender(found, table.definition, directory).wake()

    async def drop_broken(self, table: DistributedTable) -> None:
        """Remove what was put aside. Raises SqlError 74 when the disk cannot be used."""
        found = self._opened(table)
        for directory in _destinations(found.disk):
            with _disk_errors(directory):
                await broken_files.drop(found.disk, directory)

    def block(self, table: DistributedTable) -> None:
        """SYSTEM STOP DISTRIBUTED SENDS."""
        self._opened(table).is_blocked = True

    def unblock(self, table: DistributedTable) -> None:
        found = self._opened(table)
        found.is_blocked = False
        for sender, _ in found.senders.values():
            sender.wake()

    def block_all(self) -> None:
        self._are_all_blocked = True

    def unblock_all(self) -> None:
        self._are_all_blocked = False
        for found in self._open.values():
            found.is_blocked = False
            for sender, _ in found.senders.values():
                sender.wake()

    async def rows(self) -> Sequence[QueueRow]:
        """One for each directory of each table, and one for what cannot be used, with the reason."""
        found = []
        for name, uuid in (await self._tables.damaged()).items():
            error: OnclusterError | OSError = self._tables.catalog.damaged[uuid]
            found.append(QueueRow(name, f"{self._directory / str(uuid)}/", _unusable(error)))
        for table in await self._tables.all():
            try:
                opened = self._opened(table)
            except SqlError as error:
                found.append(QueueRow(table.name, f"{self._directory / str(table.uuid)}/", _unusable(error)))
                continue
            for directory in sorted(opened.senders):
                try:
                    facts = opened.senders[directory][0].facts()
                except OSError as error:
                    facts = _unusable(error)
                found.append(QueueRow(table.name, f"{opened.disk.root / directory}/", facts))
        return found


def _unusable(error: Exception) -> QueueFacts:
    return QueueFacts(
        is_blocked=True,
        error_count=1,
        data_files=0,
        data_bytes=0,
        broken_files=0,
        broken_bytes=0,
        last_exception=str(error),
        last_exception_s=0.0,
    )


def _destinations(disk: LocalDisk) -> list[str]:
    return [directory for directory in disk.directories() if is_destination(directory)]


@contextlib.contextmanager
def _disk_errors(directory: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SqlError(
            Code.CANNOT_READ_FROM_FILE_DESCRIPTOR,
            f"Cannot work on the broken files of {directory}: {error.strerror or error}",
            hint="Look at the disk of the node; files that were not worked on are still in broken/.",
        ) from error


def spool_options_of(definition: DistributedDefinition) -> SpoolOptions:
    """What a table's settings say of its files."""
    return SpoolOptions(
        fsync_files=bool(definition.number("fsync_after_insert", 0)),
        fsync_directories=bool(definition.number("fsync_directories", 0)),
    )


def options_of(definition: DistributedDefinition) -> SenderOptions:
    """What a table's settings say of its senders."""
    is_batch = bool(definition.number("background_insert_batch", 0))
    sleep_ms = definition.number("background_insert_sleep_time_ms", 0)
    return SenderOptions(
        sleep_s=(sleep_ms or 100) / 1000,
        waits_for_more=is_batch or sleep_ms > 0,  # files that go alone gain nothing by it
        max_sleep_s=(definition.number("background_insert_max_sleep_time_ms", 0) or 30_000) / 1000,
        batch=BatchLimits() if is_batch else None,
        splits_on_failure=bool(definition.number("background_insert_split_batch_on_failure", 0)),
        fsync_directories=bool(definition.number("fsync_directories", 0)),
    )
