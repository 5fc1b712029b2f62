"""The event loop of simulations: virtual time, and an order of callbacks that is drawn from a seed.

What it does differently from asyncio's own:

- time stands still while callbacks run and jumps to the next timer when nothing is ready, so a week costs
  nothing; `loop.time()`, `asyncio.sleep` and `asyncio.timeout` all follow it;
- of the callbacks that are ready, the next is drawn at random from the seed. asyncio promises first in, first
  out; code must not need that, because neither networks nor other processes promise it;
- nothing ready and no timer left is a deadlock and ends the run with a list of who waits where;
- `run_in_executor` (and so `asyncio.to_thread`) runs its function at once, on this thread;
- a task that dies without anybody looking at its exception fails the run.

The same seed gives the same run in the same process. In another process too, if nothing iterates over a set
of strings (Python seeds their hashes anew in each process: sort, or set PYTHONHASHSEED). Sets of tasks are
safe: tasks of this loop hash by their serial number.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import sys
import weakref
from asyncio import events
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_CLEANUP_STEPS = 1_000_000
_CLEANUP_S = 86_400.0
"""What is left over may take this much more, also after a run that used up its own limits."""


class SimulationDeadlock(AssertionError):
    """Nothing is ready, no timer is set, and the simulation is not finished."""


class SimulationStuck(AssertionError):
    """The simulation used up its steps or its virtual time."""


class _Task(asyncio.Task[T]):
    """Hashes by serial number, so that sets of tasks (asyncio.wait, TaskGroup) iterate alike in every run."""

    _serial = 0
    context: contextvars.Context

    def __hash__(self) -> int:
        return self._serial


class _Handle:
    """What asyncio's handles are for tasks, futures and timeouts. Theirs also serve debug mode, and one is
    made for every step of a simulation."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], args: Sequence[object], context: contextvars.Context
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled


def _nothing() -> None:
    pass


class SimulationLoop(asyncio.AbstractEventLoop):
    """The loop. `max_steps` callbacks or `max_virtual_s` seconds end a run with SimulationStuck."""

    def __init__(self, seed: int, *, max_steps: int = 5_000_000, max_virtual_s: float = 60 * 86_400) -> None:
        self._rng = random.Random(f"loop {seed}")
        self._now = 0.0
        self._ready: list[_Handle] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timer_count = 0
        self._task_count = 0
        self._steps = 0
        self._max_steps = max_steps
        self._max_virtual_s = max_virtual_s
        self._running = False
        self._stopping = False
        self._closed = False
        self._asyncgens: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._task_factory: Any = None
        self._exception_handler: Any = None
        self.unhandled: list[dict[str, Any]] = []

    @property
    def steps(self) -> int:
        """Callbacks run so far."""
        return self._steps

    # --- scheduling ---------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(handle)
        return cast(asyncio.Handle, handle)

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Handle(callback, args, contextvars.copy_context() if context is None else context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return cast(asyncio.TimerHandle, timer)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        if self._task_factory is not None:
            return cast("asyncio.Task[T]", self._task_factory(self, coro, context=context))
        self._task_count += 1
        _Task._serial = self._task_count  # read by the hash while asyncio registers the task
        context = contextvars.copy_context() if context is None else context
        task = _Task(
            cast(Any, coro),
            loop=self,
            name=f"task-{self._task_count}" if name is None else str(name),
            context=context,
        )
        task._serial = self._task_count
        task.context = context
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - carried to the caller, who awaits the future
            self.call_soon(_settle, future, None, error)
        else:
            self.call_soon(_settle, future, result, None)
        return future

    # --- running ------------------------------------------------------------------------------------------

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        task = asyncio.ensure_future(cast(Awaitable[T], future), loop=self)
        self._run(task.done)
        return task.result()

    def run_forever(self) -> None:
        self._run(lambda: False)

    def _run(self, is_done: Callable[[], bool]) -> None:
        if self._running or self._closed:
            raise RuntimeError("This event loop is already running or closed")
        old_hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._asyncgens.add, finalizer=self._finalize_asyncgen)
        self._running, self._stopping = True, False
        events._set_running_loop(self)
        try:
            self._run_steps(is_done)
        finally:
            events._set_running_loop(None)
            self._running = False
            sys.set_asyncgen_hooks(*old_hooks)

    def _run_steps(self, is_done: Callable[[], bool]) -> None:
        ready, timers, draw = self._ready, self._timers, self._rng.random
        while not is_done() and not self._stopping:
            while timers and (timers[0][0] <= self._now or not ready):
                when, _, timer = heapq.heappop(timers)
                if not timer.is_cancelled:
                    ready.append(timer)
                    if when > self._now:
                        self._advance_to(when)
            waiting = len(ready)
            if not waiting:
                raise SimulationDeadlock(f"nothing is ready and no timer is set\n{self.describe_tasks()}")
            if waiting > 1:
                chosen = int(draw() * waiting)
                handle, ready[chosen] = ready[chosen], ready[-1]
                ready.pop()
            else:
                handle = ready.pop()
            if not handle.is_cancelled:
                try:
                    handle.context.run(handle.callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as in asyncio
                    message = f"Exception in callback {handle.callback!r}"
                    self.call_exception_handler({"message": message, "exception": error, "handle": handle})
            self._steps += 1
            if self._steps > self._max_steps:
                raise SimulationStuck(f"not finished after {self._steps} steps\n{self.describe_tasks()}")

    def _advance_to(self, when: float) -> None:
        self._now = when
        if when > self._max_virtual_s:
            raise SimulationStuck(f"not finished after {when:.0f} virtual seconds\n{self.describe_tasks()}")

    def describe_tasks(self) -> str:
        """One line for each unfinished task: its name and the line on which it waits."""
        lines = []
        for task in sorted(self.unfinished_tasks(), key=hash):
            frames = task.get_stack(limit=1)
            where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "?"
            lines.append(f"  {task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')}) at {where}")
        return "\n".join(lines)

    def unfinished_tasks(self) -> list[asyncio.Task[Any]]:
        return sorted(asyncio.all_tasks(self), key=hash)

    def tasks_where(self, variable: contextvars.ContextVar[T], value: T) -> list[asyncio.Task[Any]]:
        """Unfinished tasks in whose context a variable has this very value: those of one process."""
        return [
            task
            for task in self.unfinished_tasks()
            if isinstance(task, _Task) and task.context.get(variable, None) is value
        ]

    def cancel_leftovers(self) -> None:
        """Cancel all tasks until none is left; then close the asynchronous generators."""
        self._max_steps, self._max_virtual_s = self._steps + _CLEANUP_STEPS, self._now + _CLEANUP_S
        for _ in range(100):
            tasks = self.unfinished_tasks()
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self.run_until_complete(asyncio.wait(tasks))
        self.run_until_complete(self.shutdown_asyncgens())

    # --- what else asyncio asks of a loop -----------------------------------------------------------------

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Debug mode measures real time and has no meaning here."""

    def set_task_factory(self, factory: Any) -> None:
        self._task_factory = factory

    def get_task_factory(self) -> Any:
        return self._task_factory

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)

    def _finalize_asyncgen(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens.discard(generator)
        if not self._closed:
            self.create_task(generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        generators = list(self._asyncgens)
        self._asyncgens.clear()
        await asyncio.gather(*(generator.aclose() for generator in generators), return_exceptions=True)

    async def shutdown_default_executor(self) -> None:
        """There is no executor."""


def _settle(future: asyncio.Future[T], result: T | None, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast(T, result))
