"""What holds for every command of `oncluster`, whatever it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from engine.cli.exits import ExitCode
from engine.cli.main import cli

SERVERS = {"node", "keeper serve"}
"""They run until they are stopped: there is no result that a document could hold."""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(commands(cli))
ENTRIES = {"ddl show", "ddl wait"}
"""They take the number of an entry."""
each_command = pytest.mark.parametrize("name", COMMANDS)


@each_command
def test_help_says_what_the_command_and_each_of_its_options_do(name: str) -> None:
    shown = CliRunner().invoke(cli, [*name.split(), "--help"])
    assert shown.exit_code == 0, shown.output
    assert f"oncluster {name}" in shown.output or f"cli {name}" in shown.output
    command = COMMANDS[name]
    assert (command.help or "").strip()
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help] == []


@each_command
def test_every_command_but_a_server_has_json(name: str) -> None:
    has_json = any("--json" in parameter.opts for parameter in COMMANDS[name].params)
    assert has_json is (name not in SERVERS)


def value_of(parameter: click.Parameter, tmp_path: Path) -> str:
    """Something that the parameter takes."""
    match parameter.type:
        case click.Choice(choices=choices):
            return str(choices[0])
        case click.types.IntParamType() | click.types.FloatParamType():
            return "1"
        case click.Path(exists=True, dir_okay=False):
            (tmp_path / "file").write_text("<clickhouse/>")
            return str(tmp_path / "file")
        case click.Path(exists=True):
            return str(tmp_path)
        case _:
            return "/x"


@each_command
def test_with_json_the_answer_or_the_error_is_one_document(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a place where there is nothing to work with."""
    if name in SERVERS:
        return
    monkeypatch.chdir(tmp_path)
    for variable in ("ONCLUSTER_CONFIG", "ONCLUSTER_HOME", "ONCLUSTER_LEDGER_URL", "ONCLUSTER_MIGRATIONS"):
        monkeypatch.delenv(variable, raising=False)
    words = [*name.split(), "--json"]
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Argument) and parameter.required:
            words.append(value_of(parameter, tmp_path))
        elif parameter.required or parameter.name == "cluster_file":
            words += [parameter.opts[0], value_of(parameter, tmp_path)]
    if name in ENTRIES:
        words = [*name.split(), "--json", "7"]
    done = CliRunner().invoke(cli, words)

    assert done.exit_code != ExitCode.USAGE, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    if done.stdout:
        assert isinstance(json.loads(done.stdout), dict)
    else:
        error = json.loads(done.stderr.splitlines()[-1])["error"]
        assert error["exit_code"] == done.exit_code and error["message"]


SECONDS = [
    (name, parameter.opts[0])
    for name, command in COMMANDS.items()
    for parameter in command.params
    if isinstance(parameter.type, click.types.FloatParamType)
]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("name", "option"), SECONDS, ids=map(" ".join, SECONDS))
def test_a_number_that_nothing_can_be_counted_with_is_wrong_usage(
    name: str, option: str, number: str, tmp_path: Path
) -> None:
    """With `nan` as its patience a check would take every host for silent."""
    required: list[str] = []
    for parameter in COMMANDS[name].params:
        if parameter.required:
            word = [] if isinstance(parameter, click.Argument) else [parameter.opts[0]]
            required += [*word, value_of(parameter, tmp_path)]
    done = CliRunner().invoke(cli, [*name.split(), f"{option}={number}", *required])
    assert done.exit_code == ExitCode.USAGE
    assert option in done.output
