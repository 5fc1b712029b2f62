"""Errors on standard error: a line or two for people, a JSON object where `--json` was given."""

from __future__ import annotations

import json

import click

from engine.cli.exits import Terminated, exit_code_for
from engine.cli.output import JsonValue
from engine.errors import OnclusterError


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
