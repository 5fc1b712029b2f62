"""Steps as a file shows them: nobody waits long without a word, and nobody is told the same all the time."""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable

from rich.console import Console

from engine.local.airflow_api import TaskInstance, in_words
from engine.local.progress import ConsoleSink, StepEvent, Steps
from engine.testing.simulation import SimulationEnv, run_simulation


def shown(work: Callable[[Steps, SimulationEnv], Awaitable[None]]) -> list[tuple[str, float, str]]:
    """The lines of a console that is no terminal: step, seconds, words."""
    file = io.StringIO()

    async def main(env: SimulationEnv) -> None:
        with ConsoleSink(Console(file=file, width=200), env=env) as sink:
            await work(Steps(sink, env=env), env)

    run_simulation(1, main)
    return [
        (step, float(seconds), " ".join(words))
        for _, step, seconds, _, *words in (line.split() for line in file.getvalue().splitlines())
    ]


def test_a_step_with_nothing_new_to_say_gives_a_sign_of_life() -> None:
    async def main(steps: Steps, env: SimulationEnv) -> None:
        steps.running("load", "waiting")
        await env.sleep(1)
        steps.running("load", "Spark")
        await env.sleep(33)
        steps.done("load", "7 rows")

    assert shown(main) == [
        ("load", 0.0, "waiting"),
        ("load", 5.0, "Spark"),
        ("load", 15.0, "Spark"),
        ("load", 25.0, "Spark"),
        ("load", 34.0, "7 rows"),
    ]


def test_many_new_words_are_not_all_said_and_the_last_one_is() -> None:
    async def main(steps: Steps, env: SimulationEnv) -> None:
        for number in range(100):
            steps.running("load", f"task {number}")
            await env.sleep(0.1)
        await env.sleep(5)

    lines = shown(main)
    assert lines[0] == ("load", 0.0, "task 0") and lines[-1][2] == "task 99"
    assert 2 <= len(lines) <= 4


def test_steps_at_the_same_time_are_told_of_each_and_an_ended_one_no_more() -> None:
    async def main(steps: Steps, env: SimulationEnv) -> None:
        steps.running("one", "a")
        steps.running("two", "b")
        await env.sleep(1)
        steps.done("one", "ready")
        await env.sleep(10)
        steps.interrupted()
        await env.sleep(30)

    assert shown(main) == [
        ("one", 0.0, "a"),
        ("two", 0.0, "b"),
        ("one", 1.0, "ready"),
        ("two", 10.0, "b"),
        ("two", 11.0, "not finished"),
    ]


def test_the_seconds_are_those_of_who_told_and_go_on_here() -> None:
    """The steps of a stack in the background come out of a file."""

    async def main(_: Steps, env: SimulationEnv) -> None:
        with ConsoleSink(Console(file=file, width=200), env=env) as sink:
            sink.show(StepEvent.from_json('{"step":"s","state":"running","text":"x","seconds":5}'))
            await env.sleep(10.5)

    file = io.StringIO()
    shown(main)
    assert [line.split()[2] for line in file.getvalue().splitlines()] == ["5.0", "15.0"]


def test_what_is_over_soon_needs_no_word() -> None:
    async def main(env: SimulationEnv) -> None:
        with ConsoleSink(Console(file=file, width=200), first_word_s=2.0, env=env) as sink:
            steps = Steps(sink, env=env)
            steps.running("wait", "for a")
            await env.sleep(1.5)
            steps.running("wait", "for b")
            await env.sleep(6)

    file = io.StringIO()
    run_simulation(1, main)
    assert [line.split()[1:] for line in file.getvalue().splitlines()] == [["wait", "2.0", "s", "for", "b"]]


def test_a_run_of_tasks_is_told_in_words() -> None:
    def tasks(*states: str | None) -> list[TaskInstance]:
        return [
            TaskInstance(f"t{number}", -1, state, 1, None, None, None) for number, state in enumerate(states)
        ]

    assert in_words(tasks("success", "skipped", "running", "deferred", None)) == (
        "2 of 5 tasks  t2, t3 (deferred)"
    )
    assert in_words(tasks("success", "queued", None)) == "1 of 3 tasks  t1 (queued)"
    assert in_words(tasks(None, None)) == "0 of 2 tasks"
