"""Buffer tables keep rows in memory. A server writes them out when it ends; chDB forgets them."""

from __future__ import annotations

import json
import logging
from typing import Any

from engine.names import TableName

log = logging.getLogger(__name__)

_FULL = "SELECT database, name FROM system.tables WHERE engine = 'Buffer' AND total_bytes > 0"
_MOST_PASSES = 8
"""A Buffer table may write into another one."""


def write_buffers(connection: Any) -> None:
    """What such tables hold goes where it belongs. To be called before chDB ends; of rows that cannot be
    written, which are lost then, the log tells."""
    failed: set[TableName] = set()
    for _ in range(_MOST_PASSES):
        lines = connection.query(_FULL, "JSONCompactEachRow").bytes().decode().splitlines()
        full = {TableName(*json.loads(line)) for line in lines} - failed
        if not full:
            return
        for table in full:
            try:
                connection.query(f"OPTIMIZE TABLE {table.quoted}")
            except RuntimeError as error:
                failed.add(table)
                log.warning("storage.buffer_lost table=%s error=%s", table, error)
