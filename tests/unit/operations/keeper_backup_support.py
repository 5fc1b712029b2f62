"""Backups of a memory Keeper's tree: how tests write, restore, compare and disturb them."""

from __future__ import annotations

from contextlib import asynccontextmanager

from engine.keeper.base import Create, CreateMode
from engine.operations.keeper_backup import (
    LiveTree,
    PatientKeeper,
    compare,
    dump_tree,
    open_backup,
    restore_tree,
)

SEQUENTIAL = CreateMode.PERSISTENT_SEQUENTIAL


@asynccontextmanager
async def patient(env, server, *, patience_s=60.0, **how):
    async def open_session():
        return await server.connect(session_timeout_s=10, client="backup", **how)

    async with PatientKeeper(open_session, env, patience_s=patience_s) as source:
        yield source


async def dump(env, server, path, *, root="/", progress=None, **how):
    async with patient(env, server, **how) as source:
        more = {} if progress is None else {"progress": progress}
        return await dump_tree(source, path, root=root, source_name="test", env=env, **more)


async def restore(env, server, path, *, root="/", progress=None, identity=""):
    async with patient(env, server, identity=identity) as target:
        more = {} if progress is None else {"progress": progress}
        return await restore_tree(open_backup(path), target, root=root, identity=identity, **more)


async def compared(env, server, path, *, root="/", identity=""):
    async with patient(env, server, identity=identity) as target:
        return await compare(open_backup(path), LiveTree(target, root))


def another(env):
    from engine.keeper.memory import MemoryKeeperServer

    return MemoryKeeperServer(env.fork())


async def plant(keeper, count=30):
    """A tree with a bit of everything: used-up numbers, versions, bytes that are no text, empty values."""
    await keeper.create("/a", b"\xff\x00 no text")
    await keeper.create("/a/log", "é\n".encode())
    for _ in range(count):
        await keeper.create("/a/log/log-", b"entry", mode=SEQUENTIAL)
    for number in range(0, count, 2):
        await keeper.remove(f"/a/log/log-{number:010d}")
    for _ in range(5):
        await keeper.set("/a", b"\xff\x00 changed")
    await keeper.create("/a!", b"sorts between /a and /a/log as text")
    await keeper.create("/b", b"")


def disturbance(phase, do, *, at=1, times=1):
    """Calls `do` when the phase reports for the `at`-th time, and `times` - 1 times more."""
    seen = []

    def progress(now, _done, _total):
        if now is phase:
            seen.append(now)
            if at <= len(seen) < at + times:
                do(len(seen))

    return progress


async def wide(keeper, count=250):
    await keeper.multi([Create(f"/w{number:05d}", b"v") for number in range(count)])
