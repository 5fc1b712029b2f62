"""Replicated tables whose way to Keeper breaks: in the middle of a message, for a while, for long, and while
the process sleeps.

Without Keeper a replica refuses writes with 242, serves reads, and recovers by itself (R6). An insert whose
connection broke is there once if it was acknowledged, and once or not at all if not (R2).
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from engine.testing.proxy import Way
from tests.process.replication_support import (
    ENV,
    HOSTS,
    Replicas,
    amount,
    check_all,
    quiet,
    rows_by_partition,
    seeds,
)
from tests.process.replication_workload import PATH, TABLE, Workload, create

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CUTS = amount(default=14, in_rounds=40)
BLOCKS = amount(default=6, in_rounds=16)
MAX_CUT_BYTES = 2500
"""A single-row insert sends and gets about that much."""
READONLY, NO_KEEPER = 242, 999


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds())
async def test_connections_with_keeper_that_break_at_any_byte_lose_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    """Each cut is in one direction, after a number of bytes that is drawn; statements go on meanwhile."""
    print(f"seed {seed}")
    rng = random.Random(f"cut {seed}")
    async with Replicas(tmp_path, is_proxied=True) as replicas:
        for host in HOSTS:
            await replicas.query(host, create(TABLE, PATH))
        work = Workload(replicas, seed, has_alters=True)

        async def cut() -> None:
            for _ in range(CUTS):
                link = replicas.links[rng.choice(HOSTS)]
                link.cut_after(rng.randrange(MAX_CUT_BYTES), rng.choice(list(Way)))
                await ENV.sleep(rng.uniform(0.05, 0.4))

        await asyncio.gather(
            work.insert(0, blocks=BLOCKS),
            work.insert(1, blocks=BLOCKS),
            work.mark(times=2),
            work.disturb(times=3),
            work.command(times=3),
            work.alter(times=2),
            cut(),
        )
        print(dict(work.done), {host: link.connections_made for host, link in replicas.links.items()})
        assert sum(link.connections_made for link in replicas.links.values()) > len(HOSTS)
        for host in HOSTS:
            await work.attach_table(host)
        await check_all(replicas, TABLE, PATH, detached=lambda name: name.startswith("1"))
        await work.check_rows()


async def test_without_keeper_a_replica_reads_refuses_writes_and_comes_back(tmp_path: Path) -> None:
    """First one node is parted from Keeper, then its process is stopped past its session, then ZooKeeper is
    gone for all."""
    async with Replicas(tmp_path, is_proxied=True) as replicas:
        for host in HOSTS:
            await replicas.query(host, create(TABLE, PATH))
        apart, other, _ = HOSTS
        await insert(replicas, other, 1)
        await quiet(replicas, TABLE)

        # 1. A partition: bytes are neither refused nor answered.
        link = replicas.links[apart]
        link.hold()
        await until_readonly(replicas, apart)
        assert (await replicas.ask(apart, f"INSERT INTO {TABLE} (id) VALUES (9)")).code == READONLY
        assert await replicas.query(apart, f"SELECT id FROM {TABLE}") == "1"
        assert await replicas.query(
            apart, f"SELECT is_readonly FROM system.replicas WHERE table = '{TABLE}'"
        ) == ("1")
        await insert(replicas, other, 2)
        link.release()
        link.cut()  # what was held back is of a session that is over
        await replicas.eventually(apart, f"SELECT count() FROM {TABLE}", "2")
        await replicas.until_done(apart, f"INSERT INTO {TABLE} (id) VALUES (3)")

        # 2. Asleep past its session: it wakes up with an insert that nobody waits for any more.
        asking = asyncio.create_task(
            replicas.ask(apart, f"INSERT INTO {TABLE} (id) SELECT 50 + sleepEachRow(0.3) FROM numbers(1)")
        )
        await ENV.sleep(0.1)
        replicas.node(apart).pause()
        async with replicas.local.keeper() as keeper:
            while await keeper.exists(f"{PATH}/replicas/{apart}/is_active") is not None:
                await ENV.sleep(0.1)
        await insert(replicas, other, 4)
        replicas.node(apart).resume()
        is_there = (await asking).is_acknowledged
        await quiet(replicas, TABLE)
        found = (await rows_by_partition(replicas, apart, TABLE))[0]
        assert found in ([[1, 2, 3, 4, 50]] if is_there else [[1, 2, 3, 4, 50], [1, 2, 3, 4]])

        # 3. ZooKeeper is stopped; a node is killed and started without it.
        await replicas.local.zookeeper.stop()
        await asyncio.gather(*(until_readonly(replicas, host) for host in HOSTS))
        await replicas.node(other).kill9()
        replicas.node(other).process.start()
        await replicas.node(other).wait_answering()
        await asyncio.gather(*(reads_and_refuses(replicas, host, rows=len(found)) for host in HOSTS))
        await replicas.local.start_zookeeper()
        for number, host in enumerate(HOSTS):
            await replicas.until_done(host, f"INSERT INTO {TABLE} (id) VALUES ({100 + number})")
        await check_all(replicas, TABLE, PATH)
        found = (await rows_by_partition(replicas, apart, TABLE))[0]
        assert found[-3:] == [100, 101, 102] and 9 not in found


async def insert(replicas: Replicas, host: str, number: int) -> None:
    await replicas.until_done(host, f"INSERT INTO {TABLE} (id) VALUES ({number})")


async def until_readonly(replicas: Replicas, host: str) -> None:
    await replicas.eventually(host, f"SELECT is_readonly FROM system.replicas WHERE table = '{TABLE}'", "1")


async def reads_and_refuses(replicas: Replicas, host: str, *, rows: int) -> None:
    """What a node does that has no Keeper. CREATE and DROP wait some seconds for it before they refuse."""
    assert await replicas.query(host, f"SELECT count() FROM {TABLE}") == str(rows)
    assert (await replicas.ask(host, f"INSERT INTO {TABLE} (id) VALUES (9)")).code == READONLY
    for refused in ("DELETE WHERE 1", "ADD COLUMN z UInt8", "DROP PARTITION 0"):
        said = await replicas.ask(host, f"ALTER TABLE {TABLE} {refused}")
        assert said.code == READONLY, f"{refused}: {said}"
    dropped, created = await asyncio.gather(
        replicas.ask(host, f"DROP TABLE {TABLE}"), replicas.ask(host, create("fresh", "/tables/fresh"))
    )
    assert (dropped.code, created.code) == (READONLY, NO_KEEPER), (dropped, created)
