"""How a node shows another that a read is its own, and nothing in the statement lets in anything else.

chDB reads other nodes by `url()`, so whatever lets it in there stands in the text of a statement, which
EXPLAIN and `system.processes` show. A password there would be everybody's. So:

1. A node logs in on another one with the password, by itself and not by chDB, and is given a reading key. The
   key is good for a day by the clock of who gave it, so that clocks may differ, and only for who gave it.
2. Each read has a signature: a keyed hash of the very request. It lets in this request and no other one, and
   only as a GET, which changes nothing.
3. Who gives keys keeps none: a key is made of a secret of his own, the user with his password, and the time.
   A user who is gone or has another password has no keys any more.

Whoever sees a signature can repeat that one SELECT until its key has run out. Once only it cannot be good: a
statement may read the same more than once. It is sent in a header, whose value chDB shows nobody. ClickHouse
servers and nodes of before know nothing of this (404) and are told the password.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Self

from engine.ddl.text import decode_bytes, encode_bytes

KEY_PATH = "/oncluster/reading_key"
"""Where a node gives a key to who has logged in."""
SCHEME = "Oncluster"
"""Of the header Authorization."""
LIFETIME_S = 86_400
"""Of a key: chDB may ask a shard long after its statement has begun."""

_SIGNATURE = re.compile(r"(?P<user>[\w=-]+)\.(?P<issued_s>\d{1,12})\.(?P<mac>[0-9a-f]{64})\Z", re.ASCII)
_KEY = re.compile(r"(?P<issued_s>\d{1,12}) (?P<key>[0-9a-f]{64})\n?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReadingKey:
    """Of one user on one node. `issued_s` are Unix seconds by that node's clock."""

    user: str
    issued_s: int
    key: bytes = field(repr=False)

    def to_text(self) -> str:
        """As who has logged in is told it."""
        return f"{self.issued_s} {self.key.hex()}\n"

    @classmethod
    def from_text(cls, user: str, text: str) -> Self | None:
        """None for what is no key."""
        found = _KEY.match(text)
        return None if found is None else cls(user, int(found["issued_s"]), bytes.fromhex(found["key"]))

    def header(self, target: str) -> str:
        """The header Authorization of a GET; `target` is its path and query as they are sent."""
        user = urlsafe_b64encode(encode_bytes(self.user)).decode()
        return f"{SCHEME} {user}.{self.issued_s}.{self._mac(target)}"

    def has_signed(self, target: str, signature: Signature) -> bool:
        """Compares in constant time."""
        return hmac.compare_digest(self._mac(target), signature.mac)

    def _mac(self, target: str) -> str:
        return hmac.digest(self.key, encode_bytes(target), "sha256").hex()


@dataclass(frozen=True, slots=True)
class Signature:
    """What stands in such a header."""

    user: str
    issued_s: int
    mac: str = field(repr=False)

    @classmethod
    def of(cls, value: str) -> Self | None:
        """`value` is the header's without its scheme. None for what is no signature."""
        found = _SIGNATURE.match(value.strip())
        if found is None:
            return None
        try:
            user = decode_bytes(urlsafe_b64decode(found["user"]))
        except ValueError:
            return None
        return cls(user, int(found["issued_s"]), found["mac"])


@dataclass(frozen=True, slots=True)
class KeyMaker:
    """Of one node. `secret` is its own, and the same after a restart."""

    secret: bytes = field(repr=False)

    def key(self, user: str, password_sha256_hex: str, issued_s: int) -> ReadingKey:
        """The key that was or is given at that time."""
        made_of = "\0".join([str(issued_s), password_sha256_hex.lower(), user])
        return ReadingKey(
            user, issued_s, hmac.new(self.secret, encode_bytes(made_of), hashlib.sha256).digest()
        )
