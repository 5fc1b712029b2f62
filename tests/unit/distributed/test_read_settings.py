"""Settings of a SELECT over Distributed tables: they hold on the shards too, or are refused."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.node.distributed.reading.read_settings import forwarded, spread_of
from engine.node.distributed.reading.url_settings import settings_of_reads


def test_what_changes_the_meaning_of_an_expression_goes_to_the_shards() -> None:
    settings = {"session_timezone": "Asia/Tokyo", "final": "1", "max_threads": "2", "transform_null_in": ""}
    assert forwarded(settings, "") == "&final=1&session_timezone=Asia%2FTokyo"
    assert forwarded({"max_block_size": "1"}, "") == ""
    assert forwarded({"do_not_merge_across_partitions_select_final": "1"}, "") == (
        "&do_not_merge_across_partitions_select_final=1"
    )
    assert forwarded({"bool_true_representation": "ja"}, "") == "&bool_true_representation=ja"
    assert forwarded({"max_rows_to_read": "9", "read_overflow_mode": "break"}, "") == (
        "&max_rows_to_read=9&read_overflow_mode=break"
    )
    assert forwarded({"max_rows_to_read": "0", "read_overflow_mode_leaf": "throw"}, "") == "", (
        "what is no limit"
    )
    assert forwarded({"force_primary_key": "1", "force_index_by_date": "0"}, "") == "&force_primary_key=1"
    assert forwarded({"use_variant_as_common_type": "0"}, "") == "&use_variant_as_common_type=0"


def test_how_values_become_text_goes_where_something_is_converted() -> None:
    """Drivers say it with every request, and a user with `readonly = 1` refuses settings."""
    settings = {"output_format_json_quote_64bit_integers": "1"}
    plain = "SELECT max(id), toYear(day) FROM t WHERE city = 'Rome' AND day > CAST(19723, 'Date')"
    assert forwarded(settings, plain) == ""
    for text in (
        "toString(t.js)",
        "CAST(t.js, 'String')",
        "concat(t.js, 'x')",
        "t.a || t.js",
        "t.js::String",
    ):
        assert forwarded(settings, f"SELECT {text} FROM t") == "&output_format_json_quote_64bit_integers=1"


def test_shards_write_types_as_they_are_read() -> None:
    settings = {"input_format_native_decode_types_in_binary_format": "1"}
    assert forwarded(settings, "") == "&output_format_native_encode_types_in_binary_format=1"


def test_how_a_statement_reads_files_and_urls_is_not_how_shards_are_read() -> None:
    assert settings_of_reads({"http_max_tries": "1", "compatibility": "22.6", "max_threads": "2"}) == ""
    assert settings_of_reads({"http_max_tries": "5", "input_format_skip_unknown_fields": "0"}) == (
        " SETTINGS http_max_tries = 1, input_format_skip_unknown_fields = 1"
    )
    skips = " SETTINGS input_format_skip_unknown_fields = 1"
    assert (
        settings_of_reads({"compatibility": "22.5"})
        == settings_of_reads({"compatibility": "21.8.1"})
        == skips
    )
    said = {"compatibility": "22.3", "input_format_skip_unknown_fields": "1"}
    assert settings_of_reads(said) == settings_of_reads({"compatibility": "x"}) == ""


def refusal(settings: dict[str, str], sql: str = "SELECT 1 FROM @", shards: int = 2) -> int:
    """The code of the error for a text in which `@` stands for Distributed tables; 0 for none."""
    starts = [at for at, character in enumerate(sql) if character == "@"]
    try:
        spread_of(settings, sql.replace("@", "t"), starts, shards=shards)
    except SqlError as error:
        return error.code
    return 0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM @ WHERE k IN (SELECT k FROM @)",
        "SELECT 1 FROM @ WHERE k NOT IN (SELECT k FROM (SELECT k FROM @))",
        "SELECT 1 FROM @ WHERE k IN @",
        "SELECT 1 FROM @ AS a ANY LEFT JOIN @ AS b USING k",
        "SELECT 1 FROM @ AS a JOIN (SELECT k FROM @) AS b ON a.k = b.k",
        "SELECT 1 FROM @ AS a, @ AS b WHERE a.k = b.k",
    ],
)
def test_a_product_of_distributed_tables_is_denied_where_that_was_asked_for(sql: str) -> None:
    assert refusal({"distributed_product_mode": "deny"}, sql) == 288
    for mode in ("", "local", "global", "allow"):
        settings = {"distributed_product_mode": mode}
        assert refusal(settings, sql) == 0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM @",
        "SELECT 1 FROM @ WHERE k GLOBAL IN (SELECT k FROM @)",
        "SELECT 1 FROM @ WHERE k GLOBAL NOT IN (SELECT k FROM @)",
        "SELECT 1 FROM @ AS a GLOBAL ANY LEFT JOIN @ AS b USING k",
        "SELECT 1 FROM here WHERE k IN (SELECT k FROM @)",
        "SELECT 1 FROM @ UNION ALL SELECT 1 FROM @",
        "SELECT k, (SELECT max(k) FROM @) FROM @ WHERE k > (SELECT min(k) FROM @)",
        "SELECT 1 FROM here JOIN there USING k WHERE k < (SELECT max(k) FROM @)",
    ],
)
def test_what_is_no_product_is_left_alone(sql: str) -> None:
    assert refusal({"distributed_product_mode": "deny"}, sql) == 0
