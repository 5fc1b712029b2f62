"""The demo answers questions of its runs: again, when a later try of the task asks again."""

from __future__ import annotations

import asyncio
from typing import cast

from engine.env import SystemEnv
from engine.local import demo
from engine.local.airflow_api import AirflowApi, Question
from engine.local.progress import StepEvent, Steps

QUESTION = Question("migrate_c", "run", "approve", -1, "c: approve", "", ("Approve", "Reject"), "")


class Airflow:
    """One task that asks. The first `forgotten` answers are lost: the try that got them was ended."""

    def __init__(self, forgotten: int) -> None:
        self.forgotten = forgotten
        self.answers: list[str] = []
        self.looks = 0
        self.done = asyncio.Event()

    async def questions(self, dag_id: str, run_id: str) -> list[Question]:
        self.looks += 1
        return [] if self.done.is_set() else [QUESTION]

    async def answer(self, question: Question, choice: str) -> None:
        self.answers.append(choice)
        if len(self.answers) > self.forgotten:
            self.done.set()


class Clock(SystemEnv):
    """Sleeping takes no time; the clock goes on as if it had."""

    now = 0.0

    def monotonic_s(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Silent:
    def show(self, event: StepEvent) -> None:
        pass


async def answered(airflow: Airflow) -> list[str]:
    told: list[str] = []
    asked = asyncio.Event()
    api = cast(AirflowApi, airflow)
    answering = asyncio.create_task(
        demo._answer(api, "c", "run", Steps(Silent()), told, asked=asked, env=Clock())
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert airflow.looks == 0, "no task of the run waits for anybody"
    asked.set()
    await airflow.done.wait()
    answering.cancel()
    await asyncio.gather(answering, return_exceptions=True)
    return told


async def test_a_question_that_is_asked_again_by_a_later_try_is_answered_again() -> None:
    airflow = Airflow(forgotten=2)
    told = await answered(airflow)

    assert airflow.answers == ["Approve"] * 3
    assert told == ["c: approve"]


async def test_a_question_is_answered_once_when_the_answer_was_taken() -> None:
    airflow = Airflow(forgotten=0)
    assert await answered(airflow) == ["c: approve"]
    assert airflow.answers == ["Approve"]
