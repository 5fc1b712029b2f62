"""The DDL queue's executor where tables are replicated: whose a statement is, fences, half-done tables."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

import pytest

from engine.ddl.attempt import Attempt, Fence
from engine.ddl.executor import Execution, FenceLost, Fingerprint
from engine.env import SystemEnv
from engine.errors import BadVersion, MultiFailed
from engine.keeper.base import Check, Node, Op
from engine.names import TableName
from engine.node.replicated.executor import ReplicatedExecutor
from engine.node.replicated.running.catalog import TableCatalog, TableRecord, TableState
from engine.node.replicated.running.runtime import ReplicatedTables, RunningTable
from engine.node.replicated.running.statements import done
from engine.node.statements.node_statements import NodeStatements
from engine.node.statements.statement import Answer, Asked
from engine.replication.mutation_entry import MutationEntry
from engine.sql import Statement, parse_statement

T = TypeVar("T")
NAME = TableName("d", "t")
NO_STAT: Any = None


def fence() -> Fence:
    return Fence(Check("/queue/tries", 3), "/queue/attempt", Attempt("n1:9000", ""))


def execution(sql: str) -> Execution:
    return Execution(sql, settings={"a": "1"}, query_id="q", initial_query_id="q", user="u")


class Session:
    async def close(self) -> None: ...


@dataclass
class Inner:
    """chDB's executor."""

    digest: str = ""
    ran: list[str] = field(default_factory=list)

    def new_session(self) -> Session:
        return Session()

    async def execute(self, execution: Execution) -> None:
        self.ran.append(execution.sql)

    async def execute_recorded(
        self, execution: Execution, *, record: Callable[[str], None], **_: object
    ) -> None:
        record("chDB's")
        self.ran.append(execution.sql)

    async def table_engine(self, table: TableName) -> str | None:
        return "MergeTree"

    async def definition_digest(self, statement: Statement, database: str) -> str:
        return self.digest


@dataclass
class Handlers:
    """What a handler does with statements on `t`; it knows no other."""

    raises: Exception | None = None
    uses_fence: bool = True
    seen: list[Asked] = field(default_factory=list)

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if NAME not in statement.tables:
            return None
        self.seen.append(asked)
        if self.raises is not None:
            raise self.raises
        if self.uses_fence:
            asked.fence.whole()
        return done(asked)


class World:
    def __init__(self, directory: Path) -> None:
        self.inner, self.handlers, self.catalog = Inner(), Handlers(), TableCatalog(directory)
        self.catalog.load()
        self.tables = ReplicatedTables()
        self.changes = 0
        self.committed: list[Sequence[Op]] = []
        life: Any = SimpleNamespace(
            catalog=self.catalog, tables=self.tables, on_change=self._changed, holder=self
        )
        inner: Any = self.inner
        self.executor = ReplicatedExecutor(
            inner, life=life, handlers=self.handlers, statements=NodeStatements(SystemEnv())
        )

    def _changed(self) -> None:
        self.changes += 1

    async def get(self) -> "World":
        """The session: this keeps what is committed through it."""
        return self

    async def multi(self, ops: Sequence[Op]) -> None:
        self.committed.append(ops)

    def add(self, state: TableState) -> None:
        record = TableRecord(UUID(int=1), NAME, "/t", "r", "/t", "r", state)
        self.catalog.put(record)
        nothing: Any = SimpleNamespace(name=NAME)
        self.tables.add(RunningTable(record, nothing, nothing, nothing))

    def recorded(self, sql: str) -> list[str]:
        """Execute, and what was recorded before."""
        digests: list[str] = []
        run(
            self.executor.execute_recorded(
                execution(sql), statement=parse_statement(sql), database="d", record=digests.append
            )
        )
        return digests


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def test_statements_on_replicated_tables_go_the_clients_way_with_the_queues_fence(world: World) -> None:
    given = fence()
    run(world.executor.execute_fenced(execution("TRUNCATE TABLE d.t"), fence=given))
    [asked] = world.handlers.seen
    assert (asked.fence, asked.settings, world.inner.ran) == (given, {"a": "1"}, [])
    assert world.committed == []


def test_a_statement_whose_handler_needed_no_transaction_is_recorded_at_its_end(world: World) -> None:
    world.handlers.uses_fence = False
    given = fence()
    run(world.executor.execute_fenced(execution("OPTIMIZE TABLE d.t"), fence=given))
    [ops] = world.committed
    assert [op.path for op in ops] == ["/queue/tries", "/queue/attempt"]
    assert given.is_closed


def test_a_clients_statement_commits_nothing_of_a_queue(world: World) -> None:
    world.handlers.uses_fence = False
    run(world.executor.execute(execution("TRUNCATE TABLE d.t")))
    assert world.committed == []


def test_everything_else_is_chdbs_and_may_have_changed_a_view(world: World) -> None:
    run(world.executor.execute_fenced(execution("TRUNCATE TABLE d.other"), fence=fence()))
    assert world.inner.ran == ["TRUNCATE TABLE d.other"]
    assert world.changes == 1


def _refused(path: str) -> MultiFailed:
    return MultiFailed(1, BadVersion(path), [0, BadVersion.keeper_code])


def test_a_fence_that_does_not_hold_is_lost_and_any_other_refusal_is_itself(world: World) -> None:
    world.handlers.raises = _refused("/queue/tries")
    with pytest.raises(FenceLost):
        run(world.executor.execute_fenced(execution("TRUNCATE TABLE d.t"), fence=fence()))
    world.handlers.raises = _refused("/t/metadata")
    with pytest.raises(MultiFailed):
        run(world.executor.execute_fenced(execution("TRUNCATE TABLE d.t"), fence=fence()))


def test_the_engine_says_that_the_table_replicates(world: World) -> None:
    assert run(world.executor.table_engine(NAME)) == "MergeTree"
    world.add(TableState.ATTACHED)
    assert run(world.executor.table_engine(NAME)) == "ReplicatedMergeTree"


@pytest.mark.parametrize(
    ("sql", "is_chdbs"),
    [
        ("CREATE TABLE d.x (a Int8) ENGINE = Memory", True),
        ("DROP TABLE d.x", True),
        ("ALTER TABLE d.x DROP COLUMN a", True),
        ("DROP TABLE t", False),
        ("RENAME TABLE x TO d.t", False),
        ("DROP DATABASE d", False),
        ("CREATE TABLE d.x AS d.t", False),
        ("CREATE TABLE d.x (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a", False),
        ("SYSTEM SYNC REPLICA t", False),
    ],
)
def test_only_what_cannot_concern_a_replicated_table_takes_the_short_way(
    world: World, sql: str, is_chdbs: bool
) -> None:
    world.add(TableState.ATTACHED)
    assert (world.recorded(sql) == ["chDB's"]) is is_chdbs


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (TableState.CREATING, ""),
        (TableState.DROPPING, ""),
        (TableState.ATTACHED, "abc"),
        (TableState.CONVERTING, "abc"),
    ],
)
def test_a_table_that_is_half_made_or_half_dropped_counts_as_absent(
    world: World, state: TableState, counts: str
) -> None:
    world.inner.digest = Fingerprint(objects=(("table d.t", "abc"), ("table d.u", "def"))).to_text()
    world.add(state)
    statement = parse_statement("RENAME TABLE d.t TO d.u")
    found = Fingerprint.from_text(run(world.executor.definition_digest(statement, "d")))
    assert found is not None
    assert dict(found.objects) == {"table d.t": counts, "table d.u": "def"}


def test_a_statement_for_the_whole_shard_is_judged_by_what_is_in_keeper(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes: Mapping[str, bytes] = {"/t/metadata": b"m", "/t/columns": b"c"}

    class Keeper:
        async def sync(self, path: str) -> None: ...

        async def get_many(self, paths: Sequence[str]) -> list[object]:
            return [SimpleNamespace(data=nodes[path]) for path in paths]

        async def children(self, path: str) -> object:
            return SimpleNamespace(names=("0000000000",))

    world.add(TableState.ATTACHED)
    table = world.tables.find(NAME)
    assert table is not None
    record = table.record
    ctx: Any = SimpleNamespace(name=NAME, paths=record.paths, session=Keeper)
    table.ctx = ctx
    statement = parse_statement("ALTER TABLE d.t ADD COLUMN x Int8")
    before = Fingerprint.from_text(run(world.executor.definition_digest(statement, "d")))
    assert before is not None and before.is_shared and before.mutations == ("0000000000",)
    nodes = {**nodes, "/t/columns": b"changed"}
    after = Fingerprint.from_text(run(world.executor.definition_digest(statement, "d")))
    assert after is not None and after.objects != before.objects


@pytest.mark.parametrize("sql", ["DELETE FROM d.t WHERE a = 1", "UPDATE d.t SET a = 2 WHERE 1"])
def test_of_what_every_replica_does_only_this_ones_mutations_count(world: World, sql: str) -> None:
    """DELETE and UPDATE ON CLUSTER make a mutation on each replica: the other's is no sign of one's own."""
    entries = {
        f"{number:010}": MutationEntry(
            "2020-01-01 00:00:00", replica, (("all", number),), "DELETE WHERE 1", -1
        )
        for number, replica in enumerate(("r", "other"))
    }

    class Keeper:
        async def sync(self, path: str) -> None: ...

        async def children(self, path: str) -> object:
            return SimpleNamespace(names=tuple(entries))

        async def get_many(self, paths: Sequence[str]) -> list[object]:
            return [Node(entries[path.rpartition("/")[2]].to_bytes(), NO_STAT) for path in paths]

    world.add(TableState.ATTACHED)
    table = world.tables.find(NAME)
    assert table is not None
    ctx: Any = SimpleNamespace(name=NAME, paths=table.record.paths, session=Keeper, replica="r")
    table.ctx = ctx
    found = Fingerprint.from_text(run(world.executor.definition_digest(parse_statement(sql), "d")))
    assert found is not None and found.mutations == ("d.t 0000000000",)
