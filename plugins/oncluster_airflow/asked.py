"""What a DAG's author asks for in words and numbers, which may be templates and so text, read strictly.

A value that cannot be meant fails the task at once: tried again it would be the same.
"""

from __future__ import annotations

from engine.ddl.output import OutputMode
from oncluster_airflow.errors import TaskRefused
from oncluster_airflow.waiting import LONGEST_LIMIT_S


def timeout_of(value: object, *, name: str) -> int:
    """Whole seconds, also as text: 0 does not wait, negative waits for ever. Raises TaskRefused."""
    wrong = TaskRefused(
        f"{name} is {value!r}. Write whole seconds from {-LONGEST_LIMIT_S} to {LONGEST_LIMIT_S}; 0 does not "
        "wait, negative waits for ever."
    )
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    try:
        seconds = int(value)
    except (ValueError, OverflowError):
        raise wrong from None
    if (isinstance(value, float) and seconds != value) or abs(seconds) > LONGEST_LIMIT_S:
        raise wrong
    return seconds


def output_mode_of(value: object, *, name: str) -> OutputMode:
    """Raises TaskRefused that names those there are."""
    try:
        return OutputMode(str(value))
    except ValueError:
        modes = ", ".join(OutputMode)
        raise TaskRefused(f"{name} is {value!r}; there are {modes}.") from None


def setting_text(value: object, *, name: str) -> str:
    """A setting's value as the queue writes it. Raises TypeError, since it stands in the DAG's file."""
    match value:
        case bool():
            return str(int(value))
        case str() | int() | float():
            return str(value)
        case _:
            raise TypeError(f"{name} is {value!r}; a setting is text, a number, True or False.")
