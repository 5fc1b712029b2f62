"""Work that needs the processes of a stack and its disk, and that ends as soon as one of them is gone.

Without this a dead node or scheduler shows as a run that fails or takes too long, minutes later and under
another name, and a full disk in the words of whichever program met it first.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from engine.env import Env
from engine.errors import OnclusterError, Unavailable
from engine.local.preflight import is_full

T = TypeVar("T")

_LOOK_EVERY_S = 0.2


class ProcessDied(OnclusterError):
    """A process of the stack ended although nobody asked it to; the hint is the end of its log."""


class DiskFull(Unavailable):
    """The stack's disk has no room, so that any of its programs fails about now."""


async def guarded(work: Coroutine[Any, Any, T], *, look: Callable[[], None], home: Path, env: Env) -> T:
    """Run `work` to its end, or until `look` raises or the disk of `home` is full; `work` is cancelled then.

    Raises what `look` raises, DiskFull, and what `work` raises. An error of `work` that has one of the other
    two for its reason is not raised in their place: a server that has ended refuses connections first.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_watch(look, home, env))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await watching
        return await working
    except DiskFull:
        raise
    except (OSError, OnclusterError) as error:
        is_said = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_said or is_full(home):
            _refuse_full(home, because=error)
        if isinstance(error, Unavailable):
            look()
        raise
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _watch(look: Callable[[], None], home: Path, env: Env) -> None:
    while True:
        # First: a process that has ended may have ended of that.
        if is_full(home):
            _refuse_full(home)
        look()
        await env.sleep(_LOOK_EVERY_S)


def _refuse_full(home: Path, *, because: BaseException | None = None) -> NoReturn:
    what = because.message if isinstance(because, OnclusterError) else ""
    raise DiskFull(
        f"The disk of {home} is full. {what}".rstrip(),
        hint="Make room, or set ONCLUSTER_HOME to a directory on another disk.",
    ) from because
