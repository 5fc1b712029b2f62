"""`oncluster migrate status`, `history`, `mark` and `unlock`: the ledger, and the lock of its writers."""

from __future__ import annotations

from pathlib import Path

import click

from engine.cli.exits import ExitCode
from engine.cli.migrate_place import (
    Place,
    find_folder,
    find_folders,
    folder_options,
    ledger_option,
    no_ledger_yet,
    open_ledger,
    request_for,
)
from engine.cli.migrate_show import ClusterStatus, show_history, show_status
from engine.cli.options import config_option, find_config, json_option, load_config
from engine.cli.output import print_json
from engine.cli.running import run_async
from engine.errors import Busy, KeeperAnswer, Unavailable
from engine.migrations.files import Direction, load_folder
from engine.migrations.ledger import Ledger
from engine.migrations.lock import LeaseText
from engine.migrations.states import MigrationRecord, MigrationState
from engine.migrations.upkeep import mark, mark_done, mark_up_to, refresh, unlock
from engine.names import HostId


@click.command("status")
@folder_options
@config_option
@ledger_option
@json_option
@click.option("--no-refresh", is_flag=True, help="Show the ledger as it is; ask nobody.")
def status_command(
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    no_refresh: bool,
) -> None:
    """Show every migration on every host, of one cluster or of all.

    What has happened since the last run is looked up and recorded. Exit code 1 when a migration has failed, 3
    when one is not finished.
    """
    ledger, config_file = open_ledger(ledger_url), find_config(config)
    node = load_config(config_file)
    shown = []
    for folder in find_folders(directory, cluster):
        place = Place(load_folder(folder, cluster=cluster), node, config_file)
        note = "" if no_refresh else run_async(_refresh(place, ledger))
        note = note or no_ledger_yet(ledger)
        shown.append(ClusterStatus(place.migrations, ledger.records(place.migrations.cluster), note))
    show_status(shown, as_json=as_json)
    states = {record.state for status in shown for record in status.records.values()}
    if MigrationState.FAILED in states:
        click.get_current_context().exit(ExitCode.FAILED)
    if any(state.is_open for state in states):
        click.get_current_context().exit(ExitCode.UNFINISHED)


async def _refresh(place: Place, ledger: Ledger) -> str:
    """What there is to say when nothing could be looked up."""
    try:
        async with place.runner(ledger) as runner:
            await refresh(runner, request_for(Direction.UP, None, {}))
    except Busy as error:
        return f"{error.message} This is the ledger as that run has written it so far."
    except (Unavailable, KeeperAnswer) as error:
        return f"Nothing could be looked up ({error.message}); this is the ledger as it was last written."
    return ""


@click.command("history")
@folder_options
@ledger_option
@json_option
def history_command(directory: Path, cluster: str, ledger_url: str, as_json: bool) -> None:
    """Show every run of the cluster and every event of its migrations, oldest first."""
    name = cluster or find_folder(directory, cluster).resolve().name
    ledger = open_ledger(ledger_url)
    if note := no_ledger_yet(ledger):
        click.echo(note, err=True)
    runs, events = ledger.runs(name), ledger.events(name)
    if cluster and directory.is_dir() and not (runs or events):
        find_folder(directory, cluster)  # of a mistyped name there is nothing either
    show_history(runs, events, as_json=as_json)


@click.command("mark")
@click.argument("version", type=int)
@click.argument("state", type=click.Choice(["applied", "unapplied", "done"]))
@click.option("--reason", required=True, help="Stays in the ledger.")
@click.option("--host", default="", help="With done: which host, as host:port.")
@click.option(
    "--and-earlier",
    is_flag=True,
    help="With applied: all versions before it, too, as another tool left them.",
)
@click.option("--statement", type=click.IntRange(1), help="With done: only this statement of the migration.")
@folder_options
@config_option
@ledger_option
@json_option
@click.option("--adopt-ledger", is_flag=True, help="This ledger takes over from another.")
def mark_command(
    version: int,
    state: str,
    reason: str,
    host: str,
    and_earlier: bool,
    statement: int | None,
    directory: Path,
    cluster: str,
    config: Path | None,
    ledger_url: str,
    as_json: bool,
    adopt_ledger: bool,
) -> None:
    """Declare a migration applied, or not applied, on your word. Nothing is sent.

    With `done` you vouch for one host that was given up (expired, unknown, abandoned): it has what it was
    given up for, by hand or from its replicas. `apply` then goes on with the statements behind it.
    """
    if (state == "done") != bool(host) or (statement is not None and state != "done"):
        raise click.UsageError("`done` is about one host, and wants --host; the others take no host.")
    if and_earlier and state != "applied":
        raise click.UsageError("--and-earlier is for `applied`: what another tool has applied.")
    target = _host_of(host) if host else None
    place, ledger = Place.known(directory, cluster, config), open_ledger(ledger_url)
    request = request_for(Direction.UP, None, {"adopt_ledger": adopt_ledger})

    async def work() -> list[MigrationRecord]:
        async with place.runner(ledger) as runner:
            if and_earlier:
                return await mark_up_to(runner, request, version, reason=reason)
            if target is not None:
                return [
                    await mark_done(runner, request, version, host=target, statement=statement, reason=reason)
                ]
            return [await mark(runner, request, version, applied=state == "applied", reason=reason)]

    found = run_async(work())
    if as_json and and_earlier:
        versions = [record.version for record in found]
        print_json({"cluster": place.migrations.cluster, "version": version, "marked": versions})
    elif as_json:
        state_now = found[0].state.value
        print_json({"cluster": place.migrations.cluster, "version": version, "state": state_now})
    else:
        for record in found:
            click.echo(f"Version {record.version} is {record.state}.")
        if not found:
            click.echo(f"Version {version} and all before it are applied already.")


def _host_of(text: str) -> HostId:
    name, colon, port = text.rpartition(":")
    if not colon or not name or not (port.isascii() and port.isdigit()):
        raise click.BadParameter(f"{text!r} is not host:port, such as node03:9000.", param_hint="--host")
    return HostId(name, int(port))


@click.command("unlock")
@click.option("--run", "run_id", default="", help="Only from this run: another may hold it by now.")
@folder_options
@config_option
@ledger_option
@json_option
def unlock_command(
    run_id: str, directory: Path, cluster: str, config: Path | None, ledger_url: str, as_json: bool
) -> None:
    """Take the migration lock from a run that will not come back.

    That run can neither send nor record anything afterwards. What it sent is carried out; `apply` attaches
    to it.
    """
    place, ledger = Place.known(directory, cluster, config), open_ledger(ledger_url)

    async def work() -> LeaseText | None:
        async with place.runner(ledger) as runner:
            return await unlock(runner, request_for(Direction.UP, None, {}), run_id=run_id)

    broken = run_async(work())
    if as_json:
        taken_from = {"run_id": broken.run_id, "holder": broken.holder} if broken else None
        print_json({"cluster": place.migrations.cluster, "taken_from": taken_from})
    else:
        click.echo(f"Taken from run {broken.run_id} of {broken.holder}." if broken else "Nobody holds it.")
