"""Tables whose definition has a subquery that is evaluated when they are loaded are there after a start."""

from pathlib import Path

import pytest

from engine.errors import SqlError
from engine.storage import ChdbPool

pytestmark = pytest.mark.slow

COLUMNS = "k UInt8, t DateTime"
ENGINE = "ENGINE = MergeTree ORDER BY k"
TTL = f"({COLUMNS}) {ENGINE} TTL t + INTERVAL 1 YEAR"
LATE = {
    "checked": f"({COLUMNS}, CONSTRAINT c CHECK (SELECT 1))",
    "checked_by_numbers": f"({COLUMNS}, CONSTRAINT c CHECK k > (SELECT max(number) FROM numbers(3)))",
    "assumed": f"({COLUMNS}, CONSTRAINT c ASSUME k > (SELECT 1), PROJECTION p (SELECT k, t ORDER BY t))",
    "of `system`": f"{TTL} WHERE k IN system.one",
    "grouped": f"{TTL} GROUP BY k SET t = max(t) + (k IN (SELECT 1))",
    "by a subquery": f"{TTL} WHERE k IN (SELECT 1)",
}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "\\`") + "`"


async def starts_with(path: Path, *statements: str) -> None:
    pool = await ChdbPool.open(path)
    for sql in statements:
        await pool.query(sql)
    await pool.close()


def creates() -> list[str]:
    engine = "ENGINE = MergeTree ORDER BY k"
    return [
        f"CREATE TABLE {quoted(name)} {text}{'' if 'ENGINE' in text else engine}"
        for name, text in LATE.items()
    ]


async def test_they_are_there_with_their_rows_at_every_start(tmp_path: Path) -> None:
    # chDB cannot evaluate a subquery of a CHECK for rows.
    filled = [quoted(name) for name in LATE if not name.startswith("checked")]
    await starts_with(
        tmp_path, *creates(), *(f"INSERT INTO {name} VALUES (9, '2100-01-01')" for name in filled)
    )
    for _ in range(2):
        pool = await ChdbPool.open(tmp_path)
        names = (await pool.query("SELECT name FROM system.tables WHERE database = 'default'")).text
        assert set(names.splitlines()) == set(LATE)
        for name in filled:
            assert (await pool.query(f"SELECT k FROM {name}")).text == "9\n"
        assert (await pool.query("SELECT count() FROM system.detached_tables")).text == "0\n"
        await pool.close()


async def test_one_that_reads_another_comes_after_it(tmp_path: Path) -> None:
    await starts_with(
        tmp_path,
        "CREATE TABLE z (k UInt8, CONSTRAINT c ASSUME k > (SELECT 1)) ENGINE = MergeTree ORDER BY k",
        "INSERT INTO z VALUES (5)",
        "CREATE TABLE a (k UInt8, CONSTRAINT c ASSUME k > (SELECT max(k) + (SELECT 1) FROM z)) "
        "ENGINE = MergeTree ORDER BY k",
    )
    await starts_with(tmp_path, "INSERT INTO a VALUES (7)")


async def test_a_start_that_was_killed_before_they_were_attached_is_made_good(tmp_path: Path) -> None:
    await starts_with(tmp_path, *creates())
    for file in tmp_path.glob("store/*/*/*.sql"):
        file.with_name(f"{file.name}.detached").write_text("attached right after the start\n")
    await starts_with(tmp_path, *(f"SELECT count() FROM {quoted(name)}" for name in LATE))


async def test_they_may_be_in_an_ordinary_database(tmp_path: Path) -> None:
    """As a replica's recovery makes them for what it puts aside."""
    pool = await ChdbPool.open(tmp_path)
    settings = {"allow_deprecated_database_ordinary": "1"}
    await pool.query("CREATE DATABASE `o.p` ENGINE = Ordinary", settings=settings)
    await pool.query(f"CREATE TABLE `o.p`.t {LATE['by a subquery']}")
    await pool.close()
    await starts_with(tmp_path, "SELECT k FROM `o.p`.t")


async def test_what_somebody_detached_for_good_stays_detached(tmp_path: Path) -> None:
    await starts_with(tmp_path, *creates(), "DETACH TABLE checked PERMANENTLY")
    pool = await ChdbPool.open(tmp_path)
    assert (
        await pool.query("SELECT table, is_permanently FROM system.detached_tables")
    ).text == "checked\t1\n"
    await pool.query("ATTACH TABLE checked")
    await pool.close()


ASKING = (
    "(k UInt8, CONSTRAINT c CHECK k > (SELECT max(k) FROM asked)) ENGINE = MergeTree ORDER BY k",
    f"{TTL} WHERE k IN (SELECT k FROM default.asked)",
    f"{TTL} WHERE k IN default.asked_set",
    f"{TTL} WHERE dictGet('default.asked_too', 'v', toUInt64(k)) > 1",
    f"{TTL} GROUP BY k SET t = max(t) + dictGet('default.asked_too', 'v', toUInt64(1))",
    f"({COLUMNS}, v Int8 TTL t + toIntervalDay(joinGet('default.joined', 'v', k))) {ENGINE}",
    f"({COLUMNS}, INDEX i joinGet('default.joined', 'v', k) TYPE minmax) {ENGINE}",
    "(k UInt8) ENGINE = MergeTree ORDER BY joinGet('default.joined', 'v', k)",
    "(k UInt8) ENGINE = MergeTree PARTITION BY joinGet('default.joined', 'v', k) ORDER BY k",
)
ASKED = (
    "CREATE TABLE asked (k UInt8, v UInt8) ENGINE = MergeTree ORDER BY k",
    "CREATE TABLE asked_set (k UInt8) ENGINE = Set",
    "CREATE TABLE joined (k UInt8, v UInt8) ENGINE = Join(ANY, LEFT, k)",
    "CREATE DICTIONARY asked_too (k UInt64, v UInt8) PRIMARY KEY k SOURCE(NULL()) LAYOUT(FLAT()) LIFETIME(0)",
)


async def test_those_that_cannot_be_attached_stay_out_until_what_they_ask_is_there(tmp_path: Path) -> None:
    await starts_with(
        tmp_path,
        *ASKED,
        *(f"CREATE TABLE t{number} {text}" for number, text in enumerate(ASKING)),
        "CREATE TABLE beside (k UInt8) ENGINE = MergeTree ORDER BY k",
        "DROP DICTIONARY asked_too SETTINGS check_table_dependencies = 0",
        *(
            f"DROP TABLE {name} SETTINGS check_table_dependencies = 0"
            for name in ("joined", "asked", "asked_set")
        ),
    )
    shown = "SELECT name FROM system.tables WHERE database = 'default' ORDER BY name"
    for _ in range(2):
        pool = await ChdbPool.open(tmp_path)
        assert (await pool.query(shown)).text == "beside\n"
        assert (await pool.query("SELECT count() FROM system.detached_tables")).text == f"{len(ASKING)}\n"
        with pytest.raises(SqlError) as caught:
            await pool.query("ATTACH TABLE t7")
        assert caught.value.code == 60
        await pool.close()
    await starts_with(tmp_path, *ASKED, "ATTACH TABLE t7", "INSERT INTO t7 VALUES (1)")
    await starts_with(tmp_path, *(f"SELECT * FROM t{number}" for number, _ in enumerate(ASKING)))


async def test_one_with_more_projections_than_its_setting_allows_stays_out_until_that_is_corrected(
    tmp_path: Path,
) -> None:
    await starts_with(
        tmp_path,
        f"CREATE TABLE t ({COLUMNS}, PROJECTION p (SELECT t ORDER BY t)) {ENGINE}",
        "INSERT INTO t VALUES (9, '2100-01-01')",
    )
    await starts_with(tmp_path, "SELECT * FROM t", "ALTER TABLE t MODIFY SETTING max_projections = 0")
    pool = await ChdbPool.open(tmp_path)
    [file] = (await pool.query("SELECT metadata_path FROM system.detached_tables")).text.splitlines()
    with pytest.raises(SqlError) as caught:
        await pool.query("ATTACH TABLE t")
    assert caught.value.code == 290
    definition = tmp_path / file
    definition.write_text(definition.read_text().replace("max_projections = 0", "max_projections = 1"))
    await pool.query("ATTACH TABLE t")
    assert (await pool.query("SELECT k FROM t")).text == "9\n"
    await pool.close()
