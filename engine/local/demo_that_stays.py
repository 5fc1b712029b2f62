"""`oncluster up --demo`: a stack in the background, migrated; left running whole, or not at all.

The supervisor owns the processes; this command only watches them, by the state file, while it migrates. What
happens when it does not come to its end:
1. A process of the stack ends, the disk is full, or the command is interrupted: what this command started is
   stopped, as when the start itself fails. A stack that ran before is not ours to stop: it is left as it is,
   and `oncluster up` starts again what has ended.
2. A migration or the load fails: everything runs, and the reason is there to be looked at; it is left so.
3. Somebody stops the stack meanwhile: nothing is left to stop.
A command that is killed leaves a whole stack with its supervisor; the run in Airflow goes on.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.env import Env, SystemEnv
from engine.errors import OnclusterError
from engine.local import supervisor
from engine.local.demo import migrate_all
from engine.local.demo_result import DemoResult
from engine.local.guarding import DiskFull, ProcessDied, guarded
from engine.local.progress import Sink, Steps
from engine.local.stack_options import StackOptions
from engine.local.state import Phase, StackState, read_state

_TAIL_LINES = 8
_TAIL_BYTES = 16_384


class StackStopped(OnclusterError):
    """Somebody has stopped the stack while it was migrated."""


async def up_with_demo(
    options: StackOptions, sink: Sink, *, env: Env | None = None
) -> tuple[StackState, DemoResult]:
    """`supervisor.up`, then the demo's migrations and load.

    Raises what starting raises, ProcessDied, DiskFull, StackStopped, MigrationRunFailed, LoadRunFailed.
    """
    env = env or SystemEnv()
    home = options.home.absolute()
    before = read_state(home)
    state = await supervisor.up(options, sink, env=env)
    is_ours = before is None or before.mark != state.mark
    steps = Steps(sink, env=env)

    def look() -> None:
        require_alive(home, state)

    try:
        return state, await guarded(migrate_all(state, steps, env=env), look=look, home=home, env=env)
    except (ProcessDied, DiskFull, asyncio.CancelledError) as error:
        steps.interrupted()
        if is_ours:
            await supervisor.down(home, sink, env=env)
        elif isinstance(error, ProcessDied):
            error.hint = f"The rest still runs; `oncluster up` starts it again. {error.hint}".rstrip()
        raise
    except OnclusterError:
        steps.interrupted()
        now = read_state(home)
        if now is not None and now.mark == state.mark and now.phase is Phase.READY:
            steps.done("left running", f"{state.airflow_url}; `oncluster down` stops it")
        raise


def require_alive(home: Path, state: StackState) -> None:
    """Look at the processes that the state file names now. Raises ProcessDied, and StackStopped."""
    now = read_state(home)
    if now is None or now.mark != state.mark or now.phase in (Phase.STOPPING, Phase.STOPPED):
        raise StackStopped(
            f"The stack in {home} was stopped while it was migrated.", hint="`oncluster up --demo` goes on."
        )
    # The supervisor first: without it everything ends.
    for name, entry in (("supervisor", now.owner), *((entry.name, entry) for entry in now.processes)):
        if not entry.id.is_alive:
            name, log_file = name.replace("Airflow ", "Airflow's "), _log_of(home, name)
            raise ProcessDied(f"{name} has ended unexpectedly.", hint=_last_words(log_file))


def _log_of(home: Path, name: str) -> Path:
    if name == "ZooKeeper":
        return home / "zookeeper" / "server.log"
    return home / "logs" / f"{name.replace('Airflow ', 'airflow-')}.log"


def _last_words(log_file: Path) -> str:
    try:
        text = log_file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return f"Its log is {log_file}."
    lines = [line for line in text.splitlines() if line.strip()]
    return f"The end of {log_file}:\n" + "\n".join(lines[-_TAIL_LINES:])
