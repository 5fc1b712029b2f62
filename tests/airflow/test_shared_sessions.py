"""The sessions that triggers of one triggerer share, by connection; over a Keeper in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.config.model import KeeperSection
from engine.env import Env, SystemEnv
from engine.errors import ConfigError, SessionExpired
from engine.keeper.base import Keeper
from engine.keeper.memory import MemoryKeeperServer


class Keepers:
    """What is connected to instead of servers: `silent` never answers, every other host opens a session."""

    def __init__(self) -> None:
        self.server = MemoryKeeperServer(SystemEnv())
        self.asked = asyncio.Event()
        self.hosts: list[str] = []

    async def connect(self, section: KeeperSection, env: Env) -> Keeper:
        ((host, _),) = section.hosts
        self.hosts.append(host)
        if host == "silent":
            self.asked.set()
            await asyncio.Event().wait()
        return await self.server.connect()

    async def expire(self, keeper: Keeper) -> None:
        self.server.expire_session(keeper.session_id)
        with pytest.raises(SessionExpired):
            await keeper.children("/")


@pytest.fixture
async def keepers(monkeypatch: pytest.MonkeyPatch) -> Keepers:
    from oncluster_airflow.hooks import keeper

    found = Keepers()
    monkeypatch.setattr(keeper.opening, "connect", found.connect)
    return found


async def test_a_keeper_that_does_not_answer_keeps_nobody_from_another_one(
    keepers: Keepers, connection: Any
) -> None:
    """1. A trigger connects to a Keeper that never answers. 2. Another trigger wants another Keeper."""
    from oncluster_airflow.hooks.keeper import KeeperHook

    silent = connection("silent", conn_type="zookeeper", host="silent")
    well = connection("well", conn_type="zookeeper", host="well")

    async def wait_in_vain() -> None:
        async with KeeperHook(silent).shared_session():
            pass

    waiting = asyncio.create_task(wait_in_vain())
    await keepers.asked.wait()
    async with asyncio.timeout(60), KeeperHook(well).shared_session() as keeper:
        assert await keeper.exists("/") is not None
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()


async def test_a_wait_goes_on_with_the_connection_it_had_where_airflow_cannot_say_it_any_more(
    keepers: Keepers, connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that breaks takes Keeper and Airflow's database at once: 1. two waits share a session. 2. It
    ends, and Airflow knows of no connection. 3. Both go on, whoever of them had opened it."""
    from oncluster_airflow.hooks.keeper import KeeperHook

    conn_id = connection("well", conn_type="zookeeper", host="well")
    first, second = KeeperHook(conn_id), KeeperHook(conn_id)
    async with first.shared_session() as one, second.shared_session() as same:
        assert one is same
        await keepers.expire(one)
        monkeypatch.delenv("AIRFLOW_CONN_WELL")
        async with second.shared_session() as another, first.shared_session() as same:
            assert another is same and not another.is_expired
            await keepers.expire(another)
            async with first.shared_session() as last:
                assert not last.is_expired
    assert keepers.hosts == ["well", "well", "well"]

    with pytest.raises(ConfigError, match="no connection 'well'"):
        async with KeeperHook(conn_id).shared_session():
            pass


async def test_a_connection_that_was_corrected_is_what_the_next_session_is_opened_with(
    keepers: Keepers, connection: Any
) -> None:
    from oncluster_airflow.hooks.keeper import KeeperHook

    hook = KeeperHook(connection("well", conn_type="zookeeper", host="well"))
    async with hook.shared_session() as one:
        await keepers.expire(one)
        connection("well", conn_type="zookeeper", host="moved")
        async with hook.shared_session() as another:
            assert not another.is_expired
    assert keepers.hosts == ["well", "moved"]
