"""Steps that take time, as they happen: on a terminal with spinners, elsewhere one line per event.

The owner of a background stack writes its steps to a file, which the command that started it reads and shows.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn
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

    def _tell(self, step: str, state: StepState, text: str) -> None:
        now_s = self._env.monotonic_s()
        began_s = self._began_s.setdefault(step, now_s)
        if state is not StepState.RUNNING:
            del self._began_s[step]  # the same step may begin again
        self._sink.show(StepEvent(step, state, text, now_s - began_s))


class FileSink:
    """One JSON object a line, appended."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def show(self, event: StepEvent) -> None:
        with self._path.open("a") as file:
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


_SIGN_OF_LIFE_S = 5.0
_SIGNS = {StepState.RUNNING: "·", StepState.DONE: "✓", StepState.FAILED: "✗"}
_STYLES = {StepState.RUNNING: "dim", StepState.DONE: "green", StepState.FAILED: "red"}


class ConsoleSink:
    """Shows events to a person; `with ConsoleSink(console) as sink`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._last_s: dict[str, float] = {}

    def __enter__(self) -> ConsoleSink:
        if self._console.is_terminal:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<24}"),
                TextColumn("{task.fields[note]}", style="dim"),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def show(self, event: StepEvent) -> None:
        if self._progress is None:
            # Not a screen but a file: a step's first word, its end, and a sign of life every few seconds.
            last_s = self._last_s.get(event.step)
            if (
                event.state is not StepState.RUNNING
                or last_s is None
                or event.seconds - last_s >= _SIGN_OF_LIFE_S
            ):
                self._last_s[event.step] = event.seconds
                self._line(event)
            return
        task = self._tasks.get(event.step)
        if event.state is StepState.RUNNING:
            if task is None:
                self._tasks[event.step] = self._progress.add_task(event.step, total=None, note=event.text)
            else:
                self._progress.update(task, note=event.text)
            return
        if task is not None:
            self._progress.remove_task(task)
            del self._tasks[event.step]
        self._line(event)

    def _line(self, event: StepEvent) -> None:
        line = Text("  ")
        line.append(_SIGNS[event.state], style=_STYLES[event.state])
        line.append(f" {event.step:<24} ")
        line.append(f"{event.seconds:6.1f} s  ", style="dim")
        line.append(event.text)
        self._console.print(line)
