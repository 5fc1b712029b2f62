"""Text of others in Markdown: what a file or a server says cannot end the place that it stands in.

A question is answered by what it shows; nobody but us may write its sentences.
"""

from __future__ import annotations

import re

_TICKS = re.compile("`+")
_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~])")


def fenced(text: str, language: str = "") -> str:
    """A block of its own, between more backticks than any that follow one another in it."""
    fence = "`" * max(3, 1 + _longest(text))
    return f"{fence}{language}\n{text}\n{fence}"


def inline(text: str) -> str:
    """A sentence, or a part of one, on one line, in which nothing is a link, a heading or code."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _longest(text: str) -> int:
    return max(map(len, _TICKS.findall(text)), default=0)
