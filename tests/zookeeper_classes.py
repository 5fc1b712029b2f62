"""The archive of ZooKeeper's classes that the servers of all tests share (class data sharing).

A server that ends writes down what it has loaded: 2 s, once. Each of a hundred that find the archive begins
with half of the processor time.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from engine.errors import OnclusterError
from engine.keeper.embedded import EmbeddedZooKeeper
from tests.quick_java import ZOOKEEPER_CLASSES

_FLAGS = "SERVER_JVMFLAGS"


def make_archive() -> None:
    """If there is none. Where Java or a server's jars are missing, there is none afterwards either."""
    if ZOOKEEPER_CLASSES.exists():
        return
    ZOOKEEPER_CLASSES.parent.mkdir(parents=True, exist_ok=True)
    new = ZOOKEEPER_CLASSES.with_name(f"{ZOOKEEPER_CLASSES.name}.{os.getpid()}")
    os.environ[_FLAGS] = f'"-XX:ArchiveClassesAtExit={new}"'
    try:
        asyncio.run(_start_and_stop())
    except OnclusterError:
        return
    finally:
        del os.environ[_FLAGS]
    if new.exists():
        new.replace(ZOOKEEPER_CLASSES)


def use_archive() -> None:
    """By every server that this process or one of its children starts."""
    if ZOOKEEPER_CLASSES.exists():
        os.environ[_FLAGS] = f'"-XX:SharedArchiveFile={ZOOKEEPER_CLASSES}"'


async def _start_and_stop() -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = EmbeddedZooKeeper(Path(directory))
        await server.start()
        await server.stop(timeout_s=60.0)
