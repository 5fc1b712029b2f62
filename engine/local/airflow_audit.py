"""Airflow's API server writes its audit log in a thread.

Airflow 3.3 writes a line of it for each request that changes something, and commits it in the server's event
loop, before the request is carried out in a thread. On SQLite, which has one writer at a time, the loop waits
there for a lock that another request may have, and that request gives it back when the loop has got on:
twenty-four runs that were triggered at once stopped the whole server for minutes.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import Awaitable, Callable
from typing import Any

Log = Callable[..., Awaitable[None]]
_MODULE, _NAME = "airflow.api_fastapi.logging.decorators", "action_logging"


def write_in_threads() -> None:
    """For the routes of the API that are imported from now on, also in processes forked from this one. An
    Airflow that has it elsewhere writes it as it does."""
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return
    made = getattr(module, _NAME, None)
    if made is None:
        return

    @functools.wraps(made)
    def in_threads(*args: Any, **kwargs: Any) -> Log:
        return _in_thread(made(*args, **kwargs))

    setattr(module, _NAME, in_threads)


def _in_thread(log: Log) -> Log:
    @functools.wraps(log)  # FastAPI reads the signature to see what it is to be given
    async def logged(request: Any, **others: Any) -> None:
        await request.body()  # comes by way of the loop; the request keeps it
        await asyncio.to_thread(lambda: asyncio.run(_awaited(log(request=request, **others))))

    return logged


async def _awaited(work: Awaitable[None]) -> None:
    await work
