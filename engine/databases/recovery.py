"""A replica that is new, or too far behind, or not what it should be, gets the definitions from Keeper.

Safety argument. Nothing that has rows is destroyed: what differs is moved into another database
(`<d>_broken_tables`, `<d>_broken_replicated_tables`). Replicated tables are known by their UUID and stay with
their rows; their definitions are their own replication's. Every step looks at what is there, so a recovery
that ended in the middle is simply done again: `log_ptr` and the digest in Keeper change last.

Source: ClickHouse's DatabaseReplicated::recoverLostReplica.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.databases.cluster import is_there
from engine.databases.digest import digest_of
from engine.databases.paths import DatabasePaths, ReplicaName
from engine.databases.replica import DatabaseReplica
from engine.databases.schema import LocalSchema
from engine.ddl.text import decode_bytes
from engine.env import Env
from engine.errors import Code, NoNode, OnclusterError, SqlError
from engine.keeper.base import Keeper, Node, SetData
from engine.keeper.recipes import create_if_not_exists
from engine.names import entry_number, unescape_for_file_name

log = logging.getLogger(__name__)

_ATTEMPTS = 10
_UUID = re.compile(r" UUID '([0-9a-f-]{36})'")
_INNER = re.compile(r" TO INNER UUID '([0-9a-f-]{36})'")


class Kept(enum.Enum):
    """What is not dropped of a table that has to go, but moved aside."""

    FILES = "files, as in ClickHouse"
    ROWS = "rows"
    """Of one that was made here, and that nobody was told of."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All definitions after entry `max_log_ptr`."""

    max_log_ptr: int
    texts: Mapping[str, str]


async def read_snapshot(keeper: Keeper, paths: DatabasePaths) -> Snapshot:
    """Raises SqlError 709 while the definitions keep changing."""
    for _ in range(_ATTEMPTS):
        await keeper.sync(paths.root)
        before = await keeper.get(paths.max_log_ptr)
        names = (await keeper.children(paths.metadata)).names
        nodes = await keeper.get_many([f"{paths.metadata}/{name}" for name in names])
        after = await keeper.get(paths.max_log_ptr)
        # The version, too: an initiator that corrects what it had planned writes the same number again.
        if before.stat.version != after.stat.version or not all(isinstance(node, Node) for node in nodes):
            continue
        texts = {
            unescape_for_file_name(name): decode_bytes(node.data)
            for name, node in zip(names, nodes, strict=True)
            if isinstance(node, Node)
        }
        return Snapshot(int(after.data), texts)
    raise SqlError(
        Code.CANNOT_GET_REPLICATED_DATABASE_SNAPSHOT,
        f"Cannot get a consistent snapshot of the definitions at {paths.root}",
        hint="They keep changing; it is tried again.",
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What recovery does with tables that are here. `renames` are pairs; `aside` have to go."""

    renames: tuple[tuple[str, str], ...]
    aside: tuple[str, ...]


def plan_recovery(local: Mapping[str, str], wanted: Mapping[str, str], schema: LocalSchema) -> Plan:
    """Pure but for `replicates`. An inner table goes with its view, unless it is replicated: then it goes or
    stays like any other."""
    by_uuid = {_uuid(text): name for name, text in wanted.items() if schema.replicates(text)}
    renames: list[tuple[str, str]] = []
    aside: list[str] = []
    for name, text in local.items():
        if schema.replicates(text):
            there = by_uuid.get(_uuid(text))
            if there is None:
                aside.append(name)
            elif there != name:
                renames.append((name, there))
        elif wanted.get(name) != text:
            aside.append(name)
    inner = {uuid for name in aside if (uuid := _inner(local[name])) is not None}
    aside = [n for n in aside if schema.replicates(local[n]) or _uuid(local[n]) not in inner]
    return Plan(tuple(renames), tuple(aside))


async def recover(keeper: Keeper, replica: DatabaseReplica, *, log_ptr: int) -> int:
    """The entry up to which the replica is recovered. Raises SqlError 709 when the definitions keep changing,
    and as `make_definitions`."""
    paths, me = replica.paths, replica.me
    snapshot = await read_snapshot(keeper, paths)
    log.warning("databases.recover database=%s from=%d to=%d", *(replica.name, log_ptr, snapshot.max_log_ptr))
    await make_definitions(replica, snapshot.texts, snapshot.max_log_ptr)
    await _mark_finished(keeper, paths, me, log_ptr, snapshot.max_log_ptr)
    digest = digest_of(replica.schema.texts())
    await keeper.multi(
        [
            SetData(paths.replica(me, "digest"), str(digest).encode()),
            SetData(paths.replica(me, "log_ptr"), str(snapshot.max_log_ptr).encode()),
        ]
    )
    return snapshot.max_log_ptr


async def make_definitions(
    replica: DatabaseReplica, wanted: Mapping[str, str], number: int, kept: Kept = Kept.FILES
) -> None:
    """Those of entry `number`; can be done again. Raises SqlError 571 when too much would have to go, and
    what the schema says."""
    schema, name = replica.schema, replica.name
    local = dict(schema.texts())
    plan = plan_recovery(local, wanted, schema)
    if len(plan.aside) > len(local) * replica.settings.max_broken_tables_ratio:
        raise SqlError(
            Code.DATABASE_REPLICATION_FAILED,
            f"Too many tables to recreate: {len(plan.aside)} of {len(local)} in {name}",
            hint="SETTINGS max_broken_tables_ratio of the database says how many may be moved aside.",
        )
    log.warning(
        "databases.made_anew database=%s aside=%s renames=%s", name, list(plan.aside), list(plan.renames)
    )
    views = [table for table in plan.aside if not _is_table(local[table])]
    for table in [*views, *(table for table in plan.aside if table not in views)]:
        own = _own_table(table, local)
        if own is not None and (wanted.get(own) == local[own] or schema.replicates(local[own])):
            await schema.drop(table)  # a view; its table stays, or goes by itself
        elif await _is_kept(schema, table, own, kept):
            await _put_aside(replica.env, schema, table, local, number)
        else:
            await schema.drop(table)
            if own is not None:
                await schema.drop(own)
    for table, _ in plan.renames:
        await schema.rename(table, _between(table))
    for table, new_name in plan.renames:
        await schema.rename(_between(table), new_name)
    await _create_missing(schema, wanted)


async def _is_kept(schema: LocalSchema, name: str, own: str | None, kept: Kept) -> bool:
    """A view for the table that it has for its own."""
    has = schema.has_data if kept is Kept.FILES else schema.has_rows
    return await has(name if own is None else own)


async def _put_aside(env: Env, schema: LocalSchema, name: str, local: Mapping[str, str], number: int) -> None:
    """Of a view the table that it has for its own, under the view's name. The view would go on taking what is
    inserted where it reads, and refuse it when it does not find its table in the other database."""
    own = _own_table(name, local)
    new_name = f"{name}_{number}_{env.rng.randrange(1000)}"
    log.warning("databases.moved_aside table=%s to=%s", name, new_name)
    await schema.move_aside(own or name, new_name, replicated=schema.replicates(local[own or name]))
    if own is None:
        return
    if await schema.has_data(name):  # it could not be loaded
        await schema.move_aside(name, new_name, replicated=False)
    else:
        await schema.drop(name)


async def _create_missing(schema: LocalSchema, texts: Mapping[str, str]) -> None:
    """In an order in which each finds what it needs: round after round, until a round makes nothing."""
    missing = sorted(
        (name for name in texts if name not in schema.texts()), key=lambda name: (_rank(texts[name]), name)
    )
    while missing:
        failed: list[str] = []
        error: OnclusterError | None = None
        for name in missing:
            try:
                await schema.create(name, texts[name])
            except SqlError as refused:
                log.warning("databases.not_created table=%s error=%s", name, refused)
                failed.append(name)
                error = error or refused
        if error is not None and len(failed) == len(missing):
            raise error
        missing = failed


async def _mark_finished(
    keeper: Keeper, paths: DatabasePaths, me: ReplicaName, log_ptr: int, max_log_ptr: int
) -> None:
    """Whoever waits for this replica's part in an entry need not."""
    first = log_ptr
    if not first:
        at_creation = await is_there(keeper, paths.replica(me, "max_log_ptr_at_creation"))
        first = int(at_creation or b"0")
    numbers = [entry_number(name) for name in (await keeper.children(paths.log)).names]
    for number in sorted(n for n in numbers if n is not None and first < n <= max_log_ptr):
        for leaf in ("finished", "synced"):
            try:
                await create_if_not_exists(keeper, paths.entry(number, f"{leaf}/{me}"), b"0\n")
            except NoNode:
                continue


def _rank(text: str) -> int:
    """Tables first, then what reads them."""
    kinds: Sequence[str] = ("ATTACH TABLE", "CREATE TABLE", "CREATE DICTIONARY", "ATTACH DICTIONARY")
    return next((rank for rank, kind in enumerate(kinds) if text.startswith(kind)), len(kinds))


def _is_table(text: str) -> bool:
    return text.startswith(("ATTACH TABLE", "CREATE TABLE"))


def _between(name: str) -> str:
    """A name that nobody has, while tables change names among themselves."""
    return f".rename-{name}"


def _uuid(text: str) -> str | None:
    found = _UUID.search(text.partition("\n")[0])
    return found[1] if found else None


def _own_table(name: str, local: Mapping[str, str]) -> str | None:
    """Of a materialized view."""
    inner = _inner(local[name])
    return next((other for other, text in local.items() if inner and _uuid(text) == inner), None)


def _inner(text: str) -> str | None:
    found = _INNER.search(text.partition("\n")[0])
    return found[1] if found else None
