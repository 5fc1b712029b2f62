"""The repairs there are, what each costs, and what it asks of the other replicas of the table."""

from __future__ import annotations

import enum

from engine.operations.act import Danger


class Peers(enum.Enum):
    """What has to hold of the other replicas before a replica is touched."""

    ANY = "any"
    """It serves nobody as it is: touching it takes nothing away."""

    ONE_ACTIVE = "one active, or no table"
    """It takes data from another one, or is the first of a table that nobody has any more."""

    ALL_HEALTHY = "all healthy, and at least one"
    """It serves, or data of it is moved aside: the others have to carry the shard meanwhile."""


class Repair(enum.StrEnum):
    """Kinds of acts of the operation `repair`, in the order in which a plan does them."""

    RESTART_REPLICAS = "restart-replicas"
    """SYSTEM RESTART REPLICAS on a host whose session is lost."""

    RESTART_REPLICA = "restart-replica"
    """SYSTEM RESTART REPLICA of a read-only replica; one that is lost clones then."""

    RESTORE_REPLICA = "restore-replica"
    """SYSTEM RESTORE REPLICA of one that Keeper does not know any more."""

    FORCE_RESTORE_DATA = "force-restore-data"
    """The flag in Keeper, and a restart: it clones another replica, its own parts go to detached/."""

    REFETCH_PARTS = "refetch-parts"
    """CHECK TABLE: broken parts go to detached/ and are fetched from another replica."""

    KILL_MUTATION = "kill-mutation"
    """A mutation that fails is removed; what it has changed stays changed."""

    RETRY_QUEUE = "retry-queue"
    """SYSTEM RESTART REPLICA of one whose queue is stuck: entries are tried at once."""

    RECLONE_REPLICA = "reclone-replica"
    """A replica whose host has lost the table: dropped from Keeper, created again, cloned."""

    @property
    def danger(self) -> Danger:
        match self:
            case Repair.KILL_MUTATION | Repair.RECLONE_REPLICA:
                return Danger.DESTROYS
            case _:
                return Danger.REPAIRS

    @property
    def peers(self) -> Peers:
        match self:
            case Repair.RESTART_REPLICAS | Repair.RESTART_REPLICA | Repair.KILL_MUTATION:
                return Peers.ANY
            case Repair.RESTORE_REPLICA:
                return Peers.ONE_ACTIVE
            case _:
                return Peers.ALL_HEALTHY
