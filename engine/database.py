"""SQL databases for records: SQLite by a path, PostgreSQL by a URL.

SQLite is the default (a path or `sqlite:///path`), PostgreSQL is `postgresql://…` (through psycopg2).
Writers of one SQLite file wait for each other up to `BUSY_TIMEOUT_S`; readers never wait. Connections are
not kept, so an engine may be used after a fork. Engines are kept: each compiles every statement once, which
takes longer than the statement. Calls block for some milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
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
IN_MEMORY = ":memory:"
"""SQLite's name for a database that is no file, which holds no records."""
_MODE = "oncluster_begin"
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg2",
    "postgresql": "postgresql+psycopg2",
}


def database_engine(url: str | Path, *, what: str) -> Engine:
    """An engine for the database at `url`, which holds `what` ("ledger"). Nothing is connected yet.

    Raises ConfigError that says what a URL looks like, OSError when SQLite's folder cannot be made.
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
        if backend == "sqlite":
            if not parsed.database or parsed.database == IN_MEMORY:
                raise ConfigError(f"The {what} needs a file: a database in memory is gone with its process.")
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
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
    engine = sa.create_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def shown_url(url: str) -> str:
    """`url` without its password."""
    return make_url(url).render_as_string(hide_password=True)


class Database:
    """Connections to one database. `refusal` makes of the database's complaint, and of the URL, the error to
    raise."""

    def __init__(self, engine: Engine, refusal: Callable[[SQLAlchemyError, str], Exception]) -> None:
        self._engine = engine
        self._refusal = refusal

    @property
    def url(self) -> str:
        """Where it is, the password hidden."""
        return self._engine.url.render_as_string(hide_password=True)

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection on which all reads see the same instant. Raises what `refusal` makes."""
        with self._connected("DEFERRED") as connection:
            if self.dialect == "postgresql":
                connection.execute(sa.text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction, committed at the end. Raises what `refusal` makes."""
        with self._connected("IMMEDIATE") as connection:
            yield connection

    @contextlib.contextmanager
    def _connected(self, mode: str) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(**{_MODE: mode}) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise self._refusal(error, self.url) from error


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
