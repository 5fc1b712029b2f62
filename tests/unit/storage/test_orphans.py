"""What a crash in the middle of CREATE leaves is set aside; what belongs to anything is left alone."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import Corrupt, SqlError
from engine.storage import ChdbPool
from engine.storage.orphans import set_orphans_aside

pytestmark = pytest.mark.slow

UUID = "4bd9f064-a403-4118-b80a-6d8af981bf53"
CREATE = f"CREATE TABLE half UUID '{UUID}' (a UInt64) ENGINE = MergeTree ORDER BY a"

DIES_FILLING = """
import asyncio, os, signal, sys
from pathlib import Path
from engine.storage import ChdbPool

async def main(path, sql):
    pool = await ChdbPool.open(path)
    filling = asyncio.create_task(pool.query(sql))
    while not list(path.glob("store/*/*/_tmp_replace_*_????????????????.sql")):
        assert not filling.done()
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


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


@pytest.mark.parametrize("left_of_it", [0, 30])
async def test_data_whose_definition_is_damaged_is_there_when_that_is_put_back(
    tmp_path: Path, left_of_it: int
) -> None:
    pool = await ChdbPool.open(tmp_path)
    await pool.query(CREATE)
    await pool.query("INSERT INTO half VALUES (1)")
    await pool.close()
    metadata = (tmp_path / "metadata" / "default").resolve() / "half.sql"
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[:left_of_it])
    with pytest.raises(Corrupt, match=r"half\.sql is damaged") as damaged:
        await ChdbPool.open(tmp_path)
    assert "backup" in damaged.value.hint
    metadata.write_bytes(whole)
    pool = await ChdbPool.open(tmp_path)
    assert (await pool.query("SELECT a FROM half")).text == "1\n"
    await pool.close()


async def test_a_database_whose_definition_chdb_cannot_read_is_said_to_be_put_back(tmp_path: Path) -> None:
    pool = await ChdbPool.open(tmp_path)
    await pool.query("CREATE DATABASE d ENGINE = Atomic")
    await pool.query(CREATE.replace("half", "d.half"))
    await pool.query("INSERT INTO d.half VALUES (1)")
    await pool.close()
    metadata = tmp_path / "metadata" / "d.sql"
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[:20])
    with pytest.raises(SqlError) as failed:
        await ChdbPool.open(tmp_path)
    assert "put back from a backup" in failed.value.hint and str(tmp_path) in failed.value.hint
    metadata.write_bytes(whole)
    pool = await ChdbPool.open(tmp_path)
    assert (await pool.query("SELECT a FROM d.half")).text == "1\n"
    await pool.close()


@pytest.mark.parametrize("kind", ["CREATE", "CREATE OR REPLACE"])
async def test_a_create_that_was_cut_while_it_was_filled_can_be_repeated(tmp_path: Path, kind: str) -> None:
    def create(seconds: float) -> str:
        select = f"SELECT number + sleepEachRow({seconds}) AS a FROM numbers(100) SETTINGS max_block_size = 1"
        return f"{kind} TABLE half UUID '{UUID}' ENGINE = MergeTree ORDER BY a AS {select}"

    pool = await ChdbPool.open(tmp_path)
    # Names that only look like those that chDB gives.
    mine = [f"_tmp_replace_{'0' * 32}", "_tmp_replace_1a1920d361c114e2_mine"]
    for name in mine:
        await pool.query(f"CREATE TABLE {name} (a UInt64) ENGINE = MergeTree ORDER BY a")
    await pool.close()
    died = subprocess.run([sys.executable, "-c", DIES_FILLING, tmp_path, create(1)], check=False)
    assert died.returncode == -signal.SIGKILL

    pool = await ChdbPool.open(tmp_path)
    names = "SELECT name FROM system.tables WHERE database = 'default' ORDER BY name"
    assert (await pool.query(names)).text.split() == mine
    await pool.query(create(0))
    assert (await pool.query("SELECT count() FROM half")).text == "100\n"
    await pool.close()
    left = [each.name for each in (tmp_path / "oncluster" / "orphans").iterdir()]
    assert UUID in left and any(name.startswith("_tmp_replace_") for name in left)


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
