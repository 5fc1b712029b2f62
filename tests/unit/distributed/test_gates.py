"""INSERTs share a Distributed table; what takes it away is alone with it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from engine.config.model import User
from engine.errors import Code, SqlError
from engine.names import TableName
from engine.node.distributed.registry.name_changes import NameChanges, names_given
from engine.node.distributed.registry.table_gates import TableGates
from engine.node.statements.statement import Asked
from engine.sql import parse_statement

TABLE, OTHER = UUID(int=1), UUID(int=2)


def test_who_is_alone_waits_for_inserts_and_holds_up_new_ones() -> None:
    async def scenario() -> None:
        gates, seen = TableGates(), []
        # 1. Two INSERTs are under way.
        assert gates.enter(TABLE)
        assert gates.enter(TABLE)

        async def drop() -> None:
            async with gates.alone(TABLE, timeout_s=60):
                seen.append("alone")
                assert not gates.enter(TABLE)
                assert gates.enter(OTHER)
                gates.leave(OTHER)

        dropping = asyncio.create_task(drop())
        await asyncio.sleep(0)
        # 2. DROP waits; a third INSERT is held up already.
        assert not gates.enter(TABLE)
        third = asyncio.create_task(gates.opened(TABLE))
        gates.leave(TABLE)
        await asyncio.sleep(0)
        assert seen == []
        # 3. The last one ends: DROP is alone, then the third goes on.
        gates.leave(TABLE)
        await dropping
        await third
        assert seen == ["alone"]
        assert gates.enter(TABLE)

    asyncio.run(scenario())


def test_an_insert_that_does_not_end_is_waited_for_no_longer_than_that() -> None:
    async def scenario() -> None:
        gates = TableGates()
        assert gates.enter(TABLE)
        with pytest.raises(SqlError) as raised:
            async with gates.alone(TABLE, timeout_s=0):
                raise AssertionError("not alone")
        assert raised.value.code == Code.DEADLOCK_AVOIDED
        assert gates.enter(TABLE)  # others go on

    asyncio.run(scenario())


def test_one_after_the_other_is_alone() -> None:
    async def scenario() -> None:
        gates, inside = TableGates(), 0

        async def change() -> None:
            nonlocal inside
            async with gates.alone(TABLE, timeout_s=60):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(change() for _ in range(5)))
        assert not gates._gates  # nothing is kept of tables that nobody uses

    asyncio.run(scenario())


def test_what_a_name_means_is_not_asked_while_a_statement_gives_it_away() -> None:
    async def scenario() -> None:
        changes, seen = NameChanges(), []
        asked = Asked(sql="", user=User("u"), session=None, database="d")  # type: ignore[arg-type]
        renamed = names_given(asked, parse_statement("RENAME TABLE a TO e.b"))
        assert renamed == {TableName("d", "a"), TableName("e", "b")}
        attached = names_given(asked, parse_statement("ATTACH DATABASE x"))

        async def find(name: TableName) -> None:
            await changes.settled(name)
            seen.append(name.table)

        changes.begin(renamed)
        changes.begin(attached)
        waiting = [asyncio.create_task(find(TableName(*name))) for name in (("d", "a"), ("x", "any"))]
        await find(TableName("d", "other"))
        assert seen == ["other"]
        changes.end(renamed)
        await waiting[0]
        assert seen == ["other", "a"]
        changes.end(attached)
        await waiting[1]
        assert not names_given(asked, parse_statement("DROP TABLE a"))

    asyncio.run(scenario())
