"""A statement in the queue, as it travels from the task that submitted it to the one that waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ConfigError, OnclusterError
from engine.names import HostId, QueuePaths, entry_number

_SHOWN = 100


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
        """Also takes the bare name of an entry in the default queue. Raises ConfigError for anything else,
        such as what a template makes of a submission that there is not."""
        try:
            if isinstance(value, str):
                if entry_number(value) is None:
                    raise ValueError(value)
                return cls(value, "", (), QueuePaths())
            return cls(
                value["entry"],
                value["token"],
                tuple(HostId.parse(host) for host in value["hosts"]),
                QueuePaths(value["queue"], value["replicas"]),
                bool(value["attached"]),
            )
        except (KeyError, TypeError, ValueError, OnclusterError) as error:
            raise ConfigError(
                f"There is no submission to wait for: {str(value)[:_SHOWN]!r}.",
                hint="Give what SubmitStatementOperator returned, or an entry's name such as "
                "query-0000000007. A submit task that was skipped, or marked as successful by hand, has "
                "returned nothing.",
            ) from error
