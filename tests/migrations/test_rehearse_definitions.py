"""Definitions in a real scratch chDB, as a rehearsal reads them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.migrations.rehearse_definitions import Definitions
from engine.storage.scratch import ScratchChdb


@pytest.mark.slow
async def test_texts_of_definitions_are_read_again_where_a_statement_may_have_changed_them() -> None:
    """Also of what it does not name: what an Alias stands for, what is in a database that is renamed."""
    statements = [
        "CREATE DATABASE a",
        "CREATE DATABASE b",
        "CREATE TABLE a.t (x Int8) ENGINE = Memory",
        "CREATE TABLE b.t (y Int8) ENGINE = Memory",
        "CREATE TABLE a.u (x Int8) ENGINE = Memory",
        "ALTER TABLE a.t ADD COLUMN z Int8",
        "RENAME DATABASE a TO c; RENAME DATABASE b TO a; RENAME DATABASE c TO b",
        "RENAME TABLE b.t TO b.v, b.u TO b.t",
        "DROP TABLE b.v",
        "CREATE TABLE a.far ENGINE = Alias(a, t)",
        "ALTER TABLE a.far ADD COLUMN w Int8",
        "CREATE FUNCTION f AS (x) -> x",
    ]
    async with ScratchChdb() as scratch:
        kept = Definitions(scratch)
        seen = []
        for together in statements:
            for sql in together.split("; "):
                kept.note(sql)
                await scratch.execute(sql)
            seen.append(await kept.read())
            assert seen[-1] == await Definitions(scratch).read()
    assert all(before != after for before, after in pairwise(seen))
