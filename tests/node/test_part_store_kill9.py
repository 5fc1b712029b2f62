"""kill −9 of a process that inserts, fetches, merges, mutates, drops, attaches and alters: what was committed
is there, once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from engine.part_storage import ChdbPartStore, with_hidden_settings
from engine.storage import ChdbPool
from engine.testing.launch import Program
from tests.few import few_first
from tests.node.part_store_victim import TABLE, Ledger, recover
from tests.warm import warm

pytestmark = pytest.mark.slow

CREATE = "CREATE TABLE t (k UInt64, v String, w UInt32) ENGINE = MergeTree PARTITION BY k % 2 ORDER BY k"
ROOT = Path(__file__).parents[2]
KILLS = 6
CHANGES = 10
"""So many are committed at least before the last kill, however slow the machine is."""


@pytest.mark.parametrize("seed", few_first([21, 22], few=1))
def test_what_was_committed_survives_the_process_and_nothing_else_does(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    asyncio.run(create(tmp_path))
    for number in range(KILLS):
        (tmp_path / "ready").unlink(missing_ok=True)
        argv = (
            sys.executable,
            "-m",
            "tests.node.part_store_victim",
            str(tmp_path),
            str(rng.randrange(10**9)),
        )
        victim = warm(Program(argv, os.environ, ROOT), output=2)
        try:
            while not (tmp_path / "ready").exists():
                assert victim.poll() is None, "the process ended by itself"
                time.sleep(0.005)
            time.sleep(rng.uniform(0.01, 0.7))
            while number == KILLS - 1 and changes(tmp_path) < CHANGES and victim.poll() is None:
                time.sleep(0.005)
            assert victim.poll() is None, "the process ended by itself"
        finally:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
    asyncio.run(check(tmp_path))


def changes(path: Path) -> int:
    file = path / "ledger"
    return file.read_bytes().count(b"\n") if file.exists() else 0


async def create(path: Path) -> None:
    pool = await ChdbPool.open(path / "data", max_running=2)
    await pool.query(with_hidden_settings(CREATE))
    await pool.close()


async def check(path: Path) -> None:
    pool = await ChdbPool.open(path / "data", max_running=2)
    uuid = (await pool.query("SELECT uuid FROM system.tables WHERE name = 't'")).text.strip()
    store = await ChdbPartStore.open(pool, TABLE, uuid)
    try:
        ledger = Ledger(path / "ledger")
        await recover(store, ledger)
        assert sorted(store.active) == sorted(ledger.parts)
        shown = await pool.query(f"SELECT k, {ledger.columns[-1]}, w FROM t ORDER BY k")
        keys = sorted(key for keys in ledger.parts.values() for key in keys)
        assert shown.text == "".join(f"{key}\tx\t7\n" for key in keys)
        for name, part in sorted(store.active.items()):
            await store.verify(name)
            assert part.rows == len(ledger.parts[name])
        assert ledger.parts
    finally:
        await store.close()
        await pool.close()
    left = [each.name for each in store.state.staged_root.iterdir() if each.name.startswith("tmp_")]
    assert left == []
