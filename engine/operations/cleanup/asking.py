"""One question to one server, in an act: what is no answer is an error of the tree, garbage included."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from engine.client.node_client import NodeClient
from engine.errors import OnclusterError
from engine.names import HostId
from engine.operations.site import Site

T = TypeVar("T")


async def told(site: Site, host: HostId, question: Callable[[NodeClient], Awaitable[T]]) -> T:
    """The answer. Raises what `Site.ask` returns as an error."""
    answer = await site.ask(host, question)
    if isinstance(answer, OnclusterError):
        raise answer
    return answer
