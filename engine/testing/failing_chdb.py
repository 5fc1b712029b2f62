"""A node whose chDB fails now and then for want of memory (241), as a server does whose memory is used up.

    launch = failing(knob, warm)                       # instead of `warm`, for LocalCluster or ChildProcess
    knob.write(Faults(rate=0.05))                      # from now on
    knob.write(Faults(rate=1, of="REPLACE PARTITION", moments=(Moment.BEHIND,), most=1))
    knob.write(None)                                   # all is well again

Every statement that the process gives to chDB may fail, its own ones and those of clients: before it begins,
at any of its allocations (ClickHouse's own `memory_tracker_fault_probability`), or when it has taken effect.
The last is no invention: DROP, RENAME, DETACH, CREATE of views and databases, INSERT and REPLACE PARTITION
were seen to fail at an allocation behind their effect.

The knob is a file, which the process looks at before each statement. What failed stands in its log.
"""

from __future__ import annotations

import enum
import json
import logging
import random
import re
import runpy
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from engine.storage.chdb_module import load_chdb
from engine.testing.launch import Launch, Launched, Program

log = logging.getLogger(__name__)

FAILED = "failing_chdb.failed"
"""In the log, a line for each statement that was made to fail."""
_MESSAGE = "Code: 241. DB::Exception: Query memory tracker: fault injected. (MEMORY_LIMIT_EXCEEDED)"
_ON = "SET memory_tracker_fault_probability = {}, max_untracked_memory = 0"
_OFF = "SET memory_tracker_fault_probability = 0, max_untracked_memory = DEFAULT"
_LEAST, _MOST = -3.5, -1.5
"""Powers of ten: from a failure at one of thousands of allocations to one at one of the first."""
_TRIES = 10_000
_MODULE = "engine.testing.failing_chdb"
_CHDB = "chdb._chdb"
_PROGRAM = "engine.cli"


class Moment(enum.Enum):
    """When a statement fails."""

    BEFORE = "before it begins"
    INSIDE = "at one of its allocations, or not at all"
    BEHIND = "when it has taken effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Which statements fail. `of` is a pattern that their text matches, `most` how many do in a process."""

    rate: float
    of: str = ""
    moments: tuple[Moment, ...] = tuple(Moment)
    most: int = sys.maxsize

    def to_text(self) -> str:
        moments = [moment.name for moment in self.moments]
        return json.dumps({"rate": self.rate, "of": self.of, "moments": moments, "most": self.most})

    @classmethod
    def from_text(cls, text: str) -> Faults:
        facts = json.loads(text)
        moments = tuple(Moment[name] for name in facts["moments"])
        return cls(rate=facts["rate"], of=facts["of"], moments=moments, most=facts["most"])


class Knob:
    """Of one process or several."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, faults: Faults | None) -> None:
        """None: nothing fails any more."""
        if faults is None:
            self.file.unlink(missing_ok=True)
            return
        written = self.file.with_name(f"{self.file.name}.new")
        written.write_text(faults.to_text(), "utf-8")
        written.replace(self.file)


def failing(knob: Knob, launch: Launch) -> Launch:
    """Starts a program `python -m engine.cli …` with a chDB that fails as the knob says."""

    def start(program: Program, output: int) -> Launched:
        python, option, module, *arguments = program.argv
        assert (option, module) == ("-m", _PROGRAM)
        argv = (python, "-m", _MODULE, str(knob.file), *arguments)
        return launch(Program(argv, program.environ, program.cwd), output)

    return start


class FailingChdb:
    """Stands for chDB's module, from `ChdbPool`'s view."""

    def __init__(self, module: Any, knob: Path, rng: random.Random) -> None:
        self._module = module
        self._knob = knob
        self._rng = rng
        self._lock = threading.Lock()
        self._faults: Faults | None = None
        self._seen = (0, 0)
        self._left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def connect(self, connection_string: str) -> Any:
        return _Connection(self, self._module.connect(connection_string))

    def moment(self, sql: str) -> tuple[Moment, float] | None:
        """How this statement fails, and with what probability at each allocation."""
        with self._lock:
            self._look()
            faults = self._faults
            if faults is None or not self._left or not re.search(faults.of, sql):
                return None
            if self._rng.random() >= faults.rate:
                return None
            self._left -= 1
            return self._rng.choice(faults.moments), 10 ** self._rng.uniform(_LEAST, _MOST)

    def _look(self) -> None:
        try:
            status = self._knob.stat()
        except FileNotFoundError:
            self._faults, self._seen = None, (0, 0)
            return
        if (seen := (status.st_ino, status.st_mtime_ns)) != self._seen:
            self._seen = seen
            self._faults = Faults.from_text(self._knob.read_text("utf-8"))
            self._left = self._faults.most


class _Connection:
    def __init__(self, chdb: FailingChdb, connection: Any) -> None:
        self._chdb = chdb
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def query(self, sql: str | bytes, *arguments: Any, **more: Any) -> Any:
        text = sql.decode("utf-8", "replace") if isinstance(sql, bytes) else sql
        chosen = self._chdb.moment(text)
        if chosen is None:
            return self._connection.query(sql, *arguments, **more)
        moment, probability = chosen
        match moment:
            case Moment.BEFORE:
                _note(moment, text)
                raise RuntimeError(_MESSAGE)
            case Moment.BEHIND:
                self._connection.query(sql, *arguments, **more)
                _note(moment, text)
                raise RuntimeError(_MESSAGE)
            case Moment.INSIDE:
                return self._fail_inside(text, probability, sql, *arguments, **more)

    def _fail_inside(self, text: str, probability: float, *arguments: Any, **more: Any) -> Any:
        try:
            self._connection.query(_ON.format(probability), "Null")
        except RuntimeError:  # in a session that may not set anything
            return self._connection.query(*arguments, **more)
        try:
            return self._connection.query(*arguments, **more)
        except RuntimeError:
            _note(Moment.INSIDE, text)
            raise
        finally:
            self._restore()

    def _restore(self) -> None:
        """This statement may fail, too. What is left of output is dropped by it, as by the next statement."""
        for _ in range(_TRIES):
            try:
                self._connection.query(_OFF, "Null")
            except RuntimeError:
                continue
            return
        raise AssertionError("chDB fails for ever")


def _note(moment: Moment, text: str) -> None:
    log.info("%s moment=%s sql=%.160s", FAILED, moment.name, " ".join(text.split()))


def install(knob: Path, rng: random.Random) -> None:
    """In this process, before its chDB starts. `sys.modules` is where `load_chdb` looks first."""
    sys.modules[_CHDB] = cast(ModuleType, FailingChdb(load_chdb(), knob, rng))


def main() -> None:
    knob = Path(sys.argv.pop(1))
    install(knob, random.Random(str(knob)))
    runpy.run_module(_PROGRAM, run_name="__main__")


if __name__ == "__main__":
    main()
