"""Everything that is done to a replicated table at once while its nodes are killed, and what must be true
of its rows afterwards.

Partitions tell how rows came in. 0, 1: with a token of their own, repeated until acknowledged. 2: without a
token, likewise, unless columns come and go: repeated behind an ALTER the same rows are another block. 3:
without deduplication, once. 4: with a token and a quorum of two. From 100 on each partition is inserted and
then has one command, once: DROP, DETACH and ATTACH, REPLACE, MOVE, DELETE.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from tests.process.replication_support import ENV, Replicas, rows_by_partition

TABLE, OTHER = "t", "t2"
PATH, OTHER_PATH = "/clickhouse/tables/kill/t", "/clickhouse/tables/kill/t2"
ROWS = 8
FIRST_COMMANDED = 100
NEVER_S = float("inf")
SETTINGS = (
    "min_replicated_logs_to_keep = 10, max_replicated_logs_to_keep = 60, cleanup_delay_period = 1, "
    "cleanup_delay_period_random_add = 1, max_cleanup_delay_period = 2, merge_selecting_sleep_ms = 500, "
    "old_parts_lifetime = 3"
)


def create(name: str, path: str, *, seed: int = 0) -> str:
    """Seeds differ in the form of parts and in what a part has beside its columns."""
    more = (
        ", INDEX i block TYPE minmax, PROJECTION j (SELECT id, block ORDER BY block)" if seed % 3 == 2 else ""
    )
    wide = ", min_bytes_for_wide_part = 0" if seed % 3 else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {name} (id UInt32, p UInt16, block UInt32, marks Array(UInt32){more}) "
        f"ENGINE = ReplicatedMergeTree('{path}', '{{replica}}') PARTITION BY p ORDER BY id "
        f"SETTINGS {SETTINGS}{wide}"
    )


@dataclass(slots=True)
class Block:
    """Rows of one INSERT; times are seconds of the monotonic clock."""

    number: int
    partition: int
    began_s: float
    done_s: float = NEVER_S

    @property
    def ids(self) -> list[int]:
        return list(range(self.number * ROWS, (self.number + 1) * ROWS))


@dataclass(slots=True)
class Mark:
    """A mutation that adds its number to every row of the partitions below 100."""

    number: int
    began_s: float
    done_s: float = NEVER_S


@dataclass(slots=True)
class Commanded:
    """A partition with the rows that it may have, of which one list has to be there."""

    partition: int
    what: str
    allowed: list[list[int]] = field(default_factory=list)


class Workload:
    """One table's users. `has_alters` has columns come and go; otherwise a second table gives partitions."""

    def __init__(self, replicas: Replicas, seed: int, *, has_alters: bool) -> None:
        self._replicas = replicas
        self._seed = seed
        self._has_alters = has_alters
        self._blocks = 0
        self.blocks: list[Block] = []
        self.marks: list[Mark] = []
        self.commanded: list[Commanded] = []
        self.in_two: list[int] = []
        self.done: Counter[str] = Counter()

    def rng(self, of: str) -> random.Random:
        return random.Random(f"{self._seed} {of}")

    # -- what is done --------------------------------------------------------------------------------------

    async def insert_in_two(self, *, times: int) -> None:
        """Rows of two partitions, 10 and 11, in one INSERT."""
        rng = self.rng("two")
        for _ in range(times):
            number, self._blocks = self._blocks, self._blocks + 1
            block = Block(number, 10, ENV.monotonic_s())
            rows = ", ".join(f"({i}, {10 + i % 2}, {number})" for i in block.ids)
            sql = f"INSERT INTO {TABLE} (id, p, block) VALUES {rows}"
            choose = partial(rng.choice, self._replicas.hosts)
            await self._replicas.until_done(choose, sql, insert_deduplication_token=f"block {number}")
            self.in_two += block.ids

    async def insert(self, worker: int, *, blocks: int) -> None:
        rng = self.rng(f"insert {worker}")
        for _ in range(blocks):
            await self._insert(rng.choice([0, 1, 2, 2, 3, 4]), rng)
            await ENV.sleep(rng.uniform(0.0, 0.2))

    async def _insert(self, partition: int, rng: random.Random, *, table: str = TABLE) -> Block:
        replicas = self._replicas
        block = Block(self._blocks, partition, ENV.monotonic_s())
        self._blocks += 1
        if partition < FIRST_COMMANDED:
            self.blocks.append(block)
        rows = ", ".join(f"({number}, {partition}, {block.number})" for number in block.ids)
        sql = f"INSERT INTO {table} (id, p, block) VALUES {rows}"
        if partition == 3:
            said = await replicas.ask(rng.choice(replicas.hosts), sql, insert_deduplicate="0")
            if said.is_acknowledged:
                block.done_s = ENV.monotonic_s()
            self.done[f"insert once {said.is_acknowledged}"] += 1
            return block
        has_token = partition != 2 or self._has_alters
        settings = {"insert_deduplication_token": f"block {block.number}"} if has_token else {}
        if partition == 4:
            settings |= {"insert_quorum": "2", "insert_quorum_timeout": "8000"}
        await replicas.until_done(partial(rng.choice, replicas.hosts), sql, **settings)
        block.done_s = ENV.monotonic_s()
        self.done["insert"] += 1
        return block

    async def mark(self, *, times: int) -> None:
        """Mutations, once each."""
        rng = self.rng("mark")
        for number in range(times):
            await ENV.sleep(rng.uniform(0.2, 1.5))
            mark = Mark(number, ENV.monotonic_s())
            self.marks.append(mark)
            said = await self._replicas.ask(
                rng.choice(self._replicas.hosts),
                f"ALTER TABLE {TABLE} UPDATE marks = arrayPushBack(marks, {number}) "
                f"WHERE p < {FIRST_COMMANDED}",
                mutations_sync=str(rng.choice([0, 0, 1, 2])),
                within_s=10.0,
            )
            if said.is_acknowledged:
                mark.done_s = ENV.monotonic_s()
            self.done[f"mark {said.is_acknowledged}"] += 1

    async def disturb(self, *, times: int) -> None:
        """What changes no row; errors are fine."""
        rng = self.rng("disturb")
        commands = [f"OPTIMIZE TABLE {TABLE}"] * 3 + [f"OPTIMIZE TABLE {TABLE} FINAL"] * 2
        commands += [f"OPTIMIZE TABLE {TABLE} PARTITION 0 FINAL", f"SYSTEM RESTART REPLICA {TABLE}", ""]
        for _ in range(times):
            await ENV.sleep(rng.uniform(0.1, 1.0))
            host, command = rng.choice(self._replicas.hosts), rng.choice(commands)
            if command:
                said = await self._replicas.ask(host, command, within_s=15.0)
                self.done[f"{command.split()[0]} {said.is_acknowledged}"] += 1
                continue
            said = await self._replicas.ask(host, f"DETACH TABLE {TABLE}")
            self.done[f"DETACH TABLE {said.is_acknowledged}"] += 1
            await ENV.sleep(rng.uniform(0.0, 0.5))
            await self.attach_table(host)

    async def attach_table(self, host: str) -> None:
        """Until the table is there, whoever attached it."""
        async with asyncio.timeout(60):
            while True:
                said = await self._replicas.ask(host, f"ATTACH TABLE {TABLE}")
                if said.is_acknowledged or (await self._replicas.ask(host, f"EXISTS {TABLE}")).text == "1":
                    return
                await ENV.sleep(0.2)

    async def alter(self, *, times: int) -> None:
        rng = self.rng("alter")
        choose = partial(rng.choice, self._replicas.hosts)
        for number in range(times):
            await ENV.sleep(rng.uniform(0.2, 1.5))
            add = f"ALTER TABLE {TABLE} ADD COLUMN IF NOT EXISTS c{number} UInt8 DEFAULT {number}"
            await self._replicas.until_done(choose, add)
            if number % 2:
                drop = f"ALTER TABLE {TABLE} DROP COLUMN IF EXISTS c{number - 1}"
                modify = f"ALTER TABLE {TABLE} MODIFY COLUMN c{number} String DEFAULT 'x'"
                await self._replicas.until_done(choose, drop)
                await self._replicas.until_done(choose, modify)
                rename = f"ALTER TABLE {TABLE} RENAME COLUMN IF EXISTS c{number} TO d{number}"
                await self._replicas.until_done(choose, rename)
            self.done["alter"] += 1

    async def command(self, *, times: int) -> None:
        """Partitions of their own: rows first, then one command."""
        rng = self.rng("command")
        kinds = ["DROP", "DETACH", "ATTACH", "ATTACH", "DELETE", "DROP PART"]
        kinds += [] if self._has_alters else ["REPLACE", "REPLACE", "MOVE", "MOVE"]
        for number in range(times):
            partition, kind = FIRST_COMMANDED + number, rng.choice(kinds)
            commanded = Commanded(partition, kind)
            self.commanded.append(commanded)
            source = OTHER if kind == "MOVE" else TABLE
            first = await self._insert(partition, rng, table=source)
            second = await self._insert(partition, rng, table=OTHER) if kind == "REPLACE" else None
            all_rows = first.ids
            commanded.allowed = [[], all_rows] if kind != "MOVE" else [all_rows]
            host = rng.choice(self._replicas.hosts)
            match kind:
                case "DROP" | "DETACH":
                    if await self._once(host, f"{kind} PARTITION {partition}"):
                        commanded.allowed = [[]]
                case "DELETE":
                    said = await self._replicas.ask(host, f"DELETE FROM {TABLE} WHERE p = {partition}")
                    self.done[f"DELETE {said.is_acknowledged}"] += 1
                    if said.is_acknowledged:
                        commanded.allowed = [[]]
                case "DROP PART":
                    find = (
                        f"SELECT name FROM system.parts WHERE active AND table = '{TABLE}' "
                        f"AND partition_id = '{partition}' FORMAT TSVRaw"
                    )
                    name = (await self._replicas.ask(host, find)).text
                    if len(name.split()) == 1 and await self._once(host, f"DROP PART '{name}'"):
                        commanded.allowed = [[]]
                case "ATTACH":
                    # What a replica has not fetched yet it cannot detach.
                    await self._replicas.until_done(host, f"SYSTEM SYNC REPLICA {TABLE}")
                    is_off = await self._once(host, f"DETACH PARTITION {partition}")
                    if is_off and await self._once(host, f"ATTACH PARTITION {partition}"):
                        commanded.allowed = [all_rows]
                case "REPLACE":
                    assert second is not None
                    commanded.allowed = [all_rows, second.ids]
                    await self._replicas.until_done(host, f"SYSTEM SYNC REPLICA {OTHER}")
                    if await self._once(host, f"REPLACE PARTITION {partition} FROM {OTHER}"):
                        commanded.allowed = [second.ids]
                case "MOVE":
                    await self._replicas.until_done(host, f"SYSTEM SYNC REPLICA {OTHER}")
                    await self._once(host, f"MOVE PARTITION {partition} TO TABLE {TABLE}", table=OTHER)

    async def _once(self, host: str, command: str, *, table: str = TABLE) -> bool:
        said = await self._replicas.ask(host, f"ALTER TABLE {table} {command}", within_s=20.0)
        self.done[f"{command.split()[0]} PARTITION {said.is_acknowledged}"] += 1
        return said.is_acknowledged

    # -- what must be true ---------------------------------------------------------------------------------

    async def check_rows(self) -> None:
        """Acknowledged rows are there once, unknown ones once or not at all, on every replica; so are the
        effects of mutations and of commands."""
        for host in self._replicas.hosts:
            found = await rows_by_partition(self._replicas, host, TABLE)
            for block in self.blocks:
                here = [i for i in found.get(block.partition, []) if i // ROWS == block.number]
                allowed = [block.ids] if block.done_s < NEVER_S else [block.ids, []]
                assert here in allowed, f"{host}: {block} has {here}"
            assert sorted(found.get(10, []) + found.get(11, [])) == sorted(self.in_two), host
            known = {block.number for block in self.blocks}
            for partition in range(5):
                strange = [i for i in found.get(partition, []) if i // ROWS not in known]
                assert not strange, f"{host}: {partition} has {strange}"
            elsewhere = {} if self._has_alters else await rows_by_partition(self._replicas, host, OTHER)
            for commanded in self.commanded:
                rows = found.get(commanded.partition, [])
                if commanded.what == "MOVE":
                    rows = sorted(rows + elsewhere.get(commanded.partition, []))
                assert rows in commanded.allowed, f"{host}: {commanded} has {rows}"
        await self._check_marks()

    async def _check_marks(self) -> None:
        host = self._replicas.hosts[0]
        text = await self._replicas.query(
            host,
            f"SELECT block, arrayStringConcat(any(marks), ','), uniqExact(marks) FROM {TABLE} "
            f"WHERE p < 10 GROUP BY block FORMAT TSVRaw",
        )
        marks: dict[int, list[int]] = {}
        for line in text.splitlines():
            number, shown, different = line.split("\t")
            assert different == "1", f"rows of block {number} differ"
            marks[int(number)] = [int(each) for each in shown.split(",") if each]
        for block in self.blocks:
            if block.number not in marks:
                continue
            here = marks[block.number]
            assert len(here) == len(set(here)), f"twice: {block} {here}"
            for mark in self.marks:
                if mark.done_s < NEVER_S and block.done_s < mark.began_s:
                    assert mark.number in here, f"not applied: {mark} {block} {here}"
                if mark.done_s < block.began_s:
                    assert mark.number not in here, f"applied to rows that came later: {mark} {block} {here}"
        for mark in self.marks:
            before = [
                block.number for block in self.blocks if block.done_s < mark.began_s and block.number in marks
            ]
            applied = {mark.number in marks[number] for number in before}
            assert len(applied) <= 1, f"applied to some: {mark}"
