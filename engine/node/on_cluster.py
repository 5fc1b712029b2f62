"""ON CLUSTER from a client: check, submit, wait, and answer in the client's format.

A statement is submitted under the client's token or a fresh one. The connection that waits is only a
spectator: when it breaks, the statement goes on, and whoever asks again with the same token is attached to
it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing

from engine.config.model import Topology
from engine.ddl import OutputMode, OutputRow, output_columns, prepare, result_stream
from engine.ddl.entry import DEFAULT_VERSION
from engine.ddl.output import DEFAULT_TIMEOUT_S
from engine.ddl.text import encode_bytes, escape
from engine.env import Env
from engine.errors import Code, OnclusterError, SqlError
from engine.names import HostId, quote_string
from engine.node.node_commands import NodeCommands
from engine.node.queues import KEEPER_WAIT_S, NodeQueues
from engine.node.session_commands import trailing_settings
from engine.node.statement import Answer, Asked
from engine.setting_values import whole_number_of
from engine.sql import Statement, expand_macros, output_settings
from engine.storage import QueryResult, Scope

_NOT_SHIPPED = frozenset({"readonly", "log_comment", "implicit_select", "query_id"})
_PLAIN_FORMATS = frozenset({"TabSeparated", "TSV"})
"""Written here: the usual answer to DDL is worth no query, which costs more than everything else in it."""
_EMPTY = QueryResult(b"", 0, 0, 0, 0, 0, 0.0)


class ClusterStatements:
    """The initiator's side of the queues."""

    def __init__(
        self,
        queues: NodeQueues | None,
        *,
        env: Env,
        topology: Callable[[], Topology],
        initiator: HostId,
        is_one_statement: Callable[[str], Awaitable[bool]],
        commands: NodeCommands,
        names_user: bool = False,
    ) -> None:
        """`names_user`: entries say who asked, from version 8 on."""
        self._names_user = names_user
        self._commands = commands
        self._queues = queues
        self._env = env
        self._topology = topology
        self._initiator = initiator
        self._is_one_statement = is_one_statement

    async def run(self, asked: Asked, statement: Statement) -> Answer:
        """Submit and wait. Raises what the checks raise, KeeperUnavailable 999, SqlError 139 without Keeper;
        the outcome's own error is raised by the answer's `finish`, after its rows."""
        if self._queues is None:
            raise SqlError(Code.NO_ELEMENTS_IN_CONFIG, "There is no Zookeeper configuration in server config")
        settings = _settings(asked)
        mode = OutputMode.parse(settings.get("distributed_ddl_output_mode", "throw"))
        timeout_s = _number(settings, "distributed_ddl_task_timeout", DEFAULT_TIMEOUT_S)
        version = _number(settings, "distributed_ddl_entry_format_version", DEFAULT_VERSION)
        topology = self._topology()
        queue = self._queues.of_cluster(expand_macros(statement.on_cluster or "", topology.macros))
        prepared = prepare(
            asked.sql,
            topology=topology,
            queue=queue,
            token=asked.token or str(self._env.new_uuid()),
            current_database=asked.current_database,
            settings={name: value for name, value in settings.items() if name not in _NOT_SHIPPED},
            initiator=self._initiator,
            entry_version=version,
            shared_uuid=self._env.new_uuid(),
            allow_distributed_ddl=asked.user.allow_distributed_ddl,
            replicated_ddl_enabled=self._commands.is_replicated_ddl_enabled,
            initiator_user=asked.user.name if self._names_user else "",
        )
        if asked.settings or not await self._is_one_statement(asked.sql):  # what the real parser says
            await asked.check_syntax()
        await self._queues.holder.get(timeout_s=KEEPER_WAIT_S)
        submission = await self._queues.client(queue).submit(prepared)
        rows = result_stream(
            self._queues.holder,
            self._env,
            queue.paths,
            submission.entry,
            mode=mode,
            timeout_s=timeout_s,
        )
        return ClusterAnswer(
            asked, rows, mode=mode, format=statement.format or asked.format, is_empty=timeout_s == 0
        )


class ClusterAnswer:
    """The rows of all hosts, formatted when the last one is known, and then the error, if any.

    ClickHouse's HTTP interface, too, holds back what fits its buffer, so that a client sees either rows or an
    exception.
    """

    def __init__(
        self,
        asked: Asked,
        rows: AsyncIterator[OutputRow],
        *,
        mode: OutputMode,
        format: str,
        is_empty: bool,
    ) -> None:
        self.format = format
        self._asked = asked
        self._rows = rows
        self._mode = mode
        self._is_empty = is_empty or not mode.has_rows
        self._is_read = False
        self._error: OnclusterError | None = None
        self._result = _EMPTY

    async def read(self) -> bytes:
        """Waits for the end; gives all rows at once."""
        if self._is_read:
            return b""
        self._is_read = True
        found: list[OutputRow] = []

        async def collect() -> None:
            async with aclosing(self._rows) as rows:  # type: ignore[type-var]  # it is a generator
                async for row in rows:
                    found.append(row)

        wait = self._asked.wait
        try:
            await (collect() if wait is None else wait.until_killed(collect()))
        except SqlError as error:
            self._error = error
        if self._is_empty:
            return b""
        self._result = await format_rows(self._asked, output_columns(self._mode), found, format=self.format)
        return self._result.data

    async def finish(self) -> QueryResult:
        if self._error is not None:
            raise self._error
        return self._result


async def format_rows(
    asked: Asked, columns: tuple[tuple[str, str], ...], rows: list[OutputRow], *, format: str
) -> QueryResult:
    """Rows as chDB writes them in `format`, with these very column types."""
    return await format_values(asked, columns, [row.values() for row in rows], format=format)


async def format_values(
    asked: Asked,
    columns: tuple[tuple[str, str], ...],
    rows: Sequence[tuple[object, ...]],
    *,
    format: str,
) -> QueryResult:
    """The same of any rows of texts and numbers."""
    settings = _format_settings(asked)
    if format in _PLAIN_FORMATS and not settings:
        data = encode_bytes("".join("\t".join(map(_plain, row)) + "\n" for row in rows))
        size = len(data)
        return QueryResult(data, len(rows), size, 0, 0, len(rows), 0.0)
    structure = quote_string(", ".join(f"{name} {type_}" for name, type_ in columns))
    blank = tuple(
        "NULL" if "Nullable" in type_ else "''" if type_ == "String" else "0" for _, type_ in columns
    )
    values = [tuple(_literal(value) for value in row) for row in rows]
    tuples = ", ".join(f"({', '.join(row)})" for row in values or [blank])
    limit = "" if rows else " LIMIT 0"
    session = asked.session.clone()
    sql = f"SELECT * FROM values({structure}, {tuples}){limit}"
    return await session.query(sql, format=format, scope=Scope(settings=settings))


def _format_settings(asked: Asked) -> dict[str, str]:
    """Settings of the statement that change how values are written."""
    return {n: v for n, v in _settings(asked).items() if n.startswith(("format_", "output_format_"))}


def _settings(asked: Asked) -> dict[str, str]:
    """What holds for this statement: the session's settings, the request's, the statement's own."""
    return {
        **asked.session.settings,
        **asked.settings,
        **output_settings(asked.sql),
        **trailing_settings(asked.sql),
    }


def _plain(value: object) -> str:
    """A value in TabSeparated."""
    if value is None:
        return "\\N"
    return escape(value) if isinstance(value, str) else str(value)


def _literal(value: object) -> str:
    if value is None:
        return "NULL"
    return quote_string(value) if isinstance(value, str) else str(value)


def _number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name)
    if text is None:
        return default
    try:
        return whole_number_of(text)
    except ValueError:
        raise SqlError(Code.CANNOT_PARSE_TEXT, f"Setting {name}: '{text}' is not a number") from None
