"""From a statement of a file to the entry of the queue: its cluster, its hosts, its checks. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import NAMESPACE_URL, uuid5

from engine.config.model import DistributedDdl, Topology
from engine.ddl.entry import DEFAULT_VERSION
from engine.ddl.initiator import PreparedStatement, fill_in_database, prepare
from engine.errors import Code, SqlError
from engine.migrations.files import Script, ScriptStatement
from engine.migrations.model import RunRequest
from engine.names import HostId, TableName
from engine.setting_values import whole_number_of
from engine.sql import Statement, StatementKind, expand_macros, parse_statement


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a folder's statements are prepared against."""

    cluster: str
    topology: Topology
    queue: DistributedDdl

    @property
    def macros(self) -> dict[str, str]:
        """Those that every host has: `cluster` is the folder's."""
        return {"cluster": self.cluster, **self.topology.macros}

    def cluster_of(self, statement: ScriptStatement, parsed: Statement) -> str:
        """The cluster the statement runs on. Raises SqlError 36 when it names another than it may.

        A statement may say ON CLUSTER; then it is the folder's cluster, or the one of the option `cluster`.
        """
        wanted = statement.options.cluster or self.cluster
        if parsed.on_cluster is None:
            return wanted
        named = expand_macros(parsed.on_cluster, self.macros)
        if named != wanted:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                f"The statement is for cluster '{named}' and its folder for '{self.cluster}'.",
                hint=f"Move it to that cluster's folder, or say so: -- oncluster-next: cluster={named}",
            )
        return wanted

    def prepare(
        self,
        statement: ScriptStatement,
        request: RunRequest,
        *,
        token: str,
        hosts: Sequence[HostId] | None = None,
        uuid_seed: str = "",
    ) -> PreparedStatement:
        """The entry. `hosts`: these, and no others of the cluster's. Raises SqlError with ClickHouse's codes,
        also where every host would say that the text is too long for it (62).

        One that has left the cluster since the ledger was told of it is among them: it is waited for, missed
        and given up like one that leaves when the entry is there.

        From `uuid_seed` follows the UUID of a replicated table, whose path in Keeper may be made of it: it
        has to be the same on all hosts, and in every attempt.
        """
        parsed = parse_statement(statement.sql)
        cluster = self.cluster_of(statement, parsed)
        shares_uuid = bool(uuid_seed) and (parsed.engine or "").startswith("Replicated")
        prepared = prepare(
            statement.sql,
            topology=replace(self.topology, macros=self.macros),
            queue=self.queue,
            token=token,
            current_database=statement.options.database or request.database,
            settings=dict(statement.options.settings),
            entry_version=statement.options.entry_version or request.entry_version or DEFAULT_VERSION,
            on_cluster=cluster if parsed.on_cluster is None else None,
            shared_uuid=uuid5(NAMESPACE_URL, uuid_seed) if shares_uuid else None,
        )
        check_length(prepared.entry.query, statement)
        if hosts is None or set(hosts) == set(prepared.hosts):
            return prepared
        order = [*prepared.hosts, *sorted(hosts)]
        entry = replace(
            prepared.entry, hosts=tuple(dict.fromkeys(host for host in order if host in frozenset(hosts)))
        )
        return replace(prepared, entry=entry, data=entry.to_bytes())

    def recorded(self, statement: ScriptStatement, request: RunRequest) -> str:
        """Its text for the ledger, with the databases that are meant: who looks there for what concerns a
        table has neither the options of its file nor those of its run. Raises SqlError as `prepare` does."""
        cluster = self.topology.cluster(self.cluster_of(statement, parse_statement(statement.sql)))
        return fill_in_database(statement.sql, cluster, statement.options.database or request.database)


ADVICE = {
    StatementKind.SET: "let the setting travel with the statements: `-- oncluster: setting.NAME=VALUE`",
    StatementKind.USE: "say which database is meant: `-- oncluster: database=NAME`",
    StatementKind.INSERT: "end the migration before it, run it once between two runs (`--target`), "
    "and go on in the next migration",
}
"""What to do instead of statements that other tools send in a session, and that no queue can take."""


_USUAL_BYTES = 1 << 18
"""ClickHouse's `max_query_size` where nobody sets it."""


def check_length(sql: str, statement: ScriptStatement) -> None:
    """Raises SqlError 62 for a text of which a host would read a part only."""
    length = len(sql.encode())
    try:
        limit = whole_number_of(dict(statement.options.settings).get("max_query_size", str(_USUAL_BYTES)))
    except ValueError as error:
        raise SqlError(Code.CANNOT_PARSE_NUMBER, f"max_query_size: {error}.") from error
    if 0 < limit < length:
        raise SqlError(
            Code.SYNTAX_ERROR,
            f"Max query size exceeded: the statement has {length} bytes, hosts read {limit}.",
            hint="Have them read all of it: -- oncluster-next: setting.max_query_size=0",
        )


def qualified(parsed: Statement, statement: ScriptStatement, request: RunRequest) -> list[TableName]:
    """The statement's tables, those without a database in the one that is meant."""
    database = statement.options.database or request.database
    return [table if table.database else TableName(database, table.table) for table in parsed.tables]


def needs_approval(statement: ScriptStatement) -> bool:
    """It destroys something, or its file asks for it."""
    return statement.options.approval_required or parse_statement(statement.sql).is_destructive


def place(script: Script, statement: ScriptStatement) -> str:
    """Where a statement stands, for messages."""
    return f"{script.path}:{statement.line}"
