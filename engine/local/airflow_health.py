"""Whether Airflow's parts work, as its two interfaces say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import aiohttp

from engine.env import Env

_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")
_FOR_TASKS = "interface for tasks"
_POLL_S = 0.1


class AirflowHealth:
    """`url` and `tasks_url` are where the two interfaces are served."""

    def __init__(self, url: str, tasks_url: str, *, env: Env) -> None:
        self._url = url
        self._tasks_url = tasks_url
        self._env = env
        self.missing = [*_PARTS, _FOR_TASKS]
        """What was not yet seen to work."""

    async def wait(self, progress: Callable[[str], None], *, require_alive: Callable[[], None]) -> None:
        """Return when every part has been seen to work. `require_alive` is called again and again; what it
        raises is raised."""
        serves_tasks = asyncio.create_task(self._until_tasks_are_served())
        try:
            while self.missing:
                require_alive()
                working = await self._working_parts()
                if serves_tasks.done():
                    await serves_tasks
                    working.add(_FOR_TASKS)
                for part in working.intersection(self.missing):
                    self.missing.remove(part)
                    progress(f"Airflow: {part.replace('_', ' ')} is healthy")
                await self._env.sleep(_POLL_S)
        finally:
            serves_tasks.cancel()
            await asyncio.gather(serves_tasks, return_exceptions=True)

    async def _working_parts(self) -> set[str]:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session,
                session.get(f"{self._url}/api/v2/monitor/health") as answer,
            ):
                if answer.status != 200:
                    return set()
                body = await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return set()
        return {part for part in _PARTS if (body.get(part) or {}).get("status") == "healthy"}

    async def _until_tasks_are_served(self) -> None:
        """That interface is built on the first call, for seconds."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self._tasks_url}/execution/health") as answer:
                        if answer.status == 200:
                            return
                await self._env.sleep(_POLL_S)
