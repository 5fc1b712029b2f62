"""Whether a table can have a partition of an id that the user gave.

An id that no partition ever has, such as 2013-01 for 201301, would replace nothing, and nobody would notice.
One that a partition may have and none has now is right: a month without rows is replaced by none.

Source: ClickHouse's MergeTreePartition::getID. Whole numbers and days stand in an id as digits, with `-`
between those of several columns; values of other types make one hash of all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ConfigError
from spark_apps.clickhouse_cluster.target import Target
from spark_apps.clickhouse_cluster.types import INTEGERS, ChType


@dataclass(frozen=True, slots=True)
class _Form:
    """How a value stands in an id, and an example."""

    pattern: str
    example: str


_MONTH = r"(0[1-9]|1[0-2])"
_DAY = rf"\d{{4}}{_MONTH}(0[1-9]|[12]\d|3[01])"
_OF_FUNCTIONS = {
    "toYYYYMM": _Form(rf"\d{{4}}{_MONTH}", "201301"),
    "toYYYYMMDD": _Form(_DAY, "20130131"),
}
_WHOLE, _POSITIVE = _Form(r"-?\d+", "-7"), _Form(r"\d+", "7")
_OF_TYPES = {
    "Date": _Form(_DAY, "20130131"),
    "DateTime": _Form(r"\d+", "1357000000"),
    "Date32": _WHOLE,
    "Enum8": _WHOLE,
    "Enum16": _WHOLE,
    **{name: _POSITIVE if name.startswith("U") else _WHOLE for name in INTEGERS[:4] + INTEGERS[6:10]},
}
_HASHED = ("String", "FixedString", "UUID", "Float32", "Float64", "DateTime64")
_HASH = _Form(r"[0-9a-f]{32}", "32 hexadecimal digits")
_FUNCTION = re.compile(r"(\w+)\((?:[^()]|\([^()]*\))*\)\Z")


def require_partition_ids(ids: Sequence[str], target: Target) -> None:
    """Raises ConfigError, which says what ids of the table look like."""
    form = form_of(_key_of(target)) if ids else None
    wrong = [one for one in ids if form and not re.fullmatch(form.pattern, one)]
    if form and wrong:
        key = f"PARTITION BY {target.partition_key}" if target.partition_key else "not partitioned"
        raise ConfigError(
            f"No partition of {target.table} ({key}) can have the id {', '.join(wrong)}: ids are like "
            f"{form.example}.",
            hint=f"Give the option partitions what SELECT DISTINCT _partition_id FROM {target.table} says.",
        )


def form_of(key: Sequence[tuple[str, str]]) -> _Form | None:
    """Of the ids of a table with this key, its expressions with their types; None where any may be right."""
    if not key:
        return _Form("all", "all")
    kinds = [ChType.parse(kind) for _, kind in key]
    if any(kind.is_nullable for kind in kinds):
        return None
    if any(kind.name in _HASHED or kind.decimal is not None for kind in kinds):
        return _HASH
    forms = [_form(name, kind) for (name, _), kind in zip(key, kinds, strict=True)]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    return _Form("-".join(form.pattern for form in known), "-".join(form.example for form in known))


def _form(name: str, kind: ChType) -> _Form | None:
    function = _FUNCTION.match(name)
    of_function = _OF_FUNCTIONS.get(function.group(1)) if function else None
    return of_function or _OF_TYPES.get(kind.name)


def _key_of(target: Target) -> list[tuple[str, str]]:
    if not target.partition_key:
        return []
    server = target.shards[0].replica
    rows = server.rows(f"DESCRIBE TABLE (SELECT {target.partition_key} FROM {target.table.quoted})")
    key = [(str(row["name"]), str(row["type"])) for row in rows]
    is_list = target.partition_key.startswith(("(", "tuple("))  # a column that is a tuple makes a hash
    if is_list and len(key) == 1 and (kind := ChType.parse(key[0][1])).name == "Tuple":
        # Names of its elements would stand before their types, but an expression gives it none.
        return [("", argument) for argument in kind.arguments]
    return key
