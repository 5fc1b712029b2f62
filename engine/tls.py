"""The system's certificate authorities, read when they are needed.

Reading them takes 40 ms of processor time, and aiohttp does it when it is imported. Most processes never make
a connection with TLS, so a context made within `authorities_on_demand` reads them before its first one.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _OnDemand(ssl.SSLContext):
    """A context whose authorities are not read yet."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        return self._ready().wrap_bio(*args, **options)

    def wrap_socket(self, *args: Any, **options: Any) -> ssl.SSLSocket:
        return self._ready().wrap_socket(*args, **options)

    def _ready(self) -> ssl.SSLContext:
        self.load_default_certs()
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        return self


@contextmanager
def authorities_on_demand() -> Iterator[None]:
    """Contexts that are made in this block with the system's authorities read them later."""
    original = ssl.SSLContext.load_default_certs

    def later(context: ssl.SSLContext, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
        if type(context) is ssl.SSLContext and purpose is ssl.Purpose.SERVER_AUTH:
            context.__class__ = _OnDemand
        else:
            original(context, purpose)

    ssl.SSLContext.load_default_certs = later  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ssl.SSLContext.load_default_certs = original  # type: ignore[method-assign]
