"""The settings under which a definition is taken that a server has taken before."""

from __future__ import annotations

LENIENT = {
    "flatten_nested": "0",
    "data_type_default_nullable": "0",
    "allow_suspicious_low_cardinality_types": "1",
    "allow_suspicious_fixed_string_types": "1",
    "allow_suspicious_variant_types": "1",
    "allow_suspicious_codecs": "1",
    "allow_suspicious_primary_key": "1",
    "allow_suspicious_ttl_expressions": "1",
    "allow_suspicious_indices": "1",
    "allow_experimental_codecs": "1",
    "allow_experimental_full_text_index": "1",
    "allow_experimental_vector_similarity_index": "1",
    "allow_experimental_object_type": "1",
    "allow_hyperscan": "1",
    "allow_experimental_window_view": "1",
    "allow_experimental_live_view": "1",
    "allow_experimental_time_series_table": "1",
    "allow_experimental_geo_types": "1",
    "allow_experimental_bigint_types": "1",
    "allow_materialized_view_with_bad_select": "1",
}
"""For a definition that some replica has accepted: settings that only say what a CREATE may have."""
