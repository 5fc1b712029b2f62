"""The extra fields of Airflow connections, read strictly.

Airflow takes text that is no JSON for no fields at all: a comma too many, and a chroot or TLS would be left
out in silence. In a connection that is written as a URI all values are text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.sdk import Connection

from engine.errors import ConfigError

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def extra_of(connection: Connection) -> dict[str, Any]:
    """Raises ConfigError for what is no JSON object."""
    try:
        is_object = isinstance(json.loads(connection.extra or "{}"), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise ConfigError(
            f"Airflow connection {connection.conn_id!r}: extra is no JSON object.",
            hint='Write it like {"secure": true}; commas stand only between fields.',
        )
    return dict(connection.extra_dejson)


def flag(extra: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A field that is true or false, also as a word. Raises ValueError."""
    value = extra.get(name, default)
    if not isinstance(value, str):
        return bool(value)
    if value.lower() not in _WORDS:
        raise ValueError(f"{name} is {value!r}, and neither true nor false")
    return _WORDS[value.lower()]


def text(extra: Mapping[str, Any], name: str, default: str = "") -> str:
    """A field that is text; null counts as one that is not there. Raises ValueError."""
    value = extra.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, and no text")
    return value


def whole_number(extra: Mapping[str, Any], name: str, default: int) -> int:
    """A field that is a number from 1 up, also as text; null counts as one that is not there. Raises
    ValueError."""
    value = extra.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | str) and not isinstance(value, bool)
    if not is_number or not str(value).isdecimal() or int(value) < 1:
        raise ValueError(f"{name} is {value!r}, and no whole number from 1 up")
    return int(value)


def port_number(value: int | str | None, default: int) -> int:
    """Raises ValueError."""
    if value is None or value == "":
        return default
    if not str(value).isdecimal() or not 0 < int(value) < 65536:
        raise ValueError(f"the port is {value!r}, and no number from 1 to 65535")
    return int(value)
