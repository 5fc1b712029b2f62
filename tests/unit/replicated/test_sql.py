"""CREATE TABLE and INSERT of replicated tables, as text: what chDB gets, what people are shown."""

from dataclasses import replace
from uuid import UUID

import pytest

from engine.config.model import Cluster, Replica, Shard, Topology
from engine.errors import SqlError
from engine.names import HostId, TableName
from engine.node.replicated.definitions.cloning import Clone, clone_in
from engine.node.replicated.definitions.definition_sql import Definition
from engine.node.replicated.definitions.shard_check import shard_conflict
from engine.node.replicated.rows.insert_sql import InsertSql
from engine.node.replicated.rows.inserts import options_of
from engine.node.replicated.rows.view_sql import reading_from
from engine.replication.commands.insert import AUTO_QUORUM

HIDDEN = {"max_bytes_to_merge_at_max_space_in_pool": "1", "other_hidden": "0"}
H = "max_bytes_to_merge_at_max_space_in_pool = 1, other_hidden = 0"
ID = UUID("00000000-0000-0000-0000-000000000005")
T = TableName("d", "t")
NAME = f"`d`.`t` UUID '{ID}'"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            "CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree('/p', 'r') ORDER BY a",
            f"CREATE TABLE {NAME} (a Int8) ENGINE = MergeTree ORDER BY a SETTINGS {H}",
        ),
        (
            (
                "create table if not exists t (v Int8) engine ReplicatedReplacingMergeTree('/p', 'r', v) "
                "order by (v, 2) settings y, index_granularity = 5, z comment 'x'"
            ),
            (
                f"create table if not exists {NAME} (v Int8) engine ReplacingMergeTree(v) "
                f"order by (v, 2) SETTINGS {H}, y = 1, index_granularity = 5, z = 1 comment 'x'"
            ),
        ),
        (
            "CREATE TABLE x.t ON CLUSTER c (a Int8) ENGINE = ReplicatedSummingMergeTree((a, b)) ORDER BY a",
            f"CREATE TABLE {NAME}  (a Int8) ENGINE = SummingMergeTree((a, b)) ORDER BY a SETTINGS {H}",
        ),
        (
            "CREATE TABLE t ENGINE = ReplicatedMergeTree ORDER BY a AS SELECT 1 AS a SETTINGS n = 1",
            (
                f"CREATE TABLE {NAME} ENGINE = MergeTree ORDER BY a SETTINGS {H} EMPTY AS SELECT 1 AS a "
                "SETTINGS n = 1"
            ),
        ),
        (
            "CREATE TABLE t AS s ENGINE = ReplicatedMergeTree() ORDER BY a",
            f"CREATE TABLE {NAME} AS s ENGINE = MergeTree ORDER BY a SETTINGS {H}",
        ),
        (
            (
                f"CREATE TABLE t UUID '{ID}' (`ENGINE` Int8 DEFAULT (1), INDEX i a TYPE minmax) "
                "ENGINE = ReplicatedMergeTree('/p','r') PARTITION BY ENGINE ORDER BY tuple() "
                "TTL d + INTERVAL 1 DAY SETTINGS max_bytes_to_merge_at_max_space_in_pool = 7, s = {'a':1}"
            ),
            (
                f"CREATE TABLE {NAME} (`ENGINE` Int8 DEFAULT (1), INDEX i a TYPE minmax) "
                "ENGINE = MergeTree PARTITION BY ENGINE ORDER BY tuple() TTL d + INTERVAL 1 DAY "
                f"SETTINGS {H}, s = {{'a':1}}"
            ),
        ),
    ],
)
def test_chdb_gets_the_plain_table_under_its_whole_name_and_uuid(sql: str, expected: str) -> None:
    definition = Definition(sql)
    assert definition.is_replicated
    assert definition.for_chdb(ID, T, HIDDEN) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("('/p', 'r')", ("/p", "r")),
        ("('/p', 'r', version)", ("/p", "r")),
        ("($$/p$$, 'it''s')", ("/p", "it's")),
        ("", None),
        ("()", None),
        ("(version)", None),
    ],
)
def test_path_and_name_are_the_first_two_literals_or_the_defaults(
    arguments: str, expected: tuple[str, str] | None
) -> None:
    sql = f"CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree{arguments} ORDER BY a"
    assert Definition(sql).keeper_arguments() == expected


def test_without_arguments_and_without_a_key_they_are_the_defaults() -> None:
    assert Definition("CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree").keeper_arguments() is None
    replacing = Definition("CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree(a)")
    with pytest.raises(SqlError, match="two string literal arguments"):
        replacing.keeper_arguments()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t AS b.other ENGINE = ReplicatedReplacingMergeTree(a) TTL d",
        "CREATE TABLE t ENGINE = ReplicatedReplacingMergeTree(a) AS other",
        "CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree(a) PRIMARY KEY a",
        "CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree(a) PARTITION BY a",
        "CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree(a) SAMPLE BY a",
        "CREATE TABLE t (a Int8) ENGINE = ReplicatedReplacingMergeTree(a) SETTINGS b = 1",
    ],
)
def test_they_are_the_defaults_where_a_storage_is_given_otherwise(sql: str) -> None:
    assert Definition(sql).keeper_arguments() is None


def test_settings_may_stand_without_a_value() -> None:
    sql = "CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a SETTINGS {} COMMENT 'c'"
    assert Definition(sql.format("one, two = 2, three")).settings == {"one": "1", "two": "2", "three": "1"}


@pytest.mark.parametrize(
    ("engine", "are_computed"),
    [
        ("ReplicatedReplacingMergeTree('/t/' || currentDatabase(), '{replica}', v)", True),
        ("ReplicatedMergeTree('/p', concat('r', toString(1)))", True),
        ("ReplicatedMergeTree('/p', 'r')", False),
        ("ReplicatedVersionedCollapsingMergeTree(sign, version)", False),
        ("ReplicatedVersionedCollapsingMergeTree(sign, v + 1)", False),
        ("ReplicatedSummingMergeTree((a, b))", False),
        ("ReplicatedMergeTree", False),
    ],
)
def test_path_and_name_may_have_to_be_computed(engine: str, are_computed: bool) -> None:
    definition = Definition(f"CREATE TABLE t (a Int8) ENGINE = {engine} ORDER BY a")
    assert (definition.keeper_expressions() is not None) is are_computed
    if are_computed:
        arguments = (definition.engine or pytest.fail("no engine")).arguments[2:]
        text = ", ".join(("'/x'", "'y'", *arguments))
        written = f"CREATE TABLE t (a Int8) ENGINE = {engine.partition('(')[0]}({text}) ORDER BY a"
        assert definition.with_keeper_arguments("/x", "y") == written


def test_one_literal_alone_is_refused() -> None:
    definition = Definition("CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree('/p') ORDER BY a")
    with pytest.raises(SqlError, match="two string literal arguments") as caught:
        definition.keeper_arguments()
    assert caught.value.code == 36


def test_the_definition_is_shown_as_the_user_made_it() -> None:
    made = (
        "CREATE TABLE d.t (`a` Int8) ENGINE = ReplacingMergeTree(a) ORDER BY a "
        f"SETTINGS {H}, index_granularity = 8192 COMMENT 'c'"
    )
    assert Definition(made).shown("/p/{shard}", "{replica}", hidden=HIDDEN, user={"other_hidden": "3"}) == (
        "CREATE TABLE d.t (`a` Int8) ENGINE = ReplicatedReplacingMergeTree('/p/{shard}', '{replica}', a) "
        "ORDER BY a SETTINGS index_granularity = 8192, other_hidden = 3 COMMENT 'c'"
    )


def test_create_as_another_table_takes_its_definition() -> None:
    definition = Definition("CREATE TABLE IF NOT EXISTS d.x AS d.y")
    assert definition.source == TableName("d", "y")
    assert definition.like("CREATE TABLE d.y (`a` Int8) ENGINE = ReplicatedMergeTree('/p', 'r')") == (
        "CREATE TABLE IF NOT EXISTS d.x (`a` Int8) ENGINE = ReplicatedMergeTree('/p', 'r')"
    )


@pytest.mark.parametrize("end", ["", ";", " ; "])
def test_a_comment_of_its_own_comes_before_that_of_the_table_that_it_is_like(end: str) -> None:
    shown = "CREATE TABLE d.y (`a` Int8 COMMENT 'a') ENGINE = ReplicatedMergeTree('/p', 'r') COMMENT 'y'"
    own = Definition(f"CREATE TABLE d.x AS d.`comment` COMMENT 'x'{end}")
    assert own.like(shown) == f"CREATE TABLE d.x {shown[17:-3]}'x'"
    assert Definition(f"CREATE TABLE d.x AS d.y{end}").like(shown) == f"CREATE TABLE d.x {shown[17:]}"
    for head in ("CREATE TABLE x", "CREATE TABLE IF NOT EXISTS d.x UUID '1'", "CREATE TABLE x ON CLUSTER c"):
        clone = clone_in(f"{head} CLONE AS d.y ENGINE = Null")
        assert clone == Clone(f"{head} AS d.y ENGINE = Null", TableName("d", "y"))
    assert clone_in("CREATE TABLE clone AS y") is None
    assert clone_in("CREATE TABLE x (clone Int8) ENGINE = Null") is None


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO t VALUES (1)", "INSERT INTO `s`.`x` VALUES (1)"),
        ("INSERT INTO TABLE d.t (a, b) FORMAT CSV", "INSERT INTO TABLE `s`.`x` (a, b) FORMAT CSV"),
        (
            "INSERT INTO t SETTINGS async_insert = 1, a = 'x' SELECT t.a FROM t",
            "INSERT INTO `s`.`x` SETTINGS async_insert = 0, a = 'x' SELECT t.a FROM t",
        ),
        (
            "INSERT INTO d.t (t.* EXCEPT (a, t), `d`.t.b, t.COLUMNS('t.x')) SELECT t.a FROM t",
            "INSERT INTO `s`.`x` (* EXCEPT (a, t), b, COLUMNS('t.x')) SELECT t.a FROM t",
        ),
        ("INSERT INTO t (d.t.a, t.t.b, t) VALUES (1)", "INSERT INTO `s`.`x` (a, t.b, t) VALUES (1)"),
        ("INSERT INTO d.t (e.t.a, n.b) FORMAT CSV", "INSERT INTO `s`.`x` (e.t.a, n.b) FORMAT CSV"),
        ("INSERT INTO t (SELECT t.a FROM t)", "INSERT INTO `s`.`x` (SELECT t.a FROM t)"),
        ("INSERT INTO t (a, t.", "INSERT INTO `s`.`x` (a, "),
        ("INSERT INTO t (a, (b SELECT 1", "INSERT INTO `s`.`x` (a, (b SELECT 1"),
    ],
)
def test_an_insert_goes_into_the_stage_and_never_waits_there(sql: str, expected: str) -> None:
    assert InsertSql(sql).into(TableName("s", "x")) == expected


def test_a_limit_of_another_table_is_not_said_of_the_stage() -> None:
    text = InsertSql("INSERT INTO t SETTINGS n = 1, m = 2 SELECT 1 SETTINGS n = 3")
    expected = "INSERT INTO `s`.`x` SETTINGS n = 0, m = 2 SELECT 1 SETTINGS n = 0"
    assert text.into(TableName("s", "x"), unlimited=["n"]) == expected


def test_settings_of_an_insert_are_read_wherever_they_stand() -> None:
    text = InsertSql(
        "INSERT INTO t (a) SETTINGS insert_quorum = 'auto', insert_deduplication_token = 'it''s' "
        "SELECT 1 SETTINGS insert_quorum_timeout = 1500"
    )
    options = options_of(text.settings)
    assert (options.quorum, options.token, options.quorum_timeout_s) == (AUTO_QUORUM, "it's", 1.5)
    assert options_of({"insert_deduplicate": "0"}).deduplicate is False
    assert options_of({"insert_deduplicate": "0", "deduplicate_insert": "enable"}).deduplicate is True
    with pytest.raises(SqlError, match="insert_quorum"):
        options_of({"insert_quorum": "most"})


def test_a_view_reads_the_stage_in_the_place_of_its_source() -> None:
    select = "WITH x AS (SELECT 1) SELECT t.a, d.t.b FROM d.t INNER JOIN e.t AS j USING (a)"
    assert reading_from(select, T, TableName("s", "x"), "_part IN ('p')") == (
        "WITH x AS (SELECT 1) SELECT t.a, t.b FROM (SELECT * FROM `s`.`x` WHERE _part IN ('p')) AS `t` "
        "INNER JOIN e.t AS j USING (a)"
    )
    assert reading_from("SELECT a FROM d.t AS q", T, TableName("s", "x")) == "SELECT a FROM `s`.`x` AS q"


def _topology(**clusters: list[list[str]]) -> Topology:
    return Topology(
        clusters={
            name: Cluster(
                name,
                tuple(
                    Shard(n, tuple(Replica(host, 9000) for host in hosts), internal_replication=True)
                    for n, hosts in enumerate(shards, start=1)
                ),
            )
            for name, shards in clusters.items()
        }
    )


def test_hosts_that_no_cluster_has_in_one_shard_may_not_share_a_table() -> None:
    a, b = HostId("a", 9000), HostId("b", 9000)
    assert shard_conflict(_topology(c=[["a"], ["b"]]), a, b, database="d") == "c"
    assert shard_conflict(_topology(c=[["a", "b"]]), a, b, database="d") == ""
    assert shard_conflict(_topology(c=[["a"], ["b"]], one=[["a", "b"]]), a, b, database="d") == ""
    assert shard_conflict(_topology(c=[["a"]]), a, b, database="d") == ""


def test_shards_of_a_replicated_database_are_those_of_its_own_tables() -> None:
    a, b = HostId("a", 9000), HostId("b", 9000)
    clusters = _topology(r=[["a"], ["b"]]).clusters
    topology = Topology(clusters={"r": replace(clusters["r"], is_database=True)})
    assert shard_conflict(topology, a, b, database="r") == "r"
    assert shard_conflict(topology, a, b, database="d") == ""


@pytest.mark.parametrize(
    ("rows", "is_select", "is_stable"),
    [
        ("VALUES (1)", False, False),
        ("FORMAT CSV", False, False),
        ("SELECT 1", True, False),
        ("(SELECT 1)", True, False),
        ("(a, b) SETTINGS x = 1 WITH 1 AS a SELECT a, 2 ORDER BY ALL SETTINGS y = 2", True, True),
        ("SELECT * FROM (SELECT 1 ORDER BY ALL)", True, False),
    ],
)
def test_where_the_rows_of_an_insert_come_from(rows: str, is_select: bool, is_stable: bool) -> None:
    text = InsertSql(f"INSERT INTO t {rows}")
    assert (text.is_select, text.has_stable_rows) == (is_select, is_stable)
