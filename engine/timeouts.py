"""Timeouts of Python before 3.11.4, put right.

There a timeout that expires while its task is being cancelled ends as one more cancellation, and not as
TimeoutError: so a cleanup that gives itself some seconds is cut off in the middle, and what it would have
looked up or removed stays as it is. Debian 12 has such a Python, 3.11.2. With `mend` it behaves as later
ones do.

Source: the issue gh-102780 of CPython.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

_enter_as_it_was = asyncio.Timeout.__aenter__
_exit_as_it_was = asyncio.Timeout.__aexit__
_BEFORE = "_oncluster_cancelling"


def mend() -> None:
    """For all of this process; `engine` does it where it is needed."""
    asyncio.Timeout.__aenter__ = enter  # type: ignore[method-assign]
    asyncio.Timeout.__aexit__ = leave  # type: ignore[assignment,method-assign]


async def enter(self: asyncio.Timeout) -> asyncio.Timeout:
    """`__aenter__` that remembers how often the task had been cancelled by then."""
    setattr(self, _BEFORE, _cancelling())
    return await _enter_as_it_was(self)


async def leave(
    self: asyncio.Timeout,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """`__aexit__` that takes for its own what was cancelled no more often. Raises TimeoutError."""
    is_over = self.expired() and kind is not None and issubclass(kind, asyncio.CancelledError)
    await _exit_as_it_was(self, kind, error, trace)
    if is_over and _cancelling() <= getattr(self, _BEFORE):
        raise TimeoutError from error


def _cancelling() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()
