"""`keeper-backup` of `benchmarks.operations`: a tree of 100,000 znodes goes into a file and out of it."""

from __future__ import annotations

from benchmarks.operations import Stand, measure
from engine.config.model import ZooKeeper
from engine.keeper.base import Create
from engine.keeper.embedded import EmbeddedZooKeeper
from engine.operations.keeper_backup import (
    LiveTree,
    compare,
    dump_tree,
    open_backup,
    patient_keeper,
    restore_tree,
)

_NODES_A_PARENT = 1000
_VALUE = b"format version: 4\ncreate_time: 2026-01-01 00:00:00\nsource replica: node01\n" + b"x" * 50


@measure("keeper-backup", "100,000 znodes of a ZooKeeper: dumped, verified, restored, compared")
async def keeper_backup(stand: Stand) -> None:
    count = stand.scaled(100_000)
    place, other = await _zookeeper(stand, "one"), await _zookeeper(stand, "other")
    keeper = await stand.keeper(place)
    for number, start in enumerate(range(0, count, _NODES_A_PARENT)):
        names = range(min(_NODES_A_PARENT, count - start))
        await keeper.multi(
            [Create(f"/t{number}"), *(Create(f"/t{number}/n{name:010d}", _VALUE) for name in names)]
        )
    source = await stand.stack.enter_async_context(patient_keeper(place, stand.env))
    target = await stand.stack.enter_async_context(patient_keeper(other, stand.env))
    path = stand.directory / "tree.keeper.zst"

    began_s = stand.env.monotonic_s()
    facts = await dump_tree(source, path, source_name="benchmark", env=stand.env)
    dumped_s = stand.env.monotonic_s()
    backup = open_backup(path)
    verified_s = stand.env.monotonic_s()
    await restore_tree(backup, target, root="/")
    restored_s = stand.env.monotonic_s()
    result = await compare(backup, LiveTree(target, "/"))
    compared_s = stand.env.monotonic_s()
    if not result.is_equal or not facts.is_of_one_instant or facts.nodes <= count:
        raise RuntimeError(f"the copy is not the tree: {result.to_json()}")
    stand.add(f"backup of {count:,} znodes", dumped_s - began_s, aim_s=30)
    stand.add(f"backup of {count:,} znodes: verified", verified_s - dumped_s)
    stand.add(f"backup of {count:,} znodes: restored", restored_s - verified_s)
    stand.add(f"backup of {count:,} znodes: compared with the restored tree", compared_s - restored_s)


async def _zookeeper(stand: Stand, name: str) -> ZooKeeper:
    """With room for so many nodes: what is made for tests spends its time collecting garbage here."""
    server = EmbeddedZooKeeper(stand.directory / name, heap_mb=512, env=stand.env)
    await server.start()
    stand.stack.push_async_callback(server.stop)
    return server.config
