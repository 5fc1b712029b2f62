"""SYSTEM STOP MERGES while merges and mutations are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.config.model import User
from engine.errors import Code
from engine.node.replicated.system_commands import SystemStatements
from engine.node.statements.statement import Asked
from engine.replication.commands.mutate import create_mutation
from engine.replication.commands.optimize import Extent, OptimizeOptions, optimize
from engine.replication.part_store import MergeOptions
from engine.sql import parse_statement
from tests.unit.part_storage.support import add, named, opened, rows
from tests.unit.replication.live_support import NO_OWN_MERGES, Live, LiveReplica, run


async def _system(replica: LiveReplica, what: str) -> None:
    tables: Any = SimpleNamespace(find_for=lambda asked, name: SimpleNamespace(ctx=replica.ctx))
    session: Any = None
    asked = Asked(sql=f"SYSTEM {what} d.t", user=User("u"), session=session, database="d")
    assert await SystemStatements(tables, None).run(asked, parse_statement(asked.sql)) is not None


class _Held:
    """A step of the store that takes as long as the test likes, and then does its work, if it may."""

    def __init__(self, step: Callable[..., Any]) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self._step = step

    async def __call__(self, *args: Any) -> Any:
        self.begun.set()
        await self.may_end.wait()
        return await self._step(*args)


@pytest.mark.parametrize("kind", ["merge", "mutate"])
def test_what_is_under_way_is_interrupted_and_made_when_it_may_go_on(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(live: Live) -> None:
        (replica,) = await live.cluster(1, NO_OWN_MERGES)
        await replica.insert(1)
        if kind == "merge":
            await replica.insert(2)
        await live.quiet()
        before = replica.parts()
        held = _Held(getattr(replica.store, kind))
        monkeypatch.setattr(replica.store, kind, held)
        waiting = None
        if kind == "merge":
            final = OptimizeOptions(extent=Extent.FINAL)
            waiting = asyncio.ensure_future(optimize(replica.ctx, final))
        else:
            await create_mutation(replica.ctx, "UPDATE v = 7 WHERE 1")
        await held.begun.wait()
        await _system(replica, "STOP MERGES")
        await live.env.sleep(5)
        held.may_end.set()
        await live.env.sleep(60)
        assert replica.parts() == before, "what had been begun came to its end"
        assert not replica.store.staged
        (queued,) = replica.ctx.queue.entries
        assert not queued.is_executing and "stopped" in queued.postpone_reason
        await _system(replica, "START MERGES")
        await live.quiet()
        assert len(replica.parts()) == 1 and replica.parts() != before
        if waiting is not None:
            await waiting

    run(main)


async def test_a_merge_in_chdb_that_is_given_up_does_not_come_to_its_end(tmp_path: Path) -> None:
    # One row a block: an INSERT of these takes a moment, and their merge many seconds.
    create = "CREATE TABLE t (k UInt64) ENGINE = MergeTree ORDER BY k SETTINGS merge_max_block_size = 1"
    async with opened(tmp_path, create) as (pool, store):
        names = ("all_0_0_0", "all_1_1_0")
        for name in names:
            await add(pool, store, "SELECT number AS k FROM numbers(300000)", name)
        aborted = f"SELECT sum(value) FROM system.errors WHERE code = {int(Code.ABORTED)}"
        before = (await pool.query(aborted)).text
        (result,) = named("all_0_1_1")
        merging = asyncio.ensure_future(store.merge(named(*names), result, MergeOptions()))
        while (await pool.query("SELECT count() FROM system.merges")).text == "0\n":
            assert not merging.done(), "the merge was over before it was seen"
            await asyncio.sleep(0.01)
        merging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await merging
        assert (await pool.query(aborted)).text != before
        assert result not in store.staged
        assert await rows(pool, "count()") == "600000"
