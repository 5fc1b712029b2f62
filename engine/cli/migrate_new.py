"""`oncluster migrate new`: the files of a migration that is still to be written."""

from __future__ import annotations

from pathlib import Path

import click

from engine.cli.migrate_place import find_folder, folder_options
from engine.cli.options import json_option
from engine.cli.output import print_json
from engine.env import SystemEnv
from engine.migrations.new_files import write_new


@click.command("new")
@click.argument("title", nargs=-1, required=True)
@folder_options
@json_option
def new_command(title: tuple[str, ...], directory: Path, cluster: str, as_json: bool) -> None:
    """Write the files of a new migration, an up and a down file behind the last one.

    The version is the next number, or the time in UTC where the folder's versions are timestamps.

    oncluster migrate new --cluster order_cluster add gates to flights
    """
    is_new = bool(cluster) and directory.is_dir() and not any(directory.glob("*.sql"))
    folder = directory / cluster if is_new else find_folder(directory, cluster)
    files = write_new(folder, " ".join(title), now_s=SystemEnv().now_s())
    if as_json:
        print_json({"files": [str(path) for path in files]})
    else:
        for path in files:
            click.echo(path)
