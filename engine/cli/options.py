"""Options that sub-commands share, and where they find what was not given."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine.errors import ConfigError

if TYPE_CHECKING:
    from engine.config.model import NodeConfig

F = TypeVar("F", bound=Callable[..., Any])

CONFIG_VARIABLE = "ONCLUSTER_CONFIG"
CLUSTER_VARIABLE = "ONCLUSTER_CLUSTER"
HOME_VARIABLE = "ONCLUSTER_HOME"
MIGRATIONS_VARIABLE = "ONCLUSTER_MIGRATIONS"
DEFAULT_HOME = ".run"
STACK_CONFIGS = ("cluster.xml", "cluster.yaml", "cluster.yml")
JSON_KEY = "engine.cli.json"
"""In the metadata of click's context: whether `--json` was given."""


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


def load_config(config: Path | None) -> NodeConfig:
    """Read what no node is needed for of the configuration that `find_config` finds. Raises ConfigError."""
    from engine.config.load import load_client_config

    return load_client_config(find_config(config))


def config_option(command: F) -> F:
    """Adds `--config`; the function gets `config: Path | None` and passes it to `load_config`."""
    return click.option(
        "--config",
        "-c",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        default=None,
        help=f"Configuration, XML or YAML. Default: ${CONFIG_VARIABLE}, else the local stack's.",
    )(command)


def json_option(command: F) -> F:
    """Adds `--json`; the function gets `as_json: bool`, and errors are printed as JSON too."""
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=_remember_json,
        help="Print one JSON document instead of a table.",
    )(command)


def _remember_json(context: click.Context, _parameter: click.Parameter, value: bool) -> bool:
    context.meta[JSON_KEY] = value
    return value


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


def user_at_host() -> str:
    """Who runs this, for records. In a container the number of a user often has no name."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
