"""How long each of Airflow's processes waits for its turn to write to SQLite, which has one writer at a time.

A scheduler, DAG processor or triggerer that waits in vain ends (`database is locked`), and by default that
is after 5 s. Somebody who waits for the API server is better told, with an answer that clients may repeat
(`airflow_api`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

_API_SERVER_S = 30.0
_OTHERS_S = 300.0


def wait_as_fits() -> None:
    """For connections to SQLite that are opened from now on and say nothing of it, also in processes that are
    forked from this one: what each waits follows from its own command line."""
    from sqlalchemy import Engine, event

    @event.listens_for(Engine, "do_connect")
    def wait(dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
        if dialect.name == "sqlite":
            options.setdefault("timeout", limit_s(sys.argv[1:]))


def limit_s(arguments: Sequence[str]) -> float:
    """Of the process with these arguments of `airflow`. The interface for tasks writes in threads only."""
    is_for_people = arguments[:1] == ["api-server"] and "execution" not in arguments
    return _API_SERVER_S if is_for_people else _OTHERS_S
