"""The node's configuration read again: every two seconds, and at once by SYSTEM RELOAD CONFIG.

Only clusters and macros take effect; what else has changed is logged as waiting for a restart, and is no
error, as with ClickHouse's own settings that need one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from engine.config.watch import ConfigFile
from engine.env import Env
from engine.errors import ConfigError, SqlError
from engine.sql import Statement, StatementKind

WATCH_S = 2.0

logger = logging.getLogger(__name__)


class ConfigReload:
    """`on_change` is called when the clusters or macros are others. `stop` after `start`."""

    def __init__(self, config_file: ConfigFile, *, env: Env, on_change: Callable[[], None]) -> None:
        self._file = config_file
        self._env = env
        self._on_change = on_change
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watch = asyncio.create_task(self._look_again_and_again(), name="config watch")

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    @staticmethod
    def takes(statement: Statement) -> bool:
        return statement.kind is StatementKind.SYSTEM and statement.system_command == "RELOAD CONFIG"

    def run(self) -> None:
        """SYSTEM RELOAD CONFIG. Raises SqlError if the files cannot be read; all stays as it was then."""
        try:
            is_changed = self._file.reload_or_raise()
        except ConfigError as error:
            raise SqlError(error.code, str(error)) from error
        if is_changed:
            self._on_change()

    async def _look_again_and_again(self) -> None:
        while True:
            await self._env.sleep(WATCH_S)
            try:
                if self._file.reload():
                    self._on_change()
            except Exception:
                logger.exception("config.watch_failed retry_s=%g", WATCH_S)
