"""`oncluster keeper dump | restore | diff | copy | verify`: backups of Keeper's tree.

A *place* is a file, or a live tree:

    backup.keeper.zst          a backup
    keeper:/clickhouse         a path of the configuration's Keeper
    keeper@other.xml:/path     a path of another configuration's Keeper (with its identity and TLS)
    zk://zk1:2181,zk2:2181/p   a path of any ZooKeeper, without identity
    etcd://etcd1:2379/p        a path of any etcd, without user, identity and TLS

Safety: dump, diff and verify change nothing. Restore and copy only add to an empty tree, or continue what
they began; see `engine.operations.keeper_backup`.
"""

from __future__ import annotations

import contextlib
import datetime
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.cli.exits import ExitCode
from engine.cli.options import config_option, json_option, load_config
from engine.cli.output import console, print_facts, print_json, print_table
from engine.cli.running import run_async
from engine.cli.sessions import zookeeper_of
from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.config.model import KeeperSection
    from engine.operations.keeper_backup import BackupFacts, Comparison, Progress, Restored
    from engine.operations.keeper_backup.comparing import TreeSource

_SHOWN = 50
_DEFAULT_PORTS = {"zk": 2181, "etcd": 2379}


@dataclass(frozen=True, slots=True)
class KeeperPlace:
    """A path of a live tree."""

    section: KeeperSection
    root: str


def _keeper_place(text: str, config: Path | None) -> KeeperPlace | None:
    """None for what is no live tree. Raises ConfigError."""
    from engine.config.model import Etcd, ZooKeeper

    scheme, colon, rest = text.partition("://")
    if colon and scheme in _DEFAULT_PORTS:
        servers, slash, path = rest.partition("/")
        try:
            hosts = tuple(_host_and_port(server, _DEFAULT_PORTS[scheme]) for server in servers.split(","))
        except ValueError:
            raise ConfigError(
                f"{text} names no servers.", hint=f"Write {scheme}://HOST:PORT,…/PATH."
            ) from None
        section = Etcd(hosts=hosts) if scheme == "etcd" else ZooKeeper(hosts=hosts)
        return KeeperPlace(section, _path(slash + path, text))
    if text.startswith("keeper:"):
        section = zookeeper_of(load_config(config))
        return KeeperPlace(section, _path(text.removeprefix("keeper:"), text))
    if text.startswith("keeper@"):
        file, _, path = text.removeprefix("keeper@").rpartition(":")
        if not Path(file).is_file():
            raise ConfigError(f"{text}: there is no configuration {file!r}.", hint="Write keeper@FILE:/PATH.")
        section = zookeeper_of(load_config(Path(file)))
        return KeeperPlace(section, _path(path, text))
    return None


def _host_and_port(server: str, default_port: int) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon:
        host, port = server, str(default_port)
    if not host or host.count("[") != host.count("]"):
        raise ValueError(server)
    return host.strip("[]"), int(port)


def _path(path: str, text: str) -> str:
    path = path.rstrip("/") or "/"
    if not path.startswith("/") or "//" in path:
        raise ConfigError(f"{text}: {path!r} is no path of a znode.", hint="It starts with / .")
    return path


@contextlib.asynccontextmanager
async def _tree(text: str, config: Path | None) -> AsyncIterator[TreeSource]:
    from engine.env import SystemEnv
    from engine.operations.keeper_backup import LiveTree, open_backup, patient_keeper

    place = _keeper_place(text, config)
    if place is None:
        yield open_backup(Path(text))
        return
    async with patient_keeper(place.section, SystemEnv()) as source:
        yield LiveTree(source, place.root)


# --- the commands -----------------------------------------------------------------------------------------


_root_option = click.option(
    "--root", default="/", show_default=True, help="The node whose tree is meant, with itself."
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@_root_option
@config_option
@json_option
def dump(file: Path, root: str, config: Path | None, as_json: bool) -> None:
    """Write a tree into FILE, of one instant, checked and compressed.

    Given again after an interruption, it continues. `zstd -dc FILE` shows it. Exit code 1 if some nodes may
    not be read, or were changing all the time: FILE is there and says which.
    """
    from engine.env import SystemEnv
    from engine.operations.keeper_backup import dump_tree, name_of, patient_keeper

    section = zookeeper_of(load_config(config))
    at = _path(root, root)

    async def work() -> BackupFacts:
        env = SystemEnv()
        async with patient_keeper(section, env) as source:
            with _shown_progress() as progress:
                return await dump_tree(
                    source, file, root=at, source_name=name_of(section), env=env, progress=progress
                )

    facts = run_async(work())
    _show_facts(file, facts, as_json=as_json)
    if facts.unreadable or not facts.is_of_one_instant:
        click.get_current_context().exit(ExitCode.FAILED)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@json_option
def verify(file: Path, as_json: bool) -> None:
    """Check every byte of a backup and say what it holds. Exit code 70 if it is damaged, and where."""
    from engine.operations.keeper_backup import open_backup

    _show_facts(file, open_backup(file).facts, as_json=as_json)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--to", "target", default="", help="A live place. Default: where the backup was made, here.")
@config_option
@json_option
def restore(file: Path, target: str, config: Path | None, as_json: bool) -> None:
    """Make the tree of FILE again, in an empty place; never overwrites.

    Values, versions, ACLs and sequence counters are those of the backup; ephemeral nodes are left out. Given
    again after an interruption, it continues. At the end the new tree is compared with FILE: exit code 1 if
    they differ.
    """
    from engine.env import SystemEnv
    from engine.operations.keeper_backup import LiveTree, compare, open_backup, patient_keeper, restore_tree

    backup = open_backup(file)
    place = _live_place(target or f"keeper:{backup.facts.root}", config)

    async def work() -> tuple[Restored, Comparison]:
        async with patient_keeper(place.section, SystemEnv()) as keeper:
            with _shown_progress() as progress:
                restored = await restore_tree(
                    backup, keeper, root=place.root, identity=place.section.identity, progress=progress
                )
                result = await compare(backup, LiveTree(keeper, place.root), progress=progress)
        return restored, result

    restored, result = run_async(work())
    _show_restored(restored, result, as_json=as_json)


@click.command()
@click.argument("target")
@_root_option
@click.option(
    "--by-way-of",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Keep the backup that the copy is made of in this file, so that an interrupted copy continues.",
)
@config_option
@json_option
def copy(target: str, root: str, file: Path | None, config: Path | None, as_json: bool) -> None:
    """Copy a tree to TARGET, a live and empty place; ephemeral nodes are left out and counted."""
    from engine.env import SystemEnv
    from engine.operations.keeper_backup import Copied, copy_tree, name_of, patient_keeper

    section = zookeeper_of(load_config(config))
    place = _live_place(target, config)
    at = _path(root, root)

    async def work(by_way_of: Path) -> Copied:
        env = SystemEnv()
        async with patient_keeper(section, env) as source, patient_keeper(place.section, env) as there:
            with _shown_progress() as progress:
                return await copy_tree(
                    source,
                    there,
                    by_way_of,
                    root=at,
                    target_root=place.root,
                    source_name=name_of(section),
                    env=env,
                    target_identity=place.section.identity,
                    progress=progress,
                )

    with contextlib.ExitStack() as stack:
        if file is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="oncluster-keeper-copy-"))
            file = Path(folder) / "copy.keeper.zst"
        copied = run_async(work(file))
    if copied.facts.changing_count and not as_json:
        click.echo(f"{copied.facts.changing_count} nodes were changing; see `keeper diff`.", err=True)
    _show_restored(copied.restored, copied.comparison, as_json=as_json)


@click.command()
@click.argument("left")
@click.argument("right")
@click.option("--ephemerals", "with_ephemerals", is_flag=True, help="Compare ephemeral nodes too.")
@config_option
@json_option
def diff(left: str, right: str, with_ephemerals: bool, config: Path | None, as_json: bool) -> None:
    """Compare two trees: values, ACLs, versions, sequence counters. Exit code 1 if they differ.

    \b
    A place is   FILE
                 keeper:/PATH            of the configuration's Keeper
                 keeper@FILE:/PATH       of another configuration's
                 zk://HOST:PORT,…/PATH   of any ZooKeeper
                 etcd://HOST:PORT,…/PATH of any etcd
    """
    from engine.operations.keeper_backup import Ephemerals, compare

    ephemerals = Ephemerals.COMPARED if with_ephemerals else Ephemerals.LEFT_OUT

    async def work() -> Comparison:
        async with _tree(left, config) as a, _tree(right, config) as b:
            with _shown_progress() as progress:
                return await compare(a, b, ephemerals=ephemerals, progress=progress)

    result = run_async(work())
    if as_json:
        print_json(result.to_json())
    else:
        _show_differences(result)
    if not result.is_equal:
        click.get_current_context().exit(ExitCode.FAILED)


COMMANDS = (dump, restore, diff, copy, verify)
"""What `oncluster keeper` takes over."""


# --- showing ----------------------------------------------------------------------------------------------


def _live_place(text: str, config: Path | None) -> KeeperPlace:
    place = _keeper_place(text, config)
    if place is None:
        raise ConfigError(
            f"{text} is no live tree.",
            hint="Write keeper:/PATH, keeper@FILE:/PATH, zk://HOST:PORT/PATH or etcd://HOST:PORT/PATH.",
        )
    return place


@contextlib.contextmanager
def _shown_progress() -> Iterator[Progress]:
    from engine.local.progress import ConsoleSink, Steps

    begun: list[str] = []
    with ConsoleSink(console(stderr=True)) as sink:
        steps = Steps(sink)

        def progress(phase: Any, done: int, total: int) -> None:
            text = f"{done:,} of {total:,}" if total else f"{done:,}"
            for other in begun:
                if other != phase:
                    steps.done(other)
            begun[:] = [phase]
            steps.running(phase, text)

        yield progress
        for phase in begun:
            steps.done(phase)


def _show_facts(file: Path, facts: BackupFacts, *, as_json: bool) -> None:
    if as_json:
        print_json({"file": file, **facts.to_json()})
        return
    at = datetime.datetime.fromtimestamp(facts.at_ms / 1000, datetime.UTC)
    shown: dict[str, object] = {
        "file": file,
        "of": f"{facts.source}, {facts.root}",
        "at": f"{at:%Y-%m-%d %H:%M:%S} UTC, transaction {facts.zxid:#x}",
        "nodes": f"{facts.nodes:,}",
        "values": f"{facts.value_bytes:,} bytes",
        "ephemeral": f"{facts.ephemeral:,} (in the file, never restored)",
        "digest": facts.digest,
    }
    if facts.skipped:
        shown["left out"] = ", ".join(facts.skipped)
    if facts.unreadable:
        shown["unreadable"] = f"{facts.unreadable:,} nodes: no permission"
    if facts.hidden_acls:
        shown["hidden ACLs"] = f"{facts.hidden_acls:,} nodes: their digests are for their administrators only"
    if not facts.is_of_one_instant:
        few = ", ".join(facts.changing[:5])
        shown["changing"] = f"{facts.changing_count:,} nodes are of a later moment: {few}"
    print_facts(shown)


def _show_restored(restored: Restored, result: Comparison, *, as_json: bool) -> None:
    if as_json:
        print_json({"restored": restored.to_json(), "comparison": result.to_json()})
    else:
        print_facts(
            {
                "made": f"{restored.created:,}",
                "were there": f"{restored.present:,}",
                "left out": f"{restored.left_out:,} ephemeral",
                "raised": f"{restored.raised:,} writes, for versions and sequence counters",
            }
        )
        for path in restored.unreadable[:_SHOWN]:
            click.echo(f"not restored, as the backup could not read it: {path}", err=True)
        _show_differences(result)
    if not result.is_restored:
        click.get_current_context().exit(ExitCode.FAILED)


def _show_differences(result: Comparison) -> None:
    if result.differences:
        print_table(
            ("path", "differs in", "left", "right"),
            [(d.path, d.aspect.value, d.left, d.right) for d in result.differences[:_SHOWN]],
        )
    left_out = f", {result.ephemeral:,} ephemeral nodes left out" if result.ephemeral else ""
    meanwhile = f", {result.changed_meanwhile:,} changed meanwhile" if result.changed_meanwhile else ""
    verdict = "Equal" if result.is_equal else f"{result.difference_count:,} differences"
    click.echo(f"{verdict}: {result.nodes:,} nodes compared{left_out}{meanwhile}.", err=not result.is_equal)
