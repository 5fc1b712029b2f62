"""ALTER of a replicated table on chDB: readers see the new definition at once, parts stay what they are."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from engine.errors import Code, Corrupt, SqlError
from engine.names import TableName
from engine.part_storage import HIDDEN_SETTINGS, ChdbPartStore
from engine.part_storage.alter_statements import next_step
from engine.part_storage.altering import Alterer
from engine.part_storage.mutation_scratch import split_commands
from engine.part_storage.scratch_tables import ScratchTables
from engine.part_storage.workers import Connection
from engine.replication.columns import Columns
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate
from engine.replication.table_definition import TableDefinition, parse_definition
from engine.storage import ChdbPool
from tests.unit.part_storage.support import add, named, opened, rows, texts

pytestmark = pytest.mark.slow

CREATE = (
    "CREATE TABLE t (k UInt64, v String, n UInt8, gone UInt32, INDEX i n TYPE minmax,"
    " PROJECTION p (SELECT v ORDER BY v), CONSTRAINT c CHECK k < 1000000) ENGINE = MergeTree ORDER BY k"
)


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[tuple[ChdbPool, ChdbPartStore]]:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(
            pool, store, "SELECT number + 1, toString(number + 7), number + 3, 9 FROM numbers(3)", "all_0_0_0"
        )
        await add(pool, store, "SELECT 10, '70', 30, 9", "all_1_1_0")
        yield pool, store


async def alter(
    store: ChdbPartStore,
    commands: str,
    renames: dict[str, str] | None = None,
    *,
    number: int = 0,
    allowed: Sequence[str] = (),
) -> str:
    """As a replica does: plan, then apply what Keeper would hold. Returns the mutation, of this number."""
    plan = await store.plan_alter(commands, allowed=allowed)
    mutation = {"all": number} if plan.mutation else {}
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, renames or {}, mutation)
    after = await store.definition()
    assert (after.columns, after.metadata) == (plan.definition.columns, plan.definition.metadata)
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, renames or {}, mutation)
    return plan.mutation


Made = tuple[ChdbPool, ChdbPartStore]


async def test_an_added_column_is_there_and_nothing_is_rewritten(made: Made) -> None:
    pool, store = made
    before = dict(store.active)
    assert (
        await alter(store, "ADD COLUMN x String DEFAULT concat('x', v) AFTER k, COMMENT COLUMN v 'text'")
        == ""
    )
    assert await rows(pool, "k, x") == "1\tx7 2\tx8 3\tx9 10\tx70"
    assert dict(store.active) == before
    await add(pool, store, "SELECT 11, 'new', '71', 31, 9", "all_2_2_0")
    assert await rows(pool, "x") == "new x7 x70 x8 x9"


@pytest.mark.parametrize(
    ("commands", "mutation", "shown", "what"),
    [
        ("DROP COLUMN gone", "DROP COLUMN gone", "k, v, n", "1\t7\t3 2\t8\t4 3\t9\t5 10\t70\t30"),
        (
            "MODIFY COLUMN gone String",
            "MODIFY COLUMN `gone` String",
            "k, concat(gone, '!')",
            "1\t9! 2\t9! 3\t9! 10\t9!",
        ),
        (
            "MODIFY COLUMN n String DEFAULT 'no number'",
            "MODIFY COLUMN `n` String DEFAULT 'no number'",
            "concat(n, '!')",
            "3! 30! 4! 5!",
        ),
        ("DROP INDEX i", "DROP INDEX i", "n", "3 4 5 30"),
        ("DROP PROJECTION p", "DROP PROJECTION p", "n", "3 4 5 30"),
        ("RENAME COLUMN gone TO here", "RENAME COLUMN gone TO here", "k, here", "1\t9 2\t9 3\t9 10\t9"),
        (
            "RENAME COLUMN gone TO here, ADD COLUMN gone String DEFAULT concat('new', v)",
            "RENAME COLUMN gone TO here",
            "k, here, gone",
            "1\t9\tnew7 2\t9\tnew8 3\t9\tnew9 10\t9\tnew70",
        ),
    ],
)
async def test_old_parts_are_read_through_the_new_definition_and_mutated_later(
    made: Made, commands: str, mutation: str, shown: str, what: str
) -> None:
    pool, store = made
    renames = {"gone": "here"} if "RENAME" in commands else {}
    before = dict(store.active)
    assert await alter(store, commands, renames) == mutation
    assert await rows(pool, shown) == what
    assert dict(store.active) == before
    for name in sorted(before):
        async with store.send(name) as outgoing:  # a peer still gets what Keeper knows
            assert outgoing.part == before[name]
        await store.verify(name)
        result = PartName(name.partition_id, name.min_block, name.max_block, name.level, 5)
        mutated = await store.mutate(name, result, mutation)
        assert mutated.columns != before[name].columns or "INDEX" in commands or "PROJECTION" in commands
        await store.publish([result], [name])
        assert await rows(pool, shown) == what
    assert texts(store.active) == ["all_0_0_0_5", "all_1_1_0_5"]
    assert not list(store.state.originals_root.glob("*"))


@pytest.mark.parametrize("wide_from_bytes", ["0", "1000000"])
async def test_columns_give_their_names_to_others_in_one_alter(tmp_path: Path, wide_from_bytes: str) -> None:
    create = (
        "CREATE TABLE t (k UInt64, a UInt8 DEFAULT 5, b String, c Date) ENGINE = MergeTree ORDER BY k "
        f"SETTINGS min_bytes_for_wide_part = {wide_from_bytes}"
    )
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 2, 'text', '2020-01-01'", "all_0_0_0")
        renames = {"a": "x", "b": "a", "c": "b"}
        mutation = ", ".join(f"RENAME COLUMN {old} TO {new}" for old, new in renames.items())
        assert await alter(store, mutation, renames) == mutation
        assert await rows(pool, "k, x, a, b") == "1\t2\ttext\t2020-01-01"
        result = PartName.parse("all_0_0_0_1")
        await store.mutate(PartName.parse("all_0_0_0"), result, mutation)
        await store.publish([result], [PartName.parse("all_0_0_0")])
        assert texts(store.active) == ["all_0_0_0_1"]
        assert await rows(pool, "k, x, a, b") == "1\t2\ttext\t2020-01-01"


@pytest.mark.parametrize(
    ("commands", "mutation"),
    [
        ("DROP STATISTICS a", "DROP STATISTICS a"),
        ("DROP STATISTICS a, b", "DROP STATISTICS a, b"),
        ("(DROP STATISTICS a), (DROP COLUMN b)", "(DROP STATISTICS a), (DROP COLUMN b)"),
    ],
)
async def test_statistics_are_dropped(tmp_path: Path, commands: str, mutation: str) -> None:
    create = (
        "CREATE TABLE t (k UInt64, a UInt8 DEFAULT 5 STATISTICS(minmax), b UInt8 STATISTICS(minmax)) "
        "ENGINE = MergeTree ORDER BY k"
    )
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 2, 3", "all_0_0_0")
        before = dict(store.active)
        assert await alter(store, commands) == mutation
        assert dict(store.active) == before
        assert await rows(pool, "k, a") == "1\t2"
        result = PartName.parse("all_0_0_0_1")
        mutated = await store.mutate(PartName.parse("all_0_0_0"), result, mutation)
        assert not mutated.digest.is_same_content(before[PartName.parse("all_0_0_0")].digest)
        await store.publish([result], list(before))
        assert await rows(pool, "k, a") == "1\t2"


@pytest.mark.parametrize(
    ("before", "value", "after", "shown"),
    [
        ("Variant(String, UInt8)", "'x'::Variant(String, UInt8)", "Variant(Date, String, UInt8)", "x"),
        ("UInt8", "7", "Variant(String, UInt8)", "7"),
        ("String", "'q'", "Dynamic", "q"),
        ("String", "'{\"a\":1}'", "JSON", '{"a":1}'),
        ("Enum8('a' = 1)", "'a'", "Enum8('a' = 1, 'b' = 2)", "a"),
    ],
)
async def test_a_column_gets_a_type_that_cannot_be_turned_back(
    tmp_path: Path, before: str, value: str, after: str, shown: str
) -> None:
    create = f"CREATE TABLE t (k UInt64, x {before}, v String) ENGINE = MergeTree ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, f"SELECT 1, {value}, 'v'", "all_0_0_0")
        mutation = await alter(store, f"MODIFY COLUMN x {after}")
        source, result = named("all_0_0_0", "all_0_0_0_1")
        if mutation:
            await store.mutate(source, result, mutation)
            await store.publish([result], [source])
        assert await rows(pool, "k, toString(x), v") == f"1\t{shown}\tv"
        definition = await store.definition()
        assert [column.name for column in definition.columns.columns] == ["k", "x", "v"]


@pytest.mark.parametrize(
    ("default", "commands"),
    [
        ("DEFAULT 'q'", "MODIFY COLUMN x String"),
        ("DEFAULT upper('q')", "MODIFY COLUMN x LowCardinality(String)"),
        ("MATERIALIZED if(k = 1, 'Q', NULL)", "MODIFY COLUMN x String DEFAULT 'Q', COMMENT COLUMN x 'c'"),
        ("", "MODIFY COLUMN x String DEFAULT 'Q'"),
    ],
)
async def test_null_becomes_the_columns_default(tmp_path: Path, default: str, commands: str) -> None:
    """Also where the ALTER does not say it again."""
    create = (
        f"CREATE TABLE t (k UInt64, v String, x Nullable(String) {default}) ENGINE = MergeTree ORDER BY k"
    )
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        given = "SELECT 1, 'q'" if default.startswith("M") else "SELECT 1, 'q', NULL"
        await add(pool, store, given, "all_0_0_0")
        mutation = await alter(store, commands)
        before = await rows(pool, "x, isNull(x)")
        [source], [result] = named("all_0_0_0"), named("all_0_0_0_1")
        await store.mutate(source, result, mutation)
        await store.publish([result], [source])
        assert await rows(pool, "x, isNull(x)") == before
        assert before.lower() == "q\t0"


async def test_a_column_gets_statistics_that_its_old_type_cannot_have(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, v String, a String ALIAS v) ENGINE = MergeTree ORDER BY k"
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, '15'", "all_0_0_0")
        mutation = await alter(store, "MODIFY COLUMN v Decimal(9, 2), MODIFY STATISTICS v TYPE tdigest")
        [source], [result] = named("all_0_0_0"), named("all_0_0_0_1")
        await store.mutate(source, result, mutation)
        await store.publish([result], [source])
        assert await rows(pool, "v, toTypeName(v), a") == "15\tDecimal(9, 2)\t15"


async def test_a_renamed_column_is_found_in_parts_that_come_later_and_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'a', 3, 9", "all_0_0_0")
        await add(pool, store, "SELECT 2, 'b', 4, 8", "all_1_1_0")
        late = PartName.parse("all_2_2_0")
        async with store.send(PartName.parse("all_1_1_0")) as outgoing, store.receive(late) as incoming:
            for file in outgoing.files:
                await incoming.write(file, outgoing.read(file))
            header = (await incoming.finish(None)).header
        await alter(store, "RENAME COLUMN gone TO here", {"gone": "here"})
        await store.publish([late])
        assert await rows(pool, "k, here") == "1\t9 2\t8 2\t8"
        known = dict(store.active)
    async with opened(tmp_path) as (pool, store):
        await store.load()
        assert dict(store.active) == known
        assert await rows(pool, "k, here") == "1\t9 2\t8 2\t8"
        assert store.active[late].header == header
        await store.remove(named("all_1_1_0"))
        assert await rows(pool, "k, here") == "1\t9 2\t8"


@pytest.mark.parametrize("text", ["", '{"v": "w"', '["v"]', "\xff"])
@pytest.mark.parametrize("file", ["renames.json", "dropped.json"])
async def test_a_table_that_cannot_read_what_it_remembers_of_columns_is_not_loaded(
    tmp_path: Path, file: str, text: str
) -> None:
    async with opened(tmp_path, CREATE) as (_, store):
        await store.load()
        if file == "renames.json":
            await alter(store, "RENAME COLUMN gone TO here", {"gone": "here"})
        else:
            await alter(store, "DROP COLUMN gone", number=1)
    [notes] = tmp_path.rglob(file)
    notes.write_bytes(text.encode("latin-1"))
    async with opened(tmp_path) as (_, store):
        with pytest.raises(Corrupt, match=file):
            await store.load()


async def test_a_rename_that_was_cut_before_the_definition_changed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """chDB writes the mutation first; without its definition it fails for ever, and a start waited for it."""
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'a', 3, 9", "all_0_0_0")
        execute = Connection.execute

        def cut(self: Connection, statement: str) -> None:
            if "RENAME COLUMN" not in statement:
                return execute(self, statement)
            created = "format version: 1\ncreate time: 2026-11-26 13:04:16\n"
            file = store.state.data / "mutation_50.txt"
            file.write_text(f"{created}commands: (RENAME COLUMN gone TO here)\n")
            raise SystemExit("killed here")

        plan = await store.plan_alter("RENAME COLUMN gone TO here")
        with monkeypatch.context() as patch:
            patch.setattr(Connection, "execute", cut)
            patch.setattr(Alterer, "settle", lambda *_: None)
            with pytest.raises(SystemExit):
                definition = plan.definition
                await store.apply_alter(definition.columns, definition.metadata, {"gone": "here"})
    async with opened(tmp_path) as (pool, store):
        async with asyncio.timeout(120):
            await store.load()
        assert await rows(pool, "k, gone") == "1\t9"
        await alter(store, "RENAME COLUMN gone TO here", {"gone": "here"})
        assert await rows(pool, "k, here") == "1\t9"


async def test_an_alter_does_not_wait_for_a_mutation_that_a_part_without_rows_fails(tmp_path: Path) -> None:
    """After a kill chDB may have such a part back, from before a column was renamed."""
    async with opened(tmp_path, CREATE) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'a', 2, 9", "all_0_0_0")
        await store.remove(named("all_0_0_0"), fate=Fate.DROP)
        data = store.state.data
    written = "format version: 1\ncreate time: 2026-01-01 00:00:00\ncommands: (RENAME COLUMN gone TO past)\n"
    (data / "mutation_50.txt").write_text(written)
    async with opened(tmp_path) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 2, 'b', 3, 9", "all_1_1_0")
        sql = "SELECT parts_to_do FROM system.mutations WHERE table = 't' AND NOT is_done"
        assert (await pool.query(sql)).text == "1\n"
        async with asyncio.timeout(120):
            await alter(store, "MODIFY COLUMN gone String")
        assert await rows(pool, "k, gone") == "2\t9"
        assert (await pool.query(sql)).text == ""


async def test_a_column_that_is_renamed_twice_is_found_in_parts_of_any_age(made: Made) -> None:
    pool, store = made
    source = PartName.parse("all_1_1_0")
    await alter(store, "RENAME COLUMN gone TO one", {"gone": "one"})
    await alter(store, "RENAME COLUMN one TO two", {"one": "two"})
    copy = PartName.parse("all_2_2_0")
    part = await store.stage_copy(store, source, copy)
    assert part.digest == store.active[source].digest
    await store.publish([copy])
    assert await rows(pool, "k, two") == "1\t9 2\t9 3\t9 10\t9 10\t9"
    halfway = PartName.parse("all_1_1_0_5")
    await store.mutate(source, halfway, "RENAME COLUMN gone TO one")
    await store.publish([halfway], [source])
    assert await rows(pool, "k, two") == "1\t9 2\t9 3\t9 10\t9 10\t9"
    whole = PartName.parse("all_2_2_0_6")
    commands = "RENAME COLUMN gone TO one, RENAME COLUMN one TO two, MODIFY COLUMN two UInt64"
    mutated = await store.mutate(copy, whole, commands)
    assert b"`two` UInt64" in mutated.columns
    await store.publish([whole], [copy])
    assert await rows(pool, "k, two") == "1\t9 2\t9 3\t9 10\t9 10\t9"


@pytest.mark.parametrize(
    ("commands", "shown"),
    [
        ("UPDATE two = two + 1 WHERE two > 0", "10\t10"),
        ("DELETE WHERE two = 5, UPDATE v = 'x' WHERE k = 1, MODIFY COLUMN two UInt64", "10\t9"),
        ("UPDATE one = one + 1 WHERE 1, RENAME COLUMN one TO two, UPDATE two = two + 1 WHERE 1", "10\t11"),
        ("UPDATE gone = 5 WHERE k = 10, RENAME COLUMN gone TO one, RENAME COLUMN one TO two", "10\t5"),
        ("CLEAR COLUMN two", "10\t0"),
    ],
)
async def test_a_mutation_of_any_age_knows_a_renamed_column_in_a_part_that_has_an_old_name(
    made: Made, commands: str, shown: str
) -> None:
    """Such as one that was detached before the column was renamed, and attached again."""
    pool, store = made
    await store.remove(named("all_1_1_0"), fate=Fate.DETACH)
    await store.remove(named("all_0_0_0"))
    await alter(store, "RENAME COLUMN gone TO one", {"gone": "one"})
    await alter(store, "RENAME COLUMN one TO two", {"one": "two"})
    [attached], [result] = named("all_5_5_0"), named("all_5_5_0_6")
    await store.stage_detached("all_1_1_0", attached)
    await store.publish([attached])
    assert await rows(pool, "k, two") == "10\t9"

    await store.mutate(attached, result, commands)
    await store.publish([result], [attached])

    assert await rows(pool, "k, two") == shown
    await store.verify(result)


async def test_a_column_that_is_dropped_and_added_again_does_not_show_the_old_values(made: Made) -> None:
    pool, store = made
    before = dict(store.active)
    late = named("all_2_2_0_3")
    await store.stage_copy(store, PartName.parse("all_1_1_0"), late[0])
    await alter(store, "DROP COLUMN gone", number=5)
    await alter(store, "ADD COLUMN gone UInt32 DEFAULT 5")
    assert await rows(pool, "k, gone") == "1\t5 2\t5 3\t5 10\t5"
    assert dict(store.active) == before
    await store.publish(late)
    assert await rows(pool, "k, gone") == "1\t5 2\t5 3\t5 10\t5 10\t5"
    await store.remove(late)
    await add(pool, store, "SELECT 11, '71', 31, 8", "all_6_6_0")
    name = PartName.parse("all_0_0_0")
    mutated = PartName.parse("all_0_0_0_5")
    await store.mutate(name, mutated, "DROP COLUMN gone")
    await store.publish([mutated], [name])
    assert await rows(pool, "k, gone") == "1\t5 2\t5 3\t5 10\t5 11\t8"


async def test_settings_change_and_the_hidden_ones_stay(made: Made) -> None:
    _, store = made
    await store.apply_settings({"parts_to_throw_insert": "77", "max_number_of_merges_with_ttl_in_pool": "5"})
    settings = dict((await store.definition()).settings)
    assert settings["parts_to_throw_insert"] == "77"
    assert settings["max_number_of_merges_with_ttl_in_pool"] == "0"
    await store.apply_settings({"parts_to_throw_insert": None})
    assert "parts_to_throw_insert" not in dict((await store.definition()).settings)


async def test_a_table_that_was_made_without_the_hidden_settings_gets_them(tmp_path: Path) -> None:
    async with opened(tmp_path, CREATE) as (pool, _):
        await pool.query("ALTER TABLE t RESET SETTING remove_empty_parts, fsync_part_directory")
    async with opened(tmp_path) as (_, store):
        await store.load()
        settings = dict((await store.definition()).settings)
        assert HIDDEN_SETTINGS.items() <= settings.items()


async def test_a_nested_column_is_added_flat_if_who_adds_it_has_it_so(made: Made) -> None:
    _, store = made
    await alter(store, "ADD COLUMN whole Nested(a UInt8, b String)")
    await alter(store, "ADD COLUMN flat Nested(a UInt8, b String)", allowed=["flatten_nested"])
    columns = (await store.definition()).columns.by_name
    added = {name: column.type for name, column in columns.items() if name[:4] in ("whol", "flat")}
    assert added == {
        "whole": "Nested(a UInt8, b String)",
        "flat.a": "Array(UInt8)",
        "flat.b": "Array(String)",
    }


async def test_an_alter_that_cannot_be_is_refused_before_anything_happens(made: Made) -> None:
    _, store = made
    before = await store.definition()
    with pytest.raises(SqlError) as caught:
        await store.plan_alter("DROP COLUMN nosuch")
    assert caught.value.code == 10
    assert await store.definition() == before


def definition(body: str, tail: str = "ORDER BY `a`") -> TableDefinition:
    return parse_definition(f"CREATE TABLE d.t ({body}) ENGINE = MergeTree {tail}")


async def test_no_part_loses_its_last_column(tmp_path: Path) -> None:
    columns = "`n.a` Array(Int8), `n.b` Array(Int8), c Int8"
    async with opened(tmp_path, f"CREATE TABLE t ({columns}) ENGINE = MergeTree ORDER BY tuple()") as made:
        pool, store = made
        await store.load()
        await alter(store, "DROP COLUMN c")
        await add(pool, store, "SELECT [1], [2]", "all_0_0_0")
        await alter(store, "ADD COLUMN c Int8")
        for commands in ("DROP COLUMN n", "CLEAR COLUMN n.a, DROP COLUMN IF EXISTS n.b"):
            with pytest.raises(SqlError, match="all columns in part 'all_0_0_0'") as caught:
                await store.plan_alter(commands)
            assert caught.value.code == 36
        await store.plan_alter("DROP COLUMN n.a")


async def test_no_column_gets_the_name_of_one_that_goes_with_the_same_alter(tmp_path: Path) -> None:
    create = "CREATE TABLE t (a Int8, b Int8) ENGINE = MergeTree ORDER BY tuple()"
    async with opened(tmp_path, create) as (_, store):
        await store.load()
        with pytest.raises(SqlError, match="drop column a and give its name to another") as caught:
            await store.plan_alter("DROP COLUMN a, RENAME COLUMN b TO a")
        assert caught.value.code == 48
        await store.plan_alter("DROP COLUMN a, RENAME COLUMN b TO c")


@pytest.mark.parametrize(
    ("before", "after", "commands"),
    [
        ("`a` UInt8, `b` String", "`a` UInt8", "DROP COLUMN `b`"),
        (
            "`a` UInt8, `b` String, `n.x` String, `c` String DEFAULT upper(d), `d` String ALIAS b || n.x",
            "`a` UInt8",
            "DROP COLUMN `c`, DROP COLUMN `d`, DROP COLUMN `b`, DROP COLUMN `n.x`",
        ),
        (
            "`a` UInt8, `b` String, `c` String DEFAULT b",
            "`a` UInt8, `c` String DEFAULT 'x', `d` Int8",
            "MODIFY COLUMN `c` DEFAULT 'x', ADD COLUMN `d` Int8 AFTER `c`",
        ),
        (
            "`a` UInt8, `b` Int8 DEFAULT 1",
            "`a` UInt8, `b` Int8 DEFAULT 1 COMMENT 'sign' CODEC(NONE)",
            "COMMENT COLUMN `b` 'sign', MODIFY COLUMN `b` CODEC(NONE)",
        ),
        ("`a` UInt8", "`b` String, `a` UInt8", "ADD COLUMN `b` String FIRST"),
        (
            "`a` UInt8, `b` String",
            "`a` UInt8, `x` Int8 DEFAULT 5, `b` String",
            "ADD COLUMN `x` Int8 DEFAULT 5 AFTER `a`",
        ),
        (
            "`a` UInt8, `b` String, `c` Int8",
            "`a` UInt8, `c` Int8, `b` String",
            "MODIFY COLUMN `c` Int8 AFTER `a`",
        ),
        ("`a` UInt8, `b` String DEFAULT 'x'", "`a` UInt8, `b` String", "MODIFY COLUMN `b` REMOVE DEFAULT"),
        (
            "`a` UInt8, INDEX i a TYPE minmax GRANULARITY 1",
            "`a` UInt8, INDEX j a TYPE minmax GRANULARITY 1, INDEX i a TYPE minmax GRANULARITY 1",
            "DROP INDEX i, ADD INDEX j a TYPE minmax GRANULARITY 1 FIRST,"  # noqa: ISC004
            " ADD INDEX i a TYPE minmax GRANULARITY 1 AFTER j",
        ),
        ("`a` UInt8", "`a` UInt8, CONSTRAINT c CHECK a > 0", "ADD CONSTRAINT c CHECK a > 0"),
        (
            "`a` UInt8 STATISTICS(minmax)",
            "`a` UInt8",
            "(DROP STATISTICS `a`), (MODIFY COLUMN `a` UInt8)",
        ),
    ],
)
def test_commands_are_what_differs(before: str, after: str, commands: str) -> None:
    old, new = definition(before), definition(after)
    step = next_step(old.columns, old.metadata, new.columns, new.metadata, {})
    assert step is not None
    assert step.commands == commands
    assert next_step(new.columns, new.metadata, new.columns, new.metadata, {}) is None


def test_commands_of_a_mutation_are_cut_where_commands_begin() -> None:
    assert split_commands("(UPDATE a = 1, b = (2, 3) WHERE c IN (1, 2)), (DROP COLUMN x)") == [
        "UPDATE a = 1, b = (2, 3) WHERE c IN (1, 2)",
        "DROP COLUMN x",
    ]
    assert split_commands("UPDATE a = 1, update = 2 WHERE 1, DELETE WHERE x = ','") == [
        "UPDATE a = 1, update = 2 WHERE 1",
        "DELETE WHERE x = ','",
    ]


async def test_a_plan_shows_settings_and_comment_and_they_can_be_applied(made: Made) -> None:
    _, store = made
    before = dict((await store.definition()).settings)
    plan = await store.plan_alter("MODIFY COMMENT 'it''s mine', MODIFY SETTING parts_to_throw_insert = 77")
    assert dict(plan.definition.settings) == {**before, "parts_to_throw_insert": "77"}
    assert plan.definition.comment == "it's mine"
    assert plan.mutation == ""
    await store.apply_settings({"parts_to_throw_insert": "77"})
    await store.apply_comment(plan.definition.comment)
    assert (await store.definition()).comment == "it's mine"
    plan = await store.plan_alter("RESET SETTING parts_to_throw_insert")
    assert dict(plan.definition.settings) == before
    assert plan.definition.comment == "it's mine"


async def test_a_definition_that_was_read_before_an_alter_is_not_remembered_after_it(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Somebody reads the definition. 2. An ALTER is applied. 3. The reader goes on, and must not leave
    what it has read to the next ALTER, which would be planned without the one before."""
    _, store = made
    comment = await store.plan_alter("COMMENT COLUMN v 'new'")
    store._scratch.forget_definition()
    read = ScratchTables.create_text
    has_read, goes_on = threading.Event(), threading.Event()

    def pausing(self: ScratchTables, connection: Connection, table: TableName | None = None) -> str:
        text = read(self, connection, table)
        if table is None and not has_read.is_set() and inspect.stack()[1].function == "_own_text":
            has_read.set()
            assert goes_on.wait(60)
        return text

    monkeypatch.setattr(ScratchTables, "create_text", pausing)
    reader = asyncio.create_task(store.plan_alter("ADD COLUMN early UInt8"))
    assert await asyncio.to_thread(has_read.wait, 60)
    await store.apply_alter(comment.definition.columns, comment.definition.metadata, {})
    goes_on.set()
    await reader

    later = await store.plan_alter("ADD COLUMN late UInt8")
    assert "COMMENT \\'new\\'" in later.definition.columns.to_bytes().decode()


@pytest.mark.parametrize(
    ("settings", "commands", "mutation"),
    [
        (["deduplicate_merge_projection_mode"], "ADD PROJECTION p (SELECT v ORDER BY v)", ""),
        (["alter_column_secondary_index_mode"], "MODIFY COLUMN n UInt16", "MODIFY COLUMN `n` UInt16"),
        (
            ["deduplicate_merge_projection_mode", "alter_column_secondary_index_mode"],
            "ADD PROJECTION p (SELECT v ORDER BY v), MODIFY COLUMN n UInt16",
            "MODIFY COLUMN `n` UInt16",
        ),
    ],
)
async def test_what_another_replicas_settings_allowed_is_done_here_too(
    tmp_path: Path, settings: list[str], commands: str, mutation: str
) -> None:
    strict, lenient = dict.fromkeys(settings, "'throw'"), dict.fromkeys(settings, "'drop'")
    create = (
        "CREATE TABLE t (k UInt64, v String, n UInt8, INDEX i n TYPE minmax) ENGINE = ReplacingMergeTree "
        f"ORDER BY k SETTINGS {', '.join(f'{name} = {value}' for name, value in strict.items())}"
    )
    async with opened(tmp_path, create) as (pool, store):
        await store.load()
        await add(pool, store, "SELECT 1, 'a', 3", "all_0_0_0")
        with pytest.raises(SqlError):  # who asks here is told
            await store.plan_alter(commands)
        await store.apply_settings(lenient)
        plan = await store.plan_alter(commands)
        assert plan.mutation == mutation
        await store.apply_settings(strict)

        numbers = {"all": 1} if mutation else {}
        await store.apply_alter(plan.definition.columns, plan.definition.metadata, {}, numbers)
        after = await store.definition()
        assert (after.columns, after.metadata) == (plan.definition.columns, plan.definition.metadata)
        assert dict(after.settings).items() >= strict.items()
        if mutation:
            await store.mutate(*named("all_0_0_0", "all_0_0_0_1"), mutation)
            await store.publish(named("all_0_0_0_1"), named("all_0_0_0"))
        assert await rows(pool, "k, v, n") == "1\ta\t3"


async def test_a_sorting_key_is_not_planned_that_the_table_may_not_have(tmp_path: Path) -> None:
    """A scratch table is attached, and could have it."""
    create = "CREATE TABLE t (k UInt64) ENGINE = MergeTree ORDER BY k"
    commands = "ADD COLUMN x {}, MODIFY ORDER BY (k, x)"
    async with opened(tmp_path, create) as (_, store):
        await store.load()
        for nullable in ("Nullable(UInt8)", "LowCardinality(Nullable(String))"):
            with pytest.raises(SqlError) as refused:
                await store.plan_alter(commands.format(nullable))
            assert refused.value.code == Code.ILLEGAL_COLUMN
        await store.apply_settings({"allow_nullable_key": "1"})
        with pytest.raises(SqlError, match="allow_nullable_key") as refused:
            await store.plan_alter(commands.format("Nullable(UInt8)"))
        assert "next start" in refused.value.hint
        await alter(store, commands.format("UInt8"))
    async with opened(tmp_path / "other", f"{create} SETTINGS allow_nullable_key = 1") as (_, store):
        await store.load()
        await alter(store, commands.format("Nullable(UInt8)"))


async def test_a_setting_that_has_yielded_in_vain_is_as_before(tmp_path: Path) -> None:
    create = "CREATE TABLE t (k UInt64, v String) ENGINE = MergeTree ORDER BY k"
    async with opened(tmp_path, create) as (_, store):
        await store.load()
        before = await store.definition()
        columns = Columns.from_bytes(before.columns.to_bytes().replace(b"`k` UInt64", b"`k` String"))
        with pytest.raises(SqlError) as refused:
            await store.apply_alter(columns, before.metadata, {}, {})
        assert refused.value.code == Code.ALTER_OF_COLUMN_IS_FORBIDDEN
        assert await store.definition() == before
