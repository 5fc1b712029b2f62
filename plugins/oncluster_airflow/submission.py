"""A statement in the queue, as it travels from the task that submitted it to the one that waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.names import HostId, QueuePaths


@dataclass(frozen=True, slots=True)
class Submission:
    """`entry` is the node's name in the queue at `paths`; `attached` says that it was there already."""

    entry: str
    token: str
    hosts: tuple[HostId, ...]
    paths: QueuePaths
    attached: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "entry": self.entry,
            "token": self.token,
            "hosts": [str(host) for host in self.hosts],
            "queue": self.paths.root,
            "replicas": self.paths.replicas_root,
            "attached": self.attached,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> Submission:
        """Also takes the bare name of an entry in the default queue."""
        if isinstance(value, str):
            return cls(value, "", (), QueuePaths())
        return cls(
            value["entry"],
            value["token"],
            tuple(HostId.parse(host) for host in value["hosts"]),
            QueuePaths(value["queue"], value["replicas"]),
            bool(value["attached"]),
        )
