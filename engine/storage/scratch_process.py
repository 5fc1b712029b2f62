"""The child of `engine.storage.scratch`: one JSON object per line in, one per line out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from engine.env import SystemEnv
from engine.errors import SqlError
from engine.storage.errors import sql_error
from engine.storage.layout import LOCAL_DATABASE, ChdbSettings, prepare


def _open(question: dict[str, Any]) -> Any:
    from chdb import _chdb

    chdb: Any = _chdb
    chdb.set_signal_handlers_enabled(False)
    settings = ChdbSettings(
        display_name="scratch", macros=question["macros"], fsync=False, graphite=question["graphite"]
    )
    path = Path(question["path"])
    path.mkdir(parents=True, exist_ok=True)
    connection = chdb.connect(prepare(path, settings, SystemEnv()))
    connection.query(f"DETACH DATABASE {LOCAL_DATABASE}")
    connection.query("SET implicit_select = 0, fsync_metadata = 0")
    return connection


def main() -> None:
    """Until standard input closes."""
    # chDB and Python may write to standard output: answers go to a descriptor of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    connection: Any = None
    for line in sys.stdin.buffer:
        question = json.loads(line)
        answer: dict[str, object]
        try:
            if connection is None:
                connection = _open(question)
                answer = {"text": ""}
            else:
                data = connection.query(question["sql"], question["format"]).bytes()
                answer = {"text": data.decode("utf-8", "replace")}
        except RuntimeError as error:
            refusal: SqlError = sql_error(str(error))
            answer = {"code": refusal.code, "message": refusal.message, "name": refusal.name}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
