"""Who may see the page of which cluster.

Every route needs a login. Pages about a cluster need, by Airflow's auth manager, permission to read the runs
of the DAG that migrates the cluster: whoever may see what is sent to a cluster may see what became of it. The
list of clusters shows only those. Starting a DAG is asked of Airflow's own API, which decides by itself; here
it only decides whether a button can be pressed.

Source: Airflow's `requires_access_view` and `requires_access_dag`, used as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import urlencode

from airflow.api_fastapi.app import API_ROOT_PATH, get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from starlette.status import HTTP_401_UNAUTHORIZED

from oncluster_airflow.migration_dag import dag_id_of

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

LOGGED_IN = Depends(requires_access_view(AccessView.PLUGINS))
"""On the application, so that no route can be without it."""


def may_see(cluster: str, request: Request, user: GetUserDep) -> str:
    """The cluster's name. Raises HTTPException 403."""
    requires_access_dag("GET", DagAccessEntity.RUN, dag_id_of(cluster))(request, user)
    return cluster


VisibleCluster = Annotated[str, Depends(may_see)]


def visible(clusters: tuple[str, ...], user: BaseUser) -> tuple[str, ...]:
    """Those that the user may see. Blocks for some milliseconds."""
    return tuple(cluster for cluster in clusters if _may(user, "GET", dag_id_of(cluster)))


def may_trigger(user: BaseUser, dag_id: str) -> bool:
    """Whether Airflow's API would let the user start a run. Blocks for some milliseconds."""
    return _may(user, "POST", dag_id)


def _may(user: BaseUser, method: str, dag_id: str) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return get_auth_manager().is_authorized_dag(
        method=method,  # type: ignore[arg-type]  # a literal, says Airflow
        access_entity=DagAccessEntity.RUN,
        details=details,
        user=user,
    )


async def to_login(request: Request, error: Exception) -> Response | None:
    """Who has no login and opens a page, not a data route, is sent to Airflow's login and comes back."""
    if not isinstance(error, HTTPException) or error.status_code != HTTP_401_UNAUTHORIZED:
        return None
    if request.method != "GET" or "text/html" not in request.headers.get("accept", ""):
        return None
    here = str(request.url)
    return RedirectResponse(f"{API_ROOT_PATH}api/v2/auth/login?{urlencode({'next': here})}", 307)


async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """On every answer."""
    response = await call_next(request)
    for name, value in SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response
