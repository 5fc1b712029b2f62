"""The page's routes, as a FastAPI application that Airflow mounts under `PREFIX`.

    /                                     the clusters that the user may see
    /cluster/<name>                       the page          ?show=all|open|failed&page=1&lag=1h|6h|24h
    /cluster/<name>/task/<entry>          one task of the queue, host by host
    /cluster/<name>/data                  the picture as JSON
    /cluster/<name>/grid                  a page of the host × task grid as JSON
    /cluster/<name>/map                   every task's cells, one letter for each host, as JSON
    /static/<version>/<file>              style sheet and scripts

All of them only read, and all of them ask `access`. A first answer is given after `FIRST_PAINT_S` at the
latest, with what is known by then; the page fetches the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.app import API_ROOT_PATH
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.status import HTTP_404_NOT_FOUND, HTTP_503_SERVICE_UNAVAILABLE

from engine.errors import Code, OnclusterError
from engine.operations.overview import Show
from engine.operations.overview.as_json import as_json, overview_json
from oncluster_airflow.web import render
from oncluster_airflow.web.access import (
    LOGGED_IN,
    VisibleCluster,
    add_headers,
    may_trigger,
    to_login,
    visible,
)
from oncluster_airflow.web.actions import actions
from oncluster_airflow.web.reader import Reader

PREFIX = "/oncluster"
FIRST_PAINT_S = 0.4
RECENT_S = 10.0
"""What is younger is shown at once; the page fetches news by itself."""
REFRESH_S = 2.5
"""How long a refresh waits for what is being asked."""


def make_app(
    reader: Reader,
    *,
    docs_url: str = "",
    warm: Callable[[], None] | None = None,
    close: Callable[[], None] | None = None,
) -> FastAPI:
    """`warm` is called in a thread when the server begins, and not waited for; `close` when it ends."""

    def prepare() -> None:
        render.warm()
        if warm is not None:
            warm()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        preparing = asyncio.create_task(asyncio.to_thread(prepare))
        yield
        await asyncio.gather(preparing, return_exceptions=True)
        if close is not None:
            await asyncio.to_thread(close)

    app = FastAPI(
        title="oncluster",
        dependencies=[LOGGED_IN],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.middleware("http")(add_headers)
    site = render.Site(f"{API_ROOT_PATH.rstrip('/')}{PREFIX}/", API_ROOT_PATH, docs_url)
    _answer_errors(app, site)
    _serve_pages(app, reader, site)
    _serve_data(app, reader)
    _serve_static(app)
    return app


def _answer_errors(app: FastAPI, site: render.Site) -> None:
    @app.exception_handler(HTTPException)
    async def on_refusal(request: Request, error: HTTPException) -> Response:
        return await to_login(request, error) or await http_exception_handler(request, error)

    @app.exception_handler(OnclusterError)
    async def on_error(request: Request, error: OnclusterError) -> Response:
        is_unknown = error.code == Code.CLUSTER_DOESNT_EXIST
        status = HTTP_404_NOT_FOUND if is_unknown else HTTP_503_SERVICE_UNAVAILABLE
        # The hint of an unknown cluster names those there are, and not everybody may see each of them.
        advice = "" if is_unknown else error.hint
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"detail": error.message, "advice": advice}, status)
        title = "There is no such cluster" if is_unknown else "This cannot be shown now"
        return HTMLResponse(render.render_error(site, title, error.message, advice), status)


def _serve_pages(app: FastAPI, reader: Reader, site: render.Site) -> None:
    @app.get("/", response_class=HTMLResponse)
    async def index(user: GetUserDep) -> Response:
        seen = await asyncio.to_thread(visible, await reader.clusters(), user)
        if len(seen) == 1:
            return RedirectResponse(f"{site.base}cluster/{quote(seen[0], safe='')}", 307)
        return HTMLResponse(render.render_index(site, seen))

    @app.get("/cluster/{cluster}", response_class=HTMLResponse)
    async def show_cluster(
        cluster: VisibleCluster,
        user: GetUserDep,
        show: Show = Show.ALL,
        page: int = Query(1, ge=1, le=100_000),
        lag: str = Query("24h", max_length=8),
        refresh: bool = False,
    ) -> HTMLResponse:
        wait_s, recent_s = (REFRESH_S, 0.0) if refresh else (FIRST_PAINT_S, RECENT_S)
        known, grid, clusters = await asyncio.gather(
            reader.overview(cluster, wait_s=wait_s, recent_s=recent_s),
            reader.page(cluster, show=show, number=page, wait_s=wait_s, recent_s=recent_s),
            reader.clusters(),
        )

        def rest() -> str:
            return render.render_cluster(
                site,
                known,
                grid,
                clusters=visible(clusters, user),
                actions=[(action, may_trigger(user, action.dag_id)) for action in actions(cluster)],
                lag_span=lag,
            )

        return HTMLResponse(await asyncio.to_thread(rest))

    @app.get("/cluster/{cluster}/task/{name}", response_class=HTMLResponse)
    async def show_task(cluster: VisibleCluster, name: str) -> HTMLResponse:
        task = await reader.task(cluster, name, wait_s=REFRESH_S)
        if task is None:
            raise HTTPException(HTTP_404_NOT_FOUND, f"There is no task {name} in the queue.")
        known = await reader.overview(cluster, wait_s=0)
        return HTMLResponse(render.render_task(site, known, task))


def _serve_data(app: FastAPI, reader: Reader) -> None:
    @app.get("/cluster/{cluster}/data")
    async def data(cluster: VisibleCluster) -> JSONResponse:
        return JSONResponse(overview_json(await reader.overview(cluster, wait_s=REFRESH_S)))

    @app.get("/cluster/{cluster}/grid")
    async def grid(
        cluster: VisibleCluster, show: Show = Show.ALL, page: int = Query(1, ge=1, le=100_000)
    ) -> JSONResponse:
        found = await reader.page(cluster, show=show, number=page, wait_s=REFRESH_S)
        return JSONResponse(None if found is None else as_json(found))

    @app.get("/cluster/{cluster}/map")
    async def queue_map(cluster: VisibleCluster) -> JSONResponse:
        view = (await reader.overview(cluster, wait_s=FIRST_PAINT_S)).queue.value
        if view is None:
            return JSONResponse({"hosts": [], "tasks": []})
        tasks = [[task.name, task.cells] for task in view.tasks]
        return JSONResponse({"hosts": list(view.hosts), "tasks": tasks, "unread": view.unread})


def _serve_static(app: FastAPI) -> None:
    @app.get("/static/{version}/{name}")
    async def static(version: str, name: str) -> Response:
        try:
            text = render.static_text(name)
        except KeyError:
            raise HTTPException(HTTP_404_NOT_FOUND) from None
        headers: dict[str, Any] = {}
        if version == render.static_version():
            headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return Response(text, media_type=render.STATIC[name], headers=headers)
