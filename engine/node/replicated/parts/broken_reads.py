"""Parts that a reader of a replicated table could not read are checked, and fetched again if they are broken.

For chDB the table is a plain one: it tells the reader, and nobody else. Its words say which part it was. A
check reads the part and changes nothing unless that is broken, so a wrong suspicion costs a little time.

Source: ClickHouse's MergeTree readers report a broken part on any error that is not a passing one.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from engine.errors import OnclusterError, is_passing
from engine.node.replicated.running.runtime import ReplicatedTables

log = logging.getLogger(__name__)

_PART = re.compile(r"while reading from part (/.+?)/? in table ")


def check_what_cannot_be_read(tables: ReplicatedTables, error: OnclusterError) -> None:
    """Have the part checked that `error` names, if it is one of a replicated table."""
    found = _PART.search(error.message)
    if found is None or is_passing(error):
        return
    directory = Path(found.group(1))
    for table in tables.all():
        part = table.store.part_at(directory)
        if part is not None:
            log.warning("replicated.unreadable table=%s part=%s code=%d", table.name, part, error.code)
            table.ctx.check_later(part)
