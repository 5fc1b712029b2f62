"""`TTL … RECOMPRESS CODEC(…)`: which codec a part should have by now, and whether it has it.

chDB chooses the codec of what it merges by the same rules, so any merge after the date recompresses. Only
where none comes a merge is made for it, also of one part (`ttl_merges`).

Of several rules whose date has come for all rows of a part the one with the latest date counts. A codec is
compared as text, with the level that it has where none is given. No part's codec says `Default`: such a part
is due again whenever its partition has waited (`merge_with_recompression_ttl_timeout`), as in ClickHouse.

Source: ClickHouse's TTLRecompressMergeSelector, selectTTLDescriptionForTTLInfos.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.replication.part_store import PartTtl
from engine.sql.cursor import Cursor

_IMPLIED = {"ZSTD": "(1)", "LZ4HC": "(0)", "DELTA": "(1)", "DOUBLEDELTA": "(1)", "GORILLA": "(1)"}
"""Arguments that chDB writes down for a codec without."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One of a chain: `Delta(8)` has arguments, `LZ4` none."""

    name: str
    arguments: str = ""

    def is_satisfied_by(self, other: Codec) -> bool:
        return self.name == other.name and self._all_arguments == other._all_arguments

    @property
    def _all_arguments(self) -> str:
        return self.arguments or _IMPLIED.get(self.name, "")


@dataclass(frozen=True, slots=True)
class Recompression:
    """`expression` is the date's text, which is the same in metadata and in `ttl.txt`."""

    expression: str
    codecs: tuple[Codec, ...]

    def is_satisfied_by(self, codecs: Sequence[Codec]) -> bool:
        return len(self.codecs) == len(codecs) and all(
            wanted.is_satisfied_by(has) for wanted, has in zip(self.codecs, codecs, strict=True)
        )


def recompressions_of(ttl: str) -> tuple[Recompression, ...]:
    """Of the table's TTL clause as metadata has it."""
    cursor = Cursor(ttl)
    found = []
    while not cursor.at_end:
        begin = cursor.token.start
        cursor.skip_to("RECOMPRESS", ",")
        if cursor.word == "RECOMPRESS":
            expression = ttl[begin : cursor.last_end]
            cursor.at += 1
            codec_at = cursor.token.start
            cursor.skip_to(",")
            found.append(Recompression(expression, codecs_of(ttl[codec_at : cursor.last_end])))
        cursor.at += 1
    return tuple(found)


def codecs_of(text: str) -> tuple[Codec, ...]:
    """Of `CODEC(Delta(8), LZ4)`; none for anything else."""
    cursor = Cursor(text)
    if not cursor.accept("CODEC", "("):
        return ()
    codecs = []
    while (name := cursor.identifier()) is not None:
        begin = cursor.token.start
        arguments = text[begin : cursor.last_end] if cursor.skip_brackets() else ""
        codecs.append(Codec(name.upper(), arguments.replace(" ", "")))
        if not cursor.accept(","):
            break
    return tuple(codecs)


def due_since_s(ttl: PartTtl, rules: Sequence[Recompression], now_s: float) -> int:
    """When the part should have got another codec than it has; 0 for not yet, or not at all."""
    dates = dict(ttl.recompressions)
    due = [
        (date, at) for at, rule in enumerate(rules) if 0 < (date := dates.get(rule.expression, 0)) <= now_s
    ]
    if not due:
        return 0
    date, at = max(due)
    return 0 if rules[at].is_satisfied_by(codecs_of(ttl.codec)) else date


def may_be_due(ttl: PartTtl | None, now_s: float) -> bool:
    """Without the rules."""
    return ttl is not None and any(0 < date <= now_s for _, date in ttl.recompressions)
