"""What a statement does, as words."""

from __future__ import annotations

import enum


class StatementKind(enum.StrEnum):
    """Every family of statements that matters to the distributed layer."""

    CREATE_TABLE = "CREATE TABLE"
    CREATE_VIEW = "CREATE VIEW"
    CREATE_MATERIALIZED_VIEW = "CREATE MATERIALIZED VIEW"
    CREATE_LIVE_VIEW = "CREATE LIVE VIEW"
    CREATE_WINDOW_VIEW = "CREATE WINDOW VIEW"
    CREATE_DICTIONARY = "CREATE DICTIONARY"
    CREATE_DATABASE = "CREATE DATABASE"
    CREATE_FUNCTION = "CREATE FUNCTION"
    CREATE_INDEX = "CREATE INDEX"
    CREATE_NAMED_COLLECTION = "CREATE NAMED COLLECTION"
    CREATE_WORKLOAD = "CREATE WORKLOAD"
    CREATE_RESOURCE = "CREATE RESOURCE"
    CREATE_USER = "CREATE USER"
    CREATE_ROLE = "CREATE ROLE"
    CREATE_QUOTA = "CREATE QUOTA"
    CREATE_ROW_POLICY = "CREATE ROW POLICY"
    CREATE_MASKING_POLICY = "CREATE MASKING POLICY"
    CREATE_SETTINGS_PROFILE = "CREATE SETTINGS PROFILE"

    ATTACH_TABLE = "ATTACH TABLE"
    ATTACH_VIEW = "ATTACH VIEW"
    ATTACH_DICTIONARY = "ATTACH DICTIONARY"
    ATTACH_DATABASE = "ATTACH DATABASE"

    DETACH_TABLE = "DETACH TABLE"
    DETACH_VIEW = "DETACH VIEW"
    DETACH_DICTIONARY = "DETACH DICTIONARY"
    DETACH_DATABASE = "DETACH DATABASE"

    DROP_TABLE = "DROP TABLE"
    DROP_VIEW = "DROP VIEW"
    DROP_DICTIONARY = "DROP DICTIONARY"
    DROP_DATABASE = "DROP DATABASE"
    DROP_FUNCTION = "DROP FUNCTION"
    DROP_INDEX = "DROP INDEX"
    DROP_NAMED_COLLECTION = "DROP NAMED COLLECTION"
    DROP_WORKLOAD = "DROP WORKLOAD"
    DROP_RESOURCE = "DROP RESOURCE"
    DROP_USER = "DROP USER"
    DROP_ROLE = "DROP ROLE"
    DROP_QUOTA = "DROP QUOTA"
    DROP_ROW_POLICY = "DROP ROW POLICY"
    DROP_MASKING_POLICY = "DROP MASKING POLICY"
    DROP_SETTINGS_PROFILE = "DROP SETTINGS PROFILE"

    TRUNCATE_TABLE = "TRUNCATE TABLE"
    TRUNCATE_DATABASE = "TRUNCATE DATABASE"
    """Also TRUNCATE [ALL] TABLES FROM."""
    UNDROP_TABLE = "UNDROP TABLE"

    RENAME_TABLE = "RENAME TABLE"
    RENAME_DICTIONARY = "RENAME DICTIONARY"
    RENAME_DATABASE = "RENAME DATABASE"
    EXCHANGE_TABLES = "EXCHANGE TABLES"
    EXCHANGE_DICTIONARIES = "EXCHANGE DICTIONARIES"

    ALTER_TABLE = "ALTER TABLE"
    ALTER = "ALTER TABLE"
    ALTER_DATABASE = "ALTER DATABASE"
    ALTER_NAMED_COLLECTION = "ALTER NAMED COLLECTION"
    ALTER_USER = "ALTER USER"
    ALTER_ROLE = "ALTER ROLE"
    ALTER_QUOTA = "ALTER QUOTA"
    ALTER_ROW_POLICY = "ALTER ROW POLICY"
    ALTER_MASKING_POLICY = "ALTER MASKING POLICY"
    ALTER_SETTINGS_PROFILE = "ALTER SETTINGS PROFILE"

    DELETE = "DELETE"
    UPDATE = "UPDATE"
    OPTIMIZE = "OPTIMIZE"
    GRANT = "GRANT"
    REVOKE = "REVOKE"
    MOVE_ACCESS = "MOVE ACCESS ENTITY"
    KILL_QUERY = "KILL QUERY"
    KILL_MUTATION = "KILL MUTATION"
    KILL_OTHER = "KILL"
    SYSTEM = "SYSTEM"
    BACKUP = "BACKUP"
    RESTORE = "RESTORE"

    SELECT = "SELECT"
    INSERT = "INSERT"
    SHOW = "SHOW"
    DESCRIBE = "DESCRIBE"
    EXISTS = "EXISTS"
    EXPLAIN = "EXPLAIN"
    CHECK_TABLE = "CHECK TABLE"
    CHECK_GRANT = "CHECK GRANT"
    WATCH = "WATCH"
    SET = "SET"
    SET_ROLE = "SET ROLE"
    USE = "USE"
    TRANSACTION = "TRANSACTION"
    EXECUTE_AS = "EXECUTE AS"
    PARALLEL_WITH = "PARALLEL WITH"
    """Several statements in one; ClickHouse runs each as if it stood alone."""
    EMPTY = "EMPTY"
    """White space, comments and semicolons only."""
    OTHER = "OTHER"
    """Anything else: only ClickHouse itself can judge it."""


class AlterCommand(enum.StrEnum):
    """One sub-command of ALTER TABLE or ALTER DATABASE."""

    ADD_COLUMN = "ADD COLUMN"
    DROP_COLUMN = "DROP COLUMN"
    MODIFY_COLUMN = "MODIFY COLUMN"
    """Also ALTER COLUMN, and MODIFY COLUMN … MODIFY/RESET SETTING."""
    RENAME_COLUMN = "RENAME COLUMN"
    COMMENT_COLUMN = "COMMENT COLUMN"
    CLEAR_COLUMN = "CLEAR COLUMN"
    MATERIALIZE_COLUMN = "MATERIALIZE COLUMN"

    MODIFY_PRIMARY_KEY = "MODIFY PRIMARY KEY"
    MODIFY_ORDER_BY = "MODIFY ORDER BY"
    MODIFY_SAMPLE_BY = "MODIFY SAMPLE BY"
    REMOVE_SAMPLE_BY = "REMOVE SAMPLE BY"
    MODIFY_TTL = "MODIFY TTL"
    REMOVE_TTL = "REMOVE TTL"
    MATERIALIZE_TTL = "MATERIALIZE TTL"
    MODIFY_SETTING = "MODIFY SETTING"
    RESET_SETTING = "RESET SETTING"
    MODIFY_QUERY = "MODIFY QUERY"
    MODIFY_REFRESH = "MODIFY REFRESH"
    MODIFY_SQL_SECURITY = "MODIFY SQL SECURITY"
    """Also MODIFY DEFINER."""
    MODIFY_COMMENT = "MODIFY COMMENT"
    REFRESH = "REFRESH"

    ADD_INDEX = "ADD INDEX"
    DROP_INDEX = "DROP INDEX"
    CLEAR_INDEX = "CLEAR INDEX"
    MATERIALIZE_INDEX = "MATERIALIZE INDEX"
    ADD_STATISTICS = "ADD STATISTICS"
    DROP_STATISTICS = "DROP STATISTICS"
    CLEAR_STATISTICS = "CLEAR STATISTICS"
    MODIFY_STATISTICS = "MODIFY STATISTICS"
    MATERIALIZE_STATISTICS = "MATERIALIZE STATISTICS"
    ADD_PROJECTION = "ADD PROJECTION"
    DROP_PROJECTION = "DROP PROJECTION"
    CLEAR_PROJECTION = "CLEAR PROJECTION"
    MODIFY_PROJECTION = "MODIFY PROJECTION"
    MATERIALIZE_PROJECTION = "MATERIALIZE PROJECTION"
    ADD_CONSTRAINT = "ADD CONSTRAINT"
    DROP_CONSTRAINT = "DROP CONSTRAINT"
    MODIFY_CONSTRAINT = "MODIFY CONSTRAINT"

    ATTACH_PARTITION = "ATTACH PARTITION"
    """Each PARTITION command stands for its PART form too."""
    DETACH_PARTITION = "DETACH PARTITION"
    DROP_PARTITION = "DROP PARTITION"
    DROP_DETACHED_PARTITION = "DROP DETACHED PARTITION"
    FORGET_PARTITION = "FORGET PARTITION"
    FETCH_PARTITION = "FETCH PARTITION"
    REPLACE_PARTITION = "REPLACE PARTITION"
    ATTACH_PARTITION_FROM = "ATTACH PARTITION FROM"
    """Another table's rows are added; unlike ATTACH PARTITION nothing leaves `detached/`."""
    MOVE_PARTITION_TO_TABLE = "MOVE PARTITION TO TABLE"
    MOVE_PARTITION = "MOVE PARTITION"
    """To a disk or a volume."""
    MOVE_PARTITION_TO_SHARD = "MOVE PARTITION TO SHARD"
    FREEZE = "FREEZE"
    UNFREEZE = "UNFREEZE"
    UNLOCK_SNAPSHOT = "UNLOCK SNAPSHOT"

    DELETE = "DELETE"
    UPDATE = "UPDATE"
    APPLY_DELETED_MASK = "APPLY DELETED MASK"
    APPLY_PATCHES = "APPLY PATCHES"
    REWRITE_PARTS = "REWRITE PARTS"
    EXECUTE = "EXECUTE"
    OTHER = "OTHER"

    @property
    def is_destructive(self) -> bool:
        """Data that was there is gone, or is hidden from readers, afterwards."""
        return self in _DESTRUCTIVE

    @property
    def rewrites_data(self) -> bool:
        """Parts are written anew, so it costs time and disk in proportion to the data.

        MODIFY COLUMN counts: a new type rewrites the column; whether it is new only the table knows.
        """
        return self in _REWRITES

    @property
    def is_mutation(self) -> bool:
        """It becomes an entry of `system.mutations`, by which parts are rewritten in the background."""
        return self in _MUTATIONS

    @property
    def is_allowed_on_cluster(self) -> bool:
        """ClickHouse refuses ATTACH PARTITION and FETCH PARTITION ON CLUSTER (ddl-queue, item 6)."""
        return self not in (AlterCommand.ATTACH_PARTITION, AlterCommand.FETCH_PARTITION)

    @property
    def is_replica_local(self) -> bool:
        """It concerns one replica's own files or metadata, so it runs on every host, not once per shard."""
        return self in _REPLICA_LOCAL


_DESTRUCTIVE = frozenset(
    {
        AlterCommand.DROP_COLUMN,
        AlterCommand.CLEAR_COLUMN,
        AlterCommand.DROP_PARTITION,
        AlterCommand.DROP_DETACHED_PARTITION,
        AlterCommand.FORGET_PARTITION,
        AlterCommand.DETACH_PARTITION,
        AlterCommand.REPLACE_PARTITION,
        AlterCommand.MOVE_PARTITION_TO_TABLE,
        AlterCommand.DELETE,
        AlterCommand.UPDATE,
        AlterCommand.APPLY_DELETED_MASK,
        AlterCommand.MODIFY_TTL,
        AlterCommand.MATERIALIZE_TTL,
        AlterCommand.UNFREEZE,
        AlterCommand.EXECUTE,  # such as expire_snapshots()
    }
)
_REWRITES = frozenset(
    {
        AlterCommand.MODIFY_COLUMN,
        AlterCommand.DROP_COLUMN,
        AlterCommand.CLEAR_COLUMN,
        AlterCommand.RENAME_COLUMN,
        AlterCommand.MATERIALIZE_COLUMN,
        AlterCommand.MODIFY_TTL,
        AlterCommand.MATERIALIZE_TTL,
        AlterCommand.MATERIALIZE_INDEX,
        AlterCommand.MATERIALIZE_PROJECTION,
        AlterCommand.MATERIALIZE_STATISTICS,
        AlterCommand.DROP_INDEX,
        AlterCommand.CLEAR_INDEX,
        AlterCommand.DROP_PROJECTION,
        AlterCommand.CLEAR_PROJECTION,
        AlterCommand.DROP_STATISTICS,
        AlterCommand.CLEAR_STATISTICS,
        AlterCommand.DELETE,
        AlterCommand.UPDATE,
        AlterCommand.APPLY_DELETED_MASK,
        AlterCommand.APPLY_PATCHES,
        AlterCommand.REWRITE_PARTS,
    }
)
_MUTATIONS = frozenset(
    {
        AlterCommand.DELETE,
        AlterCommand.UPDATE,
        AlterCommand.MATERIALIZE_COLUMN,
        AlterCommand.MATERIALIZE_INDEX,
        AlterCommand.MATERIALIZE_PROJECTION,
        AlterCommand.MATERIALIZE_STATISTICS,
        AlterCommand.MATERIALIZE_TTL,
        AlterCommand.APPLY_DELETED_MASK,
        AlterCommand.APPLY_PATCHES,
        AlterCommand.REWRITE_PARTS,
    }
)
_REPLICA_LOCAL = frozenset(
    {
        AlterCommand.MODIFY_SETTING,
        AlterCommand.RESET_SETTING,
        AlterCommand.FREEZE,
        AlterCommand.UNFREEZE,
        AlterCommand.MOVE_PARTITION,
        AlterCommand.MODIFY_COMMENT,
        AlterCommand.COMMENT_COLUMN,
        AlterCommand.UNLOCK_SNAPSHOT,
    }
)
