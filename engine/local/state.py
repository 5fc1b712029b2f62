"""What is known of a running stack, as a file: `state.json` in the run directory.

It is written by the stack's owner at every change, whole, by renaming; it is read by `up`, `down`, `status`
and by clients. It holds Airflow's password, so nobody else may read it.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import Corrupt
from engine.processes import ProcessId

STATE_FILE = "state.json"


class Phase(enum.StrEnum):
    """Where a stack stands in its life."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process of the stack and where it listens (empty where it does not)."""

    name: str
    pid: int
    started: str
    address: str = ""

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.started)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> ProcessEntry:
        """Of an earlier version, which noted the time of the day, it is nobody's any more."""
        return cls(raw["name"], raw["pid"], raw.get("started", ""), raw["address"])


@dataclass(frozen=True, slots=True, kw_only=True)
class StackState:
    """A stack. `owner` is the process that started everything and stops it; `mark` is on every process."""

    mark: str
    owner: ProcessEntry
    phase: Phase
    zookeeper: str
    config_file: str
    migrations: str
    ledger_url: str = field(repr=False)
    nodes: dict[str, str] = field(default_factory=dict)
    airflow_url: str = ""
    airflow_user: str = ""
    airflow_password: str = field(default="", repr=False)
    processes: tuple[ProcessEntry, ...] = ()
    error: str = ""
    error_hint: str = ""

    def with_phase(self, phase: Phase) -> StackState:
        return replace(self, phase=phase)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str, *, where: str = "state") -> StackState:
        """Raises Corrupt."""
        try:
            raw = json.loads(text)
            raw["owner"] = ProcessEntry.from_json(raw["owner"])
            raw["processes"] = tuple(map(ProcessEntry.from_json, raw["processes"]))
            raw["phase"] = Phase(raw["phase"])
            return cls(**raw)
        except (ValueError, TypeError, KeyError) as error:
            raise Corrupt(
                f"{where} cannot be read: {error}.",
                hint="Look for processes of the stack (`ps`), end them, and remove the file.",
            ) from error


def read_state(home: Path) -> StackState | None:
    """The state in a run directory; None when there is none. Raises Corrupt."""
    path = home / STATE_FILE
    try:
        return StackState.from_json(path.read_text(), where=str(path))
    except FileNotFoundError:
        return None


def stack_nodes(home: Path, config_file: Path) -> dict[str, str]:
    """Where the stack's nodes are, by host; none for another configuration than the stack's own, whose hosts
    may have the same names. Raises Corrupt."""
    state = read_state(home)
    is_its_own = state is not None and Path(state.config_file).resolve() == config_file.resolve()
    return dict(state.nodes) if state is not None and is_its_own else {}


def write_state(home: Path, state: StackState) -> None:
    """Replace the state file; readers see the old or the new one."""
    path = home / STATE_FILE
    temporary = path.with_suffix(".tmp")
    temporary.touch(mode=0o600)
    temporary.write_text(state.to_json())
    temporary.replace(path)
