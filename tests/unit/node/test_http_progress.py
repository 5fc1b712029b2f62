"""Headers of progress: in front of what a result brings, with its error, and never when it is too late."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from engine.errors import Code, SqlError
from engine.node.http.client_patience import ClientPatience
from engine.node.http.progress import progress_text
from engine.node.http.query import parse_query
from engine.node.http.response import ResultSender
from engine.storage import QueryResult

RESULT = QueryResult(b"", 2, 16, 0, 0, 2, 0.5)
Work = Callable[[ResultSender], Awaitable[web.StreamResponse]]
Ask = Callable[[Work], Awaitable[tuple[int, dict[str, str], list[str], bytes]]]


def text(rows: int) -> str:
    return progress_text({"read_rows": str(rows)}, elapsed_ns=5)


@pytest.fixture(params=[None, "gzip"])
async def ask(request: pytest.FixtureRequest) -> AsyncIterator[Ask]:
    """Have a server answer in this way: status, headers, those of progress, body."""
    encoding: str | None = request.param
    works: list[Work] = []

    async def handle(asked: web.Request) -> web.StreamResponse:
        sender = ResultSender(
            asked,
            headers={"X-ClickHouse-Query-Id": "q", "Content-Type": "text/plain; charset=UTF-8"},
            tag="tag",
            version="26.9",
            buffer_bytes=10,
            encoding=encoding,
            compresses_blocks=False,
            patience=ClientPatience(),
        )
        return await works.pop()(sender)

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestServer(app) as server, ClientSession() as client:

        async def asking(work: Work) -> tuple[int, dict[str, str], list[str], bytes]:
            works.append(work)
            async with client.get(server.make_url("/")) as reply:
                progress = reply.headers.getall("X-ClickHouse-Progress", [])
                return reply.status, dict(reply.headers), progress, await reply.read()

        yield asking


async def test_a_result_comes_behind_its_progress(ask: Ask) -> None:
    async def work(sender: ResultSender) -> web.StreamResponse:
        assert sender.show_progress(text(1))
        sender.announce(format="TSV")
        await sender.write(b"1\n")
        assert sender.show_progress(text(2))
        answer = await sender.finish(RESULT)
        assert not sender.show_progress(text(3))
        return answer

    for _ in range(2):  # in one connection
        status, headers, progress, body = await ask(work)
        assert (status, body) == (200, b"1\n")
        assert [json.loads(each)["read_rows"] for each in progress] == ["1", "2"]
        assert (headers["X-ClickHouse-Query-Id"], headers["X-ClickHouse-Format"]) == ("q", "TSV")
        assert json.loads(headers["X-ClickHouse-Summary"])["result_rows"] == "2"


async def test_a_large_result_ends_its_progress(ask: Ask) -> None:
    async def work(sender: ResultSender) -> web.StreamResponse:
        assert sender.show_progress(text(1))
        await sender.write(b"a long row\n")
        assert not sender.show_progress(text(2))
        return await sender.finish(RESULT)

    _, _, progress, body = await ask(work)
    assert (len(progress), body) == (1, b"a long row\n")


async def test_an_error_has_its_code_although_the_status_is_out(ask: Ask) -> None:
    async def work(sender: ResultSender) -> web.StreamResponse:
        sender.show_progress(text(1))
        sender.announce(format="Native")
        await sender.write(b"1\n")
        return await sender.fail(SqlError(Code.TIMEOUT_EXCEEDED, "Too long"))

    status, headers, _, body = await ask(work)
    assert (status, headers["X-ClickHouse-Exception-Code"]) == (200, "159")
    assert body == b"Code: 159. DB::Exception: Too long. (TIMEOUT_EXCEEDED) (version 26.9)\n"
    assert "X-ClickHouse-Format" not in headers


async def test_without_progress_an_error_has_its_status(ask: Ask) -> None:
    async def work(sender: ResultSender) -> web.StreamResponse:
        answer = await sender.fail(SqlError(Code.TIMEOUT_EXCEEDED, "Too long"))
        assert not sender.show_progress(text(1))
        return answer

    status, _, progress, _ = await ask(work)
    assert (status, progress) == (408, [])


def test_a_client_is_told_as_often_as_it_asks_for() -> None:
    def interval_s(**settings: str) -> float | None:
        return parse_query("POST", {}, settings.items(), new_query_id="q").progress_interval_s

    assert interval_s() is None
    assert interval_s(send_progress_in_http_headers="0") is None
    assert interval_s(send_progress_in_http_headers="1") == 0.1
    assert interval_s(send_progress_in_http_headers="1", http_headers_progress_interval_ms="120000") == 120
