"""What who may only read sees of values in Keeper: no secrets, and everything else as it is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.config.model import User
from engine.ddl.entry import DDLLogEntry, Setting
from engine.ddl.status import ExecutionStatus
from engine.ddl.text import decode_bytes
from engine.keeper.base import Create, Keeper
from engine.node.statements.statement import Asked
from engine.node.system.znode_redaction import redacted_value
from engine.node.system.zookeeper_table import ZooKeeperTable
from engine.sql import tokenize
from engine.storage import ChdbSession
from tests.unit.ddl.support import Bench, host, run

SECRET = "SECRET"
CREATE = "CREATE USER ada IDENTIFIED BY 'SECRET'\nDEFAULT ROLE NONE"


def entry(query: str, *settings: Setting, version: int = 5) -> DDLLogEntry:
    return DDLLogEntry(version, query, (host("a"), host("b")), "a:9000", settings, initial_query_id="id-1")


@pytest.mark.parametrize("version", [1, 2, 4, 5, 6, 7, 8])
def test_of_an_entry_all_is_left_but_the_secret(version: int) -> None:
    settings = (Setting("max_threads", "1"),) if version >= 2 else ()
    stored = entry(CREATE, *settings, version=version)
    hidden = entry(CREATE.replace(SECRET, "[HIDDEN]"), *settings, version=version)
    assert redacted_value(decode_bytes(stored.to_bytes())) == decode_bytes(hidden.to_bytes())


def test_of_settings_the_secret_ones_are_hidden() -> None:
    stored = entry("DROP TABLE t", Setting("max_threads", "1"), Setting("s3_password", "'SECRET'"))
    shown = redacted_value(decode_bytes(stored.to_bytes()))
    assert "settings: max_threads = 1, s3_password = '[HIDDEN]'\n" in shown


@pytest.mark.parametrize(
    "stored",
    [
        "version: 99\nquery: CREATE USER ada IDENTIFIED BY \\'SECRET\\'\nnews: 1\n",
        "ATTACH USER ada IDENTIFIED WITH sha256_hash BY 'SECRET' SALT 'SECRET';\n",
        "CREATE TABLE _ (a Int8) ENGINE = S3('https://b/x', 'KEYID', 'SECRET', 'CSV')",
        "format version: 1\ncommands: UPDATE a = encrypt(\\'m\\', a, \\'SECRET\\') WHERE 1\n",
        "columns format version: 1\n1 columns:\n`a` String\tDEFAULT\tencrypt(\\'m\\', b, \\'SECRET\\')\n",
        "62\nCode: 62. DB::Exception: Syntax error: CREATE USER ada IDENTIFIED BY \\'SECRET\\'",
        "https://ada:SECRET@example.com/x",
        '{"password":"SECRET"}',
        "\udcff\udcfe IDENTIFIED BY 'SECRET' \udcff",
        "CREATE USER ada IDENTIFIED BY 'SECRET",
    ],
)
def test_a_secret_is_hidden_wherever_statements_are_kept(stored: str) -> None:
    shown = redacted_value(stored)
    assert SECRET not in shown and "[HIDDEN]" in shown


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "0\n",
        "60\nCode: 60. DB::Exception: Table d.t doesn\\'t exist",
        "format version: 4\ncreate_time: 2026-01-01 00:00:00\nsource replica: r1\nget\nall_0_0_0\n",
        "columns format version: 1\n2 columns:\n`a` String\tDEFAULT\t\\'it\\\\\\'s\\'\n`b` Int8\n",
        "metadata format version: 1\ndate column: \nprimary key: a\npartition key: toYYYYMM(d)\n",
        "part header format version: 1\n\udcff'\udc80(\"`$=:\udcff",
        "host: node01\nport: 9009\nscheme: http\n",
        "node01:9000:default",
    ],
)
def test_what_has_no_secret_is_shown_as_it_is(stored: str) -> None:
    assert redacted_value(stored) == stored


class Session:
    """Of it nothing is asked but whether it may write, and one constant."""

    database = "default"

    def __init__(self, *, is_readonly: bool) -> None:
        self.is_readonly = is_readonly

    def clone(self, *, for_text: str = "") -> Session:
        return self

    async def query(self, sql: str, **_: object) -> Any:
        assert sql == "SELECT arrayJoin(arrayFlatten(['/q']))::String"

        class Result:
            data = b'["/q"]\n'

        return Result


@pytest.mark.parametrize("is_readonly", [True, False])
def test_the_table_hides_secrets_from_who_may_only_read(is_readonly: bool) -> None:
    class Access:
        def __init__(self, keeper: Keeper) -> None:
            self.keeper = keeper

        async def get(self, *, timeout_s: float) -> Keeper:
            return self.keeper

    async def main(bench: Bench) -> None:
        keeper = await bench.keeper()
        status = ExecutionStatus(62, "Syntax error: IDENTIFIED BY 'SECRET'").to_bytes()
        await keeper.multi(
            [Create("/q"), Create("/q/entry", entry(CREATE).to_bytes()), Create("/q/status", status)]
        )
        sql = "SELECT value FROM system.zookeeper WHERE path = '/q'"
        session = cast(ChdbSession, cast(Any, Session(is_readonly=is_readonly)))
        asked = Asked(sql=sql, user=User("ada"), session=session, query_id="q")
        table = ZooKeeperTable(cast(Any, Access(keeper)))
        rows = await table.rows(asked, [token for token in tokenize(sql) if token.is_significant])
        values = [str(row["value"]) for row in rows]
        assert len(values) == 2
        assert [SECRET in value for value in values] == [not is_readonly] * 2
        assert all("IDENTIFIED BY" in value or is_readonly for value in values)

    run(main)
