"""One write of a session, from attempt to attempt (`store`): what is known, and what is to be read first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.keeper.base import Create, Remove
from engine.keeper.etcd.overlay import EndSession, Request
from engine.keeper.etcd.plan import parent_of
from engine.keeper.etcd.record import Family
from engine.keeper.tree import Caller


class Writing:
    """One write, from attempt to attempt."""

    def __init__(self, requests: Sequence[Request], caller: Callable[[], Caller], is_multi: bool) -> None:
        self.requests = requests
        self.caller = caller
        self.is_multi = is_multi
        self.ending = [each.session_id for each in requests if isinstance(each, EndSession)]
        self.paths = _paths_of(requests)
        """What an attempt reads, if it `must_read`."""
        self.must_read = False
        self.families: dict[str, Family] = {}
        self.event_revision = -1
        """Of the moment at which all families were read; -1: there is no such moment."""
        self.tries = 0

    @property
    def is_of_one_instant(self) -> bool:
        return self.event_revision >= 0

    def read_first(self, paths: Iterable[str]) -> None:
        self.paths |= dict.fromkeys(paths)
        self.must_read = True


def _paths_of(requests: Iterable[Request]) -> dict[str, None]:
    """The nodes that the requests will look at, as far as it can be said beforehand."""
    paths: dict[str, None] = {}
    for request in requests:
        if isinstance(request, EndSession):
            for path in request.paths:
                paths[path] = paths[parent_of(path)] = None
            continue
        if isinstance(request, Create | Remove) and request.path != "/":
            paths[parent_of(request.path)] = None
        if not (isinstance(request, Create) and request.mode.is_sequential):
            paths[request.path] = None
    return paths
