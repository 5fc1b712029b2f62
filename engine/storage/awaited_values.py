"""Integers that a running statement waits for: whoever has them gives them while chDB works on the rest.

The thread of chDB's that needs one waits, without the interpreter's lock, until it is given or given up; then
the statement fails. Who is waited for is a random number in the text, so that nobody can guess another
statement's values. chDB's functions are its process's, so there is one for each type, and one list of who
waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

_FUNCTIONS = {"UInt64": "__oncluster_awaited_unsigned", "Int64": "__oncluster_awaited_signed"}
RANGES = {"UInt64": range(1 << 64), "Int64": range(-(1 << 63), 1 << 63)}
"""What may be given, by its type."""
MAX_COLUMNS = 256
_HIGHEST_BIT = 1 << 63
"""Added to the random number, so that chDB takes it for a UInt64."""

_awaited: dict[int, Awaited] = {}
_registering = threading.Lock()
_is_registered = False


class NotGiven(Exception):
    """A value that a statement waited for does not come."""


class Awaited:
    """A row of integers, given or given up at most once. `close` it when its statement is over."""

    def __init__(self, new_bits: Callable[[], int]) -> None:
        """`new_bits` gives at least 63 bits that nobody can guess."""
        self._number = _HIGHEST_BIT | (new_bits() % _HIGHEST_BIT)
        self._is_over = threading.Event()
        self._values: Sequence[int] | None = None
        _awaited[self._number] = self

    def value(self, at: int, type_: str, *, after: str) -> str:
        """SQL for the value at an index from 0. It is waited for when `after`, of the same type and no
        constant, is known."""
        return f"assumeNotNull({_FUNCTIONS[type_]}({self._number}, {at}, {after}))"

    @property
    def values(self) -> Sequence[int] | None:
        """What was given; None if nothing was so far."""
        return self._values

    def give(self, values: Sequence[int]) -> None:
        """Each is within the range of its type."""
        if not self._is_over.is_set():
            self._values = values
            self._is_over.set()

    def close(self) -> None:
        """Nobody will give them, or nobody needs them any more."""
        _awaited.pop(self._number, None)
        self._is_over.set()

    def wait(self) -> Sequence[int]:
        """On a thread of chDB's. Raises NotGiven."""
        self._is_over.wait()
        if self._values is None:
            raise NotGiven
        return self._values


def register(chdb: Any) -> None:
    """Make the functions known to chDB."""
    global _is_registered
    with _registering:
        if not _is_registered:
            for type_, name in _FUNCTIONS.items():
                chdb.create_function(name, _value, ["UInt64", "UInt8", type_], type_)
            _is_registered = True


def _value(number: int, at: int, _: int) -> int:
    awaited = _awaited.get(number)
    if awaited is None:
        raise NotGiven
    return awaited.wait()[at]
