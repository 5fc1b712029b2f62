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
