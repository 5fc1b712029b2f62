"""In which order the replicas of a shard are tried. Pure: clock and random numbers come in as arguments.

Replicas are ordered by how often they failed lately, then by their priority, then by the load balancing
policy, then at random. Failures are counted per replica and halve with time, so that one that recovered is
asked again.

Source: ClickHouse's PoolWithFailoverBase and GetPriorityForLoadBalancing.
"""

from __future__ import annotations

import enum
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.errors import Code, SqlError
from engine.names import HostId


class LoadBalancing(enum.Enum):
    """The setting `load_balancing`."""

    RANDOM = "random"
    NEAREST_HOSTNAME = "nearest_hostname"
    HOSTNAME_LEVENSHTEIN_DISTANCE = "hostname_levenshtein_distance"
    HOSTNAME_LONGEST_COMMON_PREFIX = "hostname_longest_common_prefix"
    HOSTNAME_LONGEST_COMMON_SUFFIX = "hostname_longest_common_suffix"
    IN_ORDER = "in_order"
    FIRST_OR_RANDOM = "first_or_random"
    ROUND_ROBIN = "round_robin"

    @classmethod
    def of(cls, text: str) -> LoadBalancing:
        """By the setting's value. Raises SqlError 212, as ClickHouse does."""
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(f"'{policy.value}'" for policy in cls)
            raise SqlError(
                Code.UNKNOWN_LOAD_BALANCING,
                f"Unexpected value of LoadBalancing: '{text}'. Must be one of [{known}]",
            ) from None


@dataclass(frozen=True, slots=True)
class ErrorLimits:
    """How long failures count, and how many: `distributed_replica_error_half_life` and
    `distributed_replica_error_cap`. A half-life of 0 forgets at once."""

    half_life_s: float = 60.0
    cap: int = 1000


@dataclass(slots=True)
class ReplicaErrors:
    """Failures of one replica. Times are monotonic seconds."""

    limits: ErrorLimits = ErrorLimits()
    _count: int = 0
    _since_s: float | None = None

    def failed(self, now_s: float) -> None:
        """A connection to the replica failed."""
        self._decay(now_s)
        self._count = min(self._count + 1, self.limits.cap)

    def count(self, now_s: float) -> int:
        """How many failures still count."""
        self._decay(now_s)
        return self._count

    def recovery_s(self, now_s: float) -> int:
        """Seconds until none counts any more (`system.clusters.estimated_recovery_time`)."""
        self._decay(now_s)
        if not self._count or self._since_s is None:
            return 0
        return max(0, int(self._count.bit_length() * self.limits.half_life_s - (now_s - self._since_s)))

    def _decay(self, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = now_s
        elif self.limits.half_life_s <= 0:
            self._count, self._since_s = 0, now_s
        elif (halvings := int((now_s - self._since_s) / self.limits.half_life_s)) >= 1:
            self._count >>= min(halvings, 64)
            self._since_s = now_s


class ReplicaFailures:
    """Of all replicas that a node reads and writes: an INSERT avoids what a SELECT could not reach, and the
    other way round. Clusters share them, as they do hosts."""

    def __init__(self, limits: ErrorLimits, now_s: Callable[[], float]) -> None:
        """`now_s` is a monotonic clock."""
        self._limits = limits
        self._now_s = now_s
        self._errors: dict[HostId, ReplicaErrors] = {}

    def failed(self, name: HostId) -> None:
        """The replica could not be reached, or broke off."""
        self._errors.setdefault(name, ReplicaErrors(self._limits)).failed(self._now_s())

    def count(self, name: HostId) -> int:
        """Failures that still count (`system.clusters.errors_count`)."""
        errors = self._errors.get(name)
        return 0 if errors is None else errors.count(self._now_s())

    def recovery_s(self, name: HostId) -> int:
        """Seconds until none of them counts any more."""
        errors = self._errors.get(name)
        return 0 if errors is None else errors.recovery_s(self._now_s())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica to choose from. A lower `priority` goes first."""

    host: str
    errors: int = 0
    priority: int = 1


class ReplicaOrder:
    """The order for one shard; round robin remembers its turn."""

    def __init__(self, *, own_host: str, rng: random.Random) -> None:
        self._own_host = own_host
        self._rng = rng
        self._turn = 0

    def of(
        self,
        replicas: Sequence[Candidate],
        policy: LoadBalancing = LoadBalancing.RANDOM,
        *,
        first_offset: int = 0,
        max_ignored_errors: int = 0,
    ) -> tuple[int, ...]:
        """Indices of `replicas`, the first choice first.

        `first_offset` is `load_balancing_first_offset`, `max_ignored_errors` is
        `distributed_replica_max_ignored_errors`.
        """
        if policy is LoadBalancing.ROUND_ROBIN and replicas:
            self._turn = self._turn % len(replicas) + 1

        def rank(index: int) -> tuple[int, int, int, float]:
            replica = replicas[index]
            return (
                max(0, replica.errors - max_ignored_errors),
                replica.priority,
                self._by_policy(index, replicas, policy, first_offset),
                self._rng.random(),
            )

        return tuple(sorted(range(len(replicas)), key=rank))

    def _by_policy(
        self, index: int, replicas: Sequence[Candidate], policy: LoadBalancing, first_offset: int
    ) -> int:
        count = len(replicas)
        match policy:
            case LoadBalancing.RANDOM:
                return 0
            case LoadBalancing.NEAREST_HOSTNAME:
                return _differing_characters(self._own_host, replicas[index].host)
            case LoadBalancing.HOSTNAME_LEVENSHTEIN_DISTANCE:
                return _levenshtein(self._own_host, replicas[index].host)
            case LoadBalancing.HOSTNAME_LONGEST_COMMON_PREFIX:
                return -_common_beginning(self._own_host, replicas[index].host)
            case LoadBalancing.HOSTNAME_LONGEST_COMMON_SUFFIX:
                return -_common_beginning(self._own_host[::-1], replicas[index].host[::-1])
            case LoadBalancing.IN_ORDER:
                return index
            case LoadBalancing.FIRST_OR_RANDOM:
                return int(index != first_offset % count)
            case LoadBalancing.ROUND_ROBIN:
                return count - (index + 1) if index + 1 < self._turn else index + 1 - self._turn


def _differing_characters(one: str, other: str) -> int:
    """Position by position, up to the end of the shorter name."""
    return sum(a != b for a, b in zip(one, other, strict=False))


def _common_beginning(one: str, other: str) -> int:
    """Its length."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in pairs)


def _levenshtein(one: str, other: str) -> int:
    """The least number of characters to insert, remove or replace."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
