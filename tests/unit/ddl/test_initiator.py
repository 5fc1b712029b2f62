"""What the initiator checks and how it rewrites, before anything reaches Keeper."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config.model import Cluster, DistributedDdl, Replica, Shard, Topology
from engine.ddl.entry import DDLLogEntry
from engine.ddl.initiator import PreparedStatement, check_token, prepare, token_of, without_token
from engine.errors import OnclusterError, Refused, SqlError
from engine.names import HostId
from tests.unit.ddl.support import cluster

CREATE = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = Memory"
TOPOLOGY = Topology(
    {
        "c": cluster("n1 n2", "n3"),
        "empty": Cluster("empty", ()),
        "closed": cluster("n1", name="closed", allow_distributed_ddl_queries=False),
        "with_default": Cluster("with_default", (Shard(1, (Replica("n1", 9000, default_database="dd"),)),)),
        "mixed": Cluster(
            "mixed", (Shard(1, (Replica("n1", 9000, default_database="dd"), Replica("n2", 9000))),)
        ),
        "crossed": Cluster(
            "crossed",
            (
                Shard(1, (Replica("n1", 9000, "r1"), Replica("n2", 9000, "r1"))),
                Shard(2, (Replica("n1", 9000, "r2"), Replica("n2", 9000, "r2"))),
            ),
        ),
    },
    {"cluster": "c", "shard": "01"},
)


def prepared(sql: str = CREATE, **more: object) -> PreparedStatement:
    arguments: dict[str, object] = {"topology": TOPOLOGY, "queue": DistributedDdl(), "token": "tok"}
    return prepare(sql, **(arguments | more))  # type: ignore[arg-type]


def query(sql: str, **more: object) -> str:
    return without_token(prepared(sql, **more).entry.query)


@pytest.mark.parametrize(
    ("sql", "code", "more"),
    [
        ("SELECT 1", 48, {}),
        ("INSERT INTO t VALUES (1)", 48, {}),
        ("CREATE TEMPORARY TABLE t ON CLUSTER c (a Int8)", 80, {}),
        (CREATE, 392, {"allow_distributed_ddl": False}),
        (CREATE, 392, {"settings": {"allow_distributed_ddl": "0"}}),
        (CREATE, 392, {"replicated_ddl_enabled": False}),
        ("ALTER TABLE d.t ON CLUSTER c ATTACH PARTITION 1", 48, {}),
        ("ALTER TABLE d.t ON CLUSTER c FETCH PARTITION 1 FROM '/x'", 48, {}),
        ("BACKUP TABLE d.t ON CLUSTER c TO S3('https://b/x')", 48, {}),
        ("RESTORE TABLE d.t ON CLUSTER c FROM S3('https://b/x')", 48, {}),
        ("DROP TABLE d.t ON CLUSTER nope", 701, {}),
        ("DROP TABLE d.t ON CLUSTER '{unknown}'", 139, {}),
        ("DROP TABLE d.t ON CLUSTER closed", 392, {}),
        ("DROP TABLE d.t ON CLUSTER empty", 49, {}),
        ("DROP TABLE t ON CLUSTER mixed", 48, {}),
        ("CREATE TABLE d.t ON CLUSTER crossed (a Int8) ENGINE = ReplicatedMergeTree ORDER BY a", 80, {}),
        (
            "CREATE TABLE d.t ON CLUSTER crossed (a Int8) ENGINE = ReplicatedMergeTree('/t/{uuid}', 'r')",
            80,
            {},
        ),
        (CREATE, 287, {"entry_version": 0}),
        (CREATE, 287, {"entry_version": 9}),
        ("DROP TABLE d.t", 36, {}),
        (CREATE, 36, {"token": "with space"}),
        (CREATE, 36, {"token": ""}),
        (CREATE, 36, {"token": "x */ y"}),
        (CREATE, 36, {"queue": DistributedDdl(name="logs", clusters=("other",))}),
        (f"CREATE TABLE d.t ON CLUSTER c (a String DEFAULT '{'x' * 1_100_000}')", 36, {}),
        ("CREATE TABLE d.t ON CLUSTER c (a String DEFAULT 'open", 62, {}),
    ],
)
def test_what_cannot_be_enqueued_is_refused_with_clickhouses_code(
    sql: str, code: int, more: dict[str, object]
) -> None:
    with pytest.raises(OnclusterError) as refusal:
        prepared(sql, **more)
    assert isinstance(refusal.value, Refused)
    assert refusal.value.code == code


def test_an_earlier_check_wins() -> None:
    with pytest.raises(SqlError) as refusal:
        prepared("SELECT 1", allow_distributed_ddl=False)
    assert refusal.value.code == 48
    with pytest.raises(SqlError) as refusal:
        prepared("ALTER TABLE d.t ON CLUSTER nope ATTACH PARTITION 1", allow_distributed_ddl=False)
    assert refusal.value.code == 392


def test_all_replicas_of_all_shards_are_listed_in_the_order_of_the_configuration() -> None:
    assert prepared().hosts == (HostId("n1", 9000), HostId("n2", 9000), HostId("n3", 9000))


def test_the_bytes_are_those_of_the_entry() -> None:
    statement = prepared(initiator=HostId("ch-1", 9000))
    assert DDLLogEntry.from_bytes(statement.data) == statement.entry
    assert statement.entry.initiator == "ch%2D1:9000"


def test_the_token_opens_the_query_and_is_the_initial_query_id_from_version_five_on() -> None:
    new, old = prepared(token="run-1/2"), prepared(token="run-1/2", entry_version=1)
    for statement in (new, old):
        assert statement.entry.query.startswith("/* oncluster token=run-1/2 */ CREATE TABLE")
        assert token_of(statement.entry) == "run-1/2"
    assert new.entry.initial_query_id == "run-1/2"
    assert old.entry.initial_query_id == ""


def test_an_entry_of_somebody_else_has_no_token() -> None:
    assert token_of(DDLLogEntry(1, "CREATE TABLE t /* oncluster token=x */ ON CLUSTER c", ())) is None


def test_output_clauses_are_dropped() -> None:
    assert "FORMAT" not in query("DROP TABLE d.t ON CLUSTER c FORMAT JSON")
    assert "OUTFILE" not in query("DROP TABLE d.t ON CLUSTER c INTO OUTFILE 'x' FORMAT Null")


def test_macros_of_the_initiator_are_expanded_in_the_cluster_name() -> None:
    statement = prepared("DROP TABLE d.t ON CLUSTER '{cluster}'")
    assert statement.cluster == "c"
    assert "{cluster}" not in statement.entry.query


def test_macros_elsewhere_are_left_to_each_host() -> None:
    sql = "CREATE TABLE d.t ON CLUSTER c (a Int8) ENGINE = ReplicatedMergeTree('/t/{shard}', '{replica}')"
    assert "'/t/{shard}'" in query(sql)


def test_the_sessions_database_is_filled_in() -> None:
    assert "sales.t" in query("DROP TABLE t ON CLUSTER c", current_database="sales").replace("`", "")
    renamed = query("RENAME TABLE a TO b ON CLUSTER c", current_database="sales").replace("`", "")
    assert "sales.a" in renamed and "sales.b" in renamed


def test_where_the_cluster_has_default_databases_each_host_fills_in_its_own() -> None:
    text = query("DROP TABLE t ON CLUSTER with_default", current_database="sales")
    assert "sales" not in text and "dd" not in text


def test_where_the_cluster_has_default_databases_the_function_still_means_the_initiators() -> None:
    sql = "CREATE VIEW v ON CLUSTER with_default AS SELECT currentDatabase() AS db FROM t"
    text = query(sql, current_database="sales")
    assert "'sales' AS db" in text and "sales.t" not in text.replace("`", "")


def test_a_replicated_engine_with_a_path_of_its_own_may_be_cross_replicated() -> None:
    sql = (
        "CREATE TABLE d.t ON CLUSTER crossed (a Int8) "
        "ENGINE = ReplicatedMergeTree('/t/{shard}', '{replica}') ORDER BY a"
    )
    assert len(prepared(sql).hosts) == 4


def test_settings_behind_the_dropped_format_travel_as_the_statements_own() -> None:
    made = prepared(
        "DROP TABLE d.t ON CLUSTER c FORMAT JSON SETTINGS max_threads = 3", settings={"max_threads": "2"}
    )
    assert [(setting.name, setting.value) for setting in made.entry.settings] == [("max_threads", "3")]


def test_changed_settings_travel_from_version_two_on() -> None:
    settings = {"max_threads": "2", "profile": "it's"}
    assert prepared(settings=settings).entry.setting_values == settings
    assert prepared(settings=settings, entry_version=1).entry.settings == ()


def test_version_three_is_written_as_two() -> None:
    assert prepared(entry_version=3).entry.version == 2


@pytest.mark.parametrize("name", ["a b", "", "1a", "a-b", "a = 1, b"])
def test_a_setting_whose_name_could_not_be_read_again_is_refused(name: str) -> None:
    """Nobody could read the entry."""
    with pytest.raises(SqlError) as refusal:
        prepared("DROP TABLE d.t ON CLUSTER c", settings={name: "1"})
    assert refusal.value.code == 115


def test_several_statements_are_refused_and_one_may_end_like_one_of_several() -> None:
    for sql in ("DROP TABLE d.t ON CLUSTER c; DROP TABLE d.u", "DROP TABLE d.t; DROP TABLE d.u ON CLUSTER c"):
        with pytest.raises(SqlError) as refusal:
            prepared(sql)
        assert refusal.value.code == 62
    assert "DROP TABLE d.t ON CLUSTER c" in query("DROP TABLE d.t ON CLUSTER c; -- ; no more")
    assert "';'" in query("ALTER TABLE d.t ON CLUSTER c COMMENT COLUMN a ';'")


def test_a_shared_uuid_goes_in_front_of_on_cluster_and_never_into_version_one() -> None:
    uuid = UUID(int=5)
    assert f"d.t UUID '{uuid}' ON CLUSTER c" in query(CREATE, shared_uuid=uuid)
    assert "UUID" not in query(CREATE, shared_uuid=uuid, entry_version=1)
    assert "UUID" not in query("DROP TABLE d.t ON CLUSTER c", shared_uuid=uuid)
    assert "UUID" not in query(CREATE)


def test_a_views_own_table_gets_one_uuid_on_all_hosts() -> None:
    create = "CREATE MATERIALIZED VIEW d.v ON CLUSTER c {} AS SELECT 1 AS a"
    given = query(create.format("(a Int8) ENGINE = Memory"), shared_uuid=UUID(int=5))
    assert re.search(r"VIEW d.v UUID '[0-9a-f-]{36}' ON CLUSTER c TO INNER UUID '[0-9a-f-]{36}' \(a", given)
    assert given == query(create.format("(a Int8) ENGINE = Memory"), shared_uuid=UUID(int=5))
    mine = f"TO INNER UUID '{UUID(int=6)}' ENGINE = Memory"
    assert query(create.format(mine), shared_uuid=UUID(int=5)).count("INNER") == 1
    assert "INNER" not in query(create.format("TO d.t"), shared_uuid=UUID(int=5))


def test_a_refreshable_views_own_table_gets_a_uuid_only_where_rows_are_appended() -> None:
    """Otherwise each refresh makes a table anew, and every host refuses the clause (36)."""
    create = (
        "CREATE MATERIALIZED VIEW d.v ON CLUSTER c REFRESH EVERY 1 HOUR {}ENGINE = Memory AS SELECT 1 AS a"
    )
    replaced = query(create.format("SETTINGS refresh_retries = 3 "), shared_uuid=UUID(int=5))
    assert "VIEW d.v UUID" in replaced and "INNER" not in replaced
    appended = query(create.format("SETTINGS refresh_retries = 3 APPEND "), shared_uuid=UUID(int=5))
    assert "SETTINGS refresh_retries = 3 APPEND TO INNER UUID '" in appended


def test_a_statement_without_the_clause_can_be_given_one() -> None:
    assert "ON CLUSTER c" in query("DROP TABLE d.t", on_cluster="c")


def test_the_query_is_one_line() -> None:
    sql = "CREATE TABLE d.t\nON CLUSTER c\n(a Int8) -- note\nENGINE = Memory"
    assert "\n" not in prepared(sql).entry.query


def test_the_sender_is_named_from_version_eight_on() -> None:
    entry = prepared(entry_version=8, initiator_user="alice", initiator_roles=("r",)).entry
    assert (entry.initiator_user, entry.initiator_roles) == ("alice", ("r",))
    assert prepared(entry_version=5, initiator_user="alice").entry.initiator_user == ""


@given(st.from_regex(r"[A-Za-z0-9_.:@+~=/-]{1,200}", fullmatch=True))
def test_every_token_of_the_grammar_is_found_again(token: str) -> None:
    assert check_token(token) == token
    assert token_of(prepared(token=token).entry) == token
