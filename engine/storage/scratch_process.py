"""The child of `engine.storage.scratch`: one JSON object per line in, one per line out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.env import SystemEnv
from engine.errors import ConfigError, SqlError, disk_error
from engine.names import quote_string
from engine.storage.chdb_module import load_chdb
from engine.storage.errors import sql_error
from engine.storage.layout import LOCAL_DATABASE, ChdbSettings, prepare
from engine.storage.leftovers import drop_output

_SETTINGS = {
    "implicit_select": "0",
    "fsync_metadata": "0",
    "allow_replace_partition_from_empty_source": "1",  # there are no rows here
    "skip_unavailable_shards": "1",  # nor on the only cluster
}


def _open(question: dict[str, Any]) -> tuple[Any, Any]:
    """chDB, and a connection to it."""
    chdb = load_chdb()
    chdb.set_signal_handlers_enabled(False)
    settings = ChdbSettings(
        display_name="scratch",
        macros=question["macros"],
        fsync=False,
        graphite=question["graphite"],
        unreachable_cluster=question["cluster"],
    )
    path = Path(question["path"])
    path.mkdir(parents=True, exist_ok=True)
    connection = chdb.connect(prepare(path, settings, SystemEnv()))
    connection.query(f"DETACH DATABASE {LOCAL_DATABASE}")
    _set(connection, _SETTINGS)
    return chdb, connection


def _set(connection: Any, settings: Mapping[str, str]) -> None:
    connection.query(
        "SET " + ", ".join(f"{name} = {quote_string(value)}" for name, value in settings.items())
    )


def _answer(chdb: Any, connection: Any, path: str, question: dict[str, Any]) -> str:
    settings: dict[str, str] = question["settings"]
    if settings:  # for this statement alone, also those that cannot be taken back, such as readonly
        connection = chdb.connect(path)
        _set(connection, _SETTINGS | settings)
    try:
        text: bytes = connection.query(question["sql"], question["format"]).bytes()
    except RuntimeError:
        drop_output(connection)
        raise
    finally:
        if settings:
            connection.close()
    return text.decode("utf-8", "replace")


def _refusal(question: Mapping[str, Any], error: Exception) -> SqlError:
    match error:
        case OSError():
            return _unusable(question, error)
        case ConfigError():
            return SqlError(error.code, error.message, hint=error.hint)
        case _:
            return sql_error(str(error))


def _unusable(question: Mapping[str, Any], error: OSError) -> SqlError:
    place = Path(question["path"]).parent
    return disk_error(error, f"Cannot make a scratch chDB in {place}", hint="$TMPDIR says where it is made.")


def main() -> None:
    """Until standard input closes."""
    # chDB and Python may write to standard output: answers go to a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    chdb: Any = None
    connection: Any = None
    path = ""
    for line in sys.stdin.buffer:
        question = json.loads(line)
        answer: dict[str, object]
        try:
            if connection is None:
                (chdb, connection), path = _open(question), question["path"]
                answer = {"text": ""}
            else:
                answer = {"text": _answer(chdb, connection, path, question)}
        except (RuntimeError, OSError, ConfigError) as error:
            refusal = _refusal(question, error)
            said = {"message": refusal.message, "name": refusal.name, "hint": refusal.hint}
            answer = {"code": refusal.code, **said}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
