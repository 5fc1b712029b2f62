"""INSERTs that chDB takes for done though they failed.

chDB 4.4's `insert_done` raises what is wrong with the format of the rows. It says nothing of what fails
when they are written: a constraint, too many partitions in a block, a materialized view, a full disk. Its
answer counts all rows then, and none is there. What is left of such a failure is the event
`FailedInsertQuery`, which counts for the whole process.

So INSERTs of a usual size go another way (`insert_whole`), which raises everything. For the others: if more
INSERTs have failed since one began than anybody has been told of, it was this one. Of several that end at the
same time more may be told that they have failed than have; none that has failed is taken for done.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from engine.errors import Code, SqlError

_COUNTED = "SELECT sum(value) FROM system.events WHERE event = 'FailedInsertQuery'"
_ERRORS = (
    "SELECT code, value, last_error_message FROM system.errors WHERE NOT remote ORDER BY last_error_time"
)
_SOON_S = 1.0
_BY_FORMAT = "data for INSERT was parsed from file"
"""What such an error says is not counted by chDB."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Failures by then: all of the process, and those that somebody was told of; and errors, by code."""

    counted: int
    told: int
    errors: Mapping[int, int]


class InsertFailures:
    """Of one process. Its methods are called on worker threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._told = 0
        self._running: set[object] = set()

    @contextmanager
    def told(self) -> Iterator[None]:
        """Around an INSERT whose failure chDB raises."""
        me = object()
        with self._changed:
            self._running.add(me)
        is_counted = False
        try:
            yield
        except RuntimeError as error:
            is_counted = _BY_FORMAT not in str(error)
            raise
        finally:
            with self._changed:
                self._told += is_counted
                self._running.discard(me)
                self._changed.notify_all()

    def mark(self, connection: Any) -> Mark:
        errors = {code: number for code, number, _ in _errors(connection)}
        return Mark(_counted(connection), self._told, errors)

    def require_none_since(self, mark: Mark, connect: Callable[[], Any]) -> None:
        """Raises SqlError: the newest that chDB knows of."""
        connection = connect()
        try:
            failed = _counted(connection) - mark.counted
            if not failed:
                return
            with self._changed:  # one that has failed just now is about to be told
                others = set(self._running)
                self._changed.wait_for(lambda: not others & self._running, timeout=_SOON_S)
                told = self._told - mark.told
            if failed > told:
                raise _newest(connection, mark)
        finally:
            connection.close()


def _counted(connection: Any) -> int:
    return int(connection.query(_COUNTED, "TSVRaw").bytes())


def _errors(connection: Any) -> list[tuple[int, int, str]]:
    """Code, how often, and the text of the last one; the newest last."""
    lines = connection.query(_ERRORS, "JSONCompactEachRow").bytes().splitlines()
    return [(int(code), int(number), text) for code, number, text in map(json.loads, lines)]


def _newest(connection: Any, mark: Mark) -> SqlError:
    new = [(code, text) for code, number, text in _errors(connection) if number > mark.errors.get(code, 0)]
    code, text = new[-1] if new else (Code.UNKNOWN_EXCEPTION, "The INSERT has failed")
    return SqlError(code, text)
