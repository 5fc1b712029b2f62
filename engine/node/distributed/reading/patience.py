"""How long a statement waits for another node that is silent.

ClickHouse reads its shards with `receive_timeout`, and with `max_execution_time` if that is shorter. chDB
reads them with `http_receive_timeout`, which is not what a user of Distributed tables would set.

Source: ClickHouse's ConnectionTimeouts::getSaturated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from engine.node.distributed.reading.settings_around import settings_of_statement
from engine.node.statements.asked_settings import number
from engine.node.statements.statement import Asked

USUAL_S = 300.0
"""Of a statement that says nothing, as chDB's profile has it (`engine.storage.layout`)."""
_CHDBS = "http_receive_timeout"
_NAMES = (_CHDBS, "receive_timeout", "max_execution_time")


def patience_s(asked: Asked) -> float:
    """Seconds of silence after which a peer is given up. Raises SqlError 36."""
    if not _says_something(asked):
        return USUAL_S
    settings = settings_of_statement(asked, asked.sql)
    limits = [number(settings, name, 0.0) for name in _NAMES]
    return min([USUAL_S] * (not any(limits[:2])) + [limit for limit in limits if limit > 0])


def time_limit_s(asked: Asked) -> float:
    """Seconds that the statement may take as a whole; infinite without a limit. Raises SqlError 36."""
    if not _says_something(asked):
        return math.inf
    return number(settings_of_statement(asked, asked.sql), "max_execution_time", 0.0) or math.inf


def with_patience(asked: Asked, wait_s: float) -> Asked:
    """The statement as chDB has to run it. A user who may change nothing has the usual patience."""
    if wait_s == USUAL_S or asked.session.is_readonly or _CHDBS in asked.sql:
        return asked
    return replace(asked, settings={**asked.settings, _CHDBS: str(max(1, math.ceil(wait_s)))})


def _says_something(asked: Asked) -> bool:
    """Few statements do, and texts need not be taken apart for it."""
    sources: tuple[Mapping[str, str] | str, ...] = (asked.settings, asked.session.settings, asked.sql)
    return any(name in source for source in sources for name in _NAMES)
