"""The HTTP client: every server's errors, and what is known when no answer comes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from engine.client import NodeClient, Silence
from engine.client.errors import exception_block, server_error
from engine.errors import ConfigError, NodeUnavailable, ReplyLost, SqlError

OURS = {"X-ClickHouse-Server-Display-Name": "server"}
OLD = "Code: 47, e.displayText() = DB::Exception: Unknown identifier: readonly, e.what() = DB::Exception"
OLD_WITH_STACK = (
    "Code: 60, e.displayText() = DB::Exception: Table a.b doesn't exist. Stack trace:\n\n0. /lib/x"
)
MODERN = "Code: 60. DB::Exception: Unknown table 'x'. (UNKNOWN_TABLE) (version 25.8.1.1 (official build))\n"


@pytest.mark.parametrize(
    ("body", "code", "message", "name"),
    [
        (OLD, 47, "Unknown identifier: readonly", "UNKNOWN_IDENTIFIER"),
        (OLD_WITH_STACK, 60, "Table a.b doesn't exist.", "UNKNOWN_TABLE"),
        (MODERN, 60, "Unknown table 'x'.", "UNKNOWN_TABLE"),
        ("<html>Bad gateway</html>", 1002, "<html>Bad gateway</html>", "UNKNOWN_EXCEPTION"),
        ("", 1002, "The server gave no reason", "UNKNOWN_EXCEPTION"),
    ],
)
def test_errors_of_all_versions_are_read(body: str, code: int, message: str, name: str) -> None:
    error = server_error(body)
    assert (error.code, error.message, error.name) == (code, message, name)
    assert server_error(body, code=159).code == 159


def test_an_exception_behind_data_is_found_by_its_tag() -> None:
    block = "\r\n__exception__\r\nabc\r\nCode: 395. DB::Exception: x\n29 abc\r\n__exception__\r\n"
    assert exception_block(b"1\n2\n" + block.encode(), "abc") == "Code: 395. DB::Exception: x"
    assert exception_block(b"1\n2\n", "abc") is None


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_query_is_sent_with_user_settings_and_parameters(serve: Serve) -> None:
    seen: dict[str, object] = {}

    async def handler(request: web.Request) -> web.Response:
        seen.update(request.query)
        seen["user"] = request.headers["X-ClickHouse-User"]
        seen["key"] = request.headers["X-ClickHouse-Key"]
        seen["body"] = await request.text()
        return web.json_response(
            headers=OURS,
            data={
                "meta": [{"name": "n", "type": "UInt64"}, {"name": "s", "type": "Nullable(String)"}],
                "data": [["18446744073709551615", None], [1, "12"]],
            },
        )

    async with NodeClient(await serve(handler), user="u", password="p", database="d") as client:
        result = await client.query_rows("SELECT 1", settings={"max_threads": "1"}, params={"x": "y"})
    assert result.rows == ((18446744073709551615, None), (1, "12"))
    assert result.dicts()[1] == {"n": 1, "s": "12"}
    assert result.scalar == 18446744073709551615
    expected = {
        "user": "u",
        "key": "p",
        "database": "d",
        "max_threads": "1",
        "param_x": "y",
        "body": "SELECT 1",
    }
    assert {name: seen[name] for name in expected} == expected


async def test_an_error_carries_the_headers_code(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=500, text=MODERN, headers={"X-ClickHouse-Exception-Code": "60"})

    async with NodeClient(await serve(handler)) as client:
        with pytest.raises(SqlError) as caught:
            await client.command("DROP TABLE x")
    assert (caught.value.code, caught.value.message) == (60, "Unknown table 'x'.")


async def test_a_server_that_is_not_there_is_unavailable_and_tried_again_as_often_as_asked(
    serve: Serve,
) -> None:
    pauses: list[float] = []

    class CountingEnv:
        async def sleep(self, delay_s: float) -> None:
            pauses.append(delay_s)

    async with NodeClient("http://127.0.0.1:1", retries=2, env=CountingEnv()) as client:  # type: ignore[arg-type]
        with pytest.raises(NodeUnavailable):
            await client.ping()
    assert len(pauses) == 2


async def test_an_answer_that_does_not_come_is_lost_and_the_statement_is_sent_once(serve: Serve) -> None:
    calls = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal calls
        calls += 1
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError

    async with NodeClient(await serve(handler), retries=3) as client:
        with pytest.raises(ReplyLost):
            await client.command("CREATE TABLE t (a UInt8) ENGINE = Memory")
    assert calls == 1


async def test_a_server_that_is_too_slow_is_a_lost_reply(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with NodeClient(await serve(handler), timeout_s=0.2) as client:
        with pytest.raises(ReplyLost):
            await client.query_text("SELECT 1")


async def test_an_insert_may_take_longer_than_a_request_as_long_as_it_goes_on(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(headers=OURS) if await request.read() == b"abc" else web.Response(status=500)

    async def rows() -> AsyncIterator[bytes]:
        for row in (b"a", b"b", b"c"):
            await asyncio.sleep(0.05)
            yield row

    async with NodeClient(await serve(handler), timeout_s=0.01) as client:
        with pytest.raises(ReplyLost):
            await client.insert("t", rows(), format="Native")
        await client.insert("t", rows(), format="Native", silence=Silence())


@pytest.mark.parametrize("size", [10, 50 << 20])
async def test_an_insert_that_is_not_taken_or_not_answered_is_lost(serve: Serve, size: int) -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response(headers=OURS)

    async def rows() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield bytes(size // 10)

    async with NodeClient(await serve(handler)) as client:
        with pytest.raises(ReplyLost, match="no answer in time"):
            await client.insert("t", rows(), format="Native", silence=Silence(0.1, 0.1))


async def test_a_result_that_breaks_off_with_an_exception_block_raises_it(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"X-ClickHouse-Exception-Tag": "tag"})
        await response.prepare(request)
        await response.write(
            b"1\n2\n\r\n__exception__\r\ntag\r\nCode: 395. DB::Exception: late\n27 tag\r\n__exception__\r\n"
        )
        assert request.transport is not None
        request.transport.close()
        return response

    async with NodeClient(await serve(handler)) as client:
        with pytest.raises(SqlError) as caught:
            await client.query_text("SELECT 1")
    assert (caught.value.code, caught.value.message) == (395, "late")


async def test_rows_are_streamed_into_an_insert(serve: Serve) -> None:
    received: list[bytes] = []

    async def handler(request: web.Request) -> web.Response:
        received.append(request.query["query"].encode())
        received.append(await request.read())
        return web.Response(headers=OURS)

    async def rows() -> AsyncIterator[bytes]:
        yield b"1\n"
        yield b"2\n"

    async with NodeClient(await serve(handler)) as client:
        await client.insert("`d`.`t`", rows(), format="CSV", columns=["a", "b`c"])
    assert received == [b"INSERT INTO `d`.`t` (`a`, `b\\`c`) FORMAT CSV", b"1\n2\n"]


SOMEBODY_ELSE = {
    "a page": {"text": "<html>Down for maintenance</html>"},
    "nothing": {},
    "no content": {"status": 204},
    "a gateway's error": {"status": 502, "text": "Bad Gateway"},
    "to a login": {"status": 302, "headers": {"Location": "/login"}},
    "to another place": {"status": 307, "headers": {"Location": "/other"}},
}


@pytest.mark.parametrize("answer", SOMEBODY_ELSE.values(), ids=SOMEBODY_ELSE.keys())
async def test_what_no_clickhouse_server_said_is_no_answer(serve: Serve, answer: dict[str, Any]) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        await request.read()
        return web.Response(**answer) if request.path == "/" else web.Response(headers=OURS)

    async def rows() -> AsyncIterator[bytes]:
        yield b"1\n"

    async with NodeClient(await serve(handler)) as client:
        with pytest.raises(ReplyLost, match="as no ClickHouse server does: HTTP status"):
            await client.insert("t", rows(), format="CSV")
        with pytest.raises(ReplyLost):
            await client.query_text("SELECT 1")
    assert asked == ["/", "/"]


async def test_an_error_behind_a_status_of_success_is_the_error_of_the_insert(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(headers=OURS, text=MODERN)

    async with NodeClient(await serve(handler)) as client:
        with pytest.raises(SqlError) as caught:
            await client.insert("t", b"1\n", format="CSV")
    assert caught.value.code == 60


async def test_an_answer_without_end_is_not_kept(serve: Serve) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=OURS)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"x" * 1000)
        return response

    async with NodeClient(await serve(handler), max_answer_bytes=10_000) as client:
        with pytest.raises(ReplyLost, match="more than 10000 bytes"):
            await client.query_text("SELECT 1")


@pytest.mark.parametrize(
    "address", ["http://ada:hun%40ter2@127.0.0.1:{port}", "http://ada:hun%40ter2@localhost:{port}/"]
)
async def test_a_login_in_the_address_is_used_and_shown_nowhere(serve: Serve, address: str) -> None:
    seen: list[tuple[str, str, bool]] = []

    async def handler(request: web.Request) -> web.Response:
        headers = request.headers
        seen.append((headers["X-ClickHouse-User"], headers["X-ClickHouse-Key"], "Authorization" in headers))
        return web.Response(text="", headers=OURS)

    port = (await serve(handler)).rpartition(":")[2]
    async with NodeClient(address.format(port=port), user="bob", password="x") as client:
        await client.command("SYSTEM FLUSH LOGS")
        assert "ter2" not in client.url
    assert seen == [("ada", "hun@ter2", False)]
    async with NodeClient("http://ada:hunter2@127.0.0.1:1") as client:
        with pytest.raises(NodeUnavailable) as caught:
            await client.command("SYSTEM FLUSH LOGS")
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    "address",
    [
        "ftp://u:hunter2@h:1",
        "127.0.0.1:8123",
        "u:hunter2@h:8123",
        "http://",
        "http://u:hunter2@h:port",
        "http://u:hun@[::ter2",
        "http://h:1/?password=hunter2@",
        "",
    ],
)
def test_what_is_no_address_is_refused_before_anything_is_sent(address: str) -> None:
    with pytest.raises(ConfigError, match="http://host:port") as caught:
        NodeClient(address)
    assert "hunter2" not in f"{caught.value} {caught.value.hint}"
