"""A ZooKeeper that takes short requests only: its `jute.maxbuffer` is small."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.ddl import prepare
from engine.ddl.client import DDLQueueClient, SubmitOutcome
from engine.env import SystemEnv
from engine.errors import Refused
from engine.keeper import zookeeper
from engine.keeper.embedded import EmbeddedZooKeeper
from tests.unit.ddl.support import PATHS, QUEUE, topology

pytestmark = pytest.mark.slow

TAKES_BYTES = 100_000


async def test_a_statement_that_is_longer_is_refused_and_the_next_one_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djute.maxbuffer={TAKES_BYTES}")
    server = EmbeddedZooKeeper(tmp_path, is_durable=False, ends_with_parent=True)
    await server.start()
    try:
        keeper = await zookeeper.connect(server.config, SystemEnv())
        client = DDLQueueClient(keeper, SystemEnv(), PATHS)

        async def submit(length: int, token: str) -> SubmitOutcome:
            sql = f"CREATE VIEW d.v ON CLUSTER c AS SELECT '{'x' * length}'"
            prepared = prepare(sql, topology=topology("a"), queue=QUEUE, token=token)
            return (await client.submit(prepared)).outcome

        assert await submit(TAKES_BYTES // 2, "short") is SubmitOutcome.ENQUEUED
        with pytest.raises(Refused) as caught:
            await submit(TAKES_BYTES, "long")
        assert caught.value.code == 999 and "jute.maxbuffer" in caught.value.hint
        assert await client.find("long") is None
        assert await submit(10, "next") is SubmitOutcome.ENQUEUED
        await keeper.close()
    finally:
        await server.stop()
