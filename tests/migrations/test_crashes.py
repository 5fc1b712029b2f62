"""A run that dies at any point, and the one that comes after it (M1, M3, M4, M6).

The dying process is simulated exactly: before or after its n-th request to Keeper or its n-th transaction in
the ledger it stops, its session ends, and another process takes up the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from engine.migrations.drive import drive
from engine.migrations.ledger import Ledger
from engine.migrations.ledger_store import LedgerStore
from engine.migrations.runner import MigrationRunner
from tests.migrations.support import SHOP, World, in_world

FILES = {name: text for name, text in SHOP.items() if not name.startswith("3")}


class Killed(BaseException):
    """The process is gone; no handler of it runs any more."""


class Counter:
    """Counts the process's outside effects and kills it at one of them."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.count = 0
        self.is_dead = False
        self._at, self._after = at, after

    def before(self) -> None:
        if self.is_dead:
            raise Killed
        self.count += 1
        if self.count == self._at and not self._after:
            self.is_dead = True
            raise Killed

    def after(self) -> None:
        if self.count == self._at and self._after:
            self.is_dead = True
        if self.is_dead:
            raise Killed


class MortalKeeper:
    """A session whose every request is counted."""

    _REQUESTS = frozenset({"create", "remove", "set", "exists", "get", "children", "sync", "multi"})

    def __init__(self, keeper: Any, counter: Counter) -> None:
        self._keeper, self._counter = keeper, counter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._keeper, name)
        if name not in self._REQUESTS:
            return found

        async def counted(*args: Any, **kwargs: Any) -> Any:
            self._counter.before()
            result = await found(*args, **kwargs)
            self._counter.after()
            return result

        return counted


class MortalStore(LedgerStore):
    """A ledger whose every transaction is counted: killed before its commit, or after."""

    counter: Counter | None = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        counter = self.counter
        with super().writing() as connection:
            yield connection
            if counter is not None:
                counter.before()
        if counter is not None:
            counter.after()


def mortal(runner: MigrationRunner, counter: Counter, world: World) -> MigrationRunner:
    ledger = Ledger(world.ledger_path, env=world.env)
    store = MortalStore(world.ledger_path, env=world.env)
    store.counter = counter
    ledger._store = store
    keeper: Any = MortalKeeper(runner.keeper, counter)
    return MigrationRunner(keeper, runner.migrations, ledger, runner.topology, runner.queue, runner.env)


def final(world: World) -> tuple[object, ...]:
    """What must be the same whatever happened on the way: schemas, states, and who did what how often."""
    rows = {
        (row.version, row.direction, row.generation, row.statement, row.host, row.state, row.attempt)
        for row in world.ledger.rows("shop")
    }
    return world.schemas(), world.states(), rows, world.entries()


async def up_and_down(world: World, runner: MigrationRunner) -> None:
    await drive(runner, world.request())
    await drive(runner, world.down())


def run_and_kill(tmp_path: Path, at: int, *, after: bool) -> tuple[tuple[object, ...], Counter]:
    counter = Counter(at, after=after)

    async def scenario(world: World) -> tuple[object, ...]:
        await world.start()
        dying = mortal(await world.runner(client="dying"), counter, world)
        with contextlib.suppress(Killed):
            await up_and_down(world, dying)
        world.check()
        if counter.is_dead:
            world.server.crash_client("dying")
            await world.env.sleep(30)
            await converge(world)
        world.check()
        return final(world)

    return in_world(tmp_path, scenario, files=FILES), counter


async def converge(world: World) -> None:
    """What a person does after a crash: the same commands again."""
    heir = await world.runner(client="heir")
    if not any(event.direction.value == "down" for event in world.ledger.events("shop")):
        await drive(heir, world.request())
    if world.states().get(2) != "rolled_back":
        await drive(heir, world.down())


def check_every_point(tmp_path: Path, *, after: bool, step: int) -> int:
    expected, untouched = run_and_kill(tmp_path / "whole", 0, after=after)
    killed = 0
    for at in range(1, untouched.count + 1, step):
        found, counter = run_and_kill(tmp_path / str(at), at, after=after)
        assert found == expected, f"killed {'after' if after else 'before'} effect {at}"
        killed += counter.is_dead
    return killed


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_killed_at_some_effects_is_completed_by_the_next_one(tmp_path: Path, after: bool) -> None:
    assert check_every_point(tmp_path, after=after, step=20) > 2


@pytest.mark.extended
def test_a_run_killed_after_any_effect_is_completed_by_the_next_one(tmp_path: Path) -> None:
    assert check_every_point(tmp_path, after=True, step=1) > 40
