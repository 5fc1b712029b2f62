"""Who shows by a signature that it has logged in before: another node, whose chDB is told no password.

See `engine.distributed.read_signature`.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.config.model import User
from engine.distributed.read_signature import LIFETIME_S, SCHEME, KeyMaker, ReadingKey, Signature
from engine.env import Env
from engine.errors import Code, SqlError
from engine.node.http.auth import may_come_from, no_such_login


class SignedReads:
    """Of one node. Its own clock says how old a key is, and no other one."""

    def __init__(self, users: Mapping[str, User], keys: KeyMaker, env: Env) -> None:
        self._users = users
        self._keys = keys
        self._env = env

    def new_key(self, user: User) -> ReadingKey:
        """For who has logged in as this user."""
        return self._keys.key(user.name, user.password_sha256_hex, int(self._env.now_s()))

    def user_of(
        self, header: str, method: str, target: str, address: str, *, has_body: bool = False
    ) -> User | None:
        """The user of a request with this header Authorization; None if it shows no signature. What a body
        would add to the statement is not signed. Raises SqlError 516, which says only of a signature that was
        right how old it is."""
        scheme, _, value = header.partition(" ")
        if scheme != SCHEME:
            return None
        signature = Signature.of(value)
        name = "" if signature is None else signature.user
        user = self._users.get(name)
        if signature is None or user is None or method != "GET" or has_body:
            raise no_such_login(name)
        key = self._keys.key(name, user.password_sha256_hex, signature.issued_s)
        if not key.has_signed(target, signature) or not may_come_from(user, address):
            raise no_such_login(name)
        age_s = self._env.now_s() - signature.issued_s
        if abs(age_s) > LIFETIME_S:
            raise SqlError(
                Code.AUTHENTICATION_FAILED,
                f"{name}: the key of this read was given {age_s:.0f} s ago by this node's clock, and is good "
                f"for {LIFETIME_S} s.",
            )
        return user
