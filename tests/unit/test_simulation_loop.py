"""The simulation loop itself: virtual time, random order, replay, and the ways in which a run can fail."""

from __future__ import annotations

import asyncio
import gc

import pytest

from engine.testing.simulation import START_OF_TIME_S, run_simulation
from engine.testing.simulation_loop import SimulationDeadlock, SimulationStuck


async def race(env):
    """Twenty workers with random pauses; the order in which they act is the result."""
    order = []

    async def work(number):
        for step in range(5):
            await env.sleep(env.rng.random())
            order.append((number, step))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(work(number))
    return order


def test_the_same_seed_gives_the_same_run():
    assert run_simulation(1, race) == run_simulation(1, race)


def test_different_seeds_give_different_runs():
    assert run_simulation(1, race) != run_simulation(2, race)


def test_ready_callbacks_run_in_random_order():
    async def main(env):
        order = []
        for number in range(10):
            asyncio.get_running_loop().call_soon(order.append, number)
        await env.sleep(1)
        return tuple(order)

    orders = {run_simulation(seed, main) for seed in range(20)}
    assert len(orders) > 10
    assert all(sorted(order) == list(range(10)) for order in orders)


def test_callbacks_of_one_moment_run_in_random_order_and_never_too_early():
    async def main(env):
        loop, order = asyncio.get_running_loop(), []
        for number in range(10):
            loop.call_later(5.0, order.append, number)
        loop.call_later(6.0, order.append, "late")
        await env.sleep(5.5)
        assert "late" not in order
        await env.sleep(1)
        return tuple(order)

    orders = {run_simulation(seed, main) for seed in range(10)}
    assert len(orders) > 5 and all(order[-1] == "late" for order in orders)


def test_a_week_passes_at_once():
    async def main(env):
        await env.sleep(7 * 86_400)
        return env.monotonic_s(), env.now_s()

    assert run_simulation(0, main) == (7 * 86_400, START_OF_TIME_S + 7 * 86_400)


def test_timeouts_follow_virtual_time():
    async def main(env):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await env.sleep(101)
        return env.monotonic_s()

    assert run_simulation(0, main) == 100


def test_time_stands_still_while_callbacks_run():
    async def main(env):
        for _ in range(1000):
            await asyncio.sleep(0)
        return env.monotonic_s()

    assert run_simulation(0, main) == 0


def test_a_cancelled_timer_does_not_move_the_time():
    async def main(env):
        asyncio.get_running_loop().call_later(1000, lambda: None).cancel()
        await env.sleep(1)
        return env.monotonic_s()

    assert run_simulation(0, main) == 1


def test_a_deadlock_names_who_waits_where():
    async def main(env):
        async def stuck_worker():
            await asyncio.Event().wait()

        task = asyncio.create_task(stuck_worker(), name="worker-7")
        await task

    with pytest.raises(
        SimulationDeadlock, match=r"worker-7 .*stuck_worker.* at .*test_simulation_loop\.py"
    ) as caught:
        run_simulation(3, main)
    assert any("seed=3" in note for note in caught.value.__notes__)


def test_a_run_that_never_ends_is_stopped():
    async def spins(env):
        while True:
            await asyncio.sleep(0)

    async def sleeps(env):
        while True:
            await env.sleep(3600)

    with pytest.raises(SimulationStuck, match="steps"):
        run_simulation(0, spins, max_steps=1000)
    with pytest.raises(SimulationStuck, match="virtual seconds"):
        run_simulation(0, sleeps, max_virtual_s=86_400)


def test_a_failure_carries_its_seed():
    async def main(env):
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        run_simulation(77, main)
    assert any("seed=77" in note for note in caught.value.__notes__)


def test_a_background_task_that_dies_unheard_fails_the_run():
    async def main(env):
        async def die():
            raise ValueError("unheard")

        asyncio.create_task(die())  # noqa: RUF006 - nobody keeps it, that is the point
        await env.sleep(1)

    with pytest.raises(AssertionError, match="unhandled in a background task") as caught:
        run_simulation(0, main)
    assert "unheard" in str(caught.value.__cause__)


def test_the_collector_waits_for_the_end_of_a_run():
    async def main(env):
        collections = gc.get_stats()[0]["collections"]
        kept = [[n] for n in range(100_000)]
        return len(kept), gc.get_stats()[0]["collections"] - collections

    assert run_simulation(0, main) == (100_000, 0)
    assert gc.isenabled()


def test_what_is_left_over_is_cancelled():
    ended = []

    async def main(env):
        async def forever():
            try:
                await asyncio.Event().wait()
            finally:
                await env.sleep(0.1)
                ended.append("cleaned up")

        asyncio.create_task(forever())  # noqa: RUF006 - left over on purpose
        await env.sleep(1)
        return "result"

    assert run_simulation(0, main) == "result"
    assert ended == ["cleaned up"]


def test_asynchronous_generators_are_closed():
    ended = []

    async def main(env):
        async def numbers():
            try:
                while True:
                    yield 1
                    await env.sleep(1)
            finally:
                ended.append("closed")

        generator = numbers()
        await anext(generator)
        env.kept = generator

    run_simulation(0, main)
    assert ended == ["closed"]


def test_work_for_other_threads_is_done_here_and_at_once():
    async def main(env):
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 42)

    assert run_simulation(0, main) == 42


def test_random_numbers_and_ids_come_from_the_seed():
    async def main(env):
        return env.rng.random(), env.new_uuid(), env.fork().new_uuid()

    assert run_simulation(5, main) == run_simulation(5, main) != run_simulation(6, main)
    number, first, second = run_simulation(5, main)
    assert 0 <= number < 1 and first != second and first.version == 4


def test_each_process_has_a_wall_clock_of_its_own():
    async def main(env):
        one, two = env.fork(), env.fork(clock_offset_s=-3600)
        before = one.monotonic_s()
        one.jump_clock(3600)
        return one.now_s() - env.now_s(), two.now_s() - env.now_s(), one.monotonic_s() - before

    assert run_simulation(0, main) == (3600, -3600, 0)


def test_sets_of_tasks_iterate_alike_in_every_run():
    async def main(env):
        async def nap(number):
            await env.sleep(1)
            return number

        tasks = [asyncio.create_task(nap(number)) for number in range(50)]
        done, _ = await asyncio.wait(tasks)
        return [task.result() for task in done]

    assert run_simulation(1, main) == run_simulation(1, main)


def test_an_event_loop_runs_again_after_a_simulation():
    async def main(env):
        await env.sleep(1)

    run_simulation(0, main)
    assert asyncio.run(asyncio.sleep(0, "real")) == "real"
