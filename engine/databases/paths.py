"""The znodes of one Replicated database.

Source: ClickHouse's DatabaseReplicated and DatabaseReplicatedWorker.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import entry_name, escape_for_file_name

MARK = b"DatabaseReplicated"
"""The value of the database's own node."""
DROPPED = b"DROPPED"
"""The value of a replica that is going."""


@dataclass(frozen=True, slots=True, order=True)
class ReplicaName:
    """`str()` is the full name, `shard|replica`; replicas are in its order."""

    shard: str
    replica: str

    def __str__(self) -> str:
        return f"{self.shard}|{self.replica}"

    @classmethod
    def parse(cls, text: str) -> ReplicaName:
        """Raises SqlError 36."""
        shard, bar, replica = text.partition("|")
        if not bar or "|" in replica or not shard or not replica:
            raise SqlError(Code.BAD_ARGUMENTS, f"Incorrect replica identifier: {text}")
        return cls(shard, replica)


@dataclass(frozen=True, slots=True)
class DatabasePaths:
    """`root` has no trailing slash."""

    root: str

    @property
    def log(self) -> str:
        return f"{self.root}/log"

    @property
    def counter(self) -> str:
        return f"{self.root}/counter"

    @property
    def counter_lock(self) -> str:
        return f"{self.root}/counter_lock"

    @property
    def max_log_ptr(self) -> str:
        return f"{self.root}/max_log_ptr"

    @property
    def logs_to_keep(self) -> str:
        return f"{self.root}/logs_to_keep"

    @property
    def metadata(self) -> str:
        return f"{self.root}/metadata"

    @property
    def first_database_name(self) -> str:
        return f"{self.root}/first_replica_database_name"

    @property
    def replicas(self) -> str:
        return f"{self.root}/replicas"

    def table(self, name: str) -> str:
        return f"{self.metadata}/{escape_for_file_name(name)}"

    def replica(self, name: ReplicaName | str, leaf: str = "") -> str:
        return f"{self.replicas}/{name}" + (f"/{leaf}" if leaf else "")

    def entry(self, number: int, leaf: str = "") -> str:
        return f"{self.log}/{entry_name(number)}" + (f"/{leaf}" if leaf else "")

    def shard(self, number: int, shard: str, leaf: str = "") -> str:
        return self.entry(number, f"shards/{escape_for_file_name(shard)}") + (f"/{leaf}" if leaf else "")
