"""Quotas: what is counted, for whom, for how long, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config.model import User
from engine.config.quotas import QuotaAmount, QuotaKey
from engine.distributed.read_signature import KeyMaker
from engine.env import SystemEnv
from engine.errors import Code, ConfigError, SqlError
from engine.node.http.login import Logins
from engine.node.http.signed_reads import SignedReads
from engine.node.quotas import QuotaAccount, QuotaClient, Quotas, quota_client
from engine.sql import parse_statement
from tests.unit.config.support import load

HERE = QuotaClient("127.0.0.1")


class Clock(SystemEnv):
    def __init__(self) -> None:
        super().__init__()
        self.s = 1_800_000_000.0

    def now_s(self) -> float:
        return self.s


def users(tmp_path: Path, quota: str) -> dict[str, User]:
    loaded = load(
        tmp_path,
        "<users><ann><password/><quota>q</quota></ann><bob><password/><quota>q</quota></bob>"
        f"<free><password/></free></users><quotas><q>{quota}</q></quotas>",
    )
    return dict(loaded.users)


def interval(limits: str, *, duration_s: int = 60) -> str:
    return f"<interval><duration>{duration_s}</duration>{limits}</interval>"


def begin(account: QuotaAccount, sql: str = "SELECT 1") -> int:
    """The error's code, 0 if it may run."""
    try:
        account.begin(parse_statement(sql))
    except SqlError as error:
        return error.code
    return 0


def test_one_query_too_many_is_refused_until_the_interval_is_over(tmp_path: Path) -> None:
    clock = Clock()
    quotas = Quotas(clock)
    account = quotas.account(users(tmp_path, interval("<queries>2</queries>"))["ann"], HERE)
    assert [begin(account, sql) for sql in ("SELECT 1", "DROP TABLE t", "SHOW TABLES")] == [0, 0, 201]
    assert begin(account, "USE x") == begin(account, "SET max_threads = 1") == 0
    clock.s += 60
    assert [begin(account) for _ in range(3)] == [0, 0, 201]
    [use] = quotas.uses()
    assert use.intervals[0].end_s % 60 == 0
    assert clock.s < use.intervals[0].end_s <= clock.s + 60


def test_the_error_says_which_quota_and_until_when(tmp_path: Path) -> None:
    account = Quotas(Clock()).account(
        users(tmp_path, interval("<errors>0</errors><queries>1</queries>"))["ann"], HERE
    )
    assert begin(account) == 0
    with pytest.raises(SqlError) as raised:
        account.begin(parse_statement("SELECT 1"))
    assert raised.value.code == Code.QUOTA_EXCEEDED
    assert "Quota for user `ann` for 60s has been exceeded: queries = 2/1. Interval will end at 20" in str(
        raised.value
    )
    assert str(raised.value).endswith("Name of quota template: `q`")


@pytest.mark.parametrize(
    ("limit", "spent", "refused", "allowed"),
    [
        (
            "<errors>1</errors>",
            QuotaAmount.ERRORS,
            ["SELECT 1", "DROP TABLE t", "INSERT INTO t SELECT 1"],
            ["USE x"],
        ),
        ("<result_rows>1</result_rows>", QuotaAmount.RESULT_ROWS, ["SELECT 1"], ["INSERT INTO t SELECT 1"]),
        (
            "<read_bytes>1</read_bytes>",
            QuotaAmount.READ_BYTES,
            ["SELECT 1", "INSERT INTO t SELECT 1"],
            ["DROP TABLE t"],
        ),
        ("<execution_time>0.5</execution_time>", QuotaAmount.EXECUTION_TIME, ["SELECT 1"], ["DROP TABLE t"]),
        (
            "<written_bytes>1</written_bytes>",
            QuotaAmount.WRITTEN_BYTES,
            ["INSERT INTO t SELECT 1"],
            ["SELECT 1"],
        ),
        (
            "<query_selects>1</query_selects>",
            QuotaAmount.QUERY_SELECTS,
            ["SELECT 1"],
            ["INSERT INTO t SELECT 1"],
        ),
        (
            "<query_inserts>1</query_inserts>",
            QuotaAmount.QUERY_INSERTS,
            ["INSERT INTO t SELECT 1"],
            ["SELECT 1"],
        ),
    ],
)
def test_whoever_has_used_more_than_allowed_is_refused_what_would_use_more(
    tmp_path: Path, limit: str, spent: QuotaAmount, refused: list[str], allowed: list[str]
) -> None:
    account = Quotas(Clock()).account(users(tmp_path, interval(limit))["ann"], HERE)
    assert [begin(account, sql) for sql in (*refused[:1], *allowed)] == [0] * (1 + len(allowed))
    account.note({spent: 2})
    assert [begin(account, sql) for sql in refused] == [201] * len(refused)
    assert [begin(account, sql) for sql in allowed] == [0] * len(allowed)


def test_of_several_intervals_each_counts(tmp_path: Path) -> None:
    clock = Clock()
    both = interval("<queries>2</queries>", duration_s=10) + interval("<queries>3</queries>", duration_s=3600)
    account = Quotas(clock).account(users(tmp_path, both)["ann"], HERE)
    assert [begin(account) for _ in range(3)] == [0, 0, 201]
    clock.s += 10
    assert begin(account) == 201


def test_users_do_not_share_a_quota_unless_its_key_is_another(tmp_path: Path) -> None:
    both = users(tmp_path, interval("<queries>1</queries>"))
    quotas = Quotas(Clock())
    assert [begin(quotas.account(both[name], HERE)) for name in ("ann", "bob", "ann")] == [0, 0, 201]
    both = users(
        tmp_path, interval("<queries>1</queries>") + "<keyed_by_ip/><ipv4_prefix_bits>24</ipv4_prefix_bits>"
    )
    quotas = Quotas(Clock())
    who = [("ann", "10.0.0.1"), ("bob", "::ffff:10.0.0.2"), ("ann", "10.0.1.1")]
    assert [begin(quotas.account(both[name], QuotaClient(at))) for name, at in who] == [0, 201, 0]


def test_a_client_names_its_key_or_is_told_by_the_proxy_next_to_the_node(tmp_path: Path) -> None:
    named = users(tmp_path, interval("<queries>1</queries>") + "<keyed/>")["ann"]
    assert named.quota is not None
    assert named.quota.key is QuotaKey.CLIENT_KEY_OR_USER_NAME
    quotas = Quotas(Clock())
    clients = [
        quota_client("::1", {"X-ClickHouse-Quota": "a"}, {}),
        quota_client("::1", {}, {"quota_key": "a"}),
        quota_client("::1", {}, {}),
    ]
    assert [begin(quotas.account(named, client)) for client in clients] == [0, 201, 0]
    assert [use.key for use in quotas.uses()] == ["a", "ann"]
    behind = users(tmp_path, interval("<queries>1</queries>") + "<keyed_by_forwarded_ip/>")["ann"]
    quotas = Quotas(Clock())
    quotas.account(behind, quota_client("::1", {"X-Forwarded-For": "6.6.6.6, 10.0.0.9"}, {}))
    assert [use.key for use in quotas.uses()] == ["10.0.0.9"]


def test_without_a_quota_or_a_duration_nothing_is_counted(tmp_path: Path) -> None:
    quotas = Quotas(Clock())
    assert begin(quotas.account(users(tmp_path, "")["free"], HERE)) == 0
    assert (
        begin(quotas.account(users(tmp_path, interval("<queries>1</queries>", duration_s=0))["ann"], HERE))
        == 0
    )
    assert quotas.uses() == []


@pytest.mark.parametrize("limit", ["<queries>many</queries>", "<execution_time>-1</execution_time>"])
def test_a_limit_that_is_no_number_is_refused(tmp_path: Path, limit: str) -> None:
    with pytest.raises(ConfigError):
        users(tmp_path, interval(limit))


def test_after_too_many_wrong_passwords_the_right_one_is_refused_too(tmp_path: Path) -> None:
    limit = interval("<failed_sequential_authentications>2</failed_sequential_authentications>") + "<keyed/>"
    clock = Clock()
    known = users(tmp_path, limit)
    logins = Logins(known, Quotas(clock), SignedReads(known, KeyMaker(b"secret"), clock))

    def login(password: str, **more: str) -> int:
        try:
            logins.of({}, {"user": "ann", "password": password, **more}, "127.0.0.1")
        except SqlError as error:
            return error.code
        return 0

    assert [login(each) for each in ("x", "", "x", "y")] == [516, 0, 516, 516]
    assert [login(each, quota_key="another") for each in ("", "z")] == [201, 201]
    clock.s += 60
    assert login("") == 0
