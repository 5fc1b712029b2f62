"""The parts in memory that tests and the simulation use behave as the seam promises."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from engine.env import SystemEnv
from engine.errors import SqlError
from engine.replication.fetching import PartUnavailable
from engine.replication.host import ReplicaHost
from engine.replication.part_checksums import PartDiffers
from engine.replication.part_name import PartName
from engine.replication.part_store import Fate, MergeOptions, PartFile, PartStore
from engine.replication.paths import TablePaths
from engine.testing.replication.disk import Damage, StoreDisk, model_definition
from engine.testing.replication.network import MemoryPartNetwork, NetworkFaults
from engine.testing.replication.rows import row_of, rows_of
from engine.testing.replication.store import MemoryPartStore
from engine.testing.replication.store_events import StoreFaults
from engine.testing.simulated_process import Process

A, B, AB = (PartName.parse(text) for text in ("all_0_0_0", "all_1_1_0", "all_0_1_1"))
ROWS_A = [{"k": 1, "v": 10}, {"k": 2, "v": 20}]
ROWS_B = [{"k": 1, "v": 10}]
PATHS = TablePaths("/t").replica("r1")
HOST = ReplicaHost("n1", 9009, 9000, "d", "t")


def store_on(disk: StoreDisk | None = None, **more: object) -> MemoryPartStore:
    return MemoryPartStore(disk or StoreDisk(model_definition()), SystemEnv(), **more)  # type: ignore[arg-type]


async def filled(disk: StoreDisk | None = None) -> MemoryPartStore:
    store = store_on(disk)
    for name, rows in ((A, ROWS_A), (B, ROWS_B)):
        await store.stage_inserted(await store.write("all", rows), name)
    await store.publish([A, B])
    return store


def test_it_is_a_part_store() -> None:
    store: PartStore = store_on()
    assert store is not None


async def test_an_inserted_part_is_seen_when_it_is_published_and_not_before() -> None:
    store = store_on()
    new = await store.write("all", ROWS_A)
    await store.stage_inserted(new, A)
    assert not store.rows() and A in store.staged
    await store.publish([A])
    await store.publish([A])
    assert store.rows() == dict.fromkeys((row_of(row) for row in ROWS_A), 1)
    with pytest.raises(SqlError):
        await store.stage_inserted(new, B)


async def test_equal_merges_on_two_replicas_give_equal_digests_and_others_do_not() -> None:
    one, other = await filled(), await filled()
    merged = [await store.merge([A, B], AB, MergeOptions()) for store in (one, other)]
    assert merged[0].digest == merged[1].digest and merged[0].header == merged[1].header
    await one.publish([AB], [A, B])
    assert one.rows()[row_of(ROWS_B[0])] == 2
    deduplicated = await (await filled()).merge([A, B], AB, MergeOptions(deduplicate=True))
    assert deduplicated.rows == 2 and deduplicated.digest != merged[0].digest


@pytest.mark.parametrize(
    ("commands", "left"),
    [
        ("DELETE WHERE k = 1", [{"k": 2, "v": 20}]),
        ("UPDATE v = 7 WHERE k = 1, DELETE WHERE k = 2", [{"k": 1, "v": 7}]),
        ("UPDATE v = v + 1 WHERE 1", [{"k": 1, "v": 11}, {"k": 2, "v": 21}]),
        ("UPDATE _row_exists = 0 WHERE v = 20", [{"k": 1, "v": 10}]),
        ("DROP COLUMN v", ROWS_A),
    ],
)
async def test_mutations_change_rows_or_at_least_the_digest(
    commands: str, left: list[dict[str, int]]
) -> None:
    store = await filled()
    mutated = A.mutated(5)
    part = await store.mutate(A, mutated, commands)
    assert part.digest != store.active[A].digest
    await store.publish([mutated], [A, B])
    assert sorted(store.rows().elements(), key=repr) == list(rows_of(left))


async def test_a_mutation_that_finds_nothing_is_a_copy() -> None:
    store = await filled()
    assert (await store.mutate(A, A.mutated(5), "DELETE WHERE k = 9")).digest == store.active[A].digest


async def test_what_was_staged_or_published_outlives_the_process_and_what_was_only_written_does_not() -> None:
    disk = StoreDisk(model_definition())
    store = await filled(disk)
    await store.merge([A, B], AB, MergeOptions())
    await store.write("all", ROWS_A)
    loaded = await store_on(disk).load()
    assert [part.name for part in loaded.active] == [A, B]
    assert [part.name for part in loaded.staged] == [AB]
    assert not disk.temporary


async def test_a_kill_falls_between_any_two_steps_and_a_partition_is_before_or_after() -> None:
    outcomes = set()
    for kill_at in range(1, 12):
        disk = StoreDisk(model_definition())
        store = await filled(disk)
        await store.merge([A, B], AB, MergeOptions())
        process = Process("n1", kill_at=kill_at, on_kill=lambda: None)
        doomed = store_on(disk, process=process)
        with contextlib.suppress(asyncio.CancelledError):
            await doomed.publish([AB], [A, B])
        outcomes.add(tuple(store_on(disk).active))
    assert outcomes == {(A, B), (AB,)}


@pytest.mark.parametrize("damage", [Damage.TRUNCATION, Damage.EMPTY_FILE, Damage.MISSING_FILE])
async def test_damage_that_shows_in_sizes_is_found_by_loading(damage: Damage) -> None:
    disk = StoreDisk(model_definition())
    await filled(disk)
    disk.damage(A, damage, 7)
    store = store_on(disk)
    loaded = await store.load()
    assert loaded.broken == (str(A),) and [part.name for part in loaded.active] == [B]
    await store.set_aside(str(A), "broken-on-start")
    assert [each.directory for each in await store.detached()] == [f"broken-on-start_{A}"]


async def test_a_flipped_bit_is_found_by_reading_verifying_and_sending() -> None:
    disk = StoreDisk(model_definition())
    await filled(disk)
    disk.damage(A, Damage.BIT_FLIP, 77)
    store = store_on(disk)
    assert not (await store.load()).broken
    with pytest.raises(PartDiffers):
        await store.verify(A)
    with pytest.raises(PartDiffers):
        store.rows()
    network = MemoryPartNetwork(SystemEnv())
    network.attach("n1", PATHS, store)
    receiver = store_on()
    with pytest.raises(PartDiffers):
        await network.fetcher("n2").fetch(HOST, PATHS, A, into=receiver, expected=None)
    assert not receiver.staged


async def test_fetching_stages_the_same_part_and_an_unknown_one_is_unavailable() -> None:
    network = MemoryPartNetwork(SystemEnv())
    sender, receiver = await filled(), store_on()
    network.attach("n1", PATHS, sender)
    fetcher = network.fetcher("n2")
    part = await fetcher.fetch(HOST, PATHS, A, into=receiver, expected=sender.active[A].header)
    assert part.header == sender.active[A].header and A in receiver.staged
    with pytest.raises(PartUnavailable):
        await fetcher.fetch(HOST, PATHS, AB, into=receiver, expected=None)
    with pytest.raises(PartDiffers):
        await fetcher.fetch(HOST, PATHS, B, into=receiver, expected=sender.active[A].header)


async def test_whatever_the_network_damages_is_refused() -> None:
    for seed in range(40):
        network = MemoryPartNetwork(SystemEnv(), NetworkFaults(random.Random(seed), damaged=1.0))
        sender, receiver = await filled(), store_on()
        network.attach("n1", PATHS, sender)
        with pytest.raises(PartDiffers):
            expected = sender.active[A].header
            await network.fetcher("n2").fetch(HOST, PATHS, A, into=receiver, expected=expected)
        assert not receiver.staged


@pytest.mark.parametrize("name", ["../x", "", ".", "a/b", "a\0b"])
async def test_hostile_file_names_are_refused(name: str) -> None:
    async def nothing():  # type: ignore[no-untyped-def]
        return
        yield b""

    async with store_on().receive(A) as incoming:
        with pytest.raises(PartDiffers):
            await incoming.write(PartFile(name, 0), nothing())


async def test_a_full_disk_says_so_and_leaves_nothing() -> None:
    store = store_on(faults=StoreFaults(disk_full=1.0))
    with pytest.raises(SqlError) as refused:
        await store.write("all", ROWS_A)
    assert refused.value.code == 243 and not store.disk.temporary


async def test_detached_parts_come_back_under_another_name() -> None:
    store = await filled()
    await store.remove([A], fate=Fate.DETACH)
    assert list(store.active) == [B]
    new_name = PartName.parse("all_2_2_0")
    await store.stage_detached(str(A), new_name)
    await store.publish([new_name])
    await store.remove_detached(str(A))
    assert store.rows()[row_of(ROWS_A[1])] == 1 and not await store.detached()


async def test_an_alter_is_planned_on_paper_and_applied_by_its_result() -> None:
    store = await filled()
    plan = await store.plan_alter("DROP COLUMN v, ADD COLUMN w UInt8")
    assert plan.mutation == "DROP COLUMN v"
    assert list((await store.definition()).columns.by_name) == ["k", "v"]
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, {})
    assert list((await store.definition()).columns.by_name) == ["k", "w"]
    with pytest.raises(SqlError):
        await store.plan_alter("DROP COLUMN v")


async def test_partition_expressions() -> None:
    store = await filled()
    assert await store.partition_ids("ID 'all'") == ("all",)
    assert await store.partition_ids("ALL") == ("all",)
    assert await store.partition_ids("202001") == ("202001",)
    with pytest.raises(SqlError):
        await store.partition_ids("ID '../x'")
