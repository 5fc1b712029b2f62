"""Real nodes with replicated tables are killed while everything is done to them at once; afterwards rows,
parts, Keeper and disks are compared.

What must hold stands in the invariants: an acknowledged insert is there once, on every replica, and one whose
end nobody knows once or not at all (R2); when quiet, all replicas have equal parts with equal hashes (R3);
what a quorum acknowledged survives the loss of a disk (R1); nothing damaged is visible (R5).
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from pathlib import Path

import pytest

from engine.keeper.recipes import remove_recursive
from tests.process.replication_support import (
    ENV,
    HOSTS,
    PARTS,
    Replicas,
    check_all,
    kill_and_start,
    quiet,
    rows_by_partition,
    seeds,
)
from tests.process.replication_workload import OTHER, OTHER_PATH, PATH, TABLE, Workload, create

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

BLOCKS, WRITERS, KILLS = 14, 2, 7


@pytest.mark.parametrize("seed", seeds())
async def test_replicas_killed_at_any_moment_end_alike_with_every_acknowledged_row_once(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    has_alters = bool(seed % 2)
    async with Replicas(tmp_path) as replicas:
        for host in HOSTS:
            await replicas.query(host, create(TABLE, PATH))
            if not has_alters:
                await replicas.query(host, create(OTHER, OTHER_PATH))
        work = Workload(replicas, seed, has_alters=has_alters)
        await asyncio.gather(
            *(work.insert(worker, blocks=BLOCKS) for worker in range(WRITERS)),
            work.mark(times=5),
            work.disturb(times=8),
            work.command(times=6),
            *([work.alter(times=4)] if has_alters else []),
            kill_and_start(replicas, work.rng("kill"), kills=KILLS, between_s=1.2, down_s=0.6),
        )
        print(dict(work.done))
        for host in HOSTS:
            await work.attach_table(host)
        await check_everything(replicas, work, has_alters=has_alters)
        before = await replicas.query(HOSTS[0], PARTS.format(table=TABLE))
        assert before

        # What was there survives one more kill of everybody.
        await replicas.kill9_all()
        await replicas.local.start_nodes()
        await check_everything(replicas, work, has_alters=has_alters)


async def check_everything(replicas: Replicas, work: Workload, *, has_alters: bool) -> None:
    if not has_alters:
        await quiet(replicas, OTHER)
    await check_all(replicas, TABLE, PATH, detached=was_detached)
    await work.check_rows()
    if not has_alters:
        await check_all(replicas, OTHER, OTHER_PATH)


def was_detached(name: str) -> bool:
    """Parts of partitions that DETACH PARTITION was for, and what a replica that was cloned has put aside."""
    return re.match(r"(clone_)?1\d\d_\d+_\d+_\d+(_\d+)?\Z", name) is not None


# -- disks and nodes of Keeper that are lost -----------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds())
async def test_what_was_lost_is_made_again_by_those_who_have_it_though_they_are_killed(
    tmp_path: Path, seed: int
) -> None:
    """1. A node takes inserts with a quorum of two and loses its whole disk. 2. It is a replica again, from
    the others' parts. 3. It misses so much of the log that it is lost, and clones another. 4. Keeper loses
    it, and RESTORE REPLICA makes it again. During 2, 3 and 4 nodes are killed."""
    print(f"seed {seed}")
    rng = random.Random(f"lost {seed}")
    async with Replicas(tmp_path) as replicas:
        for host in HOSTS:
            await replicas.query(host, create(TABLE, PATH))
        work = Workload(replicas, seed, has_alters=True)
        first, second, third = rng.sample(HOSTS, 3)
        await lose_a_disk(replicas, first, rng)
        expected = await rows_by_partition(replicas, second, TABLE)
        assert sorted(expected[4]) == list(range(12))

        # 2.
        await replicas.until_done(lambda: second, f"SYSTEM DROP REPLICA '{first}' FROM ZKPATH '{PATH}'")
        await asyncio.gather(
            replicas.until_done(lambda: first, create(TABLE, PATH)),
            kill_and_start(replicas, rng, kills=3, between_s=1.0, down_s=0.3),
        )
        await replicas.until_done(lambda: first, create(TABLE, PATH))
        await check_all(replicas, TABLE, PATH)
        assert await rows_by_partition(replicas, first, TABLE) == expected

        # 3.
        await replicas.node(third).kill9()
        await miss_the_log(replicas, third, [first, second])
        replicas.node(third).process.start()
        for _ in range(2):
            await ENV.sleep(rng.uniform(0.3, 2.0))
            await replicas.node(third).kill9()
            await ENV.sleep(rng.uniform(0.0, 0.3))
            replicas.node(third).process.start()
        await replicas.node(third).wait_answering()
        await check_all(replicas, TABLE, PATH, detached=was_cloned)
        expected = await rows_by_partition(replicas, first, TABLE)
        assert await rows_by_partition(replicas, third, TABLE) == expected

        # 4.
        await lose_in_keeper(replicas, second)
        for _ in range(3):
            asking = asyncio.create_task(replicas.ask(second, f"SYSTEM RESTORE REPLICA {TABLE}"))
            await ENV.sleep(rng.uniform(0.0, 0.6))
            await replicas.node(second).kill9()
            await asking
            await replicas.start_again(second)
        async with asyncio.timeout(60):
            while "\t0" not in (status := (await readonly(replicas, second))):
                await replicas.ask(second, f"SYSTEM RESTORE REPLICA {TABLE}")
                print(status)
        await check_all(replicas, TABLE, PATH, detached=was_cloned)
        for host in HOSTS:
            assert await rows_by_partition(replicas, host, TABLE) == expected
        await work.attach_table(second)


async def lose_a_disk(replicas: Replicas, host: str, rng: random.Random) -> None:
    for number in range(3):
        rows = ", ".join(f"({id_}, 4, {number})" for id_ in range(number * 4, number * 4 + 4))
        sql = f"INSERT INTO {TABLE} (id, p, block) VALUES {rows}"
        await replicas.until_done(lambda: host, sql, insert_quorum="2", insert_quorum_parallel="0")
    await replicas.node(host).kill9()
    shutil.rmtree(replicas.data(host))
    await replicas.start_again(host)
    others = [each for each in HOSTS if each != host]
    await replicas.query(rng.choice(others), f"INSERT INTO {TABLE} (id, p, block) VALUES (100, 0, 100)")
    for each in others:
        await replicas.query(each, f"SYSTEM SYNC REPLICA {TABLE}")


async def miss_the_log(replicas: Replicas, host: str, others: list[str]) -> None:
    """Insert until Keeper says that the replica is lost."""
    async with replicas.local.keeper() as keeper, asyncio.timeout(90):
        number = 1000
        while (await keeper.get(f"{PATH}/replicas/{host}/is_lost")).data != b"1":
            number += 1
            await replicas.query(
                others[number % 2], f"INSERT INTO {TABLE} (id, p, block) VALUES ({number}, 0, {number})"
            )


async def lose_in_keeper(replicas: Replicas, host: str) -> None:
    async with replicas.local.keeper() as keeper:
        await remove_recursive(keeper, f"{PATH}/replicas/{host}")
    async with asyncio.timeout(60):
        while "\t1" not in await readonly(replicas, host):
            await ENV.sleep(0.1)


async def readonly(replicas: Replicas, host: str) -> str:
    sql = f"SELECT replica_name, is_readonly FROM system.replicas WHERE table = '{TABLE}' FORMAT TSVRaw"
    return (await replicas.ask(host, sql)).text


def was_cloned(name: str) -> bool:
    """What a lost replica had and the one that it clones has not, in this form."""
    return name.startswith("clone_")
