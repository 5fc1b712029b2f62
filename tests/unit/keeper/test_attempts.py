"""Which host a session tries next, and with how much patience."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engine.keeper.attempts import Attempt, Attempts
from engine.testing.simulation import SimulationEnv, run_simulation

HOSTS = [("a", 1), ("b", 2), ("c", 3)]


def simulated(story: Callable[[SimulationEnv], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        run_simulation(1, story)

    return test


async def a_round(attempts: Attempts, hosts: int = 3) -> list[Attempt]:
    return [await attempts.next() for _ in range(hosts)]


@simulated
async def test_the_first_round_fits_into_the_patience_and_later_ones_give_each_host_all_of_it(
    env: SimulationEnv,
) -> None:
    for hosts in (HOSTS[:1], HOSTS):
        attempts = Attempts(hosts, env, patience_s=10.0)
        first, second, third = [await a_round(attempts, len(hosts)) for _ in range(3)]
        assert sum(each.patience_s for each in first) < 10.0 * 2 / 3
        assert {each.patience_s for each in (*second, *third)} == {10.0}
        assert [(each.host, each.port) for each in first] == [(each.host, each.port) for each in second]
        assert {(each.host, each.port) for each in first} == set(hosts)


@simulated
async def test_pauses_between_rounds_grow_and_begin_anew_after_a_connection(env: SimulationEnv) -> None:
    attempts = Attempts(HOSTS, env, patience_s=10.0)

    async def pause_s() -> float:
        began_s = env.monotonic_s()
        await a_round(attempts)
        return env.monotonic_s() - began_s

    assert await pause_s() == 0
    pauses = [await pause_s() for _ in range(10)]
    assert 0 < pauses[0] < 0.06 and all(each <= 1.0 for each in pauses) and pauses[-1] >= 0.5
    attempts.succeeded()
    assert 0 < await pause_s() < 0.06


@simulated
async def test_after_a_connection_the_next_host_in_turn_is_tried_first_with_less_patience(
    env: SimulationEnv,
) -> None:
    attempts = Attempts(HOSTS, env, patience_s=10.0)
    order = [(each.host, each.port) for each in await a_round(attempts)]
    await attempts.next()
    assert attempts.last == order[0]
    attempts.succeeded()
    again = await a_round(attempts)
    assert [(each.host, each.port) for each in again] == [order[1], order[2], order[0]]
    assert {each.patience_s for each in again} == {2.0}
