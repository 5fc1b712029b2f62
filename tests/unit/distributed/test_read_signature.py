"""Signatures of reads: of one request, by a key that only who gave it can make again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.distributed.read_signature import SCHEME, KeyMaker, ReadingKey, Signature

TARGET = "/?query=SELECT%201&session_timeout=k"
HASH = "ab" * 32


def signature_of(key: ReadingKey, target: str = TARGET) -> Signature:
    scheme, _, value = key.header(target).partition(" ")
    found = Signature.of(value)
    assert scheme == SCHEME and found is not None
    return found


@given(st.text(min_size=1), st.integers(0, 10**10), st.text())
def test_a_signature_says_who_has_signed_what(user: str, issued_s: int, target: str) -> None:
    key = KeyMaker(b"secret").key(user, HASH, issued_s)
    found = signature_of(key, target)
    assert (found.user, found.issued_s) == (user, issued_s)
    assert key.has_signed(target, found)
    assert not key.has_signed(f"{target}&", found)


@given(st.integers(0, 10**10), st.binary(min_size=32, max_size=32))
def test_a_key_is_told_as_text(issued_s: int, secret: bytes) -> None:
    key = ReadingKey("ann", issued_s, secret)
    assert ReadingKey.from_text("ann", key.to_text()) == key


def test_a_key_is_that_of_one_user_with_one_password_of_one_time_and_one_node() -> None:
    key = KeyMaker(b"secret").key("ann", HASH, 1)
    others = [
        KeyMaker(b"another").key("ann", HASH, 1),
        KeyMaker(b"secret").key("bob", HASH, 1),
        KeyMaker(b"secret").key("ann", "cd" * 32, 1),
        KeyMaker(b"secret").key("ann", HASH, 2),
    ]
    assert KeyMaker(b"secret").key("ann", HASH.upper(), 1) == key
    for other in others:
        assert not other.has_signed(TARGET, signature_of(key))


@pytest.mark.parametrize(
    "text", ["", "Ok.\n", "1 abcd", "There is no handle", f"1 {'ab' * 32} more", "<html>"]
)
def test_what_another_server_says_is_no_key(text: str) -> None:
    assert ReadingKey.from_text("ann", text) is None


@pytest.mark.parametrize(
    "value", ["", "x", "YW5u.1.ab", f"YW5u.-1.{HASH}", f"Y.1.{HASH}", f"YW5u.1.{HASH}.", "é.1.x"]
)
def test_what_is_no_signature_is_none(value: str) -> None:
    assert Signature.of(value) is None


def test_neither_keys_nor_signatures_stand_in_logs() -> None:
    key = KeyMaker(b"secret").key("ann", HASH, 1)
    shown = repr((KeyMaker(b"secret"), key, replace(signature_of(key), user="x")))
    assert b"secret".decode() not in shown
    assert key.key.hex() not in shown and signature_of(key).mac not in shown
