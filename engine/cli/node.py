"""`oncluster node`: run one node in the foreground."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from engine.cli.options import config_option, find_config
from engine.errors import ConfigError

_LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"


@click.command()
@config_option
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="ELEMENT=TEXT",
    help="Override an element of the configuration, such as http_port=8124 or zookeeper/root=/test.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="What is written to standard error.",
)
def command(config: Path | None, settings: tuple[str, ...], log_level: str) -> None:
    """Run one node: chDB behind ClickHouse's HTTP interface, with ON CLUSTER.

    \b
    It serves until SIGTERM or Ctrl-C: then running statements get 10 s to end. A second signal ends it at
    once. `<path>/node.json` names the process and its ports while it runs.
    Exit codes: 0 after an orderly end, 4 data directory or port in use, 5 unusable configuration.
    """
    from engine.node.redacted_log import ErrorsWithoutSecrets

    logging.basicConfig(
        stream=sys.stderr, level=log_level.upper(), format=_LOG_FORMAT, datefmt="%Y-%m-%d %H:%M:%S"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(ErrorsWithoutSecrets())
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    overrides: dict[str, str] = {}
    for setting in settings:
        element, equals, text = setting.partition("=")
        if not equals or not element:
            raise ConfigError(f"--set {setting!r} is not ELEMENT=TEXT.")
        overrides[element] = text
    from engine.node import run_node

    code = run_node(find_config(config), overrides=overrides)
    # Everything is closed. A thread that is still in chDB must not keep the process.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
