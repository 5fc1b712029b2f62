"""One request of a session in etcd."""

from __future__ import annotations

from typing import Any

from engine.keeper.base import Watch
from engine.keeper.calls import Call
from engine.keeper.session import RequestKind


class EtcdCall(Call):
    """With what `RequestKind` says of it."""

    __slots__ = ("kind", "payload", "watch")

    def __init__(
        self, kind: RequestKind, path: str, payload: Any, watch: Watch | None, deadline_s: float
    ) -> None:
        super().__init__(path, deadline_s)
        self.kind = kind
        self.payload = payload
        self.watch = watch
