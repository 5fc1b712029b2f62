"""The seam between a Replicated database's protocol and whatever holds its tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from engine.ddl.attempt import Fence
from engine.keeper.base import Op


class Commit(Protocol):
    """The transaction that commits the initiator's statement for all replicas; used once."""

    async def __call__(self, changes: Mapping[str, str | None]) -> None:
        """Commit it with what becomes of tables' metadata texts (None: gone). Raises when it was not, and
        UnknownOutcome when nobody can tell yet."""
        ...

    async def ops(self, changes: Mapping[str, str | None]) -> Sequence[Op]:
        """The same as operations, for a transaction of the table's own."""
        ...

    async def handed_over(self) -> bool:
        """After `ops`: whether that transaction was committed, also when it seemed to fail."""
        ...


class LocalSchema(Protocol):
    """The tables of one database on this replica."""

    def texts(self) -> Mapping[str, str]:
        """Metadata texts by table's name, those that are attached."""
        ...

    def replicates(self, text: str) -> bool:
        """Whether it is that of a table whose replicas share rows and definition."""
        ...

    async def runs_once_per_shard(self, query: str) -> bool:
        """Of a statement of the log: one replica of each shard does it for the others."""
        ...

    async def execute(self, number: int, query: str, settings: Mapping[str, str], fence: Fence) -> None:
        """Entry `number` of the log, which another replica has committed. What is done already counts as
        done. `fence` goes into every transaction that changes a replicated table. Raises SqlError, and
        MultiFailed where the fence did not hold."""
        ...

    def begins(self, number: int) -> None:
        """Write down, durably, that entry `number` is carried out here from now on, whoever sent it."""
        ...

    def begun(self) -> int:
        """The last entry of which `begins` was told; 0 if nothing is known."""
        ...

    def is_effect_of(self, number: int, query: str, digest: int) -> bool:
        """Whether the definitions differ from those with this digest by the whole effect of entry `number`,
        which was begun here, and by nothing else. False where that cannot be proven."""
        ...

    def other_hashes(self) -> Mapping[str, Collection[int]]:
        """By table's name hashes (`hash_of`) of texts that replicated tables had, or were to get, as far as
        they are known: Keeper's digest may be one with them."""
        ...

    def before_create(self, query: str) -> Mapping[str, str] | None:
        """The definitions before a statement that has made a table here, by what is here; None of any other
        one, also of an ATTACH."""
        ...

    async def take_back(self, query: str) -> None:
        """The opposite of another statement that `is_effect_of` is true of. Raises SqlError."""
        ...

    async def redo(self, query: str, settings: Mapping[str, str]) -> None:
        """A statement that this replica has committed and may not have carried out before its process
        ended. Raises SqlError."""
        ...

    async def create(self, name: str, text: str) -> None:
        """A table, view or dictionary by its metadata text. Raises SqlError."""
        ...

    async def rename(self, name: str, new_name: str) -> None: ...

    async def drop(self, name: str) -> None:
        """What has no rows of its own. A table that a view has for its own stays."""
        ...

    async def has_data(self, name: str) -> bool:
        """Whether it has files of its own on the disk."""
        ...

    async def has_rows(self, name: str) -> bool:
        """Whether it has rows, as far as anybody can tell: files of which that is not known count."""
        ...

    async def move_aside(self, name: str, new_name: str, *, replicated: bool) -> None:
        """Into another database, with its rows."""
        ...

    async def settle(self) -> None:
        """The definitions are as they should be: what was put away until that is known can go."""
        ...
