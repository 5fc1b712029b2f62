"""The seam between the queue and whatever runs SQL on this host.

`LocalExecutor` is all the worker needs. What it returns as a digest decides how much the worker can promise
after a crash, so `Fingerprint` gives that text a shape; other text is taken as the digest of a definition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from engine.ddl.attempt import Fence
from engine.errors import SqlError
from engine.names import TableName
from engine.sql.statement import Statement


@dataclass(frozen=True, slots=True)
class Execution:
    """A statement that is to be run, with what holds for it alone. The ids and `user` say who asked."""

    sql: str
    settings: Mapping[str, str] = field(default_factory=dict)
    query_id: str = ""
    initial_query_id: str = ""
    user: str = "default"


class LocalExecutor(Protocol):
    """Runs statements on this host. All methods may be called concurrently."""

    async def execute(self, execution: Execution) -> None:
        """Run one statement to its end; its effect is durable when this returns.

        Raises SqlError with ClickHouse's code when the statement failed, and then it had no effect, unless
        that is one of those after which it may have happened (`engine.ddl.failures`).
        """
        ...

    async def table_engine(self, table: TableName) -> str | None:
        """The engine's name, None if there is no such table (an empty database means the default one)."""
        ...

    def supports_replication(self, engine: str) -> bool:
        """Whether tables of this engine share data and definition with the other replicas of the shard."""
        ...

    async def definition_digest(self, statement: Statement, database: str) -> str:
        """What the statement would change, as it stands now; best a `Fingerprint`. Empty: cannot tell.

        Two calls give the same text if nothing changed in between, and different texts if the statement took
        effect in between. Called once before an effect, and once more after a crash.
        """
        ...

    async def validate(self, sql: str) -> str:
        """What the real parser makes of `sql`: one formatted line. Raises SqlError 62."""
        ...


@runtime_checkable
class FencedExecutor(Protocol):
    """An executor whose replicated tables change in Keeper, where the change can be made conditional and be
    recorded."""

    async def execute_fenced(self, execution: Execution, *, fence: Fence) -> None:
        """As `execute`; every effect is committed in one transaction with what `fence` gives for it, or not
        at all, and `fence` is closed when this returns.

        Raises FenceLost when the fence does not hold any more.
        """
        ...


@runtime_checkable
class RecordingExecutor(Protocol):
    """An executor that looks, has it recorded and executes in one go, on one thread."""

    async def execute_recorded(
        self,
        execution: Execution,
        *,
        statement: Statement,
        database: str,
        record: Callable[[str], None],
    ) -> None:
        """Call `record` with the digest of what `statement` would change, then execute.

        `record` may block and is called on any thread. What it raises is raised, and nothing was executed.
        Otherwise as `LocalExecutor.execute`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of a series; `database` is what an unqualified name means."""

    execution: Execution
    statement: Statement
    database: str


class Steps(Protocol):
    """Where an executor takes a series from. May be called on any thread, and may block."""

    def take(self) -> Sequence[Step]:
        """The next ones, no two of one object, which are recorded together before the first of them is
        executed; what was taken before has taken effect. Empty: no more."""
        ...

    def record(self, digests: Sequence[str]) -> None:
        """What each of the steps taken last would change."""
        ...

    def done(self) -> bool:
        """The next step in order has taken effect. Returns whether to go on with the one after it."""
        ...


@runtime_checkable
class SeriesExecutor(Protocol):
    """A `RecordingExecutor` that does so for several statements on one thread, one after the other."""

    async def takes_in_series(self, statement: Statement, database: str) -> bool:
        """Whether the statement is this server's alone and so simple that it may be part of a series."""
        ...

    async def execute_series(self, steps: Steps, settings: Mapping[str, str]) -> None:
        """Take, record and execute until `take` gives none or `done` says so. All have the same settings.

        What a step raises is raised, and nothing was executed after it. Whether a step that failed had an
        effect, its error says as that of `LocalExecutor.execute`.
        """
        ...


class FenceLost(SqlError):
    """Another replica has taken over this statement; nothing was changed here."""


@dataclass(frozen=True, slots=True, order=True)
class Blocks:
    """A range of blocks of one partition that parts of a table cover. Merges and mutations leave it as it is;
    an insert adds a new range, and only dropping takes one away."""

    partition: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a statement would change, as it stands at one moment.

    `objects`    every object that the statement acts on, by name: a digest of UUID and definition, empty
                 when there is no such object. Enough for CREATE, DROP, RENAME, EXCHANGE, most of ALTER.
    `mutations`  ids of all mutations of the tables acted on, finished or not. Needed for UPDATE, DELETE,
                 MATERIALIZE, CLEAR, KILL MUTATION.
    `blocks`     what the parts concerned cover. Needed for TRUNCATE and for DROP, DETACH, REPLACE, MOVE
                 PARTITION.
    `is_shared`  the same on every replica of the shard, and read from where the replicas agree on it.
    None in `mutations` or `blocks` means not looked at.
    """

    objects: tuple[tuple[str, str], ...] = ()
    mutations: tuple[str, ...] | None = None
    blocks: tuple[Blocks, ...] | None = None
    is_shared: bool = False

    def to_text(self) -> str:
        """One line of JSON, equal for equal fingerprints."""
        blocks = None
        if self.blocks is not None:
            blocks = [[b.partition, b.first, b.last] for b in sorted(self.blocks)]
        mutations = None if self.mutations is None else sorted(self.mutations)
        facts = {
            "objects": sorted(self.objects),
            "mutations": mutations,
            "blocks": blocks,
            "shared": self.is_shared,
        }
        return json.dumps(facts, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Fingerprint | None:
        """None for the empty text. Text of any other form stands for the definition of one unnamed object."""
        if not text:
            return None
        try:
            facts = json.loads(text)
            blocks = facts["blocks"]
            mutations = facts["mutations"]
            return cls(
                objects=tuple((str(name), str(digest)) for name, digest in facts["objects"]),
                mutations=None if mutations is None else tuple(str(m) for m in mutations),
                blocks=None
                if blocks is None
                else tuple(
                    Blocks(str(partition), int(first), int(last)) for partition, first, last in blocks
                ),
                is_shared=bool(facts["shared"]),
            )
        except (ValueError, KeyError, TypeError):
            return cls(objects=(("", text),))
