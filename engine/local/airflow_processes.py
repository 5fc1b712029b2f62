"""Processes of a local Airflow: known for good by id and start time, started apart from the terminal,
signalled.

Safety. Nothing here ends a process by its name, and an id that the system has given to somebody else is left
alone (`StartedProcess.process`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from engine.processes import ProcessId, is_alive
from engine.testing.launch import Launched, Program


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """One process of ours: what it is called, and who it is."""

    name: str
    pid: int
    started: str

    @property
    def id(self) -> ProcessId:
        return ProcessId(self.pid, self.started)

    def process(self) -> psutil.Process | None:
        """The living process, or None when it is gone, a zombie, or somebody else's."""
        return self.id.process()

    @property
    def is_number_its_own(self) -> bool:
        """Also when it is gone: nobody else has its number."""
        return ProcessId.of(self.pid) in (None, self.id)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> StartedProcess:
        """Of an earlier version, which noted the time of the day, it is nobody's any more."""
        return cls(raw["name"], raw["pid"], raw.get("started", ""))


def detached(program: Program, output: int) -> Launched:
    """In a session of its own: Ctrl-C at the terminal is for the launcher alone. It outlives the launcher."""
    return subprocess.Popen(
        program.argv,
        env=dict(program.environ),
        cwd=program.cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def with_children(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    family: dict[int, psutil.Process] = {}
    for process in processes:
        family.setdefault(process.pid, process)
        try:
            for child in process.children(recursive=True):
                family.setdefault(child.pid, child)
        except psutil.NoSuchProcess:
            continue
    return list(family.values())


def distinct(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return list({process.pid: process for process in processes}.values())


def serves(process: psutil.Process) -> bool:
    """Whether it lives and has a TCP socket, for new connections or of one."""
    try:
        return is_alive(process) and bool(process.net_connections("tcp"))
    except psutil.AccessDenied:
        return is_alive(process)
    except psutil.NoSuchProcess:
        return False


def send_signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        pass
