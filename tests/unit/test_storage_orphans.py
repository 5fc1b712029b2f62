"""What a crash in the middle of CREATE leaves is set aside; what belongs to anything is left alone."""

from pathlib import Path

from engine.storage import ChdbPool
from engine.storage.orphans import set_orphans_aside

UUID = "4bd9f064-a403-4118-b80a-6d8af981bf53"
CREATE = f"CREATE TABLE half UUID '{UUID}' (a UInt64) ENGINE = MergeTree ORDER BY a"


async def test_a_create_that_was_cut_in_the_middle_can_be_repeated(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path)
    await pool.query(CREATE)
    await pool.query("INSERT INTO half VALUES (1)")
    await pool.close()
    metadata = (tmp_path / "metadata" / "default").resolve() / "half.sql"
    metadata.unlink()  # as if the process had died before it was written

    pool = await ChdbPool.open(tmp_path)
    await pool.query(CREATE)
    assert (await pool.query("SELECT count() FROM half")).text == "0\n"
    await pool.close()
    assert (tmp_path / "oncluster" / "orphans" / UUID / "all_1_1_0").is_dir()


async def test_nothing_that_is_in_use_is_an_orphan(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path)
    for sql in (
        "CREATE DATABASE d",
        "CREATE TABLE d.t (a UInt64) ENGINE = MergeTree ORDER BY a",
        "CREATE TABLE detached (a UInt64) ENGINE = MergeTree ORDER BY a",
        "CREATE TABLE forgotten (a UInt64) ENGINE = MergeTree ORDER BY a",
        "CREATE TABLE dropped (a UInt64) ENGINE = MergeTree ORDER BY a",
        "CREATE MATERIALIZED VIEW v (a UInt64) ENGINE = MergeTree ORDER BY a AS SELECT a FROM d.t",
        "INSERT INTO d.t VALUES (1)",
        "INSERT INTO detached VALUES (2)",
        "INSERT INTO forgotten VALUES (3)",
        "DETACH TABLE detached",
        "DETACH TABLE forgotten PERMANENTLY",
        "DROP TABLE dropped",
        "DETACH DATABASE d",
    ):
        await pool.query(sql)
    await pool.close()
    assert set_orphans_aside(tmp_path) == []

    pool = await ChdbPool.open(tmp_path)
    await pool.query("ATTACH TABLE forgotten")
    values = await pool.query(
        "SELECT (SELECT sum(a) FROM detached), (SELECT sum(a) FROM forgotten), (SELECT sum(a) FROM v)"
    )
    assert values.text == "2\t3\t1\n"
    assert (await pool.query("SELECT a FROM d.t")).text == "1\n"
    await pool.close()
    assert not (tmp_path / "oncluster" / "orphans").exists()
