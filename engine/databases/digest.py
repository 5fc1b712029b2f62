"""The digest of a database's definitions, by which a replica knows whether it has what it should."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

from engine.ddl.text import encode_bytes
from engine.siphash import siphash128

LOST_DIGEST = b"42"
"""No digest is this one: a replica that has it in Keeper is recovered."""

_MODULUS = 1 << 64


def digest_of(texts: Mapping[str, str]) -> int:
    """Of metadata texts by table's name: the sum of SipHash64(name, text), as in ClickHouse."""
    return sum(hash_of(name, text) for name, text in texts.items()) % _MODULUS


def may_be_digest_of(digest: int, texts: Mapping[str, str], others: Mapping[str, Collection[int]]) -> bool:
    """Whether it is that of the texts, where tables may have one of these other hashes in place of their own.
    All that have none are proven to be what they were."""
    sums = {digest_of(texts)}
    for name in others.keys() & texts.keys():
        own = hash_of(name, texts[name])
        sums |= {(total - own + other) % _MODULUS for total in sums for other in others[name]}
    return digest in sums


@functools.lru_cache(maxsize=4096)
def hash_of(name: str, text: str) -> int:
    """What a table adds to the digest."""
    low, high = siphash128(encode_bytes(name) + encode_bytes(text))
    return low ^ high
