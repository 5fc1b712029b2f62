"""The hash of rollup rules that a ReplicatedGraphiteMergeTree table has in its metadata.

Replicas whose rules differ would merge the same parts to different rows, so the hash has to be the same on
all of them. It is 128 bits of SipHash over the columns' names and the patterns, as a decimal number: the
value column goes in twice, and where patterns are typed they go in once more as those without and those with
tags. Retentions go in by descending age.

Source: ClickHouse's Graphite::Params and ReplicatedMergeTreeTableMetadata.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from engine.config.graphite import GraphitePattern, GraphiteRollup, RuleType
from engine.siphash import siphash128

_NUMBERS = {RuleType.ALL: 0, RuleType.PLAIN: 1, RuleType.TAGGED: 2, RuleType.TAG_LIST: 2}


def graphite_hash(rollup: GraphiteRollup) -> str:
    """The text in the metadata. Functions have to be written by their own names, not by others they go by."""
    typed = any(pattern.rule_type is not RuleType.ALL for pattern in rollup.patterns)
    patterns = [*rollup.patterns, *([rollup.default] if rollup.default is not None else [])]
    columns = (rollup.path_column, rollup.time_column, rollup.value_column, rollup.value_column)
    data = "".join((*columns, rollup.version_column)).encode() + bytes([typed]) + _hashed(patterns)
    if typed:
        data += _hashed(p for p in patterns if p.rule_type in (RuleType.ALL, RuleType.PLAIN))
        data += _hashed(p for p in patterns if p.rule_type is not RuleType.PLAIN)
    low, high = siphash128(data)
    return str(high << 64 | low)


def _hashed(patterns: Iterable[GraphitePattern]) -> bytes:
    return b"".join(map(_pattern, patterns))


def _pattern(pattern: GraphitePattern) -> bytes:
    regexp = pattern.regexp
    if regexp and pattern.rule_type is RuleType.TAG_LIST:
        regexp = tagged_regexp(regexp)
    name, _, parameters = pattern.function.partition("(")
    function = name.strip() + "".join(
        text.strip() for text in parameters.rstrip(") ").split(",") if parameters
    )
    retentions = sorted(((r.age_s, r.precision_s) for r in pattern.retentions), reverse=True)
    return b"".join(
        (
            struct.pack("<i", _NUMBERS[pattern.rule_type]),
            regexp.encode(),
            function.encode(),
            *(struct.pack("<II", age_s, precision_s) for age_s, precision_s in retentions),
        )
    )


def tagged_regexp(tags: str) -> str:
    """The regular expression for a list of tags: `name;tag2=b;tag1=a` matches `name?tag1=a&tag2=b`."""
    given = [tag for tag in tags.split(";") if tag]
    if not given:
        return tags
    if "=" in given[0]:
        start = r"[\?&]"
    else:
        name = given.pop(0)
        if not given:
            return rf"^{name}\?"
        start = rf"^{name}\?(.*&)?"
    return start + "&(.*&)?".join(sorted(given)) + "(&.*)?$"
