"""The connection of one session, as each of its statements needs it: database, settings, readonly mode.

Everything here runs on a worker thread, for one statement at a time; `ChdbSession` sees to it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engine.errors import Code, SqlError
from engine.names import quote_identifier, quote_string
from engine.storage.idle_connections import IdleConnections
from engine.storage.leftovers import drop_output
from engine.storage.scope import Scope, set_statement, settings_clause
from engine.storage.statement_text import sendable
from engine.storage.text_limits import MAX_QUERY_SIZE

FIRST_SETTINGS = {"implicit_select": "0"}
"""As on a server: chDB would take `1 + 1` for a statement."""

_ANY_SIZE = {MAX_QUERY_SIZE: "0"}
"""How long a client's text may be was seen to when it came. The node puts clauses behind it, and has texts of
its own."""

_PARAMETER = "param_"
_OF_ONE_STATEMENT = ("log_comment", "insert_deduplication_token")
"""Settings that hardly ever are the same for two statements: no connection is told by their values."""


class SessionConnection:
    """Made when the first statement needs it; `one_shot` closes it after each."""

    def __init__(
        self,
        connect: Callable[[], Any],
        idle: Callable[[], IdleConnections],
        *,
        database: str,
        settings: Mapping[str, str],
        one_shot: bool,
    ) -> None:
        self._connect = connect
        self._idle = idle
        self.database = database
        self.settings = {**FIRST_SETTINGS, **settings}
        self.readonly = self.settings.pop("readonly", "0")
        """Of the user's profile, or what the session was SET to."""
        self.one_shot = one_shot
        self.is_privileged = False
        """What runs is the node's own, and not readonly."""
        self._is_readonly = False
        self.is_astray = False
        """The connection may be in another database than the session's own, which may be gone."""
        self._connection: Any = None

    @property
    def parameters(self) -> Mapping[str, str]:
        """The query parameters that the session was SET to."""
        return {
            name.removeprefix(_PARAMETER): value
            for name, value in self.settings.items()
            if name.startswith(_PARAMETER)
        }

    def note_readonly(self, value: str) -> None:
        """A statement has SET the connection to it."""
        self.readonly, self._is_readonly = value, value != "0"

    def take(self) -> Any:
        """The connection, if there is one; the caller closes it."""
        connection, self._connection = self._connection, None
        return connection

    @contextlib.contextmanager
    def prepared(self, scope: Scope) -> Iterator[Any]:
        """The connection, as a statement with `scope` needs it. Connects if need be."""
        try:
            yield self.prepare(scope)
        except BaseException:
            if self._connection is not None and not self.one_shot:
                drop_output(self._connection)
            raise
        finally:
            self.clean_up(scope)

    @contextlib.contextmanager
    def harmless(self, scope: Scope, *, takes_settings: bool = False) -> Iterator[tuple[Any, str]]:
        """As `prepared`, for a statement that leaves nothing behind in its connection: it may run in one that
        another statement has left.

        Gives a clause beside the connection. It is empty unless `takes_settings`, and then it is to be put
        behind the text: what holds for this statement alone costs a tenth of a statement that sets it.
        """
        if not self.fits_idle(scope):
            with self.prepared(scope) as connection:
                yield connection, ""
            return
        of_query = {"log_comment": scope.query_id} if scope.query_id else {}
        settings = {**of_query, **self.settings, **scope.settings, **_ANY_SIZE}
        own = {name: settings[name] for name in _OF_ONE_STATEMENT if name in settings}
        database = scope.database or self.database
        with self._idle().use(self._connect, database, settings | dict.fromkeys(own, "")) as connection:
            if own and not takes_settings:
                connection.query(sendable(set_statement(own)))
            yield connection, settings_clause(own) if own and takes_settings else ""

    def fits_idle(self, scope: Scope) -> bool:
        """Whether a statement that leaves nothing behind may run in a connection that is there: nothing of
        this session outlives it, so whose connection it is does not matter."""
        is_plain = not scope.is_readonly and "readonly" not in scope.settings
        return is_plain and self.readonly == "0" and self.one_shot and self._connection is None

    def prepare(self, scope: Scope) -> Any:
        """Connect if need be, and apply what the statement needs; `clean_up` afterwards."""
        connection = self._open(scope) if self._connection is None else self._connection
        is_new = self._connection is None
        try:
            database = scope.database or (self.database if self.is_astray else "")
            if database and (database != self.database or self.is_astray):
                connection.query(sendable(f"USE {quote_identifier(database)}"))
                self.is_astray = database != self.database
            if self.readonly != "0" and not self.is_privileged and not self._is_readonly:
                connection.query(set_statement({"readonly": self.readonly}))
                self._is_readonly = True
            wanted = {} if is_new and self.readonly == "0" else dict(scope.settings)
            takes_settings = self.readonly != "1"
            if takes_settings:  # else chDB refuses it, as any other
                wanted.pop(MAX_QUERY_SIZE, None)
            if scope.query_id and not is_new and takes_settings and "log_comment" not in self.settings:
                wanted.setdefault("log_comment", scope.query_id)
            if scope.is_readonly and not self._is_readonly:
                if not self.one_shot:
                    raise SqlError(Code.LOGICAL_ERROR, "Readonly mode for one statement of a session")
                if not is_new or self.readonly != "0":
                    wanted["readonly"] = "2"
            if wanted:
                connection.query(sendable(set_statement(wanted)))
        except BaseException:  # whatever it is: a connection that nobody gets is closed
            if is_new:
                connection.close()
            raise
        self._connection = connection
        return connection

    def _open(self, scope: Scope) -> Any:
        connection = self._connect()
        settings = dict(self.settings)
        if scope.query_id:
            settings.setdefault("log_comment", scope.query_id)
        if self.readonly == "0":  # else they are refused, behind readonly
            settings |= scope.settings
            if scope.is_readonly and self.one_shot:
                settings["readonly"] = "2"
        try:
            if self.database:
                connection.query(sendable(f"USE {quote_identifier(self.database)}"))
            connection.query(sendable(set_statement({**settings, **_ANY_SIZE})))
        except RuntimeError:
            connection.close()
            raise
        self._is_readonly = False
        return connection

    def clean_up(self, scope: Scope) -> None:
        """Put back what `prepare` has applied for one statement, or close."""
        connection = self._connection
        if connection is None:
            return
        if self.one_shot:
            self._connection = None
            connection.close()
            return
        if self.is_astray:
            with contextlib.suppress(RuntimeError):  # it is gone: names mean no tables of another
                connection.query(sendable(f"USE {quote_identifier(self.database or 'default')}"))
                self.is_astray = False
        with contextlib.suppress(RuntimeError):  # what could not be changed need not be put back
            if scope.settings.keys() - {MAX_QUERY_SIZE}:
                values = (
                    quote_identifier(name)
                    + " = "
                    + (quote_string(self.settings[name]) if name in self.settings else "DEFAULT")
                    for name in scope.settings
                    if name != MAX_QUERY_SIZE
                )
                connection.query(sendable("SET " + ", ".join(values)))
