"""Which queue a command of `oncluster ddl` speaks to, and how an entry is named on the command line."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from engine.cli.options import load_config
from engine.cli.sessions import keeper_session
from engine.cli.text_type import TextType
from engine.config.model import DistributedDdl, NodeConfig
from engine.ddl import DDLQueueClient
from engine.env import SystemEnv
from engine.errors import ConfigError
from engine.keeper.base import Keeper
from engine.names import entry_name, entry_number
from engine.sql import expand_macros


class EntryName(TextType):
    """`query-0000000007`, or its number. Anything else would be said to have been cleaned away long ago."""

    name = "entry"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text.isascii() and text.isdigit() and len(text) <= 10:
            return entry_name(int(text))
        if entry_number(text) is None:
            self.fail(f"{text!r} is no entry; write query-0000000007, or 7.", param, ctx)
        return text


ENTRY = EntryName()


@dataclass(frozen=True, slots=True)
class OpenQueue:
    """A session and one queue of the configuration."""

    keeper: Keeper
    config: NodeConfig
    queue: DistributedDdl
    client: DDLQueueClient

    @property
    def option(self) -> str:
        """What names this queue to other commands; nothing for the one that they take by themselves."""
        return "" if self.queue is self.config.queues[0] else f" --queue {self.queue.name}"


def queue_option(command: Any) -> Any:
    return click.option(
        "--queue",
        "queue_name",
        default=None,
        help="Name of the distributed_ddl section. Default: that of the cluster named, else the first.",
    )(command)


@contextlib.asynccontextmanager
async def open_queue(
    config: Path | None, queue_name: str | None, *, on_cluster: str = ""
) -> AsyncIterator[OpenQueue]:
    node = load_config(config)
    queue = _choose_queue(node, queue_name, expand_macros(on_cluster, node.topology.macros))
    async with keeper_session(node) as keeper:
        yield OpenQueue(keeper, node, queue, DDLQueueClient(keeper, SystemEnv(), queue.paths))


def _choose_queue(config: NodeConfig, name: str | None, cluster: str) -> DistributedDdl:
    if not config.queues:
        raise ConfigError(
            "There is no DistributedDDL configuration in the configuration.",
            hint="Add <distributed_ddl><path>/clickhouse/task_queue/ddl</path></distributed_ddl>.",
        )
    if name is None:
        return config.queue_of(cluster) if cluster else config.queues[0]
    for queue in config.queues:
        if queue.name == name:
            return queue
    known = ", ".join(queue.name for queue in config.queues)
    raise ConfigError(f"There is no queue '{name}'.", hint=f"Queues of this configuration: {known}.")
