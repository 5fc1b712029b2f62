"""PARALLEL WITH: several statements in one. Each runs as if it stood alone: none comes to a replicated or
Distributed table past the node. They run one after another, an order that ClickHouse, too, may choose.

Source: ClickHouse's InterpreterParallelWithQuery.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from engine.errors import Code, OnclusterError, SqlError
from engine.node.statements.statement import Answer, Asked
from engine.sql import StatementKind, parallel_statements, parse_statement

_K = StatementKind
_HAVE_OUTPUT = frozenset(
    {_K.SELECT, _K.EXPLAIN, _K.SHOW, _K.WATCH, _K.DESCRIBE, _K.EXISTS, _K.CHECK_TABLE, _K.EMPTY}
)
_OF_THE_SESSION = frozenset({_K.USE, _K.SET, _K.SET_ROLE})
"""Each statement has a session of its own in ClickHouse, which ends with it."""


async def run_in_turn(asked: Asked, run: Callable[[Asked], AbstractAsyncContextManager[Answer]]) -> None:
    """Whatever becomes of one, the others run. Raises the first error, and SqlError 80 before any runs."""
    pieces = parallel_statements(asked.sql)
    kinds = [parse_statement(piece).kind for piece in pieces]
    for piece, kind in zip(pieces, kinds, strict=True):
        if kind in _HAVE_OUTPUT:
            raise SqlError(
                Code.INCORRECT_QUERY,
                f"Query {piece.strip()} can't be combined with other queries using PARALLEL WITH clause "
                "because this query has output.",
            )
    first: OnclusterError | None = None
    for piece, kind in zip(pieces, kinds, strict=True):
        if kind in _OF_THE_SESSION:
            continue
        try:
            async with run(replace(asked, sql=piece)) as answer:
                while await answer.read():
                    pass
                await answer.finish()
        except OnclusterError as error:
            first = first or error
    if first is not None:
        raise first
