"""chDB's function `file` reads any file of the machine, and no grant or setting takes it away.

Its name may reach chDB where no look at a statement's text finds it: as a value of a function
(`arrayMap(file, paths)`), in the columns that a table function is told in a string, computed perhaps, in rows
that come from elsewhere. So chDB is given another function of that name, which it takes before its own
wherever the name stands. That one takes no argument: a path is refused before anything runs.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from engine.errors import Code, SqlError

_NAME = "file"
_REFUSED = re.compile(rf"Number of arguments for function {_NAME} doesn't match|Python UDF '{_NAME}' raised")
_registering = threading.Lock()
_is_registered = False


def shadow_functions(chdb: Any) -> None:
    """For all of the process's connections: chDB's functions are the process's."""
    global _is_registered
    with _registering:
        if not _is_registered:
            chdb.create_function(_NAME, _without_path, [], "String")
            _is_registered = True


def refusal_of(message: str) -> SqlError | None:
    """What a statement that called it is told, by chDB's message; None if it is about something else."""
    if _REFUSED.match(message) is None:
        return None
    return SqlError(Code.ACCESS_DENIED, f"Function {_NAME} would read or write files of the node's machine")


def _without_path() -> str:
    raise PermissionError
