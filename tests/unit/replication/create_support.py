"""Replicas that are made and dropped with interruptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

from engine.errors import SessionExpired
from engine.keeper.base import Keeper
from engine.replication.commands.create import Created, create_replica
from engine.replication.table_definition import TableDefinition
from engine.testing.replication.disk import model_definition
from tests.unit.replication.replica_bench import PATHS, new_replica

R1, R2 = PATHS.replica("r1"), PATHS.replica("r2")


async def create(
    keeper: Keeper, number: int = 1, *, definition: TableDefinition | None = None, table_uuid: int = 7
) -> Created:
    wanted = definition or model_definition()
    new = replace(
        new_replica(number, table_uuid=UUID(int=table_uuid)),
        metadata=wanted.metadata.to_bytes(),
        columns=wanted.columns.to_bytes(),
    )
    return await create_replica(keeper, PATHS, PATHS.replica(f"r{number}"), new, wanted)


def pause_before(keeper: Keeper, write: int, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Run `meanwhile` before this session's `write`-th write from now on."""
    left = write

    def pausing(method):  # type: ignore[no-untyped-def]
        async def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left == 0:
                await meanwhile()
            return await method(*args, **kwargs)

        return call

    for method in ("create", "remove", "set", "multi"):
        setattr(keeper, method, pausing(getattr(keeper, method)))


def fail_after(keeper: Keeper, requests: int) -> None:
    """The session seems over to its owner after so many requests; what was executed stays."""
    left = requests

    def failing(method):  # type: ignore[no-untyped-def]
        async def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal left
            left -= 1
            if left < 0:
                raise SessionExpired("crashed here")
            return await method(*args, **kwargs)

        return call

    for method in (
        "create",
        "remove",
        "set",
        "get",
        "exists",
        "children",
        "multi",
        "get_many",
        "exists_many",
    ):
        setattr(keeper, method, failing(getattr(keeper, method)))
