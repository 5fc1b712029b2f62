"""Parts in memory: a `PartStore` for tests and for the simulation.

    store = MemoryPartStore(StoreDisk(model_definition()), env)
    new = await store.write("all", [{"k": 1, "v": 10}])      # a NewPart, as an insert makes it
    await store.stage_inserted(new, PartName.parse("all_0_0_0"))
    await store.publish([PartName.parse("all_0_0_0")])
    store.rows()                                             # what a reader sees

What is durable is on a `StoreDisk`, which outlives the store: a new store on the same disk is the process
after a crash. Each durable step has a gate of the process before and after it, so a kill can fall between any
two. Faults: a full disk (243), one that gives errors (EIO) or is slow, damage when a part is sent, damage
where it lies (`StoreDisk.damage`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace

from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import (
    DetachedPart,
    Fate,
    IncomingPart,
    LoadedParts,
    MergeOptions,
    NewPart,
    OutgoingPart,
    Part,
    PartsBroken,
    PartStore,
    TableSize,
)
from engine.siphash import siphash128_bytes
from engine.testing.replication.alter import partition_ids_of
from engine.testing.replication.disk import COUNT, DATA, Damage, StoreDisk, StoredPart
from engine.testing.replication.rows import Row, Rows, Value, mutated, rows_of
from engine.testing.replication.store_events import Origin, Staged, StoreFaults, Visible
from engine.testing.replication.store_steps import StoredDefinition
from engine.testing.replication.transfer import Incoming, Outgoing
from engine.testing.simulated_process import Process

_View = tuple[list[tuple[PartName, StoredPart]], Mapping[PartName, Part]]
"""What lies in a directory, and its parts in order."""


class MemoryPartStore(StoredDefinition):
    """Implements `PartStore`. One process's way to its disk; the observers hear of every change."""

    def __init__(
        self,
        disk: StoreDisk,
        env: Env,
        *,
        process: Process | None = None,
        faults: StoreFaults | None = None,
        on_visible: Callable[[Visible], None] | None = None,
        on_staged: Callable[[Staged], None] | None = None,
    ) -> None:
        super().__init__(disk, env, process, faults or StoreFaults())
        self._on_visible = on_visible
        self._on_staged = on_staged
        self._parts: dict[PartName, tuple[StoredPart, Part]] = {}
        self._active_view: _View = [], {}
        self._staged_view: _View = [], {}
        self.merges: list[tuple[tuple[PartName, ...], PartName]] = []
        """What was merged here, for tests."""
        self.mutations: list[PartName] = []
        """The results of what was mutated here, for tests."""

    # -- what is there -------------------------------------------------------------------------------------

    async def load(self) -> LoadedParts:
        await self._pass_time()
        if self.disk.temporary:
            self.faults.seen("unforced writes forgotten")
        self.disk.temporary.clear()
        for place, prefix in ((self.disk.active, ""), (self.disk.staged, "staged_")):
            for name in list(place):
                try:
                    place[name].check_sizes(str(name))
                    place[name].part(name)
                except PartDiffers:
                    self.disk.broken[f"{prefix}{name}"] = place.pop(name)
        active, staged = self.active, self.staged
        broken = self.disk.broken
        return LoadedParts(
            tuple(active.values()),
            tuple(staged.values()),
            tuple(sorted(broken)),
            sum(len(content) for stored in broken.values() for content in stored.files.values()),
        )

    @property
    def active(self) -> Mapping[PartName, Part]:
        self._active_view = self._view(self.disk.active, self._active_view)
        return self._active_view[1]

    @property
    def staged(self) -> Mapping[PartName, Part]:
        self._staged_view = self._view(self.disk.staged, self._staged_view)
        return self._staged_view[1]

    async def size(self) -> TableSize:
        parts = self.active.values()
        size_bytes = sum(part.size_bytes for part in parts)
        return TableSize(sum(part.rows for part in parts), size_bytes, size_bytes)

    def _view(self, place: Mapping[PartName, StoredPart], before: _View) -> _View:
        there = list(place.items())
        if there == before[0]:
            return before
        return there, {name: self._part(name, stored) for name, stored in sorted(there)}

    # -- as a user sees it ---------------------------------------------------------------------------------

    def rows(self) -> Counter[Row]:
        """What SELECT gives. Raises PartDiffers when it meets a damaged part."""
        found: Counter[Row] = Counter()
        for name, stored in self.disk.active.items():
            found.update(stored.rows(str(name)))
        return found

    async def write(self, partition_id: str, rows: Iterable[Mapping[str, Value]]) -> NewPart:
        """What an INSERT makes of the rows of one partition. Raises SqlError 243."""
        content = rows_of(rows)
        columns = self.disk.definition.columns.to_bytes()
        stored = StoredPart.of_rows(content, columns, (), self._env.now_s())
        await self._step()
        self.faults.need_space()
        handle = self.disk.new_handle()
        self.disk.temporary[handle] = stored
        await self._after()
        identity = siphash128_bytes(partition_id.encode() + b"\0" + stored.files[DATA])
        return NewPart(handle, partition_id, identity, len(content), stored.size_bytes)

    # -- making parts --------------------------------------------------------------------------------------

    async def stage_inserted(self, new: NewPart, name: PartName) -> Part:
        await self._step()
        stored = self.disk.temporary.get(new.handle)
        if stored is None:
            raise SqlError(Code.LOGICAL_ERROR, f"The inserted part {new.handle} is used up")
        if name in self.disk.active or name in self.disk.staged:
            raise SqlError(Code.DUPLICATE_DATA_PART, f"Part {name} is there already")
        part = await self._stage(name, stored, Origin.INSERTED)
        del self.disk.temporary[new.handle]
        return part

    async def discard_inserted(self, new: NewPart) -> None:
        await self._pass_time()  # what is left of it would be forgotten by the next start
        self.disk.temporary.pop(new.handle, None)

    async def rename_staged(self, staged: PartName, name: PartName) -> Part:
        await self._step()
        if staged not in self.disk.staged:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"Part {staged} is not staged")
        stored = self.disk.staged[name] = self.disk.staged.pop(staged)
        for directory, part in self.disk.attaching.items():
            if part == staged:
                self.disk.attaching[directory] = name
        if self._on_staged is not None:
            self._on_staged(Staged(name, Origin.INSERTED, stored))
        await self._after()
        return self._part(name, self.disk.staged[name])

    def preparing_merge(
        self, sources: Sequence[PartName], result: PartName
    ) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def merge(self, sources: Sequence[PartName], result: PartName, options: MergeOptions) -> Part:
        await self._step()
        stored = [self._active(source) for source in sources]
        marks: dict[str, None] = {}
        rows: list[Row] = []
        for source, each in zip(sources, stored, strict=True):
            rows += each.rows(str(source))
            marks |= dict.fromkeys(each.marks)
        merged = tuple(sorted(set(rows) if options.deduplicate else rows, key=repr))
        await self._step()
        self.merges.append((tuple(sources), result))
        return await self._stage(result, self._stored(merged, tuple(marks)), Origin.MERGED)

    async def mutate(self, source: PartName, result: PartName, commands: str) -> Part:
        await self._step()
        stored = self._active(source)
        change = mutated(stored.rows(str(source)), commands)
        marks = tuple(dict.fromkeys((*stored.marks, *change.marks)))
        await self._step()
        self.mutations.append(result)
        return await self._stage(result, self._stored(change.rows, marks), Origin.MUTATED)

    async def stage_copy(self, of: PartStore, source: PartName, result: PartName) -> Part:
        if not isinstance(of, MemoryPartStore):
            raise TypeError("only parts in memory can be copied to memory")
        await self._step()
        return await self._stage(result, of._active(source), Origin.COPIED)

    async def stage_detached(self, directory: str, result: PartName) -> Part:
        await self._step()
        stored = self.disk.detached.get(directory)
        if stored is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"No directory {directory!r} in detached/")
        stored.check(directory)
        self.disk.attaching[directory] = result
        return await self._stage(result, stored, Origin.ATTACHED)

    async def stage_empty(self, result: PartName) -> Part:
        await self._step()
        return await self._stage(result, self._stored((), ()), Origin.EMPTY)

    @asynccontextmanager
    async def receive(self, name: PartName) -> AsyncIterator[IncomingPart]:
        await self._step()
        yield Incoming(name, self._stage_received)

    @asynccontextmanager
    async def receive_detached(self, name: PartName) -> AsyncIterator[IncomingPart]:
        await self._step()
        if str(name) in self.disk.detached:
            raise SqlError(Code.DUPLICATE_DATA_PART, f"There is a detached/{name} already")
        yield Incoming(name, self._detach_received)

    async def discard(self, staged: PartName, *, prefix: str = "") -> None:
        await self._step()
        stored = self.disk.staged.pop(staged, None)
        if stored is not None and prefix:
            self.disk.detach(f"{prefix}_{staged}", stored)
        for directory in [each for each, part in self.disk.attaching.items() if part == staged]:
            del self.disk.attaching[directory]
        await self._after()

    # -- what readers see ----------------------------------------------------------------------------------

    async def publish(self, add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
        if self._process is not None and self.faults.draws(self.faults.kill_at_publish):
            self.faults.kill_at_publish = 0.0
            self._process.kill()
            await self._after()
        for partition_id in sorted({name.partition_id for name in (*add, *remove)}):
            await self._step()
            for name in add:
                if name not in self.disk.staged and name not in self.disk.active:
                    raise SqlError(Code.NO_SUCH_DATA_PART, f"Part {name} is neither staged nor active")
            self._switch(
                [name for name in add if name.partition_id == partition_id],
                [name for name in remove if name.partition_id == partition_id and name not in add],
            )
            await self._after()

    async def remove(self, names: Sequence[PartName], *, fate: Fate = Fate.DROP, prefix: str = "") -> None:
        for partition_id in sorted({name.partition_id for name in names}):
            await self._step()
            going = [name for name in names if name.partition_id == partition_id]
            if fate is Fate.DETACH:
                for name in going:
                    if name in self.disk.active and name not in self.disk.gone:
                        self.disk.detach(f"{prefix}_{name}" if prefix else str(name), self.disk.active[name])
            self._switch([], going)
            self.disk.gone.difference_update(going)
            await self._after()

    # -- the rest ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def send(self, name: PartName) -> AsyncIterator[OutgoingPart]:
        await self._pause()
        stored = self.disk.active.get(name) or self.disk.staged.get(name)
        if stored is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {name} in the table")
        part = self._part(name, stored)
        if self.faults.draws(self.faults.damage_sent):
            # The network flips bits and cuts off, too; an empty file comes from here alone.
            damage = self.faults.rng.choice([Damage.EMPTY_FILE, Damage.TRUNCATION, Damage.EMPTY_FILE])
            file = self.faults.rng.choice([DATA, COUNT])
            self.faults.seen(f"{damage.value} in transfer")
            stored = stored.damaged(damage, self.faults.rng.getrandbits(30), file=file)
        yield Outgoing(part, stored, self._pause)

    async def verify(self, name: PartName) -> None:
        await self._step()
        stored = self.disk.active.get(name) or self.disk.staged.get(name)
        if stored is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"No part {name} in the table")
        if name in self.disk.gone:
            raise PartDiffers(str(name), "its directory is gone")
        stored.check(str(name))

    async def gone(self, names: Sequence[PartName]) -> Sequence[PartName]:
        return [name for name in names if name in self.disk.gone]

    async def detached(self) -> Sequence[DetachedPart]:
        return self.disk.list_detached()

    async def detached_with(self, hash_text: str) -> Sequence[DetachedPart]:
        return [part for part in self.disk.list_detached() if self.disk.hash_of(part.directory) == hash_text]

    async def remove_detached(self, directory: str) -> None:
        await self._step()
        self.disk.detached.pop(directory, None)
        await self.forget_attaching(directory)

    @property
    def attaching(self) -> Mapping[str, PartName]:
        return dict(self.disk.attaching)

    async def forget_attaching(self, directory: str) -> None:
        await self._step()
        self.disk.attaching.pop(directory, None)
        await self._after()

    async def relabel_detached(self, directory: str, prefix: str) -> None:
        await self.forget_attaching(directory)
        for each in self.disk.list_detached():
            if each.directory == directory:
                name = each.name or directory
                self.disk.detach(
                    f"{prefix}_{name}" if prefix else str(name), self.disk.detached.pop(directory)
                )
        await self._after()

    async def set_aside(self, directory: str, prefix: str) -> None:
        await self._step()
        stored = self.disk.broken.pop(directory, None)
        if stored is not None:
            self.disk.detach(f"{prefix}_{directory}", stored)
        await self._after()

    async def partition_ids(self, expression: str) -> Sequence[str]:
        return partition_ids_of(expression, self.disk.active)

    async def freeze(self, partition_ids: Sequence[str] | None, backup_name: str) -> None:
        await self._step()
        chosen = {
            name: stored
            for name, stored in self.disk.active.items()
            if partition_ids is None or name.partition_id in partition_ids
        }
        if gone := sorted(self.disk.gone & chosen.keys()):
            raise PartsBroken(TableName("", ""), gone)
        self.disk.shadow.setdefault(backup_name, {}).update(chosen)
        await self._after()

    # -- inside --------------------------------------------------------------------------------------------

    async def _stage(self, name: PartName, stored: StoredPart, origin: Origin) -> Part:
        """Complete and durable at one moment; a part that is active already stays as it is."""
        self.faults.need_space()
        if name in self.disk.active:
            return self._part(name, self.disk.active[name])
        self.disk.staged[name] = stored
        if self._on_staged is not None:
            self._on_staged(Staged(name, origin, stored))
        await self._after()
        return self._part(name, stored)

    async def _stage_received(self, name: PartName, stored: StoredPart) -> Part:
        await self._step()
        for place in (self.disk.active, self.disk.staged):
            if name in place:
                return self._part(name, place[name])
        return await self._stage(name, replace(stored, modified_s=self._env.now_s()), Origin.RECEIVED)

    async def _detach_received(self, name: PartName, stored: StoredPart) -> Part:
        await self._step()
        self.faults.need_space()
        self.disk.detach(str(name), stored)
        await self._after()
        return stored.part(name)

    def _switch(self, add: Sequence[PartName], remove: Sequence[PartName]) -> None:
        added = [name for name in add if name not in self.disk.active]
        removed = [name for name in remove if name in self.disk.active]
        for name in added:
            self.disk.active[name] = self.disk.staged[name]
        for name in add:
            self.disk.staged.pop(name, None)
        for name in removed:
            del self.disk.active[name]
        if self._on_visible is not None and (added or removed):
            partition_id = (added or removed)[0].partition_id
            now = tuple(sorted(name for name in self.disk.active if name.partition_id == partition_id))
            self._on_visible(Visible(tuple(added), tuple(removed), now))

    def _active(self, name: PartName) -> StoredPart:
        stored = self.disk.active.get(name)
        if stored is None:
            raise SqlError(Code.NO_SUCH_DATA_PART, f"No active part {name} in the table")
        return stored

    def _stored(self, rows: Rows, marks: tuple[str, ...]) -> StoredPart:
        columns = self.disk.definition.columns.to_bytes()
        return StoredPart.of_rows(rows, columns, marks, self._env.now_s())

    def _part(self, name: PartName, stored: StoredPart) -> Part:
        known = self._parts.get(name)
        if known is None or known[0] is not stored:
            try:
                known = self._parts[name] = (stored, stored.part(name))
            except PartDiffers:
                if known is None:
                    raise
        return known[1]
