"""Settings of a MergeTree table that ClickHouse's replication follows and ours does not.

A table may have them, and SHOW CREATE TABLE shows them: definitions come from real clusters and go back
there. That they change nothing is logged, and stands in docs/concepts/replication-settings.md.

Source: `system.merge_tree_settings` of ClickHouse 26.9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from engine.names import TableName

log = logging.getLogger(__name__)

IDLE_SETTINGS = frozenset(
    {
        # Merges are chosen by one selector, whose base and window are settings.
        "merge_selector_algorithm",
        "merge_selector_blurry_base_scale_factor",
        "merge_selector_enable_heuristic_to_lower_max_parts_to_merge_at_once",
        "merge_selector_heuristic_to_lower_max_parts_to_merge_at_once_exponent",
        "min_partition_age_to_force_merge_seconds",
        "enable_replacing_merge_with_cleanup_for_min_age_to_force_merge",
        "exclude_deleted_rows_for_part_size_in_merge",
        "max_bytes_to_merge_at_min_space_in_pool",
        "max_number_of_merges_with_ttl_in_pool",
        "merge_selecting_sleep_slowdown_factor",
        # There are no pools of threads to share.
        "number_of_free_entries_in_pool_to_execute_mutation",
        "number_of_free_entries_in_pool_to_execute_optimize_entire_partition",
        "number_of_free_entries_in_pool_to_lower_max_size_of_merge",
        "max_number_of_mutations_for_replica",
        "replicated_max_mutations_in_one_entry",
        # What fails is tried again by a rule of its own.
        "max_postpone_time_for_failed_mutations_ms",
        "max_postpone_time_for_failed_replicated_fetches_ms",
        "max_postpone_time_for_failed_replicated_merges_ms",
        "max_postpone_time_for_failed_replicated_tasks_ms",
        # A node hears of its session's end, and waits for watches.
        "zookeeper_session_expiration_check_period",
        "initialization_retry_period",
        # Inserts and mutations are slowed down, or refused, by parts that readers see.
        "inactive_parts_to_delay_insert",
        "inactive_parts_to_throw_insert",
        "number_of_mutations_to_delay",
        "min_delay_to_mutate_ms",
        "max_delay_to_mutate_ms",
        # Fetches
        "replicated_fetches_min_part_level",
        "replicated_fetches_min_part_level_timeout_seconds",
        "wait_for_unique_parts_send_before_shutdown_ms",
        "detach_old_local_parts_when_cloning_replica",
        "clone_replica_zookeeper_create_get_part_batch_size",
        # A part is forced to disk when it is staged, and its UUID is its replicated name.
        "fsync_after_insert",
        "fsync_part_directory",
        "min_compressed_bytes_to_fsync_after_fetch",
        "min_compressed_bytes_to_fsync_after_merge",
        "min_rows_to_fsync_after_merge",
        "assign_part_uuids",
        "min_bytes_for_full_part_storage",
        "min_rows_for_full_part_storage",
        "min_level_for_full_part_storage",
        # Keeper has what all versions read.
        "use_minimalistic_checksums_in_zookeeper",
        "use_minimalistic_part_header_in_zookeeper",
        "enable_the_endpoint_id_with_zookeeper_name_prefix",
        # One disk, which is no object storage
        "allow_remote_fs_zero_copy_replication",
        "part_moves_between_shards_enable",
        "part_moves_between_shards_delay_seconds",
    }
)


def note_idle(table: TableName, names: Iterable[str]) -> None:
    """Say in the log which of a table's settings change nothing."""
    if idle := sorted(IDLE_SETTINGS.intersection(names)):
        log.warning("replication.settings_without_effect table=%s settings=%s", table, ",".join(idle))
