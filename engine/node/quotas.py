"""Quotas: how much the statements of a user may use within an interval, as ClickHouse counts it.

Counted is in memory, on this node, and forgotten when it ends. A statement is refused (201) that is one too
many, or that would read or write where more than is allowed has been used. A query that uses more than is
left ends with 201; what changes something is carried out whole, and the next one is refused.

Source: ClickHouse's EnabledQuota, QuotaCache and executeQuery.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from engine.config.model import User
from engine.config.quotas import Quota, QuotaAmount, QuotaInterval, QuotaKey
from engine.env import Env
from engine.errors import Code, SqlError
from engine.names import quote_identifier
from engine.sql import Statement, StatementKind
from engine.storage import QueryResult

_MANY_KEYS = 10_000
"""From there on those are forgotten of whom nothing is counted now, each time that twice as many are left."""
_NOT_COUNTED = frozenset({StatementKind.SET, StatementKind.USE})
_OF_READING = (
    QuotaAmount.RESULT_ROWS,
    QuotaAmount.RESULT_BYTES,
    QuotaAmount.READ_ROWS,
    QuotaAmount.READ_BYTES,
    QuotaAmount.EXECUTION_TIME,
)
_OF_INSERT = (
    QuotaAmount.READ_ROWS,
    QuotaAmount.READ_BYTES,
    QuotaAmount.WRITTEN_BYTES,
    QuotaAmount.EXECUTION_TIME,
)


@dataclass(frozen=True, slots=True)
class QuotaClient:
    """Who asks, as far as quotas tell clients apart."""

    address: str
    forwarded_address: str = ""
    key: str = ""


def quota_client(address: str, headers: Mapping[str, str], parameters: Mapping[str, str]) -> QuotaClient:
    """Of one request. Of `X-Forwarded-For` the last address counts, which the nearest proxy has written."""
    forwarded = headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
    return QuotaClient(
        address, forwarded, headers.get("X-ClickHouse-Quota") or parameters.get("quota_key", "")
    )


@dataclass(slots=True)
class CountedInterval:
    """What was used since the interval began. `end_s` in Unix seconds."""

    interval: QuotaInterval
    end_s: float
    used: dict[QuotaAmount, float] = field(default_factory=dict)

    def turn(self, now_s: float) -> None:
        """Begin anew if the interval is over."""
        if now_s >= self.end_s:
            self.end_s += self.interval.duration_s * ((now_s - self.end_s) // self.interval.duration_s + 1)
            self.used.clear()

    def exceeded(self, amount: QuotaAmount) -> bool:
        return self.used.get(amount, 0) > self.interval.limits.get(amount, float("inf"))


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What is counted for one key."""

    quota: Quota
    key: str
    intervals: tuple[CountedInterval, ...]


class QuotaAccount:
    """What one request is counted on; without a quota on nothing."""

    def __init__(self, user: str, use: QuotaUse | None, env: Env) -> None:
        self._user = user
        self.use = use
        self._env = env

    def begin(self, statement: Statement) -> None:
        """A statement is about to run. Raises SqlError 201."""
        if self.use is None or statement.kind in _NOT_COUNTED:
            return
        if statement.kind is StatementKind.SELECT:
            self.charge({QuotaAmount.QUERY_SELECTS: 1})
        elif statement.kind is StatementKind.INSERT:
            self.charge({QuotaAmount.QUERY_INSERTS: 1})
        self.charge({QuotaAmount.QUERIES: 1})
        self._check(QuotaAmount.ERRORS)
        if statement.is_query:
            self._check(*_OF_READING)
        elif statement.kind is StatementKind.INSERT:
            self._check(*_OF_INSERT)

    def charge(self, spent: Mapping[QuotaAmount, float]) -> None:
        """Count it. Raises SqlError 201 if that is more than is allowed."""
        self.note(spent)
        self._check(*spent)

    def note(self, spent: Mapping[QuotaAmount, float]) -> None:
        """Count what cannot be undone."""
        for counted in self._intervals():
            for amount, value in spent.items():
                counted.used[amount] = counted.used.get(amount, 0) + value

    def reset(self, amount: QuotaAmount) -> None:
        """Nothing of it counts any more."""
        for counted in self._intervals():
            counted.used.pop(amount, None)

    def _check(self, *amounts: QuotaAmount) -> None:
        for amount in amounts:
            for counted in self._intervals():
                if counted.exceeded(amount):
                    raise self._error(counted, amount)

    def _intervals(self) -> Iterator[CountedInterval]:
        if self.use is not None:
            now_s = self._env.now_s()
            for counted in self.use.intervals:
                counted.turn(now_s)
                yield counted

    def _error(self, counted: CountedInterval, amount: QuotaAmount) -> SqlError:
        assert self.use is not None
        return SqlError(
            Code.QUOTA_EXCEEDED,
            f"Quota for user {quote_identifier(self._user)} for {counted.interval.duration_s}s has been "
            f"exceeded: {amount.value} = {counted.used[amount]:.15g}/{counted.interval.limits[amount]:.15g}. "
            f"Interval will end at {datetime.fromtimestamp(counted.end_s):%Y-%m-%d %H:%M:%S}. "
            f"Name of quota template: {quote_identifier(self.use.quota.name)}",
        )


def spent_by(result: QueryResult) -> Mapping[QuotaAmount, float]:
    """What chDB knows of a statement that has ended; the rest is counted while it runs."""
    return {
        QuotaAmount.RESULT_ROWS: result.result_rows,
        QuotaAmount.READ_ROWS: result.read_rows,
        QuotaAmount.READ_BYTES: result.read_bytes,
        QuotaAmount.WRITTEN_BYTES: result.written_bytes,
    }


class Quotas:
    """All that a node counts."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._uses: dict[tuple[str, str], QuotaUse] = {}
        self._most = _MANY_KEYS

    def account(self, user: User, client: QuotaClient) -> QuotaAccount:
        """For one request."""
        if user.quota is None or not user.quota.intervals:
            return QuotaAccount(user.name, None, self._env)
        key = _key(user.quota, user.name, client)
        use = self._uses.get((user.quota.name, key))
        if use is None:
            self._forget()
            intervals = tuple(map(self._counted, user.quota.intervals))
            use = self._uses[user.quota.name, key] = QuotaUse(user.quota, key, intervals)
        return QuotaAccount(user.name, use, self._env)

    def uses(self) -> Sequence[QuotaUse]:
        """All that is counted now."""
        now_s = self._env.now_s()
        for use in self._uses.values():
            for counted in use.intervals:
                counted.turn(now_s)
        return list(self._uses.values())

    def _counted(self, interval: QuotaInterval) -> CountedInterval:
        """As with ClickHouse intervals end when a multiple of their length has passed since 1970, or so much
        later."""
        later_s = self._env.rng.uniform(0, interval.duration_s) if interval.is_randomized else 0.0
        counted = CountedInterval(interval, later_s)
        counted.turn(self._env.now_s())
        return counted

    def _forget(self) -> None:
        if len(self._uses) < self._most:
            return
        now_s = self._env.now_s()
        self._uses = {
            key: use
            for key, use in self._uses.items()
            if any(counted.end_s > now_s for counted in use.intervals)
        }
        self._most = max(_MANY_KEYS, 2 * len(self._uses))


def _key(quota: Quota, user: str, client: QuotaClient) -> str:
    match quota.key:
        case QuotaKey.USER_NAME:
            return user
        case QuotaKey.CLIENT_KEY_OR_USER_NAME:
            return client.key or user
        case QuotaKey.IP_ADDRESS:
            return _masked(quota, client.address)
        case QuotaKey.FORWARDED_IP_ADDRESS:
            return _masked(quota, client.forwarded_address)


def _masked(quota: Quota, address: str) -> str:
    """The network of an address; what is none stays as it is."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip
    bits = quota.ipv4_prefix_bits if ip.version == 4 else quota.ipv6_prefix_bits
    return str(ip) if bits is None else str(ipaddress.ip_network((ip, bits), strict=False).network_address)
