"""A connection that Airflow does not have, told from one that it cannot say anything about just now.

Airflow passes over whoever cannot answer (its API server, its database, a deployment's secrets backend) and
then says that there is no such connection. That would be a mistake in the configuration, which no other try
would cure; an outage passes. So everybody is asked once more, in a way that tells the one from the other.
"""

from __future__ import annotations

import asyncio

from airflow.sdk import BaseHook, Connection
from airflow.sdk.exceptions import AirflowNotFoundException, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection
from airflow.sdk.execution_time.secrets import ExecutionAPISecretsBackend
from airflow.sdk.execution_time.supervisor import ensure_secrets_backend_loaded

from engine.errors import ConfigError, OnclusterError, Unavailable


class ConnectionMissing(ConfigError):
    """Airflow has no such connection."""


def find_connection(conn_id: str) -> Connection:
    """The connection, in a task. Raises ConnectionMissing, ConfigError where it cannot be read, and
    Unavailable where Airflow cannot say it now."""
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise _reason(conn_id) from error


async def afind_connection(conn_id: str) -> Connection:
    """The same on an event loop, in a trigger."""
    try:
        return await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException as error:
        raise await asyncio.to_thread(_reason, conn_id) from error


def _reason(conn_id: str) -> OnclusterError:
    try:
        is_known = any(_knows(backend, conn_id) for backend in ensure_secrets_backend_loaded())
    except (TypeError, ValueError) as error:
        return ConfigError(f"Airflow connection {conn_id!r} cannot be read: {type(error).__name__}.")
    except Exception as error:  # noqa: BLE001 - Airflow's, its database's, or that of any secrets backend
        return Unavailable(f"Airflow cannot say now whether it has a connection {conn_id!r}: {error}")
    if is_known:
        return Unavailable(f"Airflow could not say whether it has a connection {conn_id!r}, and now it can.")
    return ConnectionMissing(
        f"Airflow has no connection {conn_id!r}.",
        hint=f"Add it under Admin, Connections, or as AIRFLOW_CONN_{conn_id.upper()} in the environment.",
    )


def _knows(backend: object, conn_id: str) -> bool:
    """Whether a place has the connection. Raises whatever keeps it from saying so."""
    if isinstance(backend, ExecutionAPISecretsBackend):
        answer = task_runner.SUPERVISOR_COMMS.send(GetConnection(conn_id=conn_id))
        if not isinstance(answer, ErrorResponse):
            return True
        if answer.error is not ErrorType.CONNECTION_NOT_FOUND:
            raise OSError(f"{answer.error.value}: {answer.detail}")
        return False
    return backend.get_connection(conn_id=conn_id) is not None  # type: ignore[attr-defined]
