"""How a replica comes to the definitions that it should have, and what becomes of those that it has."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import cast

import pytest

from engine.databases import DatabaseSettings, LocalSchema, digest_of
from engine.databases.joining import create_database, create_replica
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.recovery import Kept, make_definitions, recover
from engine.databases.replica import DatabaseReplica
from engine.ddl.text import encode_bytes
from engine.errors import Code, SqlError
from engine.keeper.base import Keeper
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.recipes import SessionHolder
from engine.testing.simulation import SimulationEnv, run_simulation
from tests.unit.databases.test_recovery import text, view

PATHS = DatabasePaths("/databases/d")
ME = ReplicaName("s", "r")
REPLICATED = "ReplicatedMergeTree"


class Tables:
    """Of one database: texts by name, which have files, which have rows; `aside` is another database. A text
    with `FROM x` needs the table x."""

    def __init__(self, tables: Mapping[str, str], *, files: str = "", rows: str = "") -> None:
        self.tables = dict(tables)
        self.files = {*files.split(), *rows.split()}
        self.rows = set(rows.split())
        self.aside: dict[str, str] = {}
        self.made: list[str] = []

    def texts(self) -> Mapping[str, str]:
        return dict(self.tables)

    def replicates(self, text: str) -> bool:
        return REPLICATED in text

    async def create(self, name: str, text: str) -> None:
        needed = re.search(r"FROM (\w+)", text)
        if needed is not None and needed[1] not in self.tables:
            raise SqlError(Code.UNKNOWN_TABLE, f"{name} needs {needed[1]}")
        assert name not in self.tables
        self.made.append(name)
        self.tables[name] = text

    async def rename(self, name: str, new_name: str) -> None:
        assert new_name not in self.tables
        self.tables[new_name] = self.tables.pop(name)

    async def drop(self, name: str) -> None:
        del self.tables[name]

    async def has_data(self, name: str) -> bool:
        return name in self.files

    async def has_rows(self, name: str) -> bool:
        return name in self.rows

    async def move_aside(self, name: str, new_name: str, *, replicated: bool) -> None:
        assert replicated == self.replicates(self.tables[name])
        self.aside[re.sub(r"\d+$", "N", new_name)] = self.tables.pop(name)


def replica(env: SimulationEnv, tables: Tables, **settings: float) -> DatabaseReplica:
    return DatabaseReplica(
        env=env,
        holder=cast(SessionHolder, None),
        paths=PATHS,
        me=ME,
        host="r:9000:uuid",
        server_uuid="server",
        schema=cast(LocalSchema, tables),
        settings=DatabaseSettings(**settings),  # type: ignore[arg-type]
        database_name=lambda: "d",
    )


def made(tables: Tables, wanted: Mapping[str, str], kept: Kept = Kept.FILES, **settings: float) -> None:
    async def main(env: SimulationEnv) -> None:
        async with asyncio.timeout(60):
            await make_definitions(replica(env, tables, **settings), wanted, 7, kept)

    run_simulation(1, main)


def test_what_is_missing_is_made_as_soon_as_what_it_needs_is_there() -> None:
    wanted = {
        "a": view(1, 11, "SELECT * FROM b"),
        "b": view(2, 12, "SELECT * FROM z"),
        "y": text(3),
        "z": text(4),
    }
    tables = Tables({"y": text(3)}, rows="y")
    made(tables, wanted)
    assert tables.tables == wanted
    assert tables.made == ["z", "b", "a"]


def test_what_nobody_can_make_is_told_when_everything_else_is_made() -> None:
    wanted = {"a": view(1, 11, "SELECT * FROM nowhere"), "b": view(2, 12, "SELECT * FROM z"), "z": text(4)}
    tables = Tables({})
    with pytest.raises(SqlError, match="a needs nowhere"):
        made(tables, wanted)
    assert tables.tables == {name: wanted[name] for name in ("b", "z")}


def test_where_too_much_would_have_to_go_nothing_is_touched() -> None:
    there = {"a": text(1), "b": text(2), "c": text(3), "r": text(4, REPLICATED)}
    wanted = {"a": text(1), "b": text(5), "c": text(6), "other": text(4, REPLICATED)}
    tables = Tables(there, rows="a b c r")
    with pytest.raises(SqlError) as refused:
        made(tables, wanted, max_broken_tables_ratio=0.49)
    assert refused.value.code == 571
    assert (tables.tables, tables.aside) == (there, {})
    made(tables, wanted, max_broken_tables_ratio=0.5)
    assert tables.tables == wanted
    assert tables.aside == {"b_7_N": text(2), "c_7_N": text(3)}


def test_replicated_tables_change_names_among_themselves() -> None:
    one, two, three = (text(number, REPLICATED) for number in (1, 2, 3))
    tables = Tables({"a": one, "b": two, "c": three}, rows="a b c")
    made(tables, {"a": two, "b": three, "c": one})
    assert tables.tables == {"a": two, "b": three, "c": one}
    assert tables.aside == {} and tables.made == []


@pytest.mark.parametrize(
    ("kept", "files", "rows", "goes_aside"),
    [
        (Kept.FILES, "", "t", True),
        (Kept.FILES, "t", "", True),
        (Kept.FILES, "", "", False),
        (Kept.ROWS, "", "t", True),
        (Kept.ROWS, "t", "", False),
    ],
)
def test_a_table_that_has_to_go_is_moved_aside_with_what_is_kept_of_it(
    kept: Kept, files: str, rows: str, goes_aside: bool
) -> None:
    tables = Tables({"t": text(1)}, files=files, rows=rows)
    made(tables, {"t": text(2)}, kept)
    assert tables.tables == {"t": text(2)}
    assert tables.aside == ({"t_7_N": text(1)} if goes_aside else {})


OWN = ".inner_id.x"


def test_a_view_that_differs_leaves_its_own_table_where_that_is_wanted() -> None:
    tables = Tables({"v": view(1, 2), OWN: text(2)}, rows=OWN)
    wanted = {"v": view(1, 2, "SELECT 2 AS k"), OWN: text(2)}
    made(tables, wanted)
    assert (tables.tables, tables.aside, tables.made) == (wanted, {}, ["v"])


def test_a_view_that_differs_leaves_a_replicated_table_to_its_own_name() -> None:
    """Which is known by its UUID, whatever is defined besides."""
    tables = Tables({"v": view(1, 2), OWN: text(2, REPLICATED)}, rows=OWN)
    made(tables, {"v": view(1, 3), "other": text(2, REPLICATED, "`k` UInt8")})
    assert tables.tables == {"v": view(1, 3), "other": text(2, REPLICATED)}
    assert tables.aside == {}


@pytest.mark.parametrize("has_rows", [True, False])
def test_the_rows_of_a_view_that_goes_are_under_its_name(has_rows: bool) -> None:
    tables = Tables({"v": view(1, 2), OWN: text(2)}, rows=OWN if has_rows else "")
    made(tables, {})
    assert tables.tables == {}
    assert tables.aside == ({"v_7_N": text(2)} if has_rows else {})


def test_a_view_that_could_not_be_loaded_goes_aside_with_its_table() -> None:
    tables = Tables({"v": view(1, 2), OWN: text(2)}, files="v", rows=OWN)
    moved: list[str] = []
    move_aside = tables.move_aside

    async def noted(name: str, new_name: str, *, replicated: bool) -> None:
        moved.append(name)
        tables.aside.clear()  # both have the same name, in databases of their own kind
        await move_aside(name, new_name, replicated=replicated)

    tables.move_aside = noted  # type: ignore[method-assign]
    made(tables, {})
    assert tables.tables == {}
    assert moved == [OWN, "v"]


def test_a_replica_that_has_recovered_says_so_and_nobody_waits_for_it() -> None:
    async def main(env: SimulationEnv) -> None:
        keeper: Keeper = await MemoryKeeperServer(env).connect()
        await create_database(keeper, PATHS, database_name="d", logs_to_keep=10)
        await create_replica(keeper, env, PATHS, ME, host="r:9000:uuid")
        await keeper.create(PATHS.table("t"), encode_bytes(text(1)))
        joined = int((await keeper.get(PATHS.replica(ME, "max_log_ptr_at_creation"))).data)
        newest = joined + 3
        for number in range(joined + 1, newest + 2):
            await keeper.create(PATHS.entry(number))
            for leaf in ("finished", "synced"):
                await keeper.create(PATHS.entry(number, leaf))
        await keeper.set(PATHS.max_log_ptr, str(newest).encode())
        tables = Tables({})
        assert await recover(keeper, replica(env, tables), log_ptr=0) == newest
        assert tables.tables == {"t": text(1)}
        assert (await keeper.get(PATHS.replica(ME, "log_ptr"))).data == str(newest).encode()
        digest = (await keeper.get(PATHS.replica(ME, "digest"))).data
        assert int(digest) == digest_of(tables.tables)
        for leaf in ("finished", "synced"):
            told = [
                number
                for number in range(joined, newest + 2)
                if await keeper.exists(PATHS.entry(number, f"{leaf}/{ME}")) is not None
            ]
            assert told == [joined + 1, joined + 2, newest]

    run_simulation(1, main)
