"""`cluster()` and `clusterAllReplicas()` where chDB would have to know the cluster itself, which it does not.

It would say that there is no such cluster (701). What can be done instead is said here.
"""

from __future__ import annotations

from engine.errors import Code, SqlError
from engine.node.distributed.definitions.dictionary_source import DICTIONARIES, HINT, reads_of_dictionary
from engine.node.distributed.functions.table_functions import any_cluster_function
from engine.node.distributed.reading.references import has_table_functions
from engine.node.statements.statement import Answer, Asked
from engine.sql import Statement, StatementKind

_K = StatementKind
_USE_TABLE = "Make a Distributed table over the cluster, and name that."
_PLACES = {
    _K.CREATE_VIEW: ("A view", _USE_TABLE),
    _K.CREATE_MATERIALIZED_VIEW: ("A materialized view", _USE_TABLE),
    _K.DELETE: ("DELETE", "Write what is read into a table of this node first, and read that."),
    _K.UPDATE: ("UPDATE", "Write what is read into a table of this node first, and read that."),
    _K.ALTER_TABLE: ("ALTER", "Write what is read into a table of this node first, and read that."),
}


class FunctionGuard:
    """Refuses, and answers nothing."""

    async def run(self, asked: Asked, statement: Statement) -> Answer | None:
        if not has_table_functions(asked.sql):
            return None
        if statement.kind in DICTIONARIES:
            for query in reads_of_dictionary(asked.sql, asked.current_database)[1]:
                _refuse("A dictionary", any_cluster_function(query, of_create=False), HINT)
            return None
        is_create = statement.kind is _K.CREATE_TABLE
        what, hint = ("CREATE TABLE … AS", _USE_TABLE) if is_create else _PLACES.get(statement.kind, ("", ""))
        name = any_cluster_function(asked.sql, of_create=is_create) if what else ""
        _refuse(what, name, hint)
        return None


def _refuse(what: str, name: str, hint: str) -> None:
    if name:
        raise SqlError(Code.NOT_IMPLEMENTED, f"{what} cannot read other nodes by {name}().", hint=hint)
