"""Steps that take time, as they happen: on a terminal with spinners, elsewhere lines.

The owner of a background stack writes its steps to a file, which the command that started it reads and shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from engine.env import Env, SystemEnv


class StepState(enum.StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepEvent:
    """A step's newest word. `seconds` is the time since the step began."""

    step: str
    state: StepState
    text: str
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> StepEvent:
        raw = json.loads(line)
        return cls(raw["step"], StepState(raw["state"]), raw["text"], raw["seconds"])


class Sink(Protocol):
    """Where events go."""

    def show(self, event: StepEvent) -> None: ...


class Steps:
    """Keeps the time of each step and passes events on."""

    def __init__(self, sink: Sink, *, env: Env | None = None) -> None:
        self._sink = sink
        self._env = env or SystemEnv()
        self._began_s: dict[str, float] = {}

    def running(self, step: str, text: str = "") -> None:
        """The step begins, or has something to say."""
        self._tell(step, StepState.RUNNING, text)

    def done(self, step: str, text: str = "") -> None:
        self._tell(step, StepState.DONE, text)

    def failed(self, step: str, text: str = "") -> None:
        self._tell(step, StepState.FAILED, text)

    def interrupted(self) -> None:
        """Whatever has begun does not end any more."""
        for step in list(self._began_s):
            self.failed(step, "not finished")

    def _tell(self, step: str, state: StepState, text: str) -> None:
        now_s = self._env.monotonic_s()
        began_s = self._began_s.setdefault(step, now_s)
        if state is not StepState.RUNNING:
            del self._began_s[step]  # the same step may begin again
        self._sink.show(StepEvent(step, state, text, now_s - began_s))


class FileSink:
    """One JSON object a line, appended; on a full disk nothing, since what is told of goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def show(self, event: StepEvent) -> None:
        with contextlib.suppress(OSError), self._path.open("a") as file:
            file.write(event.to_json() + "\n")


class EventReader:
    """Reads what a FileSink writes; `new()` gives the events since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> list[StepEvent]:
        try:
            with self._path.open() as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return []
        whole, _, _ = text.rpartition("\n")
        if not whole:
            return []
        self._at += len(whole.encode()) + 1
        return [StepEvent.from_json(line) for line in whole.splitlines()]


_NEW_WORD_S = 5.0
"""A step's words in a file are this far apart, ..."""
_SAME_WORD_S = 10.0
"""... and one that has nothing new to say repeats its last after so long."""
_LOOK_EVERY_S = 1.0
_SIGNS = {StepState.RUNNING: "·", StepState.DONE: "✓", StepState.FAILED: "✗"}
_STYLES = {StepState.RUNNING: "dim", StepState.DONE: "green", StepState.FAILED: "red"}


@dataclass(slots=True)
class _Running:
    """A step as a file shows it: its newest event, and what stands there of it."""

    event: StepEvent
    heard_s: float
    said: str | None
    said_s: float


class ConsoleSink:
    """Shows events to a person; `with ConsoleSink(console) as sink`, inside a running event loop.

    A screen has spinners. Anything else gets lines: a step's first word (after `first_word_s`, if it lasts
    so long) and its end at once, new words of it a few seconds apart, and a sign of life after a silence.
    """

    def __init__(self, console: Console, *, first_word_s: float = 0.0, env: Env | None = None) -> None:
        self._console = console
        self._first_word_s = first_word_s
        self._env = env or SystemEnv()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._running: dict[str, _Running] = {}
        self._looking: asyncio.Task[None] | None = None

    def __enter__(self) -> ConsoleSink:
        if self._console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<24}"),
                TextColumn("{task.fields[note]}", style="dim"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        else:
            self._looking = asyncio.get_running_loop().create_task(self._look(), name="signs of life")
        return self

    def __exit__(self, *_: object) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def show(self, event: StepEvent) -> None:
        if self._progress is None:
            self._write(event)
        else:
            self._draw(self._progress, event)

    def _draw(self, progress: Progress, event: StepEvent) -> None:
        task = self._tasks.get(event.step)
        if event.state is StepState.RUNNING:
            if task is None:
                self._tasks[event.step] = progress.add_task(event.step, total=None, note=event.text)
            else:
                progress.update(task, note=event.text)
            return
        if task is not None:
            progress.remove_task(task)
            del self._tasks[event.step]
        self._line(event)

    def _write(self, event: StepEvent) -> None:
        now_s = self._env.monotonic_s()
        if event.state is not StepState.RUNNING:
            self._running.pop(event.step, None)
            self._line(event)
        elif (known := self._running.get(event.step)) is not None:
            known.event, known.heard_s = event, now_s
            self._say_if_due(known)
        else:
            known = self._running[event.step] = _Running(event, now_s, None, now_s)
            self._say_if_due(known)

    async def _look(self) -> None:
        while True:
            await self._env.sleep(_LOOK_EVERY_S)
            for known in list(self._running.values()):
                self._say_if_due(known)

    def _say_if_due(self, known: _Running) -> None:
        now_s, event = self._env.monotonic_s(), known.event
        if known.said is None:
            due_after_s = self._first_word_s
        else:
            due_after_s = _SAME_WORD_S if event.text == known.said else _NEW_WORD_S
        if now_s - known.said_s >= due_after_s:
            known.said, known.said_s = event.text, now_s
            self._line(replace(event, seconds=event.seconds + now_s - known.heard_s))

    def _line(self, event: StepEvent) -> None:
        line = Text("  ")
        line.append(_SIGNS[event.state], style=_STYLES[event.state])
        line.append(f" {event.step:<24} ")
        line.append(f"{event.seconds:6.1f} s  ", style="dim")
        line.append(event.text)
        self._console.print(line)
