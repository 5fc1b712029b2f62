"""Names of formats, and the media type of each output format. Source: ClickHouse's format factory."""

from __future__ import annotations

import re

from engine.errors import Code, SqlError

_NAME = re.compile(r"[A-Za-z0-9_]+")
_TSV = "text/tab-separated-values; charset=UTF-8"
_CSV = "text/csv; charset=UTF-8"
_BYTES = "application/octet-stream"
_JSON = "application/json; charset=UTF-8"
_NDJSON = "application/x-ndjson; charset=UTF-8"

_TYPES = {
    "csv": f"{_CSV}; header=absent",
    "csvwithnames": f"{_CSV}; header=present",
    "csvwithnamesandtypes": f"{_CSV}; header=present",
    "xml": "application/xml; charset=UTF-8",
    "native": _BYTES,
    "parquet": _BYTES,
    "orc": _BYTES,
    "avro": _BYTES,
    "arrow": _BYTES,
    "arrowstream": _BYTES,
    "msgpack": _BYTES,
    "protobuf": _BYTES,
    "npy": _BYTES,
    "markdown": "text/markdown; charset=UTF-8",
}


def checked_format(name: str) -> str:
    """The name itself, which will be a part of SQL text. Raises SqlError 73 for what is no name."""
    if not _NAME.fullmatch(name):
        raise SqlError(Code.UNKNOWN_FORMAT, f"Unknown format {name}")
    return name


def content_type(format: str) -> str:
    """Of the answer in `format`; plain text for what is not listed."""
    name = format.lower()
    if name in _TYPES:
        return _TYPES[name]
    if name.startswith(("tabseparated", "tsv")):
        return _TSV
    if name.startswith("rowbinary"):
        return _BYTES
    if name.startswith("json"):
        return _NDJSON if "eachrow" in name else _JSON
    return "text/plain; charset=UTF-8"
