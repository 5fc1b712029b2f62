"""The HTTP server: routes, and one request from its first header to its last byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web

from engine.config.model import User
from engine.config.quotas import QuotaAmount
from engine.distributed.read_signature import KEY_PATH, KeyMaker
from engine.env import Env
from engine.errors import OnclusterError
from engine.node.http.audience import Audience
from engine.node.http.body import QueryText, body_of, no_body, read_query
from engine.node.http.client_patience import ClientPatience
from engine.node.http.constraints import Constraints
from engine.node.http.encoding import choose_encoding
from engine.node.http.external import ExternalTable, read_form
from engine.node.http.failures import as_defect, as_exceptions, note_if_gone
from engine.node.http.fixed_settings import with_fixed_settings
from engine.node.http.http_config import HttpConfig
from engine.node.http.login import Logins
from engine.node.http.native_answer import native_answer
from engine.node.http.peer_limits import with_peer_limits
from engine.node.http.progress import takes_progress, with_progress
from engine.node.http.query import (
    MAX_QUERY_BYTES,
    HttpQuery,
    max_query_bytes,
    parameters_of,
    parse_query,
)
from engine.node.http.response import ResultSender, error_response
from engine.node.http.running import RunningStatements
from engine.node.http.sessions import HttpSessions
from engine.node.http.signed_reads import SignedReads
from engine.node.listening import AT_ONCE, listen
from engine.node.quotas import QuotaAccount, Quotas, spent_by
from engine.node.statements.node_statements import NodeStatements
from engine.node.statements.router import StatementRouter
from engine.node.statements.statement import Asked
from engine.node.statements.urgent import THREADS, is_urgent
from engine.sql import parse_statement
from engine.storage import ChdbPool, ChdbSession
from engine.storage.setting_rules import SettingRules

log = logging.getLogger(__name__)

_OK = "Ok.\n"
_HELP = """There is no handle {path}

Use / or /ping for health checks.
Or /replicas_status for more sophisticated health checks.

Send queries from your program with POST method or GET /?query=...
"""
_ANY_ORIGIN = {"Access-Control-Allow-Origin": "*"}
_PREFLIGHT = {
    **_ANY_ORIGIN,
    "Access-Control-Allow-Headers": "origin, x-requested-with, x-clickhouse-format, x-clickhouse-user, "
    "x-clickhouse-key, authorization",
    "Access-Control-Allow-Methods": "POST, GET, OPTIONS",
    "Access-Control-Max-Age": "86400",
}
"""As ClickHouse's own configuration has it; an answer can be read where `add_http_cors_header` is set."""
_MAX_LINE_BYTES = 1 << 20
_READ_BYTES = 1 << 20
"""Of a body, read ahead of whoever uses it: every pause of the reading is paid for by the event loop."""
_MAY_WAIT = 4096
"""Connections that are not accepted yet."""
_CLOSE_S = 1.0
"""For idle connections; statements have had their time before."""


class HttpServer:
    """Serves until `stop`."""

    def __init__(
        self,
        config: HttpConfig,
        *,
        pool: ChdbPool,
        router: StatementRouter,
        env: Env,
        replicas_status: Callable[[], Awaitable[str]],
        rules: SettingRules,
        statements: NodeStatements | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._config = config
        self._constraints = Constraints(rules, config.profiles)
        self._signed = SignedReads(config.users, KeyMaker(config.reads_secret), env)
        self._logins = Logins(config.users, quotas or Quotas(env), self._signed)
        self._pool = pool
        self._urgent = pool.reserve(THREADS)
        self._router = router
        self._env = env
        self._replicas_status = replicas_status
        self._sessions = HttpSessions(env)
        self._runner: web.AppRunner | None = None
        self._running = RunningStatements(pool, statements, most=config.max_concurrent_queries)
        self.http_port = 0
        self.https_port = 0

    # -- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. Raises OSError when a port is taken."""
        app = web.Application(
            client_max_size=0,
            handler_args={
                "auto_decompress": False,
                "max_line_size": _MAX_LINE_BYTES,
                "max_field_size": _MAX_LINE_BYTES,
                "read_bufsize": _READ_BYTES,
            },
        )
        app.router.add_get("/ping", self._ping)
        app.router.add_get("/replicas_status", self._replicas)
        app.router.add_get(KEY_PATH, self._reading_key)
        for method in ("GET", "HEAD", "POST", "OPTIONS"):
            app.router.add_route(method, "/", self._query)
            app.router.add_route(method, "/query", self._query)
        app.router.add_route("*", "/{path:.*}", self._unknown)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            handler_cancellation=True,
            shutdown_timeout=_CLOSE_S,
        )
        await self._runner.setup()
        host, config = self._config.listen_host, self._config
        site = web.TCPSite(self._runner, host, config.http_port, backlog=AT_ONCE)
        self.http_port = await listen(site, waiting=_MAY_WAIT)
        if config.tls is not None:
            secure = web.TCPSite(
                self._runner, host, config.https_port, ssl_context=config.tls, backlog=AT_ONCE
            )
            self.https_port = await listen(secure, waiting=_MAY_WAIT)

    async def stop(self, *, grace_s: float) -> None:
        """Stop accepting, give running statements `grace_s` seconds, cancel the rest."""
        if self._runner is None:
            return
        for site in list(self._runner.sites):
            await site.stop()
        await self._running.finish(grace_s=grace_s)
        await self._sessions.close()
        await self._runner.cleanup()

    # -- routes --------------------------------------------------------------------------------------------

    async def _ping(self, request: web.Request) -> web.Response:
        return web.Response(text=_OK, headers=self._own_headers(), content_type="text/html")

    async def _replicas(self, request: web.Request) -> web.Response:
        problems = await self._replicas_status()
        return web.Response(
            status=503 if problems else 200, text=problems or _OK, headers=self._own_headers()
        )

    async def _reading_key(self, request: web.Request) -> web.Response:
        parameters = dict(parameters_of(request.rel_url.raw_query_string))
        try:
            user, _ = self._logins.of(request.headers, parameters, request.remote or "")
        except OnclusterError as error:
            return error_response(error, self._pool.version, headers=self._own_headers())
        headers = {**self._own_headers(), "Cache-Control": "no-store"}
        return web.Response(text=self._signed.new_key(user).to_text(), headers=headers)

    async def _unknown(self, request: web.Request) -> web.Response:
        if request.method not in ("GET", "HEAD", "POST"):
            return web.Response(status=501, headers=self._own_headers())
        return web.Response(status=404, text=_HELP.format(path=request.path), headers=self._own_headers())

    async def _query(self, request: web.Request) -> web.StreamResponse:
        if request.method in ("GET", "HEAD") and not request.query_string:
            return web.Response(text=_OK, headers=self._own_headers(), content_type="text/html")
        if request.method == "OPTIONS":
            return web.Response(status=204, headers={**self._own_headers(), **_PREFLIGHT})
        try:
            pairs = parameters_of(request.rel_url.raw_query_string)
            parameters = dict(pairs)
            user, account = self._logins.of_request(request, parameters)
            is_form = request.content_type == "multipart/form-data"
            tables: tuple[ExternalTable, ...] = ()
            if is_form:
                form = await read_form(request)
                pairs += [pair for pair in form.fields if pair[0] == "query" or pair[0].startswith("param_")]
                tables = form.tables(parameters)
            query = parse_query(
                request.method,
                request.headers,
                pairs,
                new_query_id=str(self._env.new_uuid()),
                has_external_data=is_form,
            )
            await self._running.make_way(query, user)
        except OnclusterError as error:
            return error_response(error, self._pool.version, headers=self._own_headers())
        except (ValueError, LookupError) as error:  # of what a client has sent, and nobody thought of
            log.exception("http.defect")
            return error_response(as_defect(error), self._pool.version, headers=self._own_headers())
        task = asyncio.current_task()
        assert task is not None
        mine = self._running.begin(query.query_id, user, task)
        try:
            return await self._answer(request, user, account, query, tables, has_body=not is_form)
        finally:
            self._running.end(query.query_id, mine)

    # -- one request ---------------------------------------------------------------------------------------

    async def _answer(
        self,
        request: web.Request,
        user: User,
        account: QuotaAccount,
        query: HttpQuery,
        tables: tuple[ExternalTable, ...],
        *,
        has_body: bool,
    ) -> web.StreamResponse:
        """Cancelled when the client is gone. Nobody misses the result of a query then; anything else runs to
        its end, as on a server, unless its rows have broken off, which it notices by itself."""
        patience = ClientPatience.of(query, self._config.profiles.get(user.profile, {}))
        sender = self._sender(request, query, patience)
        async with contextlib.AsyncExitStack() as stack:
            try:
                query = await self._constraints.of_request(user, query)
                query, profile = with_peer_limits(query, self._config.profiles.get(user.profile, {}))
                query, profile = with_fixed_settings(query, profile)
                session = await stack.enter_async_context(self._session(user, query, profile))
                limit = query.max_query_bytes or max_query_bytes(session.settings) or MAX_QUERY_BYTES
                body = body_of(request, query, patience) if has_body else no_body()
                text = await read_query(query, body, limit=limit)
                await self._constraints.of_statement(user, text.sql)
                statement = parse_statement(text.sql)
                if is_urgent(text.sql, statement):
                    stack.enter_context(session.on(self._urgent))
                else:
                    stack.enter_context(self._running.counted())
                is_changing = text.insert is not None or not statement.is_query
                account.begin(statement)
            except OnclusterError as error:
                account.note({QuotaAmount.ERRORS: 1})
                return await _failed(sender, query.query_id, error)
            audience = Audience()
            asked = _asked(user, account, query, session, text.sql)
            answering = self._respond(asked, account, text, tables, sender, audience)
            if takes_progress(request):
                answering = with_progress(answering, sender, query, self._pool, self._env)
            if not is_changing:
                return await answering
            in_session = stack.pop_all()
        return await self._to_its_end(query.query_id, user, answering, in_session, audience)

    async def _to_its_end(
        self,
        query_id: str,
        user: User,
        answering: Coroutine[Any, Any, web.StreamResponse],
        in_session: contextlib.AsyncExitStack,
        audience: Audience,
    ) -> web.StreamResponse:
        async def answer() -> web.StreamResponse:
            async with in_session:
                return await answering

        task = asyncio.get_running_loop().create_task(answer())
        mine = self._running.begin(query_id, user, task)
        task.add_done_callback(lambda _: self._running.end(query_id, mine))
        task.add_done_callback(partial(note_if_gone, query_id))
        audience.waits_for(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            audience.leaves()
            raise

    async def _respond(
        self,
        asked: Asked,
        account: QuotaAccount,
        text: QueryText,
        tables: tuple[ExternalTable, ...],
        sender: ResultSender,
        audience: Audience,
    ) -> web.StreamResponse:
        began_s = self._env.monotonic_s()
        try:
            with as_exceptions(asked.query_id):
                if text.insert is None or text.rows is None:
                    return await self._run(asked, account, tables, sender, audience)
                answer = await self._router.insert(asked, text.insert, text.rows)
                result = await answer.finish()
                account.note(spent_by(result))
                return await sender.finish(result)
        except OnclusterError as error:
            account.note({QuotaAmount.ERRORS: 1})
            self._router.note_error(error)
            return await _failed(sender, asked.query_id, error)
        finally:
            account.note({QuotaAmount.EXECUTION_TIME: self._env.monotonic_s() - began_s})

    async def _run(
        self,
        asked: Asked,
        account: QuotaAccount,
        tables: tuple[ExternalTable, ...],
        sender: ResultSender,
        audience: Audience,
    ) -> web.StreamResponse:
        async with contextlib.AsyncExitStack() as stack:
            if tables:
                asked = replace(asked, session=asked.session.clone(), is_stateless=True)
                stack.push_async_callback(asked.session.close)
                async with asked.session.kept_open():
                    for table in tables:
                        await table.create(asked.session, asked.settings)
                asked.session.may_have_temporary_tables = True
            answer = await stack.enter_async_context(self._router.run(asked))
            audience.note_carried_out()
            if asked.native_revision:
                answer = await native_answer(asked, answer, self._pool)
            is_query = parse_statement(asked.sql).is_query
            count = account.charge if is_query else account.note
            data = await answer.read()
            if data or is_query:  # others may have no result, and then no format
                sender.announce(format=answer.format)
            while data:
                count({QuotaAmount.RESULT_BYTES: len(data)})
                await sender.write(data)
                data = await answer.read()
            result = await answer.finish()
            count(spent_by(result))
            return await sender.finish(result)

    def _session(
        self, user: User, query: HttpQuery, profile: Mapping[str, str]
    ) -> contextlib.AbstractAsyncContextManager[ChdbSession]:
        if query.session is None:
            return self._pool.use(database=query.database, settings=profile, one_shot=True)
        return self._sessions.use(user.name, query.session, lambda: self._pool.session(settings=profile))

    def _sender(self, request: web.Request, query: HttpQuery, patience: ClientPatience) -> ResultSender:
        accepted = request.headers.get("Accept-Encoding", "")
        return ResultSender(
            request,
            headers={
                **self._own_headers(),
                **(_ANY_ORIGIN if query.is_for_any_origin else {}),
                "X-ClickHouse-Query-Id": query.query_id,
                "X-ClickHouse-Timezone": self._config.timezone,
                "Content-Type": "text/plain; charset=UTF-8",
            },
            tag=self._env.new_uuid().hex[:16],
            version=self._pool.version,
            buffer_bytes=query.buffer_bytes,
            encoding=choose_encoding(accepted) if query.compresses_http else None,
            compresses_blocks=query.compresses_blocks,
            patience=patience,
        )

    def _own_headers(self) -> dict[str, str]:
        return {"X-ClickHouse-Server-Display-Name": self._config.display_name}


async def _failed(sender: ResultSender, query_id: str, error: OnclusterError) -> web.StreamResponse:
    log.info("http.failed query_id=%s code=%d", query_id, error.code)
    return await sender.fail(error)


def _asked(user: User, account: QuotaAccount, query: HttpQuery, session: ChdbSession, sql: str) -> Asked:
    return Asked(
        sql=sql,
        user=user,
        session=session,
        format=query.format,
        query_id=query.query_id,
        database=query.database if query.session is not None else "",
        settings=query.settings,
        params=query.params,
        is_readonly=query.is_readonly,
        is_stateless=query.session is None,
        token=query.token,
        quota_use=account.use,
        native_revision=query.native_revision,
    )
