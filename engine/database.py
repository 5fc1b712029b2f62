"""SQL databases for records: SQLite by a path, PostgreSQL by a URL.

SQLite is the default (a path or `sqlite:///path`), PostgreSQL is `postgresql://…` (through psycopg2). Folder,
file and tables are made by the first write: an address that is mistyped reads as empty, and leaves nothing.
Whoever meets another's lock waits up to `BUSY_TIMEOUT_S`; readers of SQLite never do. Connections are not
kept, so an engine may be used after a fork. Engines are kept: each compiles every statement once, which
takes longer than the statement. Calls block for some milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from engine.errors import ConfigError

BUSY_TIMEOUT_S = 15
"""Who waits serves no Keeper session meanwhile, and one of the default 30 s counts as lost after two thirds
of them: a locked database has to be told before that."""
CONNECT_TIMEOUT_S = 5
"""For each address of a PostgreSQL server, which takes connections also while it is stopped; a name often has
two. The URL's own `connect_timeout` goes before it."""
IN_MEMORY = ":memory:"
"""SQLite's name for a database that is no file, which holds no records."""
_MODE = "oncluster_begin"
_CLOSED_SCHEMAS = sa.text(
    "SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE relname = :name AND NOT has_schema_privilege(pg_namespace.oid, 'USAGE') "
    "AND quote_ident(nspname) IN "
    "(SELECT CASE trim(entry) WHEN '\"$user\"' THEN quote_ident(current_user) ELSE trim(entry) END "
    "FROM unnest(string_to_array(current_setting('search_path'), ',')) AS entry)"
)
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg2",
    "postgresql": "postgresql+psycopg2",
}


def database_engine(url: str | Path, *, what: str) -> Engine:
    """An engine for the database at `url`, which holds `what` ("ledger"). Nothing is connected yet.

    Raises ConfigError that says what a URL looks like.
    """
    text = str(url)
    if "://" not in text:
        text = f"sqlite:///{text if text == IN_MEMORY else Path(text).absolute()}"
    scheme, _, address = text.partition("://")
    if scheme.startswith("postgres") and address.partition("?")[0].count("@") > 1:
        # Read on, the rest of the password would be taken for the host, which messages show.
        raise ConfigError(
            f"The {what}'s URL has more than one `@`.",
            hint="In a password write %40 for `@`, %3A for `:` and %2F for `/`.",
        )
    try:
        parsed = make_url(text)
        backend = parsed.drivername.partition("+")[0]
        if backend not in _DRIVERS:
            raise ConfigError(
                f"The {what} cannot be kept in {backend}.",
                hint="Use a path or sqlite:///path, or postgresql://user:password@host/database.",
            )
        parsed = parsed.set(drivername=_DRIVERS[backend])
        if backend == "sqlite" and (not parsed.database or parsed.database == IN_MEMORY):
            raise ConfigError(f"The {what} needs a file: a database in memory is gone with its process.")
        return _engine(parsed)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"The {what}'s URL cannot be read.", hint=str(error)) from error
    except ValueError as error:  # not shown: it quotes what stands where the port is expected
        raise ConfigError(f"The {what}'s URL has a port that is no number.") from error
    except ImportError as error:
        raise ConfigError(
            f"The {what} is in PostgreSQL and its driver is missing.", hint="Install oncluster[postgres]."
        ) from error


@functools.lru_cache(maxsize=32)
def _engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, poolclass=NullPool)
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    limits = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
    engine = sa.create_engine(url, poolclass=NullPool, connect_args=limits)
    event.listen(engine, "begin", _begin_postgresql)
    return engine


def has_table(connection: Connection, name: str) -> bool:
    """Whether there is such a table. In PostgreSQL one in a schema that the role must not use looks as if it
    were not there. With one in its search path the table is asked for, and the server says it (42501)."""
    if sa.inspect(connection).has_table(name):
        return True
    if connection.dialect.name == "postgresql":
        for schema in connection.scalars(_CLOSED_SCHEMAS, {"name": name}):
            connection.execute(sa.select(sa.literal(1)).select_from(sa.table(name, schema=schema)).limit(1))
    return False


def shown_url(url: str) -> str:
    """`url` without its password."""
    return make_url(url).render_as_string(hide_password=True)


@dataclass(frozen=True, slots=True)
class Tables:
    """What a database is to hold: whether it is there, and how it is made, also by several at once."""

    are_there: Callable[[Connection], bool]
    make: Callable[[Connection], None]


class Database:
    """Connections to one database. `refusal` makes of the database's complaint, and of the URL, the error to
    raise."""

    def __init__(
        self, engine: Engine, refusal: Callable[[SQLAlchemyError | OSError, str], Exception], tables: Tables
    ) -> None:
        self._engine = engine
        self._refusal = refusal
        self._tables = tables
        self._is_made = False

    @property
    def url(self) -> str:
        """Where it is, the password hidden."""
        return self._engine.url.render_as_string(hide_password=True)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @property
    def is_made(self) -> bool:
        """Whether its tables are there. Makes nothing. Raises what `refusal` makes."""
        if not self._is_made and not self._is_absent():
            with self._connected("DEFERRED") as connection:
                self._is_made = self._tables.are_there(connection)
        return self._is_made

    def make(self) -> None:
        """Folder, file and tables where they are missing. Raises what `refusal` makes."""
        if self.is_made:
            return
        if (file := self._file) is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._refusal(error, self.url) from error
        with self._connected("IMMEDIATE") as connection:
            self._tables.make(connection)
        self._is_made = True

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection on which all reads see the same instant; of one that is not made, empty tables.

        Raises what `refusal` makes.
        """
        if not self.is_made:
            with _in_memory().connect() as connection, connection.begin():
                self._tables.make(connection)
                yield connection
            return
        with self._connected("DEFERRED") as connection:
            if self.dialect == "postgresql":
                connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction, committed at the end. Raises what `refusal` makes."""
        self.make()
        with self._connected("IMMEDIATE") as connection:
            yield connection

    def _is_absent(self) -> bool:
        """Whether there is certainly no file. On a disk that cannot be looked at it may be."""
        try:
            if (file := self._file) is not None:
                file.stat()
        except FileNotFoundError:
            return True
        except OSError as error:
            raise self._refusal(error, self.url) from error
        return False

    @property
    def _file(self) -> Path | None:
        """None where it is no file."""
        name = self._engine.url.database
        return Path(name) if self.dialect == "sqlite" and name else None

    @contextlib.contextmanager
    def _connected(self, mode: str) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(**{_MODE: mode}) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise self._refusal(error, self.url) from error


@functools.cache
def _in_memory() -> Engine:
    """Each connection is a database of its own, gone when it is closed."""
    return sa.create_engine("sqlite://", poolclass=NullPool)


def _prepare_sqlite(dbapi_connection: Any, _record: object) -> None:
    # The driver's own handling of transactions begins them late, after the reads on which writes rest.
    dbapi_connection.isolation_level = None
    cursor = dbapi_connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get(_MODE, 'IMMEDIATE')}")


def _begin_postgresql(connection: Connection) -> None:
    # Here and not in the connection's options, which a pooler such as PgBouncer may refuse.
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{BUSY_TIMEOUT_S}s'")
