"""The digest of a database's definitions, by which a replica knows whether it has what it should."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from engine.ddl.text import encode_bytes
from engine.siphash import siphash128

LOST_DIGEST = b"42"
"""No digest is this one: a replica that has it in Keeper is recovered."""

_MODULUS = 1 << 64


def digest_of(texts: Mapping[str, str]) -> int:
    """Of metadata texts by table's name: the sum of SipHash64(name, text), as in ClickHouse."""
    return sum(_one(name, text) for name, text in texts.items()) % _MODULUS


@functools.lru_cache(maxsize=4096)
def _one(name: str, text: str) -> int:
    low, high = siphash128(encode_bytes(name) + encode_bytes(text))
    return low ^ high
