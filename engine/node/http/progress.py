"""Headers that tell how far a statement is, while its answer is waited for (`send_progress_in_http_headers`).

They keep a connection alive that whoever is in between, or the client itself, would take for dead, and show
progress to whom it may concern. The status is sent with the first of them, so it is 200 whatever comes of the
statement; an error is told of by X-ClickHouse-Exception-Code, as by servers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from aiohttp import HttpVersion11, web

from engine.env import Env
from engine.errors import SqlError
from engine.names import quote_string
from engine.node.http.query import HttpQuery
from engine.node.http.response import ResultSender
from engine.storage import ChdbPool

_COUNTED = ("read_rows", "read_bytes", "written_rows", "written_bytes", "total_rows_to_read")


def takes_progress(request: web.Request) -> bool:
    """Older clients need a length, or none of the body."""
    return request.version >= HttpVersion11 and request.method != "HEAD"


async def with_progress(
    answering: Coroutine[Any, Any, web.StreamResponse],
    sender: ResultSender,
    query: HttpQuery,
    pool: ChdbPool,
    env: Env,
) -> web.StreamResponse:
    """The answer; until it begins its client is told how far it is."""
    if query.progress_interval_s is None:
        return await answering
    telling = asyncio.create_task(_tell(sender.show_progress, query, pool, env, query.progress_interval_s))
    try:
        return await answering
    finally:
        telling.cancel()


async def _tell(
    show: Callable[[str], bool], query: HttpQuery, pool: ChdbPool, env: Env, interval_s: float
) -> None:
    since_s = env.monotonic_s()
    while True:
        await env.sleep(interval_s)
        counted = await _counted(pool, query.query_id)
        elapsed_ns = int((env.monotonic_s() - since_s) * 1e9)
        if not show(progress_text(counted, elapsed_ns=elapsed_ns)):
            return


async def _counted(pool: ChdbPool, query_id: str) -> Mapping[str, str]:
    """Of a statement that waits for others chDB knows nothing."""
    try:
        rows = await pool.glance(
            "SELECT sum(read_rows), sum(read_bytes), sum(written_rows), sum(written_bytes), "
            "sum(total_rows_approx) FROM system.processes "
            f"WHERE Settings['log_comment'] = {quote_string(query_id)}"
        )
    except SqlError:
        return {}
    return dict(zip(_COUNTED, rows.split(), strict=True))


def progress_text(counted: Mapping[str, str], *, elapsed_ns: int) -> str:
    """The value of X-ClickHouse-Progress."""
    values = {name: counted.get(name, "0") for name in _COUNTED}
    return json.dumps({**values, "elapsed_ns": str(elapsed_ns)}, separators=(",", ":"))
