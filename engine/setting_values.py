"""The text of a setting's value as a number, in every way in which ClickHouse writes one.

`1`, `'1'`, `true`, `1e3`, `0.5`, and for counts and bytes with a unit: `'10K'` is 10,000, `'10Ki'` 10,240.
Which of them a setting takes is chDB's to say; who is asked here has its answer.
"""

from __future__ import annotations

import math
import re

_WITH_UNIT = re.compile(r"(\d+)([kKMGT])(i?)")
_POWERS = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_WHOLE = re.compile(r"[+-]?\d+")
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")
_FRACTION = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def number_of(text: str) -> int | float:
    """A whole number exactly, however large. Raises ValueError for a text that is no number."""
    text = text.removeprefix("'").removesuffix("'")
    if text.lower() in ("true", "false"):
        return int(text.lower() == "true")
    if _WHOLE.fullmatch(text):
        return int(text)
    if unit := _WITH_UNIT.fullmatch(text):
        factor: int = (1024 if unit[3] else 1000) ** _POWERS[unit[2]]
        return int(unit[1]) * factor
    if _FRACTION.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    raise ValueError(f"{text!r} is not a number")


def plain_number(literal: str) -> str:
    """A number as SQL may have it (`1_000`, `3e5`, `0x10`) as the text of a setting's value has it; any other
    text as it is."""
    text = literal.replace("_", "")
    if _HEXADECIMAL.fullmatch(text):
        return str(int(text, 16))
    if not _FRACTION.fullmatch(text):
        return literal
    if "e" in text.lower() and (value := float(text)).is_integer():
        return str(int(value))
    return text


def whole_number_of(text: str) -> int:
    """The same without what stands behind the point, as ClickHouse takes it. Raises ValueError."""
    return int(number_of(text))
