"""Numbers in the texts of settings; each was asked of chDB 26.9 (`SELECT getSetting(…) SETTINGS …`)."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.replication.settings import ReplicatedSettings
from engine.setting_values import number_of, plain_number, whole_number_of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("10", 10),
        ("'10'", 10),
        ("+5", 5),
        ("00012", 12),
        ("true", 1),
        ("'TRUE'", 1),
        ("false", 0),
        ("'10K'", 10_000),
        ("10k", 10_000),
        ("10ki", 10_240),
        ("'10Gi'", 10 << 30),
        ("5Ti", 5 << 40),
        ("1e3", 1000),
        (".5", 0.5),
        ("18446744073709551615", 2**64 - 1),
    ],
)
def test_a_number_is_read_as_chdb_reads_it(text: str, number: float) -> None:
    assert number_of(text) == number


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("1_000", "1000"),
        ("300e3", "300000"),
        ("-1E1", "-10"),
        ("2.5e0", "2.5e0"),
        ("0xfF", "255"),
        ("0.5", "0.5"),
        ("18446744073709551615", "18446744073709551615"),
        ("some_word", "some_word"),
        ("[1_0]", "[1_0]"),
    ],
)
def test_a_literal_is_written_so_that_a_string_of_it_is_the_same_number(literal: str, text: str) -> None:
    assert plain_number(literal) == text


@pytest.mark.parametrize(
    "text", ["", "''", "auto", "10KI", "1.5M", "10 M", "0x10", "1_000", "10B", "10m", "10P", "inf", "nan"]
)
def test_anything_else_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        number_of(text)


def test_what_stands_behind_the_point_is_left_out_of_a_whole_number() -> None:
    assert whole_number_of("10.7") == 10


def test_a_tables_settings_may_be_written_as_words_and_with_units() -> None:
    given = {"ttl_only_drop_parts": "true", "max_bytes_to_merge_at_max_space_in_pool": "'10Gi'"}
    settings = ReplicatedSettings.of({**given, "max_delay_to_insert": "'0.5'"})
    assert settings.ttl_only_drop_parts == 1
    assert settings.max_bytes_to_merge_at_max_space_in_pool == 10 << 30
    assert settings.max_delay_to_insert == 0.5
    with pytest.raises(SqlError, match=r"parts_to_throw_insert = '7 parts' is not a number") as caught:
        ReplicatedSettings.of({"parts_to_throw_insert": "'7 parts'"})
    assert caught.value.code == 36
