"""The seam between replication and the disk: the parts of one replica of one table.

A part is *staged* first: complete, durable, under its replicated name, read by nobody, but already good
enough to be sent to other replicas. `publish` then shows staged parts to readers and hides others, at one
moment. Keeper's `parts/<part>` is written between the two, so a crash leaves one of three things, all of
which `load` tells apart: a staged part that Keeper does not know (it never was), a staged part that Keeper
knows (publish it), or an active part.

The store does not decide anything: which part may replace which is the caller's business, and the caller
never asks for two things at once that concern the same part. All methods may otherwise be called
concurrently.

Implemented on chDB by `engine.storage`, in memory by `engine.testing`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from engine.errors import Code, SqlError
from engine.names import TableName
from engine.replication.columns import Columns
from engine.replication.part_checksums import PartDigest
from engine.replication.part_header import PartHeader
from engine.replication.part_name import PartName
from engine.replication.table_definition import TableDefinition
from engine.replication.table_metadata import TableMetadata


@dataclass(frozen=True, slots=True)
class PartTtl:
    """When rows or values of a part expire, in Unix time: the first of them, and all rows (0 for never).

    `recompressions` are expressions, each with the time when it has come for all rows; `codec` is what the
    part is compressed with, as `CODEC(…)`.
    """

    first_s: int
    whole_s: int = 0
    recompressions: tuple[tuple[str, int], ...] = ()
    codec: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that has its replicated name. `columns` is the text of its `columns.txt`; `modified_s` Unix
    time."""

    name: PartName
    digest: PartDigest
    columns: bytes
    rows: int
    size_bytes: int
    modified_s: float
    ttl: PartTtl | None = None
    """None where nothing expires any more."""
    projections: frozenset[str] = frozenset()

    @property
    def header(self) -> PartHeader:
        """What `parts/<part>` in Keeper holds."""
        return PartHeader.of(self.columns, self.digest)


@dataclass(frozen=True, slots=True)
class NewPart:
    """What an insert made of the rows of one partition: written, without a name, seen by nobody.

    `handle` is the store's. `data_hash` (16 bytes) identifies the rows; a block id is made of it unless the
    user gave a token. `level` is 1 if rows of equal key were merged (`optimize_on_insert`), so that FINAL has
    nothing to do within the part.
    """

    handle: str
    partition_id: str
    data_hash: bytes
    rows: int
    size_bytes: int
    level: int = 0


_TRY = re.compile(r"_try[0-9]+\Z")
_DETACH_REASONS = frozenset(
    {
        "attaching",
        "broken",
        "broken-from-backup",
        "broken-on-start",
        "clone",
        "covered-by-broken",
        "deleting",
        "ignored",
        "merge-not-byte-identical",
        "mutate-not-byte-identical",
        "noquorum",
        "restoring",
        "tmp-fetch",
        "unexpected",
    }
)


@dataclass(frozen=True, slots=True)
class DetachedPart:
    """A part in `detached/`. `directory` is its whole name there, `name` what of it is a part's name, if any,
    `prefix` what stands before (`ignored`, `broken`, …; empty for what a user detached). `level` is what the
    part has when it is attached: 1 where rows of equal key were merged in it, and that means something."""

    directory: str
    prefix: str
    name: PartName | None
    level: int = 0

    @classmethod
    def of(cls, directory: str) -> DetachedPart:
        """What a directory's name says: a known prefix, else the part alone, else any prefix.

        In this order: `all_0_0_1_7` is a part, and not `0_0_1_7` with the prefix `all`; neither is
        `restoring_1_4_9_1` a part of the partition `restoring`. `_tryN` at the end belongs to no name.
        Source: ClickHouse's DetachedPartInfo::tryParseDetachedPartName.
        """
        text = _TRY.sub("", directory)
        first, _, rest = text.partition("_")
        name = PartName.try_parse(rest)
        if name is not None and first in _DETACH_REASONS:
            return cls(directory, first, name)
        if (whole := PartName.try_parse(text)) is not None:
            return cls(directory, "", whole)
        return cls(directory, "" if name is None else first, name)


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """What a store found at its start. `broken` are directories that are no whole part, of `broken_bytes` in
    all; they are still there."""

    active: tuple[Part, ...]
    staged: tuple[Part, ...]
    broken: tuple[str, ...]
    broken_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """As in a MERGE_PARTS entry. `now_s` is the entry's create time. `keep_expired` leaves in what a TTL
    would take away."""

    deduplicate: bool = False
    deduplicate_by_columns: tuple[str, ...] = ()
    cleanup: bool = False
    now_s: float = 0.0
    keep_expired: bool = False


@dataclass(frozen=True, slots=True)
class AlterPlan:
    """`mutation` is what rewrites the data (such as `DROP COLUMN x`), empty where the metadata is all."""

    definition: TableDefinition
    mutation: str


class Fate(enum.Enum):
    """What becomes of parts that are taken away."""

    DROP = "drop"
    DETACH = "detach"
    """Kept in `detached/` under their replicated names."""


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file of a part on its way: a plain name (no path), and its size in bytes."""

    name: str
    size_bytes: int


class OutgoingPart(Protocol):
    """A part that is being sent; its files stay as they are until the context ends."""

    @property
    def part(self) -> Part: ...

    @property
    def files(self) -> Sequence[PartFile]: ...

    def read(self, file: PartFile) -> AsyncIterator[bytes]: ...


class IncomingPart(Protocol):
    """A part that is being received, in a temporary directory that is removed unless `finish` succeeds."""

    def have_room(self, size_bytes: int) -> None:
        """Called before anything of so many bytes is written: a part that does not fit would fill the disk
        for everybody each time that it is tried. Raises SqlError 243."""
        ...

    async def write(self, file: PartFile, content: AsyncIterator[bytes]) -> None:
        """Raises PartDiffers for a hostile name, a repeated file or another size than declared."""
        ...

    async def finish(self, expected: PartHeader | None) -> Part:
        """Check every byte (list of files, sizes, hashes, content) and stage the part.

        `expected` is Keeper's header. Raises PartDiffers, and nothing is left then. If the part is staged or
        active already the new copy is thrown away.
        """
        ...


class PartsBroken(SqlError):
    """Parts that readers see, and that should stay, are not whole on the disk: nothing was changed."""

    def __init__(self, table: TableName, parts: Sequence[PartName]) -> None:
        super().__init__(
            Code.CHECKSUM_DOESNT_MATCH,
            f"Parts {', '.join(map(str, parts))} of {table} are broken on the disk",
            hint="They are checked, and fetched from another replica.",
        )
        self.parts = tuple(parts)


@dataclass(frozen=True, slots=True)
class TableSize:
    """Of the parts that readers see."""

    rows: int
    compressed_bytes: int
    uncompressed_bytes: int


class PartStore(Protocol):
    """The parts of one table on this node. Raises SqlError with chDB's codes (243 for a full disk)."""

    # -- what is there -------------------------------------------------------------------------------------

    async def load(self) -> LoadedParts:
        """Look at the disk; once, before anything else."""
        ...

    @property
    def active(self) -> Mapping[PartName, Part]:
        """What readers see."""
        ...

    @property
    def staged(self) -> Mapping[PartName, Part]: ...

    async def size(self) -> TableSize: ...

    async def definition(self) -> TableDefinition:
        """The table as it is now."""
        ...

    # -- making parts; every result is staged ----------------------------------------------------------------

    async def stage_inserted(self, new: NewPart, name: PartName) -> Part:
        """Give an inserted part its name. `new` is used up."""
        ...

    async def discard_inserted(self, new: NewPart) -> None: ...

    async def rename_staged(self, staged: PartName, name: PartName) -> Part:
        """Give a staged part of the same partition another name; both were meant for it alone.

        For an insert whose block number was taken away from it. After a crash in the middle `load` finds the
        part under one of the two names.
        """
        ...

    def preparing_merge(
        self, sources: Sequence[PartName], result: PartName
    ) -> AbstractAsyncContextManager[None]:
        """While it is not sure yet whether there will be this `merge`: what it can need is made already.
        Raises nothing, and promises nothing."""
        ...

    async def merge(self, sources: Sequence[PartName], result: PartName, options: MergeOptions) -> Part:
        """Sources are active, of one partition, in the order of their blocks. The same sources give the same
        bytes on every replica of the same version."""
        ...

    async def mutate(self, source: PartName, result: PartName, commands: str) -> Part:
        """`commands` as in a MutationEntry. `source` is active. A mutation that changes nothing is a copy."""
        ...

    async def stage_copy(self, of: PartStore, source: PartName, result: PartName) -> Part:
        """A hard-linked copy of an active part of a table (this or another of equal structure) on this
        node."""
        ...

    async def stage_detached(self, directory: str, result: PartName) -> Part:
        """A checked copy of what lies in `detached/`; it stays there until `remove_detached`, and is noted in
        `attaching`. Raises PartDiffers or SqlError 233, 232."""
        ...

    async def stage_empty(self, result: PartName) -> Part:
        """A part without rows, in the place of one that is lost for ever."""
        ...

    def receive(self, name: PartName) -> AbstractAsyncContextManager[IncomingPart]: ...

    def receive_detached(self, name: PartName) -> AbstractAsyncContextManager[IncomingPart]:
        """As `receive`, for a part of another table: `finish` leaves it in `detached/` under its name.
        Raises SqlError 235 if there is one of that name in `detached/`."""
        ...

    async def discard(self, staged: PartName, *, prefix: str = "") -> None:
        """Throw a staged part away, or keep it as `detached/<prefix>_<part>`; nothing if there is none."""
        ...

    # -- what readers see ------------------------------------------------------------------------------------

    async def publish(self, add: Sequence[PartName], remove: Sequence[PartName] = ()) -> None:
        """Staged parts `add` become active and active parts `remove` vanish, at one moment per partition.

        Repeatable: what is active already, or gone already, is passed over. After a crash in the middle
        `load`
        finds each partition as it was before or as it is after.
        """
        ...

    async def remove(self, names: Sequence[PartName], *, fate: Fate = Fate.DROP, prefix: str = "") -> None:
        """Active parts vanish, at one moment per partition; with DETACH each is kept as
        `detached/[<prefix>_]<part>`. What is not there is passed over."""
        ...

    async def plan_alter(self, commands: str, *, allowed: Collection[str] = ()) -> AlterPlan:
        """What `ALTER TABLE … <commands>` would make of the table, tried on an empty copy. `allowed` are
        settings such as `allow_suspicious_codecs` or `materialize_ttl_after_modify` that are on. Raises
        SqlError."""
        ...

    async def apply_alter(
        self,
        columns: Columns,
        metadata: TableMetadata,
        renames: Mapping[str, str],
        mutation: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """Give the table another definition; repeatable. Readers see old rows through it from then on,
        whether or not their parts are rewritten later; parts that other replicas have made under it, too.

        `renames` are columns, old name to new. `mutation` is the number of the mutation that rewrites data
        for it, by partition: parts of an older data version have the columns as they were.
        """
        ...

    async def apply_settings(self, changes: Mapping[str, str | None]) -> None:
        """Settings of the table; None resets one."""
        ...

    async def apply_comment(self, comment: str) -> None:
        """The table's comment."""
        ...

    # -- the rest --------------------------------------------------------------------------------------------

    def send(self, name: PartName) -> AbstractAsyncContextManager[OutgoingPart]:
        """Raises SqlError 232 NO_SUCH_DATA_PART unless the part is active or staged."""
        ...

    async def verify(self, name: PartName) -> None:
        """Read a part and compare every hash. Raises PartDiffers."""
        ...

    async def gone(self, names: Sequence[PartName]) -> Sequence[PartName]:
        """Those of the active parts `names` whose directory somebody has removed from the disk."""
        ...

    async def detached(self) -> Sequence[DetachedPart]: ...

    async def detached_with(self, hash_text: str) -> Sequence[DetachedPart]:
        """Those whose list of files has this `hash_of_all_files`. Whether the files are as it says is not
        looked at."""
        ...

    async def remove_detached(self, directory: str) -> None: ...

    @property
    def attaching(self) -> Mapping[str, PartName]:
        """Directories of `detached/`, and of each the part that was staged last, by whatever process."""
        ...

    async def forget_attaching(self, directory: str) -> None:
        """What was staged of it is not to be."""
        ...

    async def relabel_detached(self, directory: str, prefix: str) -> None:
        """Give what lies in `detached/` another prefix, empty for none; nothing if it is not there. `_tryN`
        is added where the name is taken."""
        ...

    async def set_aside(self, directory: str, prefix: str) -> None:
        """Move a broken directory that `load` reported to `detached/<prefix>_…`."""
        ...

    async def partition_ids(self, expression: str) -> Sequence[str]:
        """The id of the partition that an SQL expression of `ALTER … PARTITION <expression>` names: `ID 'x'`,
        a value, a tuple, or ALL (then those of all active parts). Raises SqlError 248
        INVALID_PARTITION_VALUE."""
        ...

    async def freeze(self, partition_ids: Sequence[str] | None, backup_name: str) -> None:
        """Hard links of the parts that readers see at one moment below `shadow/<backup_name>/`, under their
        replicated names; None for all. Raises PartsBroken, and links nothing, where one has no directory."""
        ...
