"""ALTER, OPTIMIZE, KILL and SYSTEM statements about replicated tables: what their texts say."""

from __future__ import annotations

import pytest

from engine.errors import SqlError
from engine.names import TableName
from engine.node.replicated.parts.local_alter import settings_commands, take_out
from engine.node.replicated.parts.mutations import parse_kill
from engine.node.replicated.parts.optimize import OptimizeText, deduplicate_columns, parse_optimize
from engine.node.replicated.parts.partition_sql import (
    Action,
    Family,
    PartitionCommand,
    Subject,
    alter_pieces,
    family_of,
    partition_command,
    partition_of_mutation,
)
from engine.node.replicated.system_commands import DropReplica, Scope, parse_drop_replica, parse_sync_mode
from engine.node.replicated.system_tables import asks_keeper
from engine.replication.commands.sync import SyncMode
from engine.sql import tokenize


def pieces(commands: str) -> list[str]:
    return [piece.text for piece in alter_pieces(f"ALTER TABLE d.t {commands}")]


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ("DELETE WHERE a IN (1, 2)", ["DELETE WHERE a IN (1, 2)"]),
        (
            "UPDATE a = 1, b = (2, 3) WHERE x, DELETE WHERE y SETTINGS mutations_sync = 2",
            ["UPDATE a = 1, b = (2, 3) WHERE x", "DELETE WHERE y"],
        ),
        ("(DELETE WHERE 1), (DROP COLUMN c)", ["DELETE WHERE 1", "DROP COLUMN c"]),
        ("ADD COLUMN a UInt8, DROP PARTITION 1", ["ADD COLUMN a UInt8", "DROP PARTITION 1"]),
        (
            "MODIFY COLUMN c UInt8 SETTINGS (max_compress_block_size = 1) FORMAT Null",
            ["MODIFY COLUMN c UInt8 SETTINGS (max_compress_block_size = 1)"],
        ),
        ("MODIFY SETTING a = 1, b = 2", ["MODIFY SETTING a = 1, b = 2"]),
        ("DROP PARTITION ('x,y', 2);", ["DROP PARTITION ('x,y', 2)"]),
    ],
)
def test_a_statement_is_taken_apart_into_its_sub_commands(commands: str, expected: list[str]) -> None:
    assert pieces(commands) == expected


@pytest.mark.parametrize(
    ("command", "family"),
    [
        ("DELETE WHERE 1", Family.MUTATION),
        ("MATERIALIZE INDEX i IN PARTITION 3", Family.MUTATION),
        ("CLEAR COLUMN c IN PARTITION 3", Family.MUTATION),
        ("CLEAR COLUMN c", Family.METADATA),
        ("DROP COLUMN c", Family.METADATA),
        ("MODIFY TTL d + INTERVAL 1 DAY", Family.METADATA),
        ("ATTACH PARTITION 1 FROM x", Family.PARTITION),
        ("FREEZE", Family.PARTITION),
    ],
)
def test_sub_commands_are_of_three_families(command: str, family: Family) -> None:
    [piece] = alter_pieces(f"ALTER TABLE t {command}")
    assert family_of(piece) is family


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("DELETE WHERE a IN (1)", None),
        ("DELETE IN PARTITION '2020' WHERE a IN (1)", "'2020'"),
        ("UPDATE a = 1 IN PARTITION ID 'x' WHERE 1", "ID 'x'"),
        ("CLEAR COLUMN c IN PARTITION (1, 'a')", "(1, 'a')"),
        ("DELETE WHERE x IN (SELECT `PARTITION` FROM t)", None),
    ],
)
def test_the_partition_of_a_mutation(text: str, expected: str | None) -> None:
    assert partition_of_mutation(text) == expected


PARTITION, PART, TABLE = Subject.PARTITION, Subject.PART, Subject.TABLE


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("DROP PARTITION 201901", PartitionCommand(Action.DROP, PARTITION, "201901")),
        ("DROP PARTITION ALL", PartitionCommand(Action.DROP, PARTITION, "ALL")),
        ("DROP PART 'all_1_1_0'", PartitionCommand(Action.DROP, PART, "all_1_1_0")),
        ("DETACH PARTITION ID 'a-b'", PartitionCommand(Action.DETACH, PARTITION, "ID 'a-b'")),
        ("ATTACH PARTITION tuple()", PartitionCommand(Action.ATTACH, PARTITION, "tuple()")),
        ("ATTACH PART 'broken_x'", PartitionCommand(Action.ATTACH, PART, "broken_x")),
        (
            "ATTACH PARTITION 1 FROM d2.x",
            PartitionCommand(Action.ATTACH_FROM, PARTITION, "1", TableName("d2", "x")),
        ),
        (
            "REPLACE PARTITION (1, 2) FROM `x y`",
            PartitionCommand(Action.REPLACE_FROM, PARTITION, "(1, 2)", TableName("", "x y")),
        ),
        (
            "MOVE PARTITION 1 TO TABLE d.x",
            PartitionCommand(Action.MOVE_TO_TABLE, PARTITION, "1", TableName("d", "x")),
        ),
        (
            "MOVE PARTITION 1 TO DISK 'd'",
            PartitionCommand(Action.MOVE_TO_PLACE, PARTITION, "1", place="DISK 'd'"),
        ),
        (
            "MOVE PART 'p' TO VOLUME 'v'",
            PartitionCommand(Action.MOVE_TO_PLACE, PART, "p", place="VOLUME 'v'"),
        ),
        (
            "FETCH PARTITION 1 FROM '/a/b'",
            PartitionCommand(Action.FETCH, PARTITION, "1", path="/a/b"),
        ),
        ("FETCH PART 'p' FROM '/a'", PartitionCommand(Action.FETCH, PART, "p", path="/a")),
        ("FREEZE", PartitionCommand(Action.FREEZE, TABLE)),
        (
            "FREEZE PARTITION 1 WITH NAME 'n'",
            PartitionCommand(Action.FREEZE, PARTITION, "1", backup="n"),
        ),
        ("UNFREEZE WITH NAME 'n'", PartitionCommand(Action.UNFREEZE, TABLE, backup="n")),
        ("DROP DETACHED PART 'x'", PartitionCommand(Action.DROP_DETACHED, PART, "x")),
        ("FORGET PARTITION 1", PartitionCommand(Action.FORGET, PARTITION, "1")),
    ],
)
def test_commands_about_partitions(command: str, expected: PartitionCommand) -> None:
    [piece] = alter_pieces(f"ALTER TABLE t {command}")
    assert partition_command(piece) == expected


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("MOVE PARTITION 1 TO DISK d", 62),
        ("MOVE PART 'x' TO SHARD '/s'", 48),
        ("REPLACE PARTITION 1", 62),
        ("FETCH PARTITION 1", 62),
        ("DROP PARTITION", 62),
        ("UNFREEZE PARTITION 1", 62),
        ("DROP PARTITION 1 FROM x", 62),
    ],
)
def test_commands_that_make_no_sense(command: str, code: int) -> None:
    [piece] = alter_pieces(f"ALTER TABLE t {command}")
    with pytest.raises(SqlError) as raised:
        partition_command(piece)
    assert raised.value.code == code


def test_what_concerns_one_replica_only_is_taken_out() -> None:
    pieces = alter_pieces(
        "ALTER TABLE t MODIFY SETTING hidden = 5, shown = 'a,b', RESET SETTING hidden2, DROP COLUMN c, "
        "RESET SETTING x, hidden, MODIFY SETTING y, z = 2, MODIFY COMMENT 'new'"
    )
    taken = take_out(pieces, {"hidden", "hidden2"})
    assert taken.hidden == {"hidden": None, "hidden2": None}
    assert taken.settings == {"shown": "'a,b'", "x": None, "y": "1", "z": "2"}
    assert [piece.text for piece in taken.pieces] == ["DROP COLUMN c"]
    assert taken.comment == "new"
    assert settings_commands({"a": "'1'", "x": None}) == "MODIFY SETTING `a` = '1', RESET SETTING `x`"


# -- OPTIMIZE ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("OPTIMIZE TABLE t", OptimizeText(None, False, False, "", False)),
        ("OPTIMIZE t FINAL SETTINGS alter_sync = 2", OptimizeText(None, True, False, "", False)),
        ("OPTIMIZE TABLE d.t PARTITION (1, 'a') FINAL", OptimizeText("(1, 'a')", True, False, "", False)),
        ("OPTIMIZE TABLE t PARTITION ID 'x'", OptimizeText("ID 'x'", False, False, "", False)),
        ("OPTIMIZE TABLE t DEDUPLICATE", OptimizeText(None, False, True, "", False)),
        (
            "OPTIMIZE TABLE t FINAL DEDUPLICATE BY a, b CLEANUP FORMAT Null",
            OptimizeText(None, True, True, "a, b", True),
        ),
    ],
)
def test_optimize(sql: str, expected: OptimizeText) -> None:
    assert parse_optimize(sql) == expected


@pytest.mark.parametrize(
    "sql", ["OPTIMIZE TABLE t FINALLY", "OPTIMIZE TABLE t DEDUPLICATE BY", "OPTIMIZE t PARTITION"]
)
def test_optimize_that_does_not_parse(sql: str) -> None:
    with pytest.raises(SqlError) as raised:
        parse_optimize(sql)
    assert raised.value.code == 62


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a, c", ("a", "c")),
        ("a, a_materialized", ("a", "a_materialized")),
        ("*", ("a", "ab", "c")),
        ("* EXCEPT ab", ("a", "c")),
        ("* EXCEPT (a, ab)", ("c",)),
        ("COLUMNS('^a')", ("a", "ab")),
        ("COLUMNS('^a') EXCEPT a, c", ("ab", "c")),
    ],
)
def test_columns_to_deduplicate_by(text: str, expected: tuple[str, ...]) -> None:
    names = ["a", "ab", "c", "a_materialized"]
    assert deduplicate_columns(text, names=names, shown=names[:3]) == expected


@pytest.mark.parametrize(("text", "code"), [("nosuch", 16), ("1", 62), ("a b", 62), ("COLUMNS('(')", 36)])
def test_columns_that_cannot_be_used(text: str, code: int) -> None:
    with pytest.raises(SqlError) as raised:
        deduplicate_columns(text, names=["a"], shown=["a"])
    assert raised.value.code == code


# -- KILL, SYSTEM --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("KILL MUTATION WHERE table = 't'", ("table = 't'", False)),
        ("KILL MUTATION WHERE 1 SYNC FORMAT JSON", ("1", False)),
        ("KILL MUTATION WHERE (a OR b) TEST", ("(a OR b)", True)),
    ],
)
def test_kill_mutation(sql: str, expected: tuple[str, bool]) -> None:
    assert parse_kill(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SYSTEM DROP REPLICA 'r'", DropReplica("r", Scope.EVERYTHING)),
        ("SYSTEM DROP REPLICA 'r' FROM TABLE d.t", DropReplica("r", Scope.TABLE, table=TableName("d", "t"))),
        ("SYSTEM DROP REPLICA 'r' FROM DATABASE d", DropReplica("r", Scope.DATABASE, database="d")),
        ("SYSTEM DROP REPLICA 'r' FROM ZKPATH '/p/t'", DropReplica("r", Scope.PATH, path="/p/t")),
    ],
)
def test_drop_replica(sql: str, expected: DropReplica) -> None:
    assert parse_drop_replica(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SYSTEM SYNC REPLICA t", (SyncMode.DEFAULT, ())),
        ("SYSTEM SYNC REPLICA d.t STRICT", (SyncMode.STRICT, ())),
        ("SYSTEM SYNC REPLICA t IF EXISTS PULL", (SyncMode.PULL, ())),
        ("SYSTEM SYNC REPLICA t LIGHTWEIGHT FROM 'a', 'b'", (SyncMode.LIGHTWEIGHT, ("a", "b"))),
    ],
)
def test_sync_replica(sql: str, expected: tuple[SyncMode, tuple[str, ...]]) -> None:
    assert parse_sync_mode(sql) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM system.replicas", True),
        ("SELECT t.* FROM system.replicas AS t", True),
        ("SELECT count(*) FROM system.replicas", False),
        ("SELECT queue_size * 2, (a) * b FROM system.replicas", True),
        ("SELECT 2 * queue_size FROM system.replicas", False),
        ("SELECT table FROM system.replicas WHERE active_replicas < total_replicas", True),
        ("SELECT is_readonly FROM system.replicas", False),
        ("SELECT 'log_pointer' FROM system.replicas", False),
    ],
)
def test_keeper_is_asked_only_for_what_it_alone_knows(sql: str, expected: bool) -> None:
    """A product of two columns may be taken for a star: then Keeper is asked for nothing."""
    assert asks_keeper([token for token in tokenize(sql) if token.is_significant]) is expected
