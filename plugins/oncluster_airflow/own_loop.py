"""Running a coroutine on an event loop of its own, in a thread of its own.

The migration ledger is a database that is asked synchronously. In the triggerer one slow answer would hold
up every other trigger, so a migration waits beside the triggerer's loop, not on it. There is one such
thread per waiting migration, that is at most one per cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def on_own_loop(make: Callable[[], Coroutine[Any, Any, T]], *, name: str) -> T:
    """What `make()` returns or raises. Cancelling the caller cancels it and waits for its clean-up."""
    here = asyncio.get_running_loop()
    done: asyncio.Future[T] = here.create_future()
    started = threading.Event()
    inner: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None
        inner.append((asyncio.get_running_loop(), task))
        started.set()
        return await make()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled() or done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # there is no error

    def work() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = asyncio.run(main())
        except BaseException as caught:  # noqa: BLE001 - carried to the caller's loop, whatever it is
            error = caught
        finally:
            started.set()
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed: nobody listens any more
            here.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        started.wait()
        if inner and not done.done():
            loop, task = inner[0]
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
            with contextlib.suppress(BaseException):
                await done
        raise
