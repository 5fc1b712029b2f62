"""The command line: what each kind of error answers, and that one broken part breaks nothing else."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from engine import errors
from engine.cli import main, output
from engine.cli.drift import DIFFERS
from engine.cli.exits import ExitCode, Terminated
from engine.cli.health import HealthExit
from engine.cli.options import find_config, json_option, user_at_host
from engine.cli.output import prepare_streams, print_facts, print_json, print_table
from engine.cli.running import OnclusterGroup, run_async
from engine.cli.standby import NOT_YET
from engine.migrations.errors import MigrationRefused, TableNotMade


def run(error: BaseException, *arguments: str) -> tuple[int, str]:
    @click.group(cls=OnclusterGroup)
    def root() -> None: ...

    @root.group()
    def inner() -> None: ...

    @inner.command()
    @json_option
    def fail(as_json: bool) -> None:
        raise error

    result = CliRunner().invoke(root, ["inner", "fail", *arguments])
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.KeeperUnavailable("nobody answers"), 4),
        (errors.Busy("locked", holder="somebody"), 4),
        (errors.ConnectionLoss("broken"), 6),
        (errors.ReplyLost("no answer"), 6),
        (errors.SqlError(errors.Code.SYNTAX_ERROR, "no SQL"), 5),
        (errors.SqlError(errors.Code.UNFINISHED, "still running"), 3),
        (errors.SqlError(errors.Code.TIMEOUT_EXCEEDED, "too slow"), 3),
        (errors.OnclusterError("in vain", code=errors.Code.TIMEOUT_EXCEEDED), 3),
        (TableNotMade("a host is away"), 3),
        (MigrationRefused("failed on a host", code=errors.Code.UNFINISHED), 5),
        (errors.ConfigError("no such section"), 5),
        (errors.NoNode("/a"), 5),
        (errors.MalformedEntry("no version", where="query-1"), 70),
        (errors.OnclusterError("something else"), 1),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert run(error)[0] == code


def test_an_error_says_what_happened_its_code_and_what_to_do() -> None:
    _, text = run(errors.SqlError(62, "unexpected word", hint="Look at line 3."))
    assert "Error (code 62): unexpected word" in text
    assert "Look at line 3." in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("error", "said"), [(KeyboardInterrupt(), "Interrupted."), (Terminated(), "Terminated.")]
)
def test_who_was_interrupted_may_say_how_to_go_on(error: BaseException, said: str) -> None:
    error.add_note("Repeat the command.")
    assert run(error)[1] == f"{said}\n  Repeat the command.\n"
    _, text = run(error, "--json")
    told = json.loads(text)["error"]
    assert (told["message"], told["hint"]) == (said, "Repeat the command.")


def test_with_json_an_error_is_json_too() -> None:
    _, text = run(errors.SqlError(62, "unexpected word", hint="Look at line 3."), "--json")
    assert json.loads(text)["error"] == {
        "kind": "SqlError",
        "message": "unexpected word",
        "exit_code": 5,
        "code": 62,
        "hint": "Look at line 3.",
    }


def test_ctrl_c_is_json_too_while_the_part_that_takes_json_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.importlib, "import_module", interrupted)
    result = CliRunner().invoke(main.cli, ["migrate", "plan", "--json"])
    assert result.exit_code == 130
    assert json.loads(result.stderr)["error"]["message"] == "Interrupted."


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "Interrupted.\n"), (signal.SIGTERM, 143, "Terminated.\n")],
)
def test_a_signal_before_everything_is_imported_is_one_line(
    tmp_path: Path, number: signal.Signals, code: int, said: str
) -> None:
    (tmp_path / "click.py").write_text(f"import os; os.kill(os.getpid(), {number.value})\n")
    done = subprocess.run(
        [sys.executable, "-m", "engine.cli", "--help"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_a_full_disk_is_one_line_and_not_a_traceback() -> None:
    code, text = run(OSError(28, "No space left on device", "/data/x"))
    assert code == 1
    assert text.strip() == "Error: /data/x: No space left on device"


def test_help_names_every_exit_code() -> None:
    shown = CliRunner().invoke(main.cli, ["--help"]).output
    (listed,) = re.findall(r"Exit codes: (.+?)\.\n", shown, re.DOTALL)
    named = {int(number) for number in re.findall(r"\b\d+\b", listed)}
    assert named == {*ExitCode, *HealthExit, DIFFERS, NOT_YET}


def test_help_imports_no_part() -> None:
    program = (
        "import sys; from engine.cli.main import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "parts = [name for name in sys.modules if name.startswith('engine.') and name not in "
        "('engine.cli', 'engine.errors', 'engine.error_codes', 'engine.timeouts')]\n"
        "print(*sorted(parts), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shared = ("error_output", "exits", "main", "options", "output", "running")
    assert done.stderr.split() == [f"engine.cli.{name}" for name in shared]
    for name in main.PARTS:
        assert f"  {name} " in done.stdout


def test_a_part_that_cannot_be_imported_says_so_and_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(main.PARTS, "broken", main.Part("engine.cli.no_such_module", "group", "Broken."))
    broken = CliRunner().invoke(main.cli, ["broken"])
    assert broken.exit_code == 1
    assert "`oncluster broken` cannot be loaded" in broken.stderr
    assert CliRunner().invoke(main.cli, ["down", "--help"]).exit_code == 0


def test_an_unknown_command_names_those_there_are() -> None:
    result = CliRunner().invoke(main.cli, ["migrat"])
    assert result.exit_code == 2
    assert "migrate" in result.stderr and "keeper" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["migrate", "apply", "--cluste", "c", "--json"], "--cluste"),
        (["migrate", "--json", "appl"], "No such"),
        (["ddl", "--json", "status"], "No such option"),
        (["migrat", "--json"], "No such command 'migrat'. Commands: demo"),
        (["cleanup", "abandon", "--json"], "Missing argument 'HOST'"),
        (["status", "--config", "/no/such/file", "--json"], "o such"),
    ],
)
def test_wrong_usage_is_a_json_object_too(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main.cli, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    error = json.loads(result.stderr)["error"]
    assert (error["exit_code"], error["kind"] in ("UsageError", "NoSuchOption", "MissingParameter")) == (
        2,
        True,
    )
    assert message in error["message"] and "--help`" in error["hint"]


def test_words_behind_two_dashes_ask_for_no_json() -> None:
    result = CliRunner().invoke(main.cli, ["migrate", "apply", "--", "--json"])
    assert result.exit_code == 2 and result.stderr.startswith("Usage: ")


@pytest.mark.parametrize("name", list(main.PARTS))
def test_the_list_of_commands_says_of_each_what_its_own_help_says(name: str) -> None:
    context = click.Context(main.cli)
    command = main.cli.get_command(context, name)
    assert command is not None
    assert (command.help or "").split("\n\n")[0].replace("\n", " ") == main.PARTS[name].summary


def test_configuration_is_found_by_option_then_variable_then_local_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONCLUSTER_CONFIG", raising=False)
    monkeypatch.setenv("ONCLUSTER_HOME", str(tmp_path))
    with pytest.raises(errors.ConfigError, match="oncluster up"):
        find_config(None)

    (tmp_path / "cluster.xml").write_text("<clickhouse/>")
    assert find_config(None) == tmp_path / "cluster.xml"

    other = tmp_path / "other.xml"
    monkeypatch.setenv("ONCLUSTER_CONFIG", str(other))
    with pytest.raises(errors.ConfigError, match=r"other\.xml"):
        find_config(None)
    other.write_text("<clickhouse/>")
    assert find_config(None) == other

    assert find_config(Path("given.xml")) == Path("given.xml")


def test_sigterm_runs_the_clean_up_and_says_terminated() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            cleaned.append("yes")

    with pytest.raises(Terminated):
        run_async(work())
    assert cleaned == ["yes"]


def test_a_table_keeps_square_brackets_and_says_when_it_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [["Array[red]"]])
    print_table(["name"], [], empty="no entries")
    out = capsys.readouterr().out
    assert "Array[red]" in out
    assert out.endswith("no entries\n")


def test_a_terminal_that_is_too_narrow_for_a_table_gets_a_row_in_several_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("version", "title", "state", *(f"node0{number}:9000" for number in range(1, 7)))
    rows = [(number, "create_flights", "applied", *["done 370 ms"] * 5, "") for number in (1, 2)]
    for width, is_table in ((200, True), (80, True), (40, False), (1, False)):
        monkeypatch.setattr(output, "console", lambda width=width: Console(width=width, highlight=False))
        print_table(columns, rows, title="order_cluster")
        out = capsys.readouterr().out
        assert ("───" in out) is is_table
        if not is_table:
            record = "\n".join(
                ["title        create_flights", "state        applied"]
                + [f"node0{number}:9000  done 370 ms" for number in range(1, 6)]
            )
            assert out == "order_cluster\n\n" + "".join(
                f"version      {number}\n{record}\n\n" for number in (1, 2)
            )


def test_bytes_that_are_no_text_are_wrong_usage() -> None:
    """A word of the command line in another encoding, which a database or Keeper would not take."""
    error = UnicodeEncodeError("utf-8", "f\udcfcr", 1, 2, "surrogates not allowed")
    code, text = run(error)
    assert code == 2
    assert "is no UTF-8: f\\udcfc" in text


def test_a_user_whose_number_has_no_name_is_known_by_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that is run as some number. Every command that writes records ended with a trace."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_001)
    assert user_at_host().startswith("user-4000000001@")


def test_a_closed_standard_output_takes_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    prepare_streams()
    print_table(["name"], [["a"]])
    print_json({"a": 1})
    sys.stdout.close()


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_without_unicode_is_shown_what_it_can_and_json_stays_json(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str
) -> None:
    written = io.BytesIO()
    terminal = io.TextIOWrapper(written, encoding=encoding, errors=errors, write_through=True)
    monkeypatch.setattr(sys, "stdout", terminal)
    prepare_streams()
    print_facts({"name": "таблица é"})
    assert written.getvalue()
    written.seek(0)
    written.truncate()
    print_json({"name": "таблица é"})
    assert json.loads(written.getvalue().decode(encoding)) == {"name": "таблица é"}
