"""Answers in the format Native, for clients that say which revision of the protocol they speak."""

from __future__ import annotations

from dataclasses import replace

from engine.node.statements.statement import Answer, Asked, WholeAnswer
from engine.storage import ChdbPool


async def native_answer(asked: Asked, answer: Answer, pool: ChdbPool) -> Answer:
    """The same with blocks of the revision that was asked for. Those of a SELECT are of it already; what is
    not is small: the answer to SHOW, EXPLAIN, or a statement ON CLUSTER. Raises SqlError."""
    if answer.format.lower() != "native" or answer.native_revision:
        return answer
    data = bytearray()
    while piece := await answer.read():
        data += piece
    result = await answer.finish()
    revised = await pool.native_of_revision(bytes(data), asked.native_revision)
    return WholeAnswer(
        replace(result, data=revised), format=answer.format, native_revision=asked.native_revision
    )
