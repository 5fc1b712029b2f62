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
from engine.replication.part_name import PartName
from tests.few import few_first
from tests.process.replication_support import (
    ENV,
    HOSTS,
    PARTS,
    Fault,
    Replicas,
    amount,
    check_all,
    hurt,
    quiet,
    rows_by_partition,
    seeds,
)
from tests.process.replication_workload import OTHER, OTHER_PATH, PATH, TABLE, Workload, create

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WRITERS = 2
BLOCKS = amount(default=8, in_rounds=14)
FAULTS = amount(default=4, in_rounds=7)


@pytest.mark.parametrize("seed", few_first(seeds(default=2), few=1))
async def test_replicas_killed_at_any_moment_end_alike_with_every_acknowledged_row_once(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    has_alters = bool(seed % 2)
    faults = {Fault.KILL: 3, Fault.KILL_TWICE: 2} | ({Fault.SLEEP: 1, Fault.ZOOKEEPER: 1} if seed > 1 else {})
    async with Replicas(tmp_path) as replicas:
        for host in HOSTS:
            await replicas.query(host, create(TABLE, PATH, seed=seed))
            if not has_alters:
                await replicas.query(host, create(OTHER, OTHER_PATH, seed=seed))
        work = Workload(replicas, seed, has_alters=has_alters)
        await asyncio.gather(
            *(work.insert(worker, blocks=BLOCKS) for worker in range(WRITERS)),
            work.insert_in_two(times=amount(default=3, in_rounds=6)),
            work.mark(times=amount(default=3, in_rounds=5)),
            work.disturb(times=amount(default=5, in_rounds=8)),
            work.command(times=amount(default=4, in_rounds=6)),
            *([work.alter(times=amount(default=2, in_rounds=4))] if has_alters else []),
            hurt(replicas, work.rng("hurt"), times=FAULTS, between_s=1.2, faults=faults),
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
    """Parts of partitions that DETACH PARTITION was for, what a replica that was cloned has put aside, and
    parts whose quorum was given up while their server was away: their inserts were repeated."""
    if re.match(r"(clone_)?1\d\d_\d+_\d+_\d+(_\d+)?\Z", name):
        return True
    return re.match(r"noquorum_4_\d+_\d+_0\Z", name) is not None


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds())
async def test_a_replica_that_is_dropped_and_made_again_under_kills_has_what_the_others_have(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(f"drop {seed}")
    async with Replicas(tmp_path) as replicas:
        for host in HOSTS:
            await replicas.query(host, create(TABLE, PATH))
        kept, others = HOSTS[0], HOSTS[1:]
        expected: list[int] = []

        async def write() -> None:
            for number in range(amount(default=8, in_rounds=24)):
                sql = f"INSERT INTO {TABLE} (id) VALUES ({number})"
                await replicas.until_done(kept, sql, insert_deduplication_token=str(number))
                expected.append(number)
                await ENV.sleep(rng.uniform(0.0, 0.3))

        async def drop_and_make() -> None:
            for _ in range(amount(default=1, in_rounds=4)):
                host = rng.choice(others)
                asking = asyncio.create_task(replicas.ask(host, f"DROP TABLE IF EXISTS {TABLE} SYNC"))
                await ENV.sleep(rng.uniform(0.0, 0.3))
                await replicas.node(host).kill9()
                await asking
                await replicas.start_again(host)
                asking = asyncio.create_task(replicas.ask(host, create(TABLE, PATH)))
                await ENV.sleep(rng.uniform(0.0, 0.5))
                await replicas.node(host).kill9()
                await asking
                await replicas.start_again(host)
                if rng.random() < 0.5:
                    await replicas.until_done(host, f"DROP TABLE IF EXISTS {TABLE} SYNC")
                await replicas.until_done(host, create(TABLE, PATH))

        await asyncio.gather(write(), drop_and_make())
        await check_all(replicas, TABLE, PATH)
        for host in HOSTS:
            assert (await rows_by_partition(replicas, host, TABLE))[0] == expected


# -- disks and nodes of Keeper that are lost -----------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("seed", seeds())
async def test_what_was_lost_is_made_again_by_those_who_have_it_though_they_are_killed(
    tmp_path: Path, seed: int
) -> None:
    """1. A node takes inserts with a quorum of two and loses its whole disk. 2. It is a replica again, from
    the others' parts. 3. It misses so much of the log that it is lost, and clones another. 4. Keeper loses
    it, and RESTORE REPLICA makes it again. 5. Keeper loses the table, and RESTORE REPLICA makes it of one
    replica's parts, which the others join. During 2 to 5 nodes are killed."""
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
        await replicas.until_done(second, f"SYSTEM DROP REPLICA '{first}' FROM ZKPATH '{PATH}'")
        await asyncio.gather(
            replicas.until_done(first, create(TABLE, PATH)),
            hurt(replicas, rng, times=3, between_s=1.0),
        )
        await replicas.until_done(first, create(TABLE, PATH))
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
        await restore(replicas, second, rng, kills=3)
        await check_all(replicas, TABLE, PATH, detached=was_cloned, may_be_kept_twice=True)

        # 5.
        await lose_in_keeper(replicas, *HOSTS)
        await restore(replicas, first, rng, kills=1)
        await restore(replicas, second, rng, kills=0)
        await restore(replicas, third, rng, kills=0)
        await check_all(replicas, TABLE, PATH, detached=was_cloned_or_joined)
        for host in HOSTS:
            assert await rows_by_partition(replicas, host, TABLE) == expected
        await work.attach_table(second)


async def lose_a_disk(replicas: Replicas, host: str, rng: random.Random) -> None:
    for number in range(3):
        rows = ", ".join(f"({id_}, 4, {number})" for id_ in range(number * 4, number * 4 + 4))
        sql = f"INSERT INTO {TABLE} (id, p, block) VALUES {rows}"
        await replicas.until_done(host, sql, insert_quorum="2", insert_quorum_parallel="0")
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


async def lose_in_keeper(replicas: Replicas, *hosts: str) -> None:
    """One replica, or the table with all of them."""
    path = f"{PATH}/replicas/{hosts[0]}" if len(hosts) == 1 else PATH
    async with replicas.local.keeper() as keeper, asyncio.timeout(60):
        while not await remove_recursive(keeper, path):
            await ENV.sleep(0.1)
        for host in hosts:
            while "\t1" not in await readonly(replicas, host):
                await ENV.sleep(0.1)


async def restore(replicas: Replicas, host: str, rng: random.Random, *, kills: int) -> None:
    """Until the replica takes writes; before that the node is killed in the middle of it."""
    for _ in range(kills):
        asking = asyncio.create_task(replicas.ask(host, f"SYSTEM RESTORE REPLICA {TABLE}"))
        await ENV.sleep(rng.uniform(0.0, 0.6))
        await replicas.node(host).kill9()
        await asking
        await replicas.start_again(host)
    async with asyncio.timeout(60):
        while "\t0" not in (status := await readonly(replicas, host)):
            await replicas.ask(host, f"SYSTEM RESTORE REPLICA {TABLE}")
            print(status)


async def readonly(replicas: Replicas, host: str) -> str:
    sql = f"SELECT replica_name, is_readonly FROM system.replicas WHERE table = '{TABLE}' FORMAT TSVRaw"
    return (await replicas.ask(host, sql)).text


def was_cloned(name: str) -> bool:
    """What a lost replica had and the one that it clones has not, in this form."""
    return name.startswith("clone_")


def was_cloned_or_joined(name: str) -> bool:
    """Or what a replica had that joined a table made anew, and its maker not, in this form: one of the two
    had merged it. The maker's own have the prefix `restoring_` until they are attached."""
    return was_cloned(name) or PartName.try_parse(re.sub(r"_try[0-9]+\Z", "", name)) is not None
