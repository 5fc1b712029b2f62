"""Names to addresses, without letting a silent DNS server hold up the queue.

Names in a cluster's configuration need not be in DNS. The system's resolver may take five seconds and more to
say so, or to say nothing at all; here a name that has not been answered in `timeout_s` counts as unknown, and
what is unknown stays so for `keep_s`.
"""

from __future__ import annotations

import asyncio

from engine.ddl import Resolver
from engine.env import Env
from engine.errors import Code, SqlError


class BoundedResolver:
    """Wraps another resolver."""

    def __init__(self, inner: Resolver, env: Env, *, timeout_s: float = 1.0, keep_s: float = 15.0) -> None:
        self._inner = inner
        self._env = env
        self._timeout_s = timeout_s
        self._keep_s = keep_s
        self._unknown: dict[str, float] = {}

    async def resolve(self, host: str) -> frozenset[str]:
        """Raises SqlError 198 DNS_ERROR."""
        if self._unknown.get(host, 0.0) > self._env.monotonic_s():
            raise SqlError(Code.DNS_ERROR, f"Not found address of host: {host}")
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._inner.resolve(host)
        except TimeoutError:
            self._unknown[host] = self._env.monotonic_s() + self._keep_s
            raise SqlError(
                Code.DNS_ERROR, f"Not found address of host: {host} (no answer within {self._timeout_s:g} s)"
            ) from None
        except SqlError:
            self._unknown[host] = self._env.monotonic_s() + self._keep_s
            raise
        self._unknown.pop(host, None)
        return found

    def local_addresses(self) -> frozenset[str]:
        return self._inner.local_addresses()
