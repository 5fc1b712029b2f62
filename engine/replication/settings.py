"""Settings of a replicated table, with ClickHouse's names and its defaults of 26.9. Times are in seconds.

Those that chDB knows, too, may stand in the table's SETTINGS clause; `ReplicatedSettings.of` reads them
there.
Source: ClickHouse's MergeTreeSettings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

from engine.errors import Code, SqlError
from engine.setting_values import number_of, plain_number


@dataclass(frozen=True, slots=True)
class ReplicatedSettings:
    replicated_deduplication_window: int = 10_000
    replicated_deduplication_window_seconds: int = 3600
    replicated_deduplication_window_for_async_inserts: int = 10_000
    replicated_deduplication_window_seconds_for_async_inserts: int = 604_800
    max_replicated_logs_to_keep: int = 1000
    min_replicated_logs_to_keep: int = 10
    max_replicated_merges_in_queue: int = 1000
    max_replicated_mutations_in_queue: int = 8
    max_replicated_merges_with_ttl_in_queue: int = 1
    merge_with_ttl_timeout: float = 14_400.0
    merge_with_recompression_ttl_timeout: float = 14_400.0
    ttl_only_drop_parts: int = 0
    max_suspicious_broken_parts: int = 100
    max_suspicious_broken_parts_bytes: int = 1 << 30
    replicated_max_ratio_of_wrong_parts: float = 0.5
    replicated_can_become_leader: int = 1
    parts_to_delay_insert: int = 1000
    parts_to_throw_insert: int = 3000
    max_delay_to_insert: float = 1.0
    min_delay_to_insert_ms: int = 10
    max_avg_part_size_for_too_many_parts: int = 1 << 30
    max_parts_in_total: int = 100_000
    max_table_size_rows: int = 0
    max_table_size_bytes_compressed: int = 0
    max_table_size_bytes_uncompressed: int = 0
    finished_mutations_to_keep: int = 100
    cleanup_delay_period: float = 30.0
    cleanup_delay_period_random_add: float = 10.0
    max_cleanup_delay_period: float = 300.0
    cleanup_thread_preferred_points_per_iteration: int = 150
    merge_selecting_sleep_ms: int = 5000
    max_merge_selecting_sleep_ms: int = 60_000
    remove_empty_parts: int = 1
    max_fetch_partition_retries_count: int = 5
    always_fetch_merged_part: int = 0
    always_fetch_mutated_part: int = 0
    detach_not_byte_identical_parts: int = 0
    prefer_fetch_merged_part_time_threshold: float = 3600.0
    prefer_fetch_merged_part_size_threshold: int = 10 << 30
    try_fetch_recompressed_part_timeout: float = 7200.0
    max_replicated_fetches_network_bandwidth: int = 0
    max_replicated_sends_network_bandwidth: int = 0
    execute_merges_on_single_replica_time_threshold: float = 0.0
    number_of_mutations_to_throw: int = 1000
    allow_experimental_replacing_merge_with_cleanup: int = 0
    max_parts_to_merge_at_once: int = 100
    min_parts_to_merge_at_once: int = 0
    max_bytes_to_merge_at_max_space_in_pool: int = 150 << 30
    min_age_to_force_merge_seconds: int = 0
    min_age_to_force_merge_on_partition_only: int = 0
    enable_max_bytes_limit_for_min_age_to_force_merge: int = 1
    merge_selector_base: float = 5.0
    merge_selector_window_size: int = 1000
    merge_selector_enable_heuristic_to_remove_small_parts_at_right: int = 1
    min_relative_delay_to_measure: float = 120.0
    min_relative_delay_to_close: float = 300.0
    min_absolute_delay_to_close: float = 0.0

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """From settings by name, as text; what is not ours is passed over. Raises SqlError 36."""
        return cls().changed(given)

    def changed(self, given: Mapping[str, str]) -> Self:
        known = {field.name: field.type for field in fields(self)}
        changes: dict[str, int | float] = {}
        for name, text in given.items():
            if name not in known:
                continue
            try:
                number = number_of(plain_number(text))
            except ValueError:
                raise SqlError(Code.BAD_ARGUMENTS, f"Setting {name} = {text} is not a number.") from None
            changes[name] = float(number) if known[name] == "float" else int(number)
        return replace(self, **changes)  # type: ignore[arg-type]  # by `known`

    def altered(self, changes: Mapping[str, str | None]) -> Self:
        """As `changed`; None resets a setting."""
        changed = self.changed({name: text for name, text in changes.items() if text is not None})
        defaults = type(self)()
        known = {field.name for field in fields(self)}
        reset = [name for name, text in changes.items() if text is None and name in known]
        return replace(changed, **{name: getattr(defaults, name) for name in reset})
