"""The id of a partition, where it can be read off the partition key's value.

No key gives `all`. Values that are all integers of up to 64 bits, or dates, are joined by `-`. Anything else
(strings, wide integers, floats, tuples, UUIDs, DateTime64, NULL) needs ClickHouse's hash of the value as its
column stores it: leave that to chDB, which says it as `_partition_id` of a row and in `system.parts`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

WHOLE_TABLE = "all"


def partition_id_of(values: Sequence[object]) -> str | None:
    """The id for the values of the key's expressions; None where only chDB can say it.

    A `datetime.date` stands for a value of type Date and gives YYYYMMDD. A Date32 is to be given as its days
    since 1970, a DateTime as its Unix seconds, an Enum or IPv4 as its number, a Bool as 0 or 1.
    """
    if not values:
        return WHOLE_TABLE
    texts: list[str] = []
    for value in values:
        match value:
            case bool() | datetime.datetime():
                return None
            case int() if -(2**63) <= value < 2**64:
                texts.append(str(value))
            case datetime.date():
                texts.append(value.strftime("%Y%m%d"))
            case _:
                return None
    return "-".join(texts)
