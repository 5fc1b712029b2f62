"""Writing a tree into a file: of one instant where the tree lets us, and never silently otherwise.

Safety argument. Keeper has no reads of a snapshot, so the instant is proven instead. A node's identity (its
transaction ids, see `live.Identity`) is equal at two moments only if the node did not change between them.

1. All children lists are read, with the identity of each node; then all ACLs and values, with the identity
   again. If every node has the same identity twice, then at the moment T between the two phases every node
   was as it was read, and, from the root down, no node was missing: the file is the tree at T.
2. If some differ, all lists are read again, with T now before that. Nodes whose identity is that of their
   record have not changed between their reading (before T) and their listing (after T). If these are all,
   the file is the tree at T. Otherwise the others are read again, as a further run of the file, and step 2
   is repeated, `rounds` times at most.
3. If the tree does not come to rest, the nodes read in the last round are named in the trailer as
   *changing*: each is whole (value and bookkeeping are read at one moment) but of a later moment than T;
   all others are as at T. Nothing is in the file whose parent is not.
4. The file gets its trailer, is made durable, and only then its name. Nothing that exists is overwritten.

A crash or a lost session after any step leaves the file under its name with `.part` behind it: whole chunks
are used again, whatever follows the last of them is cut off, and step 2 proves them or reads them again. Two
who write the same file at once: the second is refused. Keeper is only read.

Reads never go back behind what was seen: `engine.operations.keeper_backup.patient` begins each session with
`sync`, and before each T there is one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from engine.env import Env
from engine.errors import Busy, Corrupt, Refused
from engine.keeper.base import Keeper
from engine.operations.keeper_backup.backup_file import (
    ChunkKind,
    ChunkWriter,
    Entry,
    Gone,
    entry_of,
    merged,
    read_chunks,
)
from engine.operations.keeper_backup.facts import BackupFacts, Phase, Progress, no_progress
from engine.operations.keeper_backup.live import (
    BATCH_NODES,
    UNREADABLE,
    Identity,
    Listing,
    batches,
    identity_of,
    list_tree,
    read_nodes,
)
from engine.operations.keeper_backup.patient import PatientKeeper
from engine.operations.keeper_backup.record import NodeRecord, highest_zxid, order_of, parent_of

ROUNDS = 5
_UNSETTLED: Identity = (-2, -2, -2, -2, -2)
"""Of a record whose node changed while it was read: equal to nothing."""

_LONGEST_LIST = 10_000
_SETTLED_BYTES = 4 << 20
_MODE = 0o600
"""Values and digests of passwords are for whoever may read Keeper, not for everybody on the machine."""


async def dump_tree(
    source: PatientKeeper,
    path: Path,
    *,
    root: str = "/",
    source_name: str,
    env: Env,
    rounds: int = ROUNDS,
    progress: Progress = no_progress,
) -> BackupFacts:
    """Write the tree below `root` into `path`, continuing what an earlier call has left.

    `source_name` says which Keeper it is; an unfinished file of another one is not continued. Raises
    Refused (the file is there; no such root; the unfinished file is of something else), Busy (somebody
    writes it), KeeperUnavailable (what is done is kept), OSError.
    """
    if path.exists():
        raise Refused(f"{path} is there already.", hint="A backup is never overwritten; give another name.")
    part = path.with_name(path.name + ".part")
    head = {"format": "oncluster keeper backup", "root": root, "source": source_name}
    with _owned(part) as file:
        dumper = _Dumper(source, root, file, part, head=head, env=env, progress=progress)
        dumper.load()
        await dumper.read_all(rounds=rounds)
        finished, facts = dumper.finish()
        try:
            os.link(finished, path)  # unlike a rename it does not take the place of what came meanwhile
        except FileExistsError:
            raise Refused(f"{path} was made meanwhile by somebody else.", hint="Give another name.") from None
        part.unlink()
        if finished != part:
            finished.unlink()
    _sync_directory(path.parent)
    return facts


@dataclass(slots=True)
class _Proof:
    """What the trailer says about the instant."""

    at_ms: int = 0
    rounds: int = 0
    changing: list[str] = field(default_factory=list)


class _Dumper:
    """One dump. `index` has the identity of every node that the file has."""

    def __init__(
        self,
        source: PatientKeeper,
        root: str,
        file: BinaryIO,
        part: Path,
        *,
        head: Mapping[str, Any],
        env: Env,
        progress: Progress,
    ) -> None:
        self._source = source
        self._root = root
        self._file = file
        self._part = part
        self._head = head
        self._env = env
        self._progress = progress
        self._index: dict[str, Identity] = {}
        self._spans: list[tuple[int, int]] = []
        """(begin, end) of each run in the file."""
        self._has_gone = False
        self._last_run = -1
        self._is_new_run = True
        self._writer = ChunkWriter(file)
        self._proof = _Proof()
        self._skipped: tuple[str, ...] = ()

    # --- what an earlier call has left --------------------------------------------------------------------

    def load(self) -> None:
        """Take up the whole chunks of the unfinished file, cut off what follows them."""
        end, number, run, digest = 0, 0, -1, self._writer.digest
        try:
            for chunk in read_chunks(self._part):
                if chunk.kind is ChunkKind.TRAILER:
                    break  # the crash was between the trailer and the name: it is written again
                if chunk.kind is ChunkKind.HEAD:
                    self._check_head(chunk.lines[0] if chunk.lines else {})
                else:
                    self._take_up([entry_of(line) for line in chunk.lines])
                    self._extend(end, chunk.ends_at, is_new_run=chunk.run != run)
                    run = chunk.run
                end, number, digest = chunk.ends_at, chunk.number + 1, chunk.digest
                self._progress(Phase.TAKING_UP, len(self._index), 0)
        except Corrupt:
            pass  # the torn end of a crash, or damage: what precedes it is good
        self._file.truncate(end)
        self._file.seek(end)
        self._writer = ChunkWriter(self._file, number=number, digest=digest)
        self._last_run = run
        if end == 0:
            self._writer.write(ChunkKind.HEAD, [self._head])

    def _extend(self, begin: int, end: int, *, is_new_run: bool) -> None:
        if is_new_run:
            self._spans.append((begin, end))
        else:
            self._spans[-1] = (self._spans[-1][0], end)

    def _check_head(self, head: Mapping[str, Any]) -> None:
        for name, wanted in self._head.items():
            if head.get(name) != wanted:
                raise Refused(
                    f"{self._part} is an unfinished backup of something else: its {name} is "
                    f"{head.get(name)!r}, not {wanted!r}.",
                    hint="Give another file name, or remove it.",
                )

    def _take_up(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Gone):
                self._has_gone = True
                self._index.pop(entry.path, None)
            else:
                self._index[entry.path] = UNREADABLE if entry.data is None else identity_of(entry.stat)

    # --- reading ------------------------------------------------------------------------------------------

    async def read_all(self, *, rounds: int) -> None:
        """Steps 1 to 3."""
        is_first = not self._index
        for round_ in range(1, rounds + 2):
            await self._source.ask(_sync)
            self._proof.at_ms = int(self._env.now_s() * 1000)
            listing = await list_tree(
                self._source, self._root, tick=lambda done: self._progress(Phase.LISTING, done, 0)
            )
            self._skipped = listing.skipped
            gone = [path for path in self._index if path not in listing.nodes]
            dirty = [path for path, seen in listing.nodes.items() if self._index.get(path) != seen]
            self._proof.rounds = round_
            if not gone and not dirty:
                self._proof.changing = []
                return
            if is_first:  # T is between listing and reading
                self._proof.at_ms = int(self._env.now_s() * 1000)
                await self._source.ask(_sync)
            has_changed = await self._read(listing, dirty, gone)
            if is_first and not has_changed:
                return
            is_first = False
            self._proof.changing = sorted({*dirty, *gone}, key=order_of)
        self._drop_orphans()

    async def _read(self, listing: Listing, dirty: list[str], gone: list[str]) -> bool:
        """One more run. Whether anything differs from the listing."""
        self._begin_run()
        has_changed = False
        done = 0
        for batch in batches(sorted({*dirty, *gone}, key=order_of), listing.sizes):
            entries: list[Entry] = []
            asked = [path for path in batch if path in listing.nodes]
            found = dict(zip(asked, await read_nodes(self._source, self._root, asked), strict=True))
            for path in batch:
                record = found.get(path)
                if record is None:
                    has_changed = True
                    self._index.pop(path, None)
                    entries.append(Gone(path))
                    continue
                seen = UNREADABLE if record.data is None else identity_of(record.stat)
                if seen != listing.nodes[path]:
                    has_changed, seen = True, _UNSETTLED
                self._index[path] = seen
                entries.append(record)
            self._write(entries)
            done += len(batch)
            self._progress(Phase.READING, done, len(dirty) + len(gone))
        return has_changed

    def _drop_orphans(self) -> None:
        """After the last round: what stands below a node that is gone is gone, and not as at T either."""
        orphans: list[Gone] = []
        for path in sorted(self._index, key=order_of):
            if path != "/" and parent_of(path) not in self._index:
                del self._index[path]
                orphans.append(Gone(path))
        if orphans:
            changing = {*self._proof.changing, *(orphan.path for orphan in orphans)}
            self._proof.changing = sorted(changing, key=order_of)
            self._begin_run()
            for start in range(0, len(orphans), BATCH_NODES):
                self._write(orphans[start : start + BATCH_NODES])

    def _begin_run(self) -> None:
        self._last_run += 1
        self._writer.run = self._last_run
        self._is_new_run = True

    def _write(self, entries: Sequence[Entry]) -> None:
        if not entries:
            return
        begin = self._file.tell()
        self._has_gone |= any(isinstance(entry, Gone) for entry in entries)
        self._writer.write_entries(entries)
        self._extend(begin, self._file.tell(), is_new_run=self._is_new_run)
        self._is_new_run = False

    # --- finishing ----------------------------------------------------------------------------------------

    def finish(self) -> tuple[Path, BackupFacts]:
        """Give the file its trailer; where there are several runs, make one of them in another file."""
        records = merged(self._part, self._spans)
        if len(self._spans) <= 1 and not self._has_gone:
            return self._part, self._complete(records, None)
        settled = self._part.with_name(self._part.name + ".settled")
        with os.fdopen(os.open(settled, os.O_RDWR | os.O_CREAT | os.O_TRUNC, _MODE), "wb") as file:
            self._writer = ChunkWriter(file)
            self._writer.write(ChunkKind.HEAD, [self._head])
            return settled, self._complete(records, self._writer)

    def _complete(self, records: Iterator[NodeRecord], copy_to: ChunkWriter | None) -> BackupFacts:
        """Count the records, copy them where asked to, write the trailer."""
        nodes = ephemeral = unreadable = hidden = value_bytes = zxid = raises = 0
        batch: list[Entry] = []
        batch_bytes = 0
        for record in records:
            nodes += 1
            ephemeral += record.is_ephemeral
            unreadable += record.data is None
            hidden += record.has_hidden_acl
            value_bytes += len(record.data or b"")
            zxid = max(zxid, highest_zxid([record.stat]))
            if not record.is_ephemeral:
                raises += record.stat.version + record.creations
            if nodes % BATCH_NODES == 0:
                self._progress(Phase.SETTLING, nodes, len(self._index))
            if copy_to is None:
                continue
            batch.append(record)
            batch_bytes += len(record.data or b"")
            if len(batch) >= BATCH_NODES or batch_bytes > _SETTLED_BYTES:
                copy_to.write_entries(batch)
                batch, batch_bytes = [], 0
        if copy_to is not None:
            copy_to.write_entries(batch)
        facts = BackupFacts(
            root=self._root,
            source=str(self._head["source"]),
            nodes=nodes,
            ephemeral=ephemeral,
            unreadable=unreadable,
            hidden_acls=hidden,
            value_bytes=value_bytes,
            zxid=zxid,
            at_ms=self._proof.at_ms,
            rounds=self._proof.rounds,
            changing_count=len(self._proof.changing),
            changing=tuple(self._proof.changing[:_LONGEST_LIST]),
            skipped=self._skipped,
            raises=raises,
        )
        self._writer.write(ChunkKind.TRAILER, [facts.to_json()])
        self._writer.sync()
        return facts.with_digest(self._writer.digest.hex())


async def _sync(keeper: Keeper) -> None:
    await keeper.sync("/")


@contextmanager
def _owned(part: Path) -> Iterator[BinaryIO]:
    """The unfinished file, ours alone while this lasts. Raises Busy."""
    with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT, _MODE), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = part.stat().st_ino == os.fstat(file.fileno()).st_ino
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if not is_ours:
            raise Busy(
                f"Somebody is writing {part}, or has just finished it.",
                holder="another process",
                hint="Wait for it, or give another name.",
            )
        yield file


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
