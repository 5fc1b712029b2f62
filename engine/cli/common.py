"""What every sub-command shares: options, output, sessions with Keeper, and what an error's exit code is.

    0  ok                  1  failed                 2  wrong usage          3  not finished in time
    4  unavailable, retry  5  refused                6  outcome unknown      70 stored data is corrupt
    130 interrupted (Ctrl-C)                         143 terminated (SIGTERM)

Results go to standard output, as a table or, with `--json`, as one JSON document. Progress and errors go to
standard error, so that output can be piped. With `--json` an error is a JSON object too.
"""

from __future__ import annotations

import contextlib
import enum
import io
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from engine.errors import (
    Code,
    ConfigError,
    Corrupt,
    OnclusterError,
    Refused,
    SqlError,
    Unavailable,
    UnknownOutcome,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from engine.config.model import KeeperSection, NodeConfig
    from engine.keeper.base import Keeper

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

JsonValue = Any
"""What `json.dumps` takes; enums and paths are written as their text."""

CONFIG_VARIABLE = "ONCLUSTER_CONFIG"
CLUSTER_VARIABLE = "ONCLUSTER_CLUSTER"
HOME_VARIABLE = "ONCLUSTER_HOME"
MIGRATIONS_VARIABLE = "ONCLUSTER_MIGRATIONS"
DEFAULT_HOME = ".run"
STACK_CONFIGS = ("cluster.xml", "cluster.yaml", "cluster.yml")
_JSON_KEY = "engine.cli.json"
_LEGIBLE = 5
_BETWEEN_COLUMNS = 3


class ExitCode(enum.IntEnum):
    """What the process answers; the module's docstring is the table."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNFINISHED = 3
    UNAVAILABLE = 4
    REFUSED = 5
    UNKNOWN_OUTCOME = 6
    CORRUPT = 70
    INTERRUPTED = 130
    TERMINATED = 143


class Terminated(BaseException):
    """SIGTERM arrived; clean-up has run. Like KeyboardInterrupt it is no error of the program."""


def exit_code_for(error: BaseException) -> ExitCode:
    """The exit code of an error, by its place in the tree of `engine.errors`."""
    match error:
        case KeyboardInterrupt():
            return ExitCode.INTERRUPTED
        case Terminated():
            return ExitCode.TERMINATED
        case click.UsageError():
            return ExitCode.USAGE
        case Refused() if not isinstance(error, SqlError):
            # Also where it quotes the code of a host that did not finish: to repeat that changes nothing.
            return ExitCode.REFUSED
        case OnclusterError(code=Code.UNFINISHED | Code.TIMEOUT_EXCEEDED):
            return ExitCode.UNFINISHED
        case Unavailable():
            return ExitCode.UNAVAILABLE
        case UnknownOutcome():
            return ExitCode.UNKNOWN_OUTCOME
        case Refused():
            return ExitCode.REFUSED
        case Corrupt():
            return ExitCode.CORRUPT
        case _:
            return ExitCode.FAILED


# --- options ----------------------------------------------------------------------------------------------


def stack_home(home: str | Path | None = None) -> Path:
    """The run directory of the local stack: the argument, else $ONCLUSTER_HOME, else `.run` here."""
    return Path(home or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).absolute()


def find_config(path: Path | None) -> Path:
    """The configuration to use: the option, else $ONCLUSTER_CONFIG, else that of the local stack.

    Raises ConfigError when none of them is there.
    """
    if path is not None:
        return path
    variable = os.environ.get(CONFIG_VARIABLE)
    home = stack_home()
    candidates = [Path(variable)] if variable else [home / name for name in STACK_CONFIGS]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    where = f"${CONFIG_VARIABLE} names {variable}, which is not there" if variable else f"no {candidates[0]}"
    raise ConfigError(
        f"No configuration to work with: {where}.",
        hint=f"Give --config FILE, set {CONFIG_VARIABLE}, or start the local stack with `oncluster up`.",
    )


def config_option(command: F) -> F:
    """Adds `--config`; the function gets `config: Path | None` and passes it to `load_config`."""
    return click.option(
        "--config",
        "-c",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        default=None,
        help=f"Configuration, XML or YAML. Default: ${CONFIG_VARIABLE}, else the local stack's.",
    )(command)


def _remember_json(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    context.meta[_JSON_KEY] = value
    return value


def json_option(command: F) -> F:
    """Adds `--json`; the function gets `as_json: bool`, and errors are printed as JSON too."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_remember_json,
        help="Print one JSON document instead of a table.",
    )(command)


def load_config(config: Path | None) -> NodeConfig:
    """Read what no node is needed for of the configuration that `find_config` finds. Raises ConfigError."""
    from engine.config.load import load_client_config

    return load_client_config(find_config(config))


def host_and_url(item: str) -> tuple[str, str]:
    """The two parts of `--node HOST=URL`. Raises BadParameter, which shows no password of the URL."""
    from engine.client.address import server_address

    host, equals, url = item.partition("=")
    if not host or not equals or not url:
        shown = "what was given" if "@" in item else repr(item)
        raise click.BadParameter(f"{shown} is not HOST=URL", param_hint="--node")
    try:
        server_address(url)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--node") from error
    return host, url


def zookeeper_of(config: NodeConfig) -> KeeperSection:
    """The `zookeeper` section. Raises ConfigError when there is none."""
    if config.zookeeper is None:
        raise ConfigError(
            "The configuration has no <zookeeper> section.",
            hint="Add <zookeeper><node><host>…</host><port>2181</port></node></zookeeper>.",
        )
    return config.zookeeper


@contextlib.asynccontextmanager
async def keeper_session(config: NodeConfig | KeeperSection) -> AsyncIterator[Keeper]:
    """One session with the configuration's Keeper, ended on the way out.

    Raises ConfigError without a `zookeeper` section, KeeperUnavailable when nobody answers.
    """
    from engine.config.model import NodeConfig as NodeConfigType
    from engine.env import SystemEnv
    from engine.keeper import opening

    section = zookeeper_of(config) if isinstance(config, NodeConfigType) else config
    keeper = await opening.connect(section, SystemEnv())
    try:
        yield keeper
    finally:
        await keeper.close()


def user_at_host() -> str:
    """Who runs this, for records. In a container the number of a user often has no name."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def keep_files_private() -> None:
    """What this command and its children make is for this user alone: data, logs, passwords in settings."""
    before = os.umask(0o077)
    click.get_current_context().call_on_close(lambda: os.umask(before))


# --- running ----------------------------------------------------------------------------------------------


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on a fresh event loop. Ctrl-C and SIGTERM cancel it, so that its clean-up runs.

    Raises KeyboardInterrupt or Terminated after that.
    """
    import asyncio  # half of the time of `oncluster --help`

    terminated = False

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None

        def on_sigterm() -> None:
            nonlocal terminated
            if not terminated:
                terminated = True
                task.cancel()

        # Off the main thread, and where loops have no signals, SIGTERM keeps what it does by itself.
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
        return await work

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        if terminated:
            raise Terminated() from None
        raise


class OnclusterGroup(click.Group):
    """A group whose errors become one message on standard error and the exit code of their kind."""

    def invoke(self, ctx: click.Context) -> Any:
        if ctx.parent is not None:
            return super().invoke(ctx)
        asks_for_json = "--json" in itertools.takewhile(lambda argument: argument != "--", ctx.args)
        ctx.meta[_JSON_KEY] = asks_for_json  # before the part is imported that would say so
        try:
            return self._invoke_root(ctx)
        except click.ClickException as error:
            if not asks_for_json:
                raise
            show_error(error, as_json=True)
            ctx.exit(error.exit_code)

    def _invoke_root(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output went away; click ends quietly
            raise
        except UnicodeEncodeError as error:
            # A byte of the command line that is no UTF-8 was about to be sent.
            text = error.object[: error.end].encode("utf-8", "backslashreplace").decode()
            raise click.UsageError(f"What is given is no UTF-8: {text}") from error
        except (OnclusterError, OSError, KeyboardInterrupt, Terminated) as error:
            show_error(error, as_json=bool(ctx.meta.get(_JSON_KEY)))
            ctx.exit(exit_code_for(error))


def show_error(error: BaseException, *, as_json: bool = False) -> None:
    """Print an error to standard error: what happened, ClickHouse's code where there is one, what to do."""
    if as_json:
        click.echo(json.dumps({"error": error_as_json(error)}, ensure_ascii=False), err=True)
        return
    match error:
        case KeyboardInterrupt() | Terminated():
            click.echo(_message_of(error), err=True)
            for note in _notes_of(error):
                click.echo(f"  {note}", err=True)
        case OnclusterError():
            code = f" (code {error.code})" if error.code else ""
            click.echo(f"{click.style('Error', fg='red', bold=True)}{code}: {error.message}", err=True)
            if error.hint:
                click.echo(f"  {error.hint}", err=True)
        case OSError() if error.strerror:
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"{click.style('Error', fg='red', bold=True)}: {where}{error.strerror}", err=True)
        case _:
            click.echo(f"{click.style('Error', fg='red', bold=True)}: {error}", err=True)


def error_as_json(error: BaseException) -> dict[str, JsonValue]:
    """`kind` is the class in the error tree, `exit_code` what the process answers."""
    facts: dict[str, JsonValue] = {
        "kind": type(error).__name__,
        "message": _message_of(error),
        "exit_code": int(exit_code_for(error)),
    }
    if isinstance(error, OnclusterError):
        facts |= {"code": error.code, "hint": error.hint}
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        facts["hint"] = f"See `{error.ctx.command_path} --help`."
    elif notes := _notes_of(error):
        facts["hint"] = " ".join(notes)
    return facts


def _message_of(error: BaseException) -> str:
    match error:
        case KeyboardInterrupt():
            return "Interrupted."
        case Terminated():
            return "Terminated."
        case OnclusterError():
            return error.message
        case click.ClickException():
            return error.format_message()
        case _:
            return str(error)


def _notes_of(error: BaseException) -> list[str]:
    """What whoever was interrupted has said of how to go on."""
    return list(getattr(error, "__notes__", ()))


# --- output -----------------------------------------------------------------------------------------------


def prepare_streams() -> None:
    """Whatever is printed can be printed: also where standard output is closed, or takes no Unicode."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as the process lives
        elif isinstance(stream, io.TextIOWrapper) and (
            stream.errors == "strict" or (stream.errors == "surrogateescape" and not _is_unicode(stream))
        ):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """A rich console; when its stream is no terminal, lines are as long as they need to be."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 200, highlight=False)


def print_json(data: JsonValue) -> None:
    """One JSON document on standard output, indented; enums and paths as their text."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=not _is_unicode(sys.stdout), default=str))


def _is_unicode(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "").startswith("utf")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", empty: str = "(nothing)"
) -> None:
    """A table on standard output; `empty` is said when there are no rows. Cells are text, not markup.

    On a terminal on which its columns would be too narrow to read, a row is several lines instead.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    lines = [list(map(_cell_text, row)) for row in rows]
    if not lines:
        click.echo(empty)
        return
    shown = console()
    if _table_width(columns, lines, column_most=_LEGIBLE) > shown.width:
        _print_records(columns, lines, title=title)
        return
    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(*line)
    shown.print(table)


def fits_as_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> bool:
    """Whether `print_table` would show the rows without cutting a cell in two."""
    return _table_width(columns, [list(map(_cell_text, row)) for row in rows]) <= console().width


def _cell_text(cell: object) -> Text:
    from rich.text import Text

    return Text("" if cell is None else str(cell))


def _table_width(
    columns: Sequence[str], lines: Sequence[Sequence[Text]], *, column_most: int = sys.maxsize
) -> int:
    """What a table needs when no column is wider than `column_most`: longer cells are cut into lines."""
    widths = (
        max([_cell_text(name).cell_len, *(line[number].cell_len for line in lines)])
        for number, name in enumerate(columns)
    )
    return sum(min(width, column_most) + _BETWEEN_COLUMNS for width in widths)


def _print_records(columns: Sequence[str], lines: Sequence[Sequence[Text]], *, title: str) -> None:
    if title:
        click.echo(f"{title}\n")
    for line in lines:
        print_facts({name: cell.plain for name, cell in zip(columns, line, strict=True) if cell.plain})
        click.echo()


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line, values aligned."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {'' if value is None else value}")
