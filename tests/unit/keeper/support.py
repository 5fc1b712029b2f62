"""Two clients of one memory Keeper, under virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.memory_session import MemorySession
from engine.testing.simulation import SimulationEnv, run_simulation

Story = Callable[[SimulationEnv, MemoryKeeperServer, MemorySession, MemorySession], Awaitable[None]]
SEEDS = 5


def simulated(story: Story) -> Callable[[], None]:
    """Runs `story(env, server, alice, bob)` under a few seeds: two sessions of two clients."""

    def test() -> None:
        async def main(env: SimulationEnv) -> None:
            server = MemoryKeeperServer(env.fork())
            alice = await server.connect(client="alice", session_timeout_s=9)
            bob = await server.connect(client="bob", session_timeout_s=9)
            await story(env, server, alice, bob)

        for seed in range(SEEDS):
            run_simulation(seed, main)

    test.__name__ = story.__name__
    test.__doc__ = story.__doc__
    return test
