"""A quota of ZooKeeper's that is used up and enforced (`setquota`, since 3.7): refused as what it is, and
everything goes on where it is raised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.env import SystemEnv
from engine.errors import BadArguments, MultiFailed
from engine.keeper import Keeper, opening
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.migrations import lock
from engine.migrations.lock import Binding, Claim
from engine.operations.health.ask_keeper import ask_keeper
from tests.unit.operations.support import site

pytestmark = pytest.mark.slow

ENV = SystemEnv()
LIMITS = "/zookeeper/quota/clickhouse/zookeeper_limits"
BASE = "/clickhouse/locks/shop"


@pytest.fixture
async def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keeper]:
    """A session with a server that counts what is below /clickhouse; as yet all is allowed."""
    monkeypatch.setenv("SERVER_JVMFLAGS", "-Dzookeeper.enforceQuota=true")
    async with EmbeddedZooKeeper(tmp_path / "zk", is_durable=False, ends_with_parent=True) as server:
        keeper = await opening.connect(server.config, ENV)
        for path in ("/clickhouse", "/clickhouse/locks", BASE, "/zookeeper/quota/clickhouse"):
            await keeper.create(path)
        await keeper.create("/zookeeper/quota/clickhouse/zookeeper_stats", b"count=0,bytes=0")
        await keeper.create(LIMITS, at_most(1_000))
        yield keeper
        await keeper.close()


def at_most(nodes: int) -> bytes:
    return b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=%d" % nodes


def claim(run_id: str) -> Claim:
    return Claim(run_id, "somebody", Binding.SESSION, ledger_id="a", ledger_url="here", ledger_max_fence=0)


async def test_a_lock_that_the_quota_refuses_is_nobody_s_and_is_had_when_it_is_raised(
    limited: Keeper,
) -> None:
    await limited.set(LIMITS, at_most(1))
    with pytest.raises(MultiFailed, match="a quota of ZooKeeper's"):
        await lock.acquire(limited, BASE, claim("r1"), env=ENV)
    assert await lock.look(limited, BASE) is None

    await limited.set(LIMITS, at_most(1_000))
    assert (await lock.acquire(limited, BASE, claim("r2"), env=ENV)).text.run_id == "r2"


async def test_a_run_that_the_quota_stops_is_not_told_that_another_one_has_its_lock(limited: Keeper) -> None:
    lease = await lock.acquire(limited, BASE, claim("r1"), env=ENV)
    await limited.set(LIMITS, at_most(1))
    with pytest.raises(MultiFailed, match="a quota of ZooKeeper's"):
        await lock.record(limited, lease)  # its node is still to be made
    with pytest.raises(BadArguments, match="a quota of ZooKeeper's"):
        await lock.renew(limited, lease)


async def test_health_says_that_keeper_takes_no_writes_and_reads_the_rest(
    limited: Keeper, tmp_path: Path
) -> None:
    where = site(tmp_path, ENV, limited, path="/clickhouse/task_queue/ddl")
    await limited.set(LIMITS, at_most(1))
    facts = await ask_keeper(where, [])
    assert facts.is_answering
    assert "a quota of ZooKeeper's" in facts.takes_no_writes

    await limited.set(LIMITS, at_most(1_000))
    assert (await ask_keeper(where, [])).takes_no_writes == ""
