"""The ledger's tables, the view that people read, and the triggers that keep its promises.

    oncluster_fences            who held a cluster's migration lock, in order; the greatest number is in force
    oncluster_runs              every run, and oncluster_run_events how it went
    oncluster_migrations        events: a migration was started, applied, rolled back, marked
    oncluster_statements        one row per attempt at one statement, written before it is sent; `token` is
                                what the DDL queue knows it by
    oncluster_statement_hosts   the hosts that must carry the attempt out
    oncluster_submissions       the queue entry that the attempt became
    oncluster_outcomes          what was seen of a host, each time it had changed
    oncluster_ledger (view)     one row per (migration, statement, host): the latest of all that

What the database itself refuses, so that no program can do it by mistake:

    OC001  an insert under a fence that is not the cluster's greatest (M3)
    OC002  UPDATE, DELETE and TRUNCATE of anything (M2)
    OC003  a fence that is not greater than those before it (M3)
    OC004  `applied` or `rolled_back` while a required host lacks its `done` (M6)

An outcome that arrives after the host's own word, `done` or `failed`, for the same attempt and host is left
out; what others have said of it (`expired`, `unknown`, `abandoned`) may be followed by that. In PostgreSQL a
writer and a new holder of the lock exclude each other by an advisory lock per cluster, because under READ
COMMITTED a writer would not see a fence that is committed after its check; in SQLite every writer excludes
every other.

Versions are unsigned 64-bit integers: NUMERIC(20) in PostgreSQL; in SQLite, whose integers are signed, those
from 2^63 on are text of twenty digits, which sorts after every integer.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    UniqueConstraint,
    select,
    text,
)
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from engine.database import has_table

SCHEMA_VERSION = 2
"""1: `expired` and `abandoned` could not be followed by what the host said later."""
FINAL_STATES = ("done", "failed")
_INT64_MAX = 2**63 - 1


class _Untyped(UserDefinedType[object]):
    """A SQLite column that keeps what it is given."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "BLOB"


class UInt64(TypeDecorator[int]):
    impl = Numeric(20, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return dialect.type_descriptor(_Untyped())
        return dialect.type_descriptor(Numeric(20, 0))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> object:
        if value is None or dialect.name != "sqlite" or value <= _INT64_MAX:
            return value
        return f"{value:020d}"

    def process_result_value(self, value: object, dialect: Dialect) -> int | None:
        return None if value is None else int(str(value))


metadata = MetaData()

schema_table = Table(
    "oncluster_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("ledger_id", String(36), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)

fences = Table(
    "oncluster_fences",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("fence", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", Text, nullable=False),
    Column("holder", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)

runs = Table(
    "oncluster_runs",
    metadata,
    Column("cluster", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("direction", String(4), nullable=False),
    Column("target", UInt64),
    Column("requested_by", Text, nullable=False),
    Column("approved_by", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)

run_events = Table(
    "oncluster_run_events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("cluster", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("note", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    ForeignKeyConstraint(["cluster", "run_id"], ["oncluster_runs.cluster", "oncluster_runs.run_id"]),
)

migrations = Table(
    "oncluster_migrations",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("cluster", Text, nullable=False),
    Column("version", UInt64, nullable=False),
    Column("title", Text, nullable=False),
    Column("direction", String(4), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("event", String(20), nullable=False),
    Column("statements", Integer, nullable=False),
    Column("file_checksum", String(64), nullable=False),
    Column("run_id", Text, nullable=False),
    Column("done_by", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    UniqueConstraint("cluster", "version", "direction", "generation", "event"),
)

statements = Table(
    "oncluster_statements",
    metadata,
    Column("token", String(200), primary_key=True),
    Column("cluster", Text, nullable=False),
    Column("version", UInt64, nullable=False),
    Column("title", Text, nullable=False),
    Column("direction", String(4), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("statement", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("line", Integer, nullable=False),
    Column("statement_checksum", String(64), nullable=False),
    Column("file_checksum", String(64), nullable=False),
    Column("sql", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    UniqueConstraint("cluster", "version", "direction", "generation", "statement", "attempt"),
)

statement_hosts = Table(
    "oncluster_statement_hosts",
    metadata,
    Column("token", String(200), primary_key=True),
    Column("host", Text, primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
    Column("cluster", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    ForeignKeyConstraint(["token"], ["oncluster_statements.token"]),
)

submissions = Table(
    "oncluster_submissions",
    metadata,
    Column("token", String(200), primary_key=True),
    Column("entry", Text, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("cluster", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    ForeignKeyConstraint(["token"], ["oncluster_statements.token"]),
)

outcomes = Table(
    "oncluster_outcomes",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("token", String(200), nullable=False),
    Column("host", Text, nullable=False),
    Column("port", Integer, nullable=False),
    Column("state", String(20), nullable=False),
    Column("code", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("started_ms", BigInteger),
    Column("finished_ms", BigInteger),
    Column("duration_ms", BigInteger),
    Column("cluster", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    ForeignKeyConstraint(
        ["token", "host", "port"],
        [
            "oncluster_statement_hosts.token",
            "oncluster_statement_hosts.host",
            "oncluster_statement_hosts.port",
        ],
    ),
    Index(
        "oncluster_one_final_outcome",
        "token",
        "host",
        "port",
        unique=True,
        sqlite_where=text(f"state IN {FINAL_STATES}"),
        postgresql_where=text(f"state IN {FINAL_STATES}"),
    ),
    Index("oncluster_outcomes_by_token", "token", "host", "port", "id"),
)

_FENCED = (runs, run_events, migrations, statements, statement_hosts, submissions, outcomes)

VIEW_COLUMNS = (
    *("cluster", "title", "direction", "generation", "statement", "host", "port", "state", "code", "error"),
    *("started_ms", "finished_ms", "duration_ms", "attempt", "token", "entry", "submission", "line", "sql"),
    *("statement_checksum", "file_checksum", "run_id", "recorded_ms", "observed_ms"),
)
"""Of `oncluster_ledger`, beside `version`."""

LEDGER_VIEW = """
CREATE VIEW oncluster_ledger AS
SELECT s.cluster, s.version, s.title, s.direction, s.generation, s.statement, h.host, h.port,
       COALESCE(o.state, 'recorded') AS state, COALESCE(o.code, 0) AS code, COALESCE(o.error, '') AS error,
       o.started_ms, o.finished_ms, o.duration_ms, s.attempt, s.token, b.entry, b.outcome AS submission,
       s.line, s.sql, s.statement_checksum, s.file_checksum, s.run_id, s.at_ms AS recorded_ms,
       o.at_ms AS observed_ms
FROM oncluster_statements s
JOIN oncluster_statement_hosts h ON h.token = s.token
LEFT JOIN oncluster_submissions b ON b.token = s.token
LEFT JOIN oncluster_outcomes o ON o.id = (
    SELECT max(x.id) FROM oncluster_outcomes x
    WHERE x.token = h.token AND x.host = h.host AND x.port = h.port)
WHERE s.attempt = (
    SELECT max(s2.attempt) FROM oncluster_statements s2
    JOIN oncluster_statement_hosts h2 ON h2.token = s2.token
    WHERE s2.cluster = s.cluster AND s2.version = s.version AND s2.direction = s.direction
      AND s2.generation = s.generation AND s2.statement = s.statement
      AND h2.host = h.host AND h2.port = h.port)
"""

_INCOMPLETE = """(
    EXISTS (SELECT 1 FROM oncluster_ledger l
            WHERE l.cluster = NEW.cluster AND l.version = NEW.version AND l.direction = NEW.direction
              AND l.generation = NEW.generation AND l.statement <= NEW.statements AND l.state <> 'done')
    OR (SELECT count(DISTINCT l.statement) FROM oncluster_ledger l
        WHERE l.cluster = NEW.cluster AND l.version = NEW.version AND l.direction = NEW.direction
          AND l.generation = NEW.generation AND l.statement <= NEW.statements) <> NEW.statements)"""

_HAS_FINAL = f"""EXISTS (
    SELECT 1 FROM oncluster_outcomes f
    WHERE f.token = NEW.token AND f.host = NEW.host AND f.port = NEW.port AND f.state IN {FINAL_STATES})"""

_SQLITE_FINAL = (
    "CREATE TRIGGER oncluster_outcomes_final BEFORE INSERT ON oncluster_outcomes "
    f"WHEN {_HAS_FINAL} BEGIN SELECT RAISE(IGNORE); END"
)
_POSTGRESQL_FINAL = (
    "CREATE FUNCTION oncluster_skip_after_final() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN "
    f"IF {_HAS_FINAL} THEN RETURN NULL; END IF; RETURN NEW; END $body$"
)

_STALE = "the fence is not the one in force: another run holds this cluster's lock"
_NOT_GREATER = "the fence is not greater than those before it"
_APPEND_ONLY = "the ledger is append-only"
_NOT_DONE = "not every required host is done"


def create_schema(connection: Connection, *, ledger_id: str, at_ms: int) -> None:
    """Make tables, view and triggers where they are missing. The caller holds the writers' lock."""
    if has_table(connection, schema_table.name):
        return
    metadata.create_all(connection, checkfirst=False)
    connection.execute(text(LEDGER_VIEW))
    for statement in _triggers(connection.dialect.name):
        connection.exec_driver_sql(statement)
    connection.execute(schema_table.insert().values(version=SCHEMA_VERSION, ledger_id=ledger_id, at_ms=at_ms))


def upgrade_schema(connection: Connection, *, ledger_id: str, at_ms: int) -> None:
    """From version 1. Adds, and changes no row. The caller holds the writers' lock and has looked."""
    is_sqlite = connection.dialect.name == "sqlite"
    connection.exec_driver_sql("DROP INDEX oncluster_one_final_outcome")
    one_final = next(index for index in outcomes.indexes if index.name == "oncluster_one_final_outcome")
    one_final.create(connection)
    if is_sqlite:
        connection.exec_driver_sql("DROP TRIGGER oncluster_outcomes_final")
        connection.exec_driver_sql(_SQLITE_FINAL)
    else:
        connection.exec_driver_sql(_POSTGRESQL_FINAL.replace("CREATE", "CREATE OR REPLACE", 1))
    connection.execute(schema_table.insert().values(version=SCHEMA_VERSION, ledger_id=ledger_id, at_ms=at_ms))


def lock_fences(connection: Connection, cluster: str) -> None:
    """Until the transaction ends nobody writes under the cluster's fences; SQLite's writers are alone."""
    if connection.dialect.name == "postgresql":
        key = text("SELECT pg_advisory_xact_lock(hashtextextended('oncluster:' || :cluster, 0))")
        connection.execute(key, {"cluster": cluster})


def schema_state(connection: Connection) -> tuple[int, str] | None:
    """(schema version, ledger id), or None where there is no ledger yet."""
    if not has_table(connection, schema_table.name):
        return None
    row = connection.execute(select(schema_table).order_by(schema_table.c.version.desc())).first()
    return None if row is None else (int(row.version), str(row.ledger_id))


def _triggers(dialect: str) -> list[str]:
    return _sqlite_triggers() if dialect == "sqlite" else _postgresql_triggers()


def _sqlite_triggers() -> list[str]:
    result = []
    for table in metadata.sorted_tables:
        for change in ("UPDATE", "DELETE"):
            result.append(
                f"CREATE TRIGGER {table.name}_no_{change.lower()} BEFORE {change} ON {table.name} "
                f"BEGIN SELECT RAISE(ABORT, 'OC002: {_APPEND_ONLY}'); END"
            )
    for table in _FENCED:
        result.append(
            f"CREATE TRIGGER {table.name}_fenced BEFORE INSERT ON {table.name} "
            "WHEN NEW.fence IS NOT (SELECT max(fence) FROM oncluster_fences WHERE cluster = NEW.cluster) "
            f"BEGIN SELECT RAISE(ABORT, 'OC001: {_STALE.replace(chr(39), chr(39) * 2)}'); END"
        )
    result.append(
        "CREATE TRIGGER oncluster_fences_rise BEFORE INSERT ON oncluster_fences "
        "WHEN NEW.fence <= (SELECT max(fence) FROM oncluster_fences WHERE cluster = NEW.cluster) "
        f"BEGIN SELECT RAISE(ABORT, 'OC003: {_NOT_GREATER}'); END"
    )
    result.append(
        "CREATE TRIGGER oncluster_migrations_complete BEFORE INSERT ON oncluster_migrations "
        f"WHEN NEW.event IN ('applied', 'rolled_back') AND {_INCOMPLETE} "
        f"BEGIN SELECT RAISE(ABORT, 'OC004: {_NOT_DONE}'); END"
    )
    result.append(_SQLITE_FINAL)
    return result


def _postgresql_triggers() -> list[str]:
    lock_key = "hashtextextended('oncluster:' || NEW.cluster, 0)"
    result = [
        _postgresql_function(
            "oncluster_refuse_change",
            f"RAISE EXCEPTION 'OC002: {_APPEND_ONLY}' USING ERRCODE = 'OC002';",
        ),
        _postgresql_function(
            "oncluster_check_fence",
            f"PERFORM pg_advisory_xact_lock_shared({lock_key}); "
            "IF NEW.fence IS DISTINCT FROM "
            "(SELECT max(fence) FROM oncluster_fences WHERE cluster = NEW.cluster) THEN "
            f"RAISE EXCEPTION 'OC001: {_STALE.replace(chr(39), chr(39) * 2)}' USING ERRCODE = 'OC001'; "
            "END IF; RETURN NEW;",
        ),
        _postgresql_function(
            "oncluster_raise_fence",
            f"PERFORM pg_advisory_xact_lock({lock_key}); "
            "IF NEW.fence <= (SELECT max(fence) FROM oncluster_fences WHERE cluster = NEW.cluster) THEN "
            f"RAISE EXCEPTION 'OC003: {_NOT_GREATER}' USING ERRCODE = 'OC003'; END IF; RETURN NEW;",
        ),
        _postgresql_function(
            "oncluster_check_complete",
            f"IF NEW.event IN ('applied', 'rolled_back') AND {_INCOMPLETE} THEN "
            f"RAISE EXCEPTION 'OC004: {_NOT_DONE}' USING ERRCODE = 'OC004'; END IF; RETURN NEW;",
        ),
        _POSTGRESQL_FINAL,
    ]
    for table in metadata.sorted_tables:
        result.append(
            f"CREATE TRIGGER {table.name}_no_change BEFORE UPDATE OR DELETE ON {table.name} "
            "FOR EACH ROW EXECUTE FUNCTION oncluster_refuse_change()"
        )
        result.append(
            f"CREATE TRIGGER {table.name}_no_truncate BEFORE TRUNCATE ON {table.name} "
            "FOR EACH STATEMENT EXECUTE FUNCTION oncluster_refuse_change()"
        )
    for table in _FENCED:
        result.append(_postgresql_before_insert(f"{table.name}_fenced", table, "oncluster_check_fence"))
    for name, table, function in (
        ("oncluster_fences_rise", fences, "oncluster_raise_fence"),
        ("oncluster_migrations_complete", migrations, "oncluster_check_complete"),
        ("oncluster_outcomes_late", outcomes, "oncluster_skip_after_final"),
    ):
        result.append(_postgresql_before_insert(name, table, function))
    return result


def _postgresql_function(name: str, body: str) -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $body$ BEGIN {body} END $body$"


def _postgresql_before_insert(name: str, table: Table, function: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE INSERT ON {table.name} FOR EACH ROW EXECUTE FUNCTION {function}()"
