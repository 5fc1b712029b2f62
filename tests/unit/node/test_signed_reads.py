"""Whom a node lets in by a signature."""

from __future__ import annotations

import pytest

from engine.config.model import User
from engine.distributed.read_signature import LIFETIME_S, KeyMaker
from engine.env import SystemEnv
from engine.errors import SqlError
from engine.node.http.signed_reads import SignedReads

TARGET = "/?query=SELECT%201"
ANN = User("ann", "ab" * 32, networks=("10.0.0.0/8",))
KEYS = KeyMaker(b"secret")


class Clock(SystemEnv):
    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.s = now_s

    def now_s(self) -> float:
        return self.s


def refused(
    reads: SignedReads,
    header: str,
    *,
    method: str = "GET",
    target: str = TARGET,
    address: str = "10.1.2.3",
    has_body: bool = False,
) -> str:
    with pytest.raises(SqlError) as caught:
        reads.user_of(header, method, target, address, has_body=has_body)
    assert caught.value.code == 516
    return caught.value.message


def test_a_signed_read_is_its_users_and_nothing_else_is() -> None:
    reads = SignedReads({"ann": ANN}, KEYS, Clock(1_000_000.0))
    header = reads.new_key(ANN).header(TARGET)
    assert reads.user_of(header, "GET", TARGET, "10.1.2.3") == ANN
    refused(reads, header, target=TARGET.replace("1", "2"))
    refused(reads, header, has_body=True)  # it would go on with the query
    refused(reads, header, method="POST")
    refused(reads, header, method="HEAD")
    refused(reads, header, address="192.168.0.1")
    refused(reads, header.replace("a", "b"))
    refused(reads, "Oncluster nonsense")


@pytest.mark.parametrize("header", ["", "Basic YW5uOng=", "Bearer x"])
def test_whoever_shows_no_signature_is_let_in_otherwise(header: str) -> None:
    assert SignedReads({"ann": ANN}, KEYS, Clock(0.0)).user_of(header, "GET", TARGET, "10.1.2.3") is None


def test_a_user_who_is_gone_or_has_another_password_has_no_keys() -> None:
    header = KEYS.key("ann", ANN.password_sha256_hex, 1_000_000).header(TARGET)
    for users in ({}, {"ann": User("ann", "cd" * 32)}, {"bob": ANN}):
        refused(SignedReads(users, KEYS, Clock(1_000_000.0)), header)


def test_a_key_is_good_for_a_day_by_the_clock_of_who_gave_it() -> None:
    clock = Clock(1_000_000.0)
    reads = SignedReads({"ann": ANN}, KEYS, clock)
    header = reads.new_key(ANN).header(TARGET)
    for later_s in (-60.0, LIFETIME_S - 1.0):
        clock.s = 1_000_000 + later_s
        assert reads.user_of(header, "GET", TARGET, "10.1.2.3") == ANN
    clock.s = 1_000_000 + LIFETIME_S + 1
    assert "was given 86401 s ago" in refused(reads, header)
    assert "ago" not in refused(reads, header, target="/")
