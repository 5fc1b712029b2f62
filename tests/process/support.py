"""Help for tests that run `oncluster` as a user does, and look at the process table afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from engine.env import SystemEnv
from engine.local.state import StackState, read_state
from engine.processes import ProcessId
from engine.testing.processes import marked

ONCLUSTER = [sys.executable, "-m", "engine.cli"]
PATIENCE_S = 600.0
"""After this long something hangs; no machine is so slow."""


@dataclass
class Home:
    """A run directory, and every stack that was seen in it."""

    path: Path
    seen: dict[str, StackState] = field(default_factory=dict)

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCLUSTER_")}
        return kept | {"ONCLUSTER_HOME": str(self.path)} | more

    def run(
        self, *arguments: str, timeout_s: float = PATIENCE_S, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ONCLUSTER, *arguments],
            env=self.environ(**environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            umask=0,
        )

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        """In a group of its own, as a shell would: `interrupt` is Ctrl-C in its terminal."""
        return subprocess.Popen(
            [*ONCLUSTER, *arguments],
            env=self.environ(**environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def state(self, below: str = ".") -> StackState | None:
        state = read_state(self.path / below)
        if state is not None:
            self.seen[state.mark] = state
        return state

    def status(self) -> dict[str, Any]:
        self.state()
        done = self.run("status", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def left(self) -> list[str]:
        """Processes of any stack seen here that live."""
        self.state()
        self.state("demo")
        found = []
        for state in self.seen.values():
            found += [str(process) for process in marked(state.mark)]
            found += [entry.name for entry in (state.owner, *state.processes) if entry.id.is_alive]
        return found


@contextlib.contextmanager
def home_in(path: Path) -> Iterator[Home]:
    """A home whose stacks are ended whatever the test does; the test itself says what must be gone before."""
    home = Home(path)
    try:
        yield home
    finally:
        home.state()
        home.state("demo")
        for state in home.seen.values():
            for entry in (state.owner, *state.processes):
                if process := entry.id.process():
                    process.kill()
            for process in marked(state.mark):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def cluster_file_in(path: Path, *, nodes: int) -> Path:
    """The demo's clusters with fewer nodes, for `--cluster-file`: each takes a processor for seconds."""
    replicas = "".join(
        f"<replica><host>node{n:02d}</host><port>9000</port></replica>" for n in range(1, nodes + 1)
    )
    inside = f"<shard><internal_replication>true</internal_replication>{replicas}</shard>"
    clusters = "".join(f"<{name}>{inside}</{name}>" for name in ("order_cluster", "log_cluster"))
    path.write_text(
        f"<clickhouse><remote_servers>{clusters}</remote_servers>"
        "<zookeeper><node><host>127.0.0.1</host><port>2181</port></node></zookeeper>"
        "<distributed_ddl><path>/clickhouse/task_queue/ddl</path></distributed_ddl></clickhouse>"
    )
    return path


def interrupt(process: subprocess.Popen[str]) -> None:
    """Ctrl-C: SIGINT to the whole foreground group."""
    os.killpg(process.pid, signal.SIGINT)


async def until(condition: Callable[[], object], *, of: subprocess.Popen[str] | None = None) -> None:
    """Wait for a condition; a process that must not end meanwhile fails the test with its output."""
    env = SystemEnv()
    while not condition():
        if of is not None and of.poll() is not None:
            raise AssertionError(f"ended with {of.returncode}:\n{of.stdout.read() if of.stdout else ''}")
        await env.sleep(0.05)


async def until_gone(identities: list[ProcessId]) -> None:
    await until(lambda: not any(identity.is_alive for identity in identities))
