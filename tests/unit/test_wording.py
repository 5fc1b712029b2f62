from __future__ import annotations

import pytest

from engine.wording import count, duration, enumerated, listed, moment, shortened, size


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (-5, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_a_duration_is_told_in_the_largest_unit_of_which_there_are_two(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_sizes_and_moments() -> None:
    assert [size(b) for b in (5, 2048, 3 << 30)] == ["5 B", "2.0 KiB", "3.0 GiB"]
    assert moment(1_795_178_358_000) == "2026-11-20 12:39:18 UTC"


def test_one_thing_has_no_plural() -> None:
    told = [count(1, "entry", "entries"), count(2, "entry", "entries"), count(0, "task")]
    assert told == ["1 entry", "2 entries", "0 tasks"]


def test_of_many_names_the_first_few_are_listed() -> None:
    assert listed("abcdefg") == "a, b, c, d, e and 2 more"
    assert listed(["a", "b"], most=2) == "a, b"


def test_a_few_names_are_enumerated_as_in_a_sentence() -> None:
    assert [enumerated(names) for names in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert enumerated("abcde") == "a, b, c and 2 more"


def test_a_text_is_shortened_to_one_line() -> None:
    assert shortened("a\n  b", most=3) == "a b"
    assert shortened("abcdef", most=3) == "ab…"
