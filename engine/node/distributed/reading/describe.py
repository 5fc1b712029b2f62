"""DESCRIBE of `cluster()`, `remote()` and their kin: what a replica answers, as a SELECT of constants."""

from __future__ import annotations

from collections.abc import Callable

from engine.client import QueryRows
from engine.config.model import Topology
from engine.distributed.peers import peers_of_cluster
from engine.distributed.select.model import SourceColumn, structure_of
from engine.names import HostId, quote_string
from engine.node.distributed.functions.inner_calls import InnerCalls
from engine.node.distributed.functions.read_place import place_of
from engine.node.distributed.functions.table_functions import described_function, refused_to_readers
from engine.node.distributed.peers.peer_health import PeerHealth
from engine.node.distributed.reading.columns import described_elsewhere
from engine.node.statements.statement import Asked


async def with_description(
    asked: Asked,
    health: PeerHealth,
    *,
    topology: Callable[[], Topology],
    is_local: Callable[[HostId], bool],
) -> str | None:
    """The text with the answer in the place of the call; None for a statement about something else.

    Raises SqlError 164 for a user who may only read, and as `described_elsewhere` and `table_functions`.
    """
    inner = InnerCalls()
    sql = inner.hidden(asked.sql)
    call = described_function(sql, topology, asked.current_database)
    if call is None:
        return None
    if asked.session.is_readonly:
        raise refused_to_readers()
    place = place_of(asked, call.table, inner)
    answer = await described_elsewhere(health, place, peers_of_cluster(call.cluster, is_local))
    return f"SELECT * FROM {_constants(answer)}{inner.shown(sql[call.end :])}"


def _constants(answer: QueryRows) -> str:
    structure = quote_string(structure_of([SourceColumn(name, type_) for name, type_ in answer.columns]))
    rows = (f"({', '.join(quote_string(str(value)) for value in row)})" for row in answer.rows)
    return f"values({', '.join([structure, *rows])})"
