"""`oncluster keeper`: look at Keeper's tree, change it by hand, run a ZooKeeper.

Safety: `set` and `rm` act on what was looked at. `set --version` is refused if the value has changed
meanwhile; `rm` lists what it would remove and removes nothing without `--yes`. Neither knows what a znode
means to a server: for the DDL queue there is `oncluster ddl clean`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import posixpath
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import click

from engine.cli import keeper_backup
from engine.cli.numbers import Finite
from engine.cli.options import config_option, json_option, load_config
from engine.cli.output import print_facts, print_json, print_table
from engine.cli.running import keep_files_private, run_async
from engine.cli.sessions import keeper_session
from engine.cli.text_type import TextType
from engine.ddl.text import storable
from engine.errors import Code, KeeperAnswer, NoNode, NotEmpty, OnclusterError, Refused
from engine.keeper.base import ANY_VERSION, Keeper, Stat
from engine.keeper.recipes import (
    create_ancestors,
    remove_recursive,
    wait_until_changed,
    wait_until_exists,
    wait_until_gone,
)
from engine.wording import count, moment

TREE_LIMIT = 1000


class ZnodePath(TextType):
    """An absolute path without a trailing slash."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value.startswith("/") or "//" in value or storable(value) != value:
            self.fail(
                f"{storable(value)!r} is no path of a znode: UTF-8, with / first and no empty parts.",
                param,
                ctx,
            )
        return str(value).rstrip("/") or "/"


PATH = ZnodePath()


@click.group(name="keeper")
def group() -> None:
    """Look at, change, back up and compare Keeper's tree; run ZooKeeper.

    Keeper is the one of the `zookeeper` (or `etcd`) section of the configuration; its <root> stands in front
    of every path.
    """


for _command in keeper_backup.COMMANDS:
    group.add_command(_command)


@contextlib.asynccontextmanager
async def _session(config: Path | None) -> AsyncIterator[Keeper]:
    async with keeper_session(load_config(config)) as keeper:
        yield keeper


# --- looking ----------------------------------------------------------------------------------------------


@group.command("ls")
@click.argument("path", type=PATH, default="/")
@click.option(
    "--long", "-l", "is_long", is_flag=True, help="Version, children, bytes, owner and time of each."
)
@config_option
@json_option
def list_(path: str, is_long: bool, config: Path | None, as_json: bool) -> None:
    """List the children of PATH, sorted."""

    async def work() -> list[tuple[str, Stat | None]]:
        async with _session(config) as keeper:
            names = (await keeper.children(path)).names
            if not is_long:
                return [(name, None) for name in names]
            stats = await keeper.exists_many([_join(path, name) for name in names])
            # A child removed since the listing is left out.
            return [(name, stat) for name, stat in zip(names, stats, strict=True) if stat is not None]

    found = run_async(work())
    if as_json:
        print_json([{"name": name, **(_stat_json(stat) if stat else {})} for name, stat in found])
    elif is_long:
        rows = [
            (name, s.version, s.num_children, s.data_length, _owner(s), moment(s.mtime_ms))
            for name, s in found
            if s
        ]
        print_table(
            ("name", "version", "children", "bytes", "owner", "modified"), rows, empty="(no children)"
        )
    else:
        for name, _ in found:
            click.echo(name)


@group.command()
@click.argument("path", type=PATH)
@config_option
@json_option
def get(path: str, config: Path | None, as_json: bool) -> None:
    """Print the value of PATH as it is stored."""

    async def work() -> Any:
        async with _session(config) as keeper:
            return await keeper.get(path)

    node = run_async(work())
    if as_json:
        print_json({"path": path, **_value_json(node.data), "stat": _stat_json(node.stat)})
    else:
        click.echo(node.data, nl=sys.stdout.isatty())


@group.command()
@click.argument("path", type=PATH)
@config_option
@json_option
def stat(path: str, config: Path | None, as_json: bool) -> None:
    """Show the bookkeeping of PATH: versions, owner, times."""

    async def work() -> Stat | None:
        async with _session(config) as keeper:
            return await keeper.exists(path)

    found = run_async(work())
    if found is None:
        raise NoNode(path)
    if as_json:
        print_json({"path": path, **_stat_json(found)})
        return
    facts = _stat_json(found) | {
        "ctime_ms": f"{found.ctime_ms}  {moment(found.ctime_ms)}",
        "mtime_ms": f"{found.mtime_ms}  {moment(found.mtime_ms)}",
        "ephemeral_owner": _owner(found),
    }
    print_facts(facts)


@group.command()
@click.argument("path", type=PATH, default="/")
@click.option("--depth", type=click.IntRange(1), default=5, show_default=True, help="Levels below PATH.")
@click.option("--limit", type=click.IntRange(1), default=TREE_LIMIT, show_default=True, help="Nodes at most.")
@click.option("--values", is_flag=True, help="Show the beginning of each value.")
@config_option
@json_option
def tree(path: str, depth: int, limit: int, values: bool, config: Path | None, as_json: bool) -> None:
    """Show PATH and what is below it."""

    async def work() -> list[tuple[int, str, bytes | None]]:
        async with _session(config) as keeper:
            return [
                each async for each in _walk(keeper, path, depth=depth, limit=limit + 1, with_values=values)
            ]

    found = run_async(work())
    is_cut = len(found) > limit
    found = found[:limit]
    if as_json:
        nodes = [
            {"path": at, **({"value": _text(data)} if data is not None else {})} for _, at, data in found
        ]
        print_json({"nodes": nodes, "is_complete": not is_cut})
        return
    for level, at, data in found:
        name = at if level == 0 else at.rpartition("/")[2]
        shown = f"  {_first_line(data)}" if data else ""
        click.echo(f"{'  ' * level}{name}{shown}")
    if is_cut:
        click.echo(f"… more than {limit} nodes; see --limit.", err=True)


@group.command()
@click.argument("path", type=PATH)
@click.option(
    "--until",
    type=click.Choice(["exists", "gone", "changed"]),
    default="exists",
    show_default=True,
    help="What to wait for.",
)
@click.option("--timeout", "timeout_s", type=Finite(0), default=60.0, show_default=True, help="Seconds.")
@config_option
@json_option
def wait(path: str, until: str, timeout_s: float, config: Path | None, as_json: bool) -> None:
    """Wait for PATH to appear, change or go. Exit code 3 if that does not happen in time."""

    async def work() -> None:
        async with _session(config) as keeper, asyncio.timeout(timeout_s):
            match until:
                case "exists":
                    await wait_until_exists(keeper, path)
                case "gone":
                    await wait_until_gone(keeper, path)
                case _:
                    await wait_until_changed(keeper, path, await keeper.exists(path))

    try:
        run_async(work())
    except TimeoutError:
        raise OnclusterError(
            f"Waited {timeout_s:g} s for {path} until={until} in vain.", code=Code.TIMEOUT_EXCEEDED
        ) from None
    if as_json:
        print_json({"path": path, "until": until})


# --- changing ---------------------------------------------------------------------------------------------


@group.command()
@click.argument("path", type=PATH)
@click.argument("value", default="")
@click.option("--parents", "-p", is_flag=True, help="Make the nodes above it too.")
@config_option
@json_option
def create(path: str, value: str, parents: bool, config: Path | None, as_json: bool) -> None:
    """Make PATH with VALUE."""

    async def work() -> str:
        async with _session(config) as keeper:
            if parents:
                await create_ancestors(keeper, path)
            try:
                return await keeper.create(path, os.fsencode(value))
            except NoNode:
                missing = NoNode(posixpath.dirname(path))
                missing.hint = "--parents makes the nodes above it, too."
                raise missing from None

    made = run_async(work())
    if as_json:
        print_json({"path": made})
    else:
        click.echo(made)


@group.command("set")
@click.argument("path", type=PATH)
@click.argument("value")
@click.option("--version", type=int, default=ANY_VERSION, help="Refuse if the node has another version.")
@config_option
@json_option
def set_(path: str, value: str, version: int, config: Path | None, as_json: bool) -> None:
    """Set the value of PATH."""

    async def work() -> Stat:
        async with _session(config) as keeper:
            return await keeper.set(path, os.fsencode(value), version=version)

    after = run_async(work())
    if as_json:
        print_json({"path": path, **_stat_json(after)})
    else:
        click.echo(f"version {after.version}")


@group.command()
@click.argument("path", type=PATH)
@click.option("--recursive", "-r", is_flag=True, help="With all that is below it.")
@click.option("--yes", is_flag=True, help="Remove. Without it, only say what would go.")
@config_option
@json_option
def rm(path: str, recursive: bool, yes: bool, config: Path | None, as_json: bool) -> None:
    """Remove PATH. Says what would go; removes with --yes."""
    if path == "/":
        raise click.UsageError("The root is never removed.")

    async def work() -> list[str]:
        async with _session(config) as keeper:
            stat = await keeper.exists(path)
            if stat is None:
                raise NoNode(path)
            if stat.num_children and not recursive:
                refusal = NotEmpty(path)
                refusal.hint = "--recursive removes what is below it, too."
                raise refusal
            depth = 10**6 if recursive else 0
            doomed = [
                at async for _, at, _ in _walk(keeper, path, depth=depth, limit=10**9, with_values=False)
            ]
            if yes and not recursive:
                await keeper.remove(path)
            elif yes and not await remove_recursive(keeper, path):
                raise Refused(f"Somebody adds nodes below {path}; what was there before is removed.")
            return doomed

    doomed = run_async(work())
    if as_json:
        print_json({"paths": doomed, "removed": yes})
        return
    for each in doomed[:TREE_LIMIT]:
        click.echo(each)
    if len(doomed) > TREE_LIMIT:
        click.echo(f"… and {len(doomed) - TREE_LIMIT} more")
    click.echo(
        f"{'Removed' if yes else 'Would remove; give --yes to do it'}: {count(len(doomed), 'node')}.",
        err=True,
    )


@group.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--port", type=click.IntRange(0, 65535), default=2181, show_default=True, help="0 takes a free one."
)
def serve(directory: Path, port: int) -> None:
    """Run a ZooKeeper on this machine until Ctrl-C; its data stays in DIRECTORY."""
    from engine.keeper.embedded import HOST, EmbeddedZooKeeper

    keep_files_private()

    async def work() -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
        async with EmbeddedZooKeeper(directory, client_port=port, ends_with_parent=True) as server:
            click.echo(f"ZooKeeper serves at {HOST}:{server.client_port} (pid {server.pid}); Ctrl-C ends it.")
            await stopped.wait()

    run_async(work())


# --- showing ----------------------------------------------------------------------------------------------


async def _walk(
    keeper: Keeper, path: str, *, depth: int, limit: int, with_values: bool
) -> AsyncIterator[tuple[int, str, bytes | None]]:
    """(level, path, value) of a node and those below it, parents first; what goes meanwhile is left out."""
    pending: list[tuple[int, str]] = [(0, path)]
    shown = 0
    while pending and shown < limit:
        level, at = pending.pop()
        try:
            data = (await keeper.get(at)).data if with_values else None
            names: tuple[str, ...] = (await keeper.children(at)).names if level < depth else ()
        except NoNode:
            if level == 0:
                raise
            continue
        except KeeperAnswer:  # no permission to read: the node is there, its inside is not for us
            data, names = None, ()
        yield level, at, data
        shown += 1
        pending.extend((level + 1, _join(at, name)) for name in reversed(names))


def _join(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _stat_json(stat: Stat) -> dict[str, int]:
    return stat._asdict()


def _owner(stat: Stat) -> str:
    return f"{stat.ephemeral_owner:#x}" if stat.ephemeral_owner else ""


def _value_json(data: bytes) -> dict[str, str | None]:
    """`value` is its text; null, and `value_base64` beside it, where it is none."""
    try:
        return {"value": data.decode("utf-8")}
    except UnicodeDecodeError:
        return {"value": None, "value_base64": base64.b64encode(data).decode("ascii")}


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _first_line(data: bytes) -> str:
    lines: Iterator[str] = iter(_text(data).splitlines())
    first = next(lines, "")
    return first[:100] + ("…" if len(first) > 100 or next(lines, None) is not None else "")
