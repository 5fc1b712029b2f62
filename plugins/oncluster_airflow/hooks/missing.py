"""A connection that Airflow does not have: a mistake in the configuration, which no other try would cure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from airflow.sdk.exceptions import AirflowNotFoundException

from engine.errors import ConfigError


@contextlib.contextmanager
def refused_where_missing(conn_id: str) -> Iterator[None]:
    """Raises ConfigError in place of Airflow's error, after which a task would be tried again."""
    try:
        yield
    except AirflowNotFoundException as error:
        raise ConfigError(
            f"Airflow has no connection {conn_id!r}.",
            hint=f"Add it under Admin, Connections, or as AIRFLOW_CONN_{conn_id.upper()} in the environment.",
        ) from error
