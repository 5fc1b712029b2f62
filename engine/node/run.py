"""Running a node as a process: signals, and what is left behind when it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from engine.config.watch import ConfigFile
from engine.env import SystemEnv
from engine.node.app import Node
from engine.node.descriptors import take_all_descriptors
from engine.node.lookups import NodeLoop

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_HARD_EXIT = 130


def run_node(config_file: Path, *, overrides: Mapping[str, str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; 0 after an orderly end.

    A second signal ends the process at once: chDB's data survives that. The process's umask becomes that of
    the configuration. Raises ConfigError for configuration that cannot be used, Busy when the data directory
    or a port is in use, Corrupt when the record of begun statements is unreadable.
    """
    gc.disable()  # until it has started: what a start makes stays, and looking through it takes a tenth of it
    try:
        config = ConfigFile(config_file, overrides=overrides or {})
        os.umask(config.node.umask)  # before the first file is made
        take_all_descriptors()
        with asyncio.Runner(loop_factory=NodeLoop) as runner:
            return runner.run(_serve(config))
    finally:
        gc.enable()


async def _serve(config: ConfigFile) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("node.killed signal=%s", number.name)
            os._exit(_HARD_EXIT)
        log.info("node.stopping signal=%s", number.name)
        stopping.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with Node(config, SystemEnv()):
            # What is there now stays: the collector need not look through it again and again.
            gc.freeze()
            gc.enable()
            await stopping.wait()
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    log.info("node.stopped")
    return 0
