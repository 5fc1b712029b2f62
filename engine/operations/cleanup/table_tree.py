"""Replicated tables as they stand in Keeper, found by looking below the places where they may be.

Only directories above tables are walked, and of a table only what says whose it is: some thousands of nodes
in a few batches, whatever the tables hold. Reads only.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine.errors import Corrupt, KeeperAnswer, SqlError
from engine.keeper.base import Children, Keeper, Node, Stat
from engine.keeper.recipes import ancestors
from engine.operations.cleanup.settings import CleanupSettings
from engine.operations.site import Site
from engine.replication.host import ReplicaHost
from engine.replication.paths import ReplicaPaths, TablePaths

BATCH = 500
DEPTH = 12
TABLE_NODES = frozenset(
    [
        "alter_partition_version",
        "async_blocks",
        "block_numbers",
        "blocks",
        "columns",
        "deduplication_hashes",
        "dropped",
        "leader_election",
        "lightweight_updates",
        "log",
        "lost_part_count",
        "metadata",
        "mutations",
        "nonincrement_block_numbers",
        "part_moves_shard",
        "pinned_part_uuids",
        "quorum",
        "replicas",
        "table_shared_id",
        "temp",
        "zero_copy_hdfs",
        "zero_copy_s3",
    ]
)
"""Names of a table's own nodes, those of all versions together."""


class TableForm(enum.Enum):
    """What a path in Keeper looks like."""

    TABLE = "a table"
    DROPPING = "a table that is being dropped, or was and is not wholly gone"
    REMAINS = "some nodes of a table, without replicas"


@dataclass(frozen=True, slots=True)
class ReplicaInKeeper:
    """One replica. `host` is None where the node is missing, empty or not to be read; `host_stat` is None
    where it is missing: then the replica cannot become active any more."""

    paths: ReplicaPaths
    stat: Stat
    host: ReplicaHost | None
    host_stat: Stat | None
    is_active: bool
    newest_ms: int
    """When anything of what says how it does was last written."""

    @property
    def path(self) -> str:
        return self.paths.root


@dataclass(frozen=True, slots=True)
class TableInKeeper:
    """One path that looks like a table, or like what is left of one."""

    paths: TablePaths
    form: TableForm
    nodes: frozenset[str]
    stat: Stat
    replicas: tuple[ReplicaInKeeper, ...] = ()

    @property
    def path(self) -> str:
        return self.paths.root


@dataclass(frozen=True, slots=True)
class Tree:
    """What was found. `notes` say where the look ended early."""

    tables: tuple[TableInKeeper, ...]
    notes: tuple[str, ...] = ()


async def find_tables(site: Site, settings: CleanupSettings, known: Iterable[str]) -> Tree:
    """All tables below the places to look at; `known` are paths of tables that servers have."""
    await site.keeper.sync("/")
    found: list[TableInKeeper] = []
    notes: list[str] = []
    level = list(roots(site, settings, known))
    seen = 0
    for _ in range(DEPTH):
        below: list[str] = []
        for start in range(0, len(level), BATCH):
            batch = level[start : start + BATCH]
            for path, children in zip(batch, await site.keeper.children_many(batch), strict=True):
                if isinstance(children, KeeperAnswer):
                    continue
                form = form_of(children.names)
                if form is None:
                    below += [f"{path.rstrip('/')}/{name}" for name in children.names]
                elif table := _table(path, form, children):
                    found.append(table)
        seen += len(level)
        if not below:
            break
        if seen + len(below) > settings.most_directories:
            notes.append(
                f"The look through Keeper ended after {seen} directories: there are more than "
                f"{settings.most_directories} to look at."
            )
            break
        level = below
    else:
        notes.append(f"Directories more than {DEPTH} deep were not looked at.")
    tables = await _with_replicas(site.keeper, sorted(found, key=lambda table: table.path))
    return Tree(tuple(tables), tuple(notes))


async def read_table(keeper: Keeper, path: str) -> TableInKeeper | None:
    """One path as it stands now; None where nothing like a table is."""
    await keeper.sync(path)
    [children] = await keeper.children_many([path])
    if isinstance(children, KeeperAnswer):
        return None
    form = form_of(children.names)
    table = None if form is None else _table(path, form, children)
    return None if table is None else (await _with_replicas(keeper, [table]))[0]


def form_of(names: Sequence[str]) -> TableForm | None:
    """What a path with these children is; None for a directory that tables may be in."""
    nodes = frozenset(names)
    if "replicas" in nodes and nodes & {"metadata", "columns", "log"}:
        return TableForm.TABLE
    if not nodes or not nodes <= TABLE_NODES:
        return None
    if "dropped" in nodes:
        return TableForm.DROPPING
    return TableForm.REMAINS if nodes & {"metadata", "columns"} else None


def roots(site: Site, settings: CleanupSettings, known: Iterable[str]) -> tuple[str, ...]:
    """Where to begin: as asked for, where tables come by default, beside the tables that servers have."""
    fixed = site.config.default_replica_path.split("{", 1)[0].rpartition("/")[0]
    beside = (path.rpartition("/")[0] for path in known)
    wanted = {path.rstrip("/") for path in (*settings.roots, fixed, *beside) if path.strip("/")}
    return tuple(sorted(path for path in wanted if not wanted.intersection(ancestors(path))))


def _table(path: str, form: TableForm, children: Children) -> TableInKeeper | None:
    try:
        return TableInKeeper(TablePaths(path), form, frozenset(children.names), children.stat)
    except SqlError:  # no table can have such a path
        return None


async def _with_replicas(keeper: Keeper, tables: Sequence[TableInKeeper]) -> list[TableInKeeper]:
    """The same tables with their replicas, read together."""
    paths: dict[str, list[ReplicaPaths]] = {}
    whole = [table for table in tables if table.form is TableForm.TABLE]
    for start in range(0, len(whole), BATCH):
        batch = whole[start : start + BATCH]
        listed = await keeper.children_many([table.paths.replicas for table in batch])
        for table, children in zip(batch, listed, strict=True):
            if not isinstance(children, KeeperAnswer):
                paths[table.path] = list(_replica_paths(table.paths, children.names))
    every = [path for group in paths.values() for path in group]
    replicas: dict[str, ReplicaInKeeper] = {}
    for start in range(0, len(every), BATCH):
        for replica in await _replicas(keeper, every[start : start + BATCH]):
            replicas[replica.path] = replica
    return [
        dataclasses.replace(
            table,
            replicas=tuple(
                replicas[path.root] for path in paths.get(table.path, ()) if path.root in replicas
            ),
        )
        for table in tables
    ]


def _replica_paths(table: TablePaths, names: Iterable[str]) -> Iterable[ReplicaPaths]:
    for name in names:
        try:
            yield table.replica(name)
        except SqlError:  # no server makes such a name
            continue


async def _replicas(keeper: Keeper, paths: Sequence[ReplicaPaths]) -> list[ReplicaInKeeper]:
    hosts = await keeper.get_many([path.host for path in paths])
    active = await keeper.exists_many([path.is_active for path in paths])
    roots_ = await keeper.exists_many([path.root for path in paths])
    pointers = await keeper.exists_many([path.log_pointer for path in paths])
    lost = await keeper.exists_many([path.is_lost for path in paths])
    found = []
    for path, host, active_stat, root, *others in zip(
        paths, hosts, active, roots_, pointers, lost, strict=True
    ):
        if root is None:
            continue
        written = [stat.mtime_ms for stat in (root, *others) if stat is not None]
        if isinstance(host, Node):
            written.append(host.stat.mtime_ms)
        found.append(
            ReplicaInKeeper(
                path,
                root,
                _host(host.data, path.host) if isinstance(host, Node) else None,
                host.stat if isinstance(host, Node) else None,
                active_stat is not None,
                max(written),
            )
        )
    return found


def _host(data: bytes, where: str) -> ReplicaHost | None:
    try:
        return ReplicaHost.from_bytes(data, where=where)
    except Corrupt:
        return None
