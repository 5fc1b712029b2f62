"""A seeded simulation: hundreds of nodes in one process and thread, on virtual time, every run repeatable.

    async def main(env: SimulationEnv) -> None: ...
    run_simulation(42, main)

`engine.testing.simulation_loop` tells what differs from asyncio's own loop, and when two runs of one seed
are the same.
"""

from __future__ import annotations

import asyncio
import gc
import random
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from engine.testing.simulation_loop import SimulationLoop

T = TypeVar("T")

START_OF_TIME_S = 1_700_000_000.0
"""Unix time at which every simulation starts."""


class SimulationEnv:
    """`Env` of a simulated process: seeded, on the loop's time, with a wall clock that can be wrong."""

    def __init__(self, seed: int, loop: SimulationLoop, *, clock_offset_s: float = 0.0) -> None:
        self.seed = seed
        self.loop = loop
        self.clock_offset_s = clock_offset_s
        self._rng = random.Random(f"env {seed}")

    @property
    def rng(self) -> random.Random:
        return self._rng

    def now_s(self) -> float:
        return START_OF_TIME_S + self.clock_offset_s + self.loop.time()

    def monotonic_s(self) -> float:
        return self.loop.time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._rng.getrandbits(128), version=4)

    def jump_clock(self, by_s: float) -> None:
        """Move this process's wall clock; timeouts are not affected."""
        self.clock_offset_s += by_s

    def fork(self, *, clock_offset_s: float = 0.0) -> SimulationEnv:
        """The environment of another process in the same simulation: own randomness, own wall clock."""
        return SimulationEnv(self._rng.getrandbits(64), self.loop, clock_offset_s=clock_offset_s)


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Python's collector runs after so many allocations, also those of other runs, and what it finds may do
    something: a generator is closed, a task says that nobody has heard of its failure. Here it waits for the
    end of the run, whose garbage it then looks through. What is still in use then, as the loop is, it finds
    when the next run begins."""
    gc.collect(1)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_enabled:
            gc.enable()


class UnhandledInBackground(AssertionError):
    """An exception of a task that nobody waited for; it is the cause."""


def run_simulation(
    seed: int,
    main: Callable[[SimulationEnv], Coroutine[Any, Any, T]],
    *,
    max_steps: int = 5_000_000,
    max_virtual_s: float = 60 * 86_400,
) -> T:
    """Run `main` to its end, cancel what is left over, and return its result.

    Whatever is raised carries a note with the seed; the same call with that seed replays it. Raises
    SimulationDeadlock or SimulationStuck when the run gets nowhere.
    """
    loop = SimulationLoop(  # type: ignore[abstract]  # sockets, signals and subprocesses are left out
        seed, max_steps=max_steps, max_virtual_s=max_virtual_s
    )
    env = SimulationEnv(seed, loop)
    try:
        with _nothing_collected():
            try:
                result = loop.run_until_complete(main(env))
            finally:
                loop.cancel_leftovers()
            if loop.unhandled:
                first = loop.unhandled[0]
                message = f"unhandled in a background task: {first.get('message')}"
                raise UnhandledInBackground(message) from first.get("exception")
            return result
    except BaseException as error:  # whatever it is: without its seed nobody can repeat it
        error.add_note(f"simulation seed={seed} steps={loop.steps} virtual_s={loop.time():.3f}")
        raise
    finally:
        loop.close()
