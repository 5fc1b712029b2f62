"""Settings of a statement that reads Distributed tables: passed on to the shards, or refused.

Parts of a query are evaluated where the rows are, so what changes the meaning of expressions, or which rows a
table has, has to hold there too. What would ask for another answer than the one that is given is refused:
a setting is never left out silently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from engine.distributed.select import USUAL, Merging, Spread
from engine.distributed.select.sides import Side, sides_of
from engine.errors import Code, SqlError
from engine.names import quote_for_url
from engine.node.statements.asked_settings import number
from engine.sql.cursor import Cursor

_FORWARDED = frozenset(
    {
        "additional_table_filters",
        "aggregate_functions_null_for_empty",
        "allow_custom_error_code_in_throwif",
        "allow_experimental_funnel_functions",
        "allow_experimental_hash_functions",
        "allow_experimental_nlp_functions",
        "allow_experimental_time_series_aggregate_functions",
        "allow_experimental_ts_to_grid_aggregate_function",
        "allow_lossy_numeric_supertype",
        "allow_nonconst_timezone_arguments",
        "allow_suspicious_fixed_string_types",
        "allow_suspicious_low_cardinality_types",
        "allow_suspicious_types_in_group_by",
        "allow_suspicious_types_in_order_by",
        "allow_suspicious_variant_types",
        "apply_deleted_mask",
        "apply_mutations_on_fly",
        "apply_patch_parts",
        "apply_prewhere_after_final",
        "apply_row_policy_after_final",
        "bool_false_representation",
        "bool_true_representation",
        "cast_ipv4_ipv6_default_on_conversion_error",
        "cast_keep_nullable",
        "cast_string_to_date_time_mode",
        "cast_string_to_dynamic_use_inference",
        "cast_string_to_variant_use_inference",
        "check_conversion_from_numbers_to_enum",
        "compatibility",
        "count_matches_stop_at_empty_match",
        "date_time_overflow_behavior",
        "decimal_check_overflow",
        "defer_partition_pruning_after_final",
        "do_not_merge_across_partitions_select_final",
        "dynamic_throw_on_type_mismatch",
        "enable_automatic_decision_for_merging_across_partitions_for_final",
        "enable_extended_results_for_datetime_functions",
        "enable_funnel_functions",
        "enable_named_columns_in_function_tuple",
        "enable_time_series_aggregate_functions",
        "extract_key_value_pairs_max_pairs_per_row",
        "extract_kvp_max_pairs_per_row",
        "final",
        "force_data_skipping_indices",
        "force_index_by_date",
        "force_primary_key",
        "formatdatetime_e_with_space_padding",
        "formatdatetime_f_prints_scale_number_of_digits",
        "formatdatetime_f_prints_single_zero",
        "formatdatetime_format_without_leading_zeros",
        "formatdatetime_parsedatetime_m_is_month_name",
        "function_base58_max_input_size",
        "function_date_trunc_return_type_behavior",
        "function_json_value_return_type_allow_complex",
        "function_json_value_return_type_allow_nullable",
        "function_locate_has_mysql_compatible_argument_order",
        "function_range_max_elements_in_block",
        "function_visible_width_behavior",
        "functions_h3_default_if_invalid",
        "geo_distance_returns_float64_on_float64_arguments",
        "geotoh3_argument_order",
        "h3togeo_lon_lat_result_order",
        "highlight_max_matches_per_row",
        "least_greatest_legacy_null_behavior",
        "max_bytes_to_read",
        "max_bytes_to_read_leaf",
        "max_partitions_to_read",
        "max_rows_to_read",
        "max_rows_to_read_leaf",
        "parsedatetime_e_requires_space_padding",
        "parsedatetime_parse_without_leading_zeros",
        "precise_float_parsing",
        "read_overflow_mode",
        "read_overflow_mode_leaf",
        "regexp_max_matches_per_row",
        "select_sequential_consistency",
        "session_timezone",
        "short_circuit_function_evaluation",
        "splitby_max_substrings_includes_remaining_string",
        "transform_null_in",
        "type_json_allow_duplicated_key_with_literal_and_nested_object",
        "type_json_skip_duplicated_paths",
        "type_json_skip_invalid_typed_paths",
        "type_json_skip_null_typed_paths",
        "type_json_use_partial_match_to_skip_paths_by_regexp",
        "use_legacy_to_time",
        "use_skip_indexes_if_final",
        "use_skip_indexes_if_final_exact_mode",
        "use_variant_as_common_type",
        "use_variant_default_implementation_for_comparisons",
        "validate_polygons",
        "variant_throw_on_type_mismatch",
    }
)
"""ClickHouse passes on everything that was changed; servers of another version do not know everything. A
setting with two names goes by the one that the user gave."""

_OF_CONVERSIONS = frozenset(
    {
        "allow_simdjson",
        "date_time_64_output_format_cut_trailing_zeros_align_to_groups_of_thousands",
        "date_time_input_format",
        "date_time_output_format",
        "input_format_json_defaults_for_missing_elements_in_named_tuple",
        "input_format_json_ignore_unknown_keys_in_named_tuple",
        "input_format_json_infer_array_of_dynamic_from_array_of_different_types",
        "input_format_json_infer_incomplete_types_as_strings",
        "input_format_json_map_as_array_of_tuples",
        "input_format_json_max_depth",
        "input_format_json_named_tuples_as_objects",
        "input_format_json_read_arrays_as_strings",
        "input_format_json_read_bools_as_numbers",
        "input_format_json_read_bools_as_strings",
        "input_format_json_read_numbers_as_strings",
        "input_format_json_read_objects_as_strings",
        "input_format_json_throw_on_bad_escape_sequence",
        "input_format_json_try_infer_named_tuples_from_objects",
        "input_format_json_try_infer_numbers_from_strings",
        "input_format_json_use_string_type_for_ambiguous_paths_in_named_tuples_inference_from_objects",
        "input_format_try_infer_dates",
        "input_format_try_infer_datetimes",
        "input_format_try_infer_datetimes_only_datetime64",
        "input_format_try_infer_exponent_floats",
        "input_format_try_infer_integers",
        "input_format_try_infer_variants",
        "interval_output_format",
        "json_type_escape_dots_in_keys",
        "output_format_always_write_decimal_point_in_float_and_decimal",
        "output_format_decimal_trailing_zeros",
        "output_format_float_precision",
        "output_format_json_escape_forward_slashes",
        "output_format_json_map_as_array_of_tuples",
        "output_format_json_named_tuples_as_objects",
        "output_format_json_quote_64bit_floats",
        "output_format_json_quote_64bit_integers",
        "output_format_json_quote_decimals",
        "output_format_json_quote_denormals",
        "output_format_json_skip_null_value_in_named_tuples",
        "output_format_json_validate_utf8",
        "output_format_trim_fixed_string",
    }
)
"""How values become text and text becomes values, which also functions go by. Drivers set some of them with
every request, and a user with `readonly = 1` refuses settings: so they go where something is converted."""
_CONVERTS = re.compile(
    r"\bCAST\((?!-?\d|')|::|\|\|"
    r"|\b(?:concat|format|parse|JSON|accurateCast|to(?:String|FixedString|JSON))\w*\(",
)
"""A CAST of a constant is how ClickHouse writes one."""
_READS_NATIVE_WITH = "input_format_native_decode_types_in_binary_format"
_WRITES_NATIVE_WITH = "output_format_native_encode_types_in_binary_format"

_NO_LIMITS = frozenset(
    (f"{name}{leaf}", value)
    for name, value in (
        ("max_rows_to_read", "0"),
        ("max_bytes_to_read", "0"),
        ("read_overflow_mode", "throw"),
    )
    for leaf in ("", "_leaf")
) | {("force_index_by_date", "0"), ("force_primary_key", "0")}
"""A user with `readonly = 1` refuses settings, whatever they say."""


def forwarded(settings: Mapping[str, str], select: str) -> str:
    """What goes into a shard's URL with what it is asked, with `&` before each; empty for nothing."""
    found = of_shards(settings, select)
    if settings.get(_READS_NATIVE_WITH):
        found[_WRITES_NATIVE_WITH] = settings[_READS_NATIVE_WITH]
    return "".join(f"&{name}={quote_for_url(value)}" for name, value in sorted(found.items()))


def of_shards(settings: Mapping[str, str], select: str) -> dict[str, str]:
    """Those that hold on the shards for `select`."""
    names = _FORWARDED | _OF_CONVERSIONS if _CONVERTS.search(select) else _FORWARDED
    return {
        name: value
        for name, value in settings.items()
        if name in names and value and (name, value) not in _NO_LIMITS
    }


def asks_for_spread(settings: Mapping[str, str]) -> bool:
    """Whether `spread_of` may be another than the usual one."""
    is_merged = not number(settings, "distributed_group_by_no_merge", 0)
    return not is_merged or settings.get("distributed_product_mode", "") == "local"


def spread_of(settings: Mapping[str, str], sql: str, starts: Sequence[int], *, shards: int) -> Spread:
    """How much the shards shall execute. `starts` are the offsets of the Distributed tables in the text,
    `shards` the most that one of them has.

    Raises SqlError 48 for what cannot be given, 288 for what `distributed_product_mode = 'deny'` denies.
    """
    if shards < 2:
        return USUAL
    merging = Merging(min(2, int(number(settings, "distributed_group_by_no_merge", 0))))
    mode = settings.get("distributed_product_mode", "")
    if mode in ("deny", "local") and not _has_product(sql, starts):
        mode = ""
    if mode == "deny":
        raise SqlError(
            Code.DISTRIBUTED_IN_JOIN_SUBQUERY_DENIED,
            "Double-distributed IN/JOIN subqueries is denied (distributed_product_mode = 'deny').",
            hint="Write GLOBAL IN or GLOBAL JOIN, or set distributed_product_mode = 'global'.",
        )
    spread = Spread(merging, is_local=mode == "local")
    return USUAL if spread == USUAL else spread


def _has_product(sql: str, starts: Sequence[int]) -> bool:
    """A Distributed table in a subquery of IN or JOIN, without GLOBAL, of a query over another."""
    cursor = Cursor(sql)
    found = [sides_of(cursor.words, cursor.at_offset(start)) for start in starts]
    return [] in found and any(sides and sides[0] is Side.PLAIN for sides in found)
