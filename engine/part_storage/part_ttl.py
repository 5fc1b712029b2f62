"""`ttl.txt` of a part: when something in it expires. Source: ClickHouse's MergeTreeDataPartTTLInfos."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import is_passing
from engine.replication.part_store import PartTtl

TTL_FILE = "ttl.txt"
_FIRST_LINE = "ttl format version: 1\n"
_MAX_BYTES = 1 << 20
_LONGEST_CODEC = 10_000
CODEC_FILE = "default_compression_codec.txt"
_OF_DELETION = ("columns", "rows_where", "group_by")
"""Besides `table`. Recompression and moves between disks take nothing away."""


def ttl_in(directory: Path) -> PartTtl | None:
    """What the file says; None where there is none, or nobody can read it: then nothing is done about it.
    Raises OSError for want of descriptors."""
    file = directory / TTL_FILE
    try:
        if file.stat().st_size > _MAX_BYTES:
            return None
        text = file.read_text("utf-8", "surrogateescape")
        if not text.startswith(_FIRST_LINE):
            return None
        ttl = _ttl_of(json.loads(text.removeprefix(_FIRST_LINE)))
        if ttl is not None and ttl.recompressions:
            ttl = replace(ttl, codec=(directory / CODEC_FILE).read_text("utf-8")[:_LONGEST_CODEC].strip())
        return ttl
    except (OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        if is_passing(error):
            raise
        return None


def _ttl_of(infos: Mapping[str, Any]) -> PartTtl | None:
    table = infos.get("table") or {}
    others = [info for kind in _OF_DELETION for info in infos.get(kind, ())]
    # What is finished has no date: all that could expire has gone.
    dates = [int(info["min"]) for info in (table, *others) if info and not int(info.get("finished", 0))]
    whole = int(table["max"]) if table and not int(table.get("finished", 0)) else 0
    first = min((date for date in dates if date > 0), default=0)
    recompressions = tuple((str(i["expression"]), int(i["max"])) for i in infos.get("recompression", ()))
    return PartTtl(first, whole, recompressions) if first or recompressions else None
