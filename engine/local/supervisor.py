"""A stack in the background: `up` starts a supervisor process that owns everything, `down` asks it to stop.

    python -m engine.local.supervisor OPTIONS-AS-JSON

Safety argument.
1. The supervisor is the only owner: it starts, watches and stops. Its steps go to `events.jsonl`, its state
   to `state.json`, its own output to `logs/supervisor.log`.
2. SIGTERM stops everything in order; SIGHUP starts again what has ended. When the supervisor is killed, the
   guard ends everything.
3. `down` signals only the process whose number and start time stand in the state file, and then sweeps what
   carries the stack's mark; so it also cleans up after a crash, and does nothing when nothing runs.
A node that ends while the stack is up is reported by `status` and not started again by itself: a node that
was killed on purpose shall stay away until somebody says `up`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
from pathlib import Path

from engine.env import Env, SystemEnv
from engine.errors import Busy, OnclusterError, Unavailable
from engine.local.preflight import check
from engine.local.progress import EventReader, FileSink, Sink, Steps
from engine.local.stack import Stack
from engine.local.stack_options import StackOptions
from engine.local.state import STATE_FILE, Phase, StackState, read_state, write_state
from engine.processes import ProcessId
from engine.testing.processes import end_all, sweep

log = logging.getLogger(__name__)

EVENTS_FILE = "events.jsonl"
_START = "start"
"""A step that is not shown: it carries the reason when there is no state file to carry it."""
_POLL_S = 0.1
_STOP_TIMEOUT_S = 60.0


class StackFailed(OnclusterError):
    """The stack in the background did not start."""


# --- the background process -------------------------------------------------------------------------------


async def supervise(options: StackOptions) -> None:
    """Own a stack until SIGTERM. Raises what starting raises; the state file holds the reason then."""
    steps = Steps(FileSink(options.home / EVENTS_FILE))
    stop, revive = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGHUP, revive.set)
    stack = Stack(options)
    starting = asyncio.create_task(stack.start(steps))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    await starting
    try:
        while not stop.is_set():
            waiting = asyncio.create_task(revive.wait())
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if revive.is_set() and not stop.is_set():
                revive.clear()
                try:
                    await stack.revive(steps)
                except OnclusterError as error:  # said in the events; the rest of the stack stays up
                    steps.failed("starting again", str(error))
                else:
                    steps.done("starting again", "everything runs")
    finally:
        await stack.stop(steps)


def main() -> None:
    options = StackOptions.from_json(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(supervise(options))
    except OnclusterError as error:
        Steps(FileSink(options.home / EVENTS_FILE)).failed(_START, str(error))
        log.error("stack.failed error=%s", error)
        sys.exit(1)


# --- the commands -----------------------------------------------------------------------------------------


async def up(options: StackOptions, sink: Sink, *, env: Env | None = None) -> StackState:
    """Start a stack in the background, or what has ended of one that runs; returns when it is ready.

    Raises Busy and ConfigError before anything is started, StackFailed with the reason after.
    """
    env = env or SystemEnv()
    home = options.home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    events = EventReader(home / EVENTS_FILE)
    running = read_state(home)
    if running is not None and running.owner.id.is_alive:
        if options.with_airflow and not running.airflow_url:
            raise Busy(
                f"The stack in {home} runs without Airflow.",
                holder=f"process {running.owner.pid}",
                hint="Say --no-airflow here, too, or `oncluster down` before `oncluster up`.",
            )
        events.new()
        if owner_process := running.owner.id.process():
            owner_process.send_signal(signal.SIGHUP)
        return await _follow(home, running.owner.id, events, sink, until_step="starting again", env=env)
    if running is not None:
        await _sweep(running, Steps(sink, env=env), env=env)
    check(options)
    (home / EVENTS_FILE).unlink(missing_ok=True)
    (home / STATE_FILE).unlink(missing_ok=True)
    process = _spawn(options, home / "logs" / "supervisor.log")
    owner = ProcessId.of(process.pid)
    if owner is None:
        raise StackFailed(
            "The stack's supervisor did not start.", hint=f"See {home / 'logs' / 'supervisor.log'}."
        )
    try:
        return await _follow(home, owner, events, sink, until_step="", env=env)
    except BaseException:  # also a cancellation: an unfinished start is taken back
        process.terminate()
        await asyncio.shield(asyncio.to_thread(process.wait))
        raise


async def _sweep(old: StackState, steps: Steps, *, env: Env) -> None:
    """End what a crash left."""
    if old.phase is not Phase.STOPPED:
        steps.running("cleaning up", "a stack that was not stopped in order")
    left = await sweep(old.mark, env=env)
    if left or old.phase is not Phase.STOPPED:
        steps.done("cleaning up", f"{left} processes of a stack that was not stopped in order")


def _spawn(options: StackOptions, log_file: Path) -> subprocess.Popen[bytes]:
    """The supervisor, in a session of its own: it outlives the command and its terminal."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "engine.local.supervisor", options.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


async def _follow(
    home: Path, owner: ProcessId, events: EventReader, sink: Sink, *, until_step: str, env: Env
) -> StackState:
    """Show the supervisor's steps until the stack is ready, or until `until_step` has ended."""
    last = ""
    while True:
        alive = owner.is_alive
        for event in events.new():
            if event.step == _START:
                last = event.text
                continue
            sink.show(event)
            if until_step and event.step == until_step:
                if event.state == "failed":
                    raise StackFailed(event.text)
                state = read_state(home)
                assert state is not None
                return state
        state = read_state(home)
        if not until_step and state is not None and state.phase is Phase.READY:
            return state
        if not alive:
            if state is not None and state.error:
                raise StackFailed(f"The stack did not start: {state.error}", hint=state.error_hint)
            raise StackFailed(
                f"The stack did not start: {last or 'its supervisor ended'}",
                hint="" if last else f"See {home / 'logs' / 'supervisor.log'}.",
            )
        await env.sleep(_POLL_S)


async def down(home: Path, sink: Sink, *, env: Env | None = None) -> bool:
    """End the stack of this directory and everything that a crash left of it; False when nothing ran.

    Raises Unavailable when something cannot be ended.
    """
    env = env or SystemEnv()
    steps = Steps(sink, env=env)
    state = read_state(home)
    if state is None or state.phase is Phase.STOPPED:
        return False
    owner = state.owner.id.process()
    did_something = False
    if owner is not None:
        did_something = True
        events = EventReader(home / EVENTS_FILE)
        events.new()
        owner.terminate()
        deadline_s = env.monotonic_s() + _STOP_TIMEOUT_S
        while state.owner.id.is_alive and env.monotonic_s() < deadline_s:
            for event in events.new():
                sink.show(event)
            await env.sleep(_POLL_S)
        for event in events.new():
            sink.show(event)
        if state.owner.id.is_alive:
            steps.failed("stopping", "the supervisor does not end; killing it")
            await end_all([owner], timeout_s=1.0, env=env)
    left = await sweep(state.mark, env=env)
    left += await end_all(
        [process for entry in state.processes if (process := entry.id.process()) is not None], env=env
    )
    if left:
        did_something = True
        steps.done("cleaning up", f"{left} processes of a stack that was not stopped in order")
    alive = [entry.name for entry in state.processes if entry.id.is_alive]
    if alive:
        raise Unavailable(f"Still running: {', '.join(alive)}.", hint="Try again, or end them by hand.")
    newest = read_state(home)
    if newest is not None:
        with contextlib.suppress(OSError):  # a full disk; those in the file are known to be gone
            write_state(home, newest.with_phase(Phase.STOPPED))
    return did_something


if __name__ == "__main__":
    main()
