"""A process that works on a part store until it is killed; see test_part_store_kill9.

What stands in its ledger is what Keeper would know: a line is written between staging and publishing.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from engine.names import TableName
from engine.part_storage import ChdbPartStore
from engine.replication.part_name import PartName, merged
from engine.replication.part_store import Fate, MergeOptions
from engine.storage import ChdbPool

KINDS = ("insert", "merge", "drop", "detach", "attach", "copy", "fetch", "mutate", "rename", "type")
EVEN, MANY_ALTERS = [10, 5, 1, 2, 2, 1, 2, 3, 0.5, 0.5], [3, 3, 1, 1, 1, 1, 1, 2, 10, 10]
"""How often each kind of work is done."""
TABLE = TableName("default", "t")


class Ledger:
    """Committed parts and the keys of their rows; a line is a change: parts that came, parts that went."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.parts: dict[PartName, list[int]] = {}
        self.largest_block = -1
        self.largest_key = 0
        self.columns = ["v"]
        self.type = "UInt32"
        self.mutations = 0
        self.detached: dict[str, list[int]] = {}
        """By directory; what was attached again is not among them."""
        self.last_removed: set[PartName] = set()
        """What an operation that was cut may still have to take away."""
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        path.write_bytes(b"".join(line + b"\n" for line in lines))  # without a torn last line
        for line in lines:
            self._apply(json.loads(line))

    def commit(
        self,
        add: dict[PartName, list[int]],
        remove: list[PartName],
        *,
        column: str = "",
        type: str = "",
        are_kept: bool = False,
        attached: str = "",
    ) -> None:
        change = {
            "add": {str(name): keys for name, keys in add.items()},
            "remove": [str(name) for name in remove],
            "column": column,
            "type": type,
            "are_kept": are_kept,
            "attached": attached,
        }
        with self._path.open("ab") as file:
            file.write(json.dumps(change).encode() + b"\n")
        self._apply(change)

    def _apply(self, change: dict) -> None:  # type: ignore[type-arg]
        self.last_removed = set(map(PartName.parse, change["remove"]))
        for text in change["remove"]:
            keys = self.parts.pop(PartName.parse(text), [])
            if change["are_kept"]:
                self.detached[text] = keys
        self.detached.pop(change["attached"], None)
        for text, keys in change["add"].items():
            name = PartName.parse(text)
            self.parts[name] = keys
            self.largest_block = max(self.largest_block, name.max_block)
            self.largest_key = max(self.largest_key, *keys, 0)
            self.mutations = max(self.mutations, name.mutation)
        if change["column"]:
            self.columns.append(change["column"])
        self.type = change["type"] or self.type

    def next_name(self, partition_id: str) -> PartName:
        block = self.largest_block + 1
        return PartName(partition_id, block, block, 0)

    def neighbours(self, rng: random.Random) -> list[PartName]:
        """Some parts that stand next to one another."""
        partition = rng.choice(sorted({name.partition_id for name in self.parts}))
        names = sorted(name for name in self.parts if name.partition_id == partition)
        start = rng.randrange(len(names))
        return names[start : start + rng.randint(1, 4)]


async def recover(store: ChdbPartStore, ledger: Ledger) -> None:
    """As a replica does at its start: publish what was committed, drop what was not."""
    await store.load()
    if ledger.columns[-1] not in (await store.definition()).columns.by_name:
        await rename(store, ledger)
    if (await store.definition()).columns.by_name["w"].type != ledger.type:
        await retype(store, ledger)
    wanted = sorted(name for name in ledger.parts if name not in store.active)
    missing = [str(name) for name in wanted if name not in store.staged]
    assert not missing, f"committed and lost: {missing}"
    strange = [name for name in store.active if name not in ledger.parts]
    assert set(strange) <= ledger.last_removed, f"came back: {set(strange) - ledger.last_removed}"
    for name in wanted:
        await store.publish([name], [other for other in strange if name.contains(other)])
    await store.remove([name for name in strange if name in store.active])
    for name in sorted(store.staged):
        await store.discard(name)


async def rename(store: ChdbPartStore, ledger: Ledger) -> None:
    old, new = ledger.columns[-2:]
    now = next(name for name in (await store.definition()).columns.by_name if name.startswith("v"))
    assert now == old
    plan = await store.plan_alter(f"RENAME COLUMN {old} TO {new}")
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, {old: new})


async def retype(store: ChdbPartStore, ledger: Ledger) -> None:
    plan = await store.plan_alter(f"MODIFY COLUMN w {ledger.type}")
    await store.apply_alter(plan.definition.columns, plan.definition.metadata, {})


async def work(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pool = await ChdbPool.open(path / "data", max_running=2)
    uuid = (await pool.query("SELECT uuid FROM system.tables WHERE name = 't'")).text.strip()
    store = await ChdbPartStore.open(pool, TABLE, uuid)
    ledger = Ledger(path / "ledger")
    await recover(store, ledger)
    weights = rng.choice([EVEN, MANY_ALTERS])
    (path / "ready").touch()
    while True:
        kind = rng.choices(KINDS, weights)[0]
        if kind == "insert" or len(ledger.parts) < 4:
            key = ledger.largest_key
            async with store.insert_stage() as stage:
                await pool.query(
                    f"INSERT INTO {stage.table.quoted} SELECT {key + 1} + number, 'x', 7 FROM numbers(6)"
                )
                added = {}
                for new in await stage.collect():
                    block = ledger.largest_block + 1
                    name = PartName(new.partition_id, block, block, 0)
                    keys = [k for k in range(key + 1, key + 7) if k % 2 == int(new.partition_id)]
                    added[name] = keys
                    await store.stage_inserted(new, name)
                ledger.commit(added, [])
            for name in added:
                await store.publish([name])
        elif kind == "merge":
            sources = ledger.neighbours(rng)
            result = merged(sources)
            await store.merge(sources, result, MergeOptions())
            ledger.commit({result: [k for name in sources for k in ledger.parts[name]]}, sources)
            await store.publish([result], sources)
        elif kind == "copy":  # as REPLACE PARTITION: others come in the place of what is there
            (source, *_) = ledger.neighbours(rng)
            result = ledger.next_name(source.partition_id)
            await store.stage_copy(store, source, result)
            ledger.commit({result: ledger.parts[source]}, [source])
            await store.publish([result], [source])
        elif kind == "fetch":  # the part comes as from a peer, file by file
            (source, *_) = ledger.neighbours(rng)
            result = ledger.next_name(source.partition_id)
            async with store.send(source) as sent, store.receive(result) as incoming:
                for file in sent.files:
                    await incoming.write(file, sent.read(file))
                await incoming.finish(sent.part.header)
            ledger.commit({result: ledger.parts[source]}, [source])
            await store.publish([result], [source])
        elif kind == "mutate":
            (source, *_) = ledger.neighbours(rng)
            ledger.mutations += 1
            result = source._replace(mutation=ledger.mutations)
            keys = ledger.parts[source]
            gone = rng.choice(keys) if len(keys) > 1 else -1
            column = ledger.columns[-1]
            await store.mutate(source, result, f"DELETE WHERE k = {gone}, UPDATE {column} = 'x' WHERE 1")
            ledger.commit({result: [key for key in keys if key != gone]}, [source])
            await store.publish([result], [source])
        elif kind == "attach":
            if not ledger.detached:
                continue
            directory = rng.choice(sorted(ledger.detached))
            result = ledger.next_name(PartName.parse(directory).partition_id)
            await store.stage_detached(directory, result)
            ledger.commit({result: ledger.detached[directory]}, [], attached=directory)
            await store.publish([result])
            await store.remove_detached(directory)
        elif kind == "type":
            ledger.commit({}, [], type=rng.choice(["UInt64", "String", "UInt32", "Int16"]))
            await retype(store, ledger)
        elif kind == "rename":
            ledger.commit({}, [], column=f"v{len(ledger.columns)}")
            await rename(store, ledger)
        else:
            names = ledger.neighbours(rng)[:2]
            ledger.commit({}, names, are_kept=kind == "detach")
            await store.remove(names, fate=Fate.DROP if kind == "drop" else Fate.DETACH)


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
