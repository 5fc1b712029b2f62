"""engine.sql.redact: no secret stays, and the rest is still readable."""

from __future__ import annotations

import chdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sql import redact, redact_prose
from tests.unit.sql.test_tokens import ANY_TEXT

SECRET = "s3cr-et"
_STATEMENTS = [
    "CREATE USER u IDENTIFIED BY '?'",
    "CREATE USER u IDENTIFIED WITH sha256_password BY '?' HOST ANY",
    "CREATE USER u IDENTIFIED WITH sha256_hash BY '?' SALT '?', plaintext_password BY '?'",
    'ALTER USER u IDENTIFIED BY "?"',
    "ALTER USER u IDENTIFIED BY $$?$$",
    "alter user u on cluster c identified /* */ with bcrypt_hash by -- x\n '?'",
    "CREATE TABLE t (a Int8) ENGINE = S3('https://b/x', 'KEYID', '?', 'CSV')",
    "CREATE TABLE t (a Int8) ENGINE = S3('https://b/x', 'KEYID', '?', '?', 'CSV')",
    "CREATE TABLE t (a Int8) ENGINE = MySQL('h:3306', 'db', 't', 'u', '?')",
    "CREATE TABLE t (a Int8) ENGINE = PostgreSQL('h', 'db', 't', 'u', '?', 'schema')",
    "CREATE DATABASE d ENGINE = MySQL('h', 'db', 'u', '?')",
    "CREATE DATABASE d ON CLUSTER c ENGINE = PostgreSQL('h', 'db', 'u', '?', 'schema', 1)",
    "CREATE TABLE t (a Int8) ENGINE = MongoDB('h', 'db', 't', 'u', '?')",
    "CREATE TABLE t (a Int8) ENGINE = MongoDB('mongodb://u:?@h/db', 't')",
    "CREATE TABLE t (a Int8) ENGINE = ExternalDistributed('MySQL', 'h', 'db', 't', 'u', '?')",
    "CREATE TABLE t (a Int8) ENGINE = Redis('h:6379', 0, '?')",
    "CREATE TABLE t (a Int8) ENGINE = Kafka SETTINGS kafka_sasl_username = 'u', kafka_sasl_password = '?'",
    "CREATE TABLE t (a Int8) ENGINE = RabbitMQ SETTINGS rabbitmq_password = '?'",
    "CREATE TABLE t (a Int8) ENGINE = RabbitMQ SETTINGS rabbitmq_address = 'amqp://u:?@h/v'",
    "CREATE TABLE t (a Int8) ENGINE = NATS SETTINGS nats_token = '?', nats_credential_file = '?'",
    "CREATE TABLE t (a Int8) ENGINE = AzureBlobStorage('AccountName=n;AccountKey=?;Suffix=x', 'c', 'b')",
    "CREATE TABLE t (a Int8) ENGINE = AzureBlobStorage('https://x', 'c', 'b', 'n', '?', 'CSV')",
    "SELECT * FROM s3('https://b/x', 'KEYID', '?')",
    "SELECT * FROM s3Cluster('c', 'https://b/x', 'KEYID', '?', 'CSV')",
    "SELECT * FROM s3(coll, secret_access_key = '?', access_key_id = '?')",
    "SELECT * FROM mysql('h', 'db', 't', 'u', '?')",
    "SELECT * FROM postgresql('h', 'db', 't', 'u', '?')",
    "SELECT * FROM remote('h', 'db', 't', 'u', '?')",
    "SELECT * FROM remote('h', db.t, 'u', '?')",
    "SELECT * FROM remoteSecure('h', db, t, 'u', '?', rand())",
    "SELECT * FROM url('https://u:?@h/x', CSV)",
    "SELECT * FROM url('https://h/x', CSV, 'a Int8', headers('Authorization' = 'Bearer ?', 'X' = '?'))",
    "SELECT * FROM url('https://h/x&X-Amz-Signature=?&a=b')",
    "SELECT encrypt('aes-256-gcm', x, '?'), aes_decrypt_mysql('m', y, '?')",
    "CREATE DICTIONARY d (a Int8) PRIMARY KEY a SOURCE(CLICKHOUSE(USER 'u' PASSWORD '?' TABLE 't'))",
    "CREATE DICTIONARY d (a Int8) PRIMARY KEY a SOURCE(HTTP(URL 'x' CREDENTIALS(USER 'u' PASSWORD '?')))",
    "CREATE DICTIONARY d (a Int8) PRIMARY KEY a SOURCE(HTTP(HEADERS(HEADER(NAME 'X' VALUE '?'))))",
    "CREATE DICTIONARY d (a Int8) PRIMARY KEY a SOURCE(MONGODB(URI 'mongodb://u:?@h:27017/x'))",
    "CREATE NAMED COLLECTION n AS anything = '?', b = '?' OVERRIDABLE",
    "ALTER NAMED COLLECTION n SET password = '?'",
    "BACKUP DATABASE d TO S3('https://b', 'KEYID', '?')",
    "RESTORE DATABASE d FROM AzureBlobStorage('AccountKey=?', 'c', 'b')",
    "-- mysql://u:?@h/db\nSELECT 1",
    "INSERT INTO FUNCTION s3('https://b', 'KEYID', '?', 'CSV') SELECT 1",
    "CREATE USER u IDENTIFIED BY '?",
    "SELECT 1, 'unclosed ?",
    "SELECT 'https://u:?/?@h'",
    "CREATE TABLE t (a Int8) ENGINE = S3('https://b/x', 'csvloader', '?')",
    "CREATE TABLE t (a Int8) ENGINE = S3('https://b/x', 'jsonKEY', '?', 'CSV')",
    "SELECT * FROM s3Cluster('c', 'https://b/x', 'nullKEY', '?')",
    "BACKUP TABLE t TO S3('https://b/x', 'oneKEY', '?')",
    (
        "CREATE DICTIONARY d (a Int8) PRIMARY KEY a "
        "SOURCE(CLICKHOUSE(query 'SELECT * FROM mysql(''h'', ''d'', ''t'', ''u'', ''?'')'))"
    ),
    (
        "CREATE DICTIONARY d (a Int8) PRIMARY KEY a "
        "SOURCE(CLICKHOUSE(query $x$SELECT * FROM mysql('h', 'd', 't', 'u', '?')$x$))"
    ),
    "KILL QUERY WHERE query = 'CREATE USER u IDENTIFIED BY \\'?\\''",
    "SELECT formatQuery('SELECT * FROM mysql(''h'', ''d'', ''t'', ''u'', ''?'')')",
    "SELECT formatQuery('SELECT formatQuery(''SELECT mysql(1, 2, 3, 4, \\'\\'?\\'\\')'')')",
    "KILL QUERY WHERE query LIKE '%IDENTIFIED BY ''?%'",
    "/* old: CREATE USER u IDENTIFIED BY '?' */ SELECT 1",
    "-- the host's: IDENTIFIED BY '?'\nSELECT 1",
    (
        "CREATE TABLE t (a Int8) ENGINE = Log SETTINGS disk = disk(type = encrypted, key = '?', "
        "disk = disk(type = s3, secret_access_key = '?'))"
    ),
    "SELECT * FROM url('https://h', CSV, 'a Int8', header = 'Authorization: Bearer ?')",
    "CREATE DATABASE d ENGINE = DataLakeCatalog('https://x') SETTINGS auth_header = 'X-Key: ?'",
    "CREATE USER u IDENTIFED WITH sha256_password BY '?'",
    "CREATE USER u IDENTIFIED WITH sha256_pasword BY '?'",
    "CREATE USER u IDENTIFIED WITH plaintext_password BY $$?$$",
    "SELECT * FROM mysql(c, password = concat('?', ''))",
    "SELECT * FROM mysql(c, password = 'a' || '?')",
    "SELECT * FROM mysql(c, password = ('?'))",
    "SELECT * FROM mysql(c, password == '?')",
    "SELECT * FROM mysql(c, equals(password, '?'))",
    "SELECT * FROM t WHERE '?' = password",
    "CREATE DICTIONARY d (a Int8) PRIMARY KEY a SOURCE(MYSQL(`password` '?'))",
    "CREATE DICTIONARY d (a Int8) PRIMARY KEY a SOURCE(MYSQL(\"password\" '?'))",
    "CREATE DICTIONARY d (a Int8) PRIMARY KEY a SOURCE(MYSQL(PASSWORD concat('?') USER 'u'))",
    "CREATE TABLE t (a Int8) ENGINE = Log PARALLEL WITH CREATE DATABASE d ENGINE = MySQL(h, d, 'u', '?')",
    "CREATE DATABASE d PARALLEL WITH CREATE TABLE t (a Int8) ENGINE = MySQL(h, d, t, 'u', '?')",
    "CREATE TABLE t (a Int8) ENGINE = Memory PARALLEL WITH CREATE NAMED COLLECTION n AS k = '?'",
    "EXPLAIN AST CREATE DATABASE d ENGINE = MySQL('h', 'd', 'u', '?')",
    "EXPLAIN AST CREATE NAMED COLLECTION n AS k = '?', l = concat('?')",
    "SELECT * FROM remote('h', one, 'u', '?')",
    "SELECT * FROM remote('u:?@h', db.t)",
    "SELECT * FROM deltaLakeAzureCluster('c', 'https://x', 'b', 'p', 'n', '?')",
    "SELECT HMAC('sha256', x, '?'), encrypt('aes-256-gcm', x, concat('?'))",
    "SELECT * FROM s3('https://x', extra_credentials(external_id = '?'))",
    "SELECT * FROM url('https://h/x&token=?')",
    "SELECT * FROM url('https://h/x&a=b&api_key=?')",
    "SELECT * FROM url('https://u:a ?@h/x')",
    "SELECT * FROM url('https://u:a\\'?@h/x')",
    "SELECT * FROM url('https:\\/\\/u:?@h/x')",
    "SELECT * FROM url('https\\x3a//u\\x3a?@h/x')",
    "SELECT * FROM odbc('DSN=x;UID=u;PWD = ?', 'd', 't')",
    "SELECT * FROM odbc('DSN=x;PWD={a;?};UID=u', 'd', 't')",
    'SELECT \'{"password": "a\\\\"?"}\'',
]

_PIECES = ["'", "''", '"', "`", "(", ")", "[", "]", "{", "}", ",", "=", ":", ";", " ", "\n", "\\", "||", "$$"]
_PIECES += [
    "password",
    "BY ",
    "IDENTIFIED ",
    "mysql(",
    "s3(",
    "disk(",
    "source(",
    "x",
    "1",
    "/*",
    "*/",
    "-- ",
]
_PIECES += ["NAMED COLLECTION ", "DATABASE ", "ENGINE=", "://u:p@h", "token=", "PWD={", "equals(", "'a'"]
_PIECES += ["Syntax error: ", "Bearer abcdefgh1", "authorization: ", "[HIDDEN]", "'[HIDDEN]'", "the host's "]


@pytest.mark.parametrize("template", _STATEMENTS)
def test_the_secret_is_gone(template: str) -> None:
    shown = redact(template.replace("?", SECRET))
    assert SECRET not in shown
    assert "[HIDDEN]" in shown


@given(st.sampled_from(_STATEMENTS), st.text("abcXYZ019-_.!%()=", min_size=6, max_size=12))
def test_no_password_of_usual_characters_survives(template: str, secret: str) -> None:
    secret = f"Zq{secret}qZ"
    if "=?" in template or "= ?" in template:
        secret = secret.replace("&", "").replace(";", "")
    assert secret not in redact(template.replace("?", secret))


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (password String, token UInt8, secret Int8 DEFAULT 5) ENGINE = Memory COMMENT 'x'",
        "CREATE TABLE t (a Int8) ENGINE = S3('https://b/x', 'CSV', 'gzip')",
        "CREATE TABLE t (a Int8) ENGINE = S3('https://b/x', NOSIGN, 'CSV')",
        "CREATE TABLE t (a Int8) ENGINE = Kafka('h:9092', 'topic', 'group', 'JSONEachRow')",
        "CREATE TABLE t (a Int8) ENGINE = ReplicatedMergeTree('/clickhouse/{shard}', '{replica}') ORDER BY a",
        "CREATE TABLE t AS u ENGINE = Distributed(c, db, u, cityHash64(k))",
        "SELECT * FROM remote('h:9000', 'db', 't')",
        "SELECT * FROM url('https://h:8443/a?b=c', CSV)",
        "SELECT a FROM t ORDER BY b",
        "ALTER TABLE t UPDATE a = 'x' WHERE b = 'y'",
        "GRANT SELECT ON db.t TO u",
        "SELECT * FROM t WHERE password_hash = 'abc'",
        "SELECT key, value FROM t WHERE key = 'x' AND header = 'y'",
        "SELECT count() FROM t GROUP BY 'a', b ORDER BY \"x\" LIMIT 1 BY 'c'",
        "SELECT * FROM t WHERE comment = 'it\\'s the user\\'s password'",
        "CREATE TABLE t (password String COMMENT 'the user''s password') ENGINE = Memory -- it's passwords",
        "/* the host's answer (see docs) */ SELECT 1 -- ask 'ops' first",
        "SELECT * FROM s3('https://b/x', 'JSONEachRow', 'a Int8')",
        "SELECT * FROM s3('https://b/x', NOSIGN, 'CSV', 'a Int8', 'gzip')",
        "SELECT * FROM s3Cluster('c', 'https://b/x', 'TabSeparatedWithNames', 'a Int8')",
        "SELECT equals(password_hash, 'x'), equals(a, 'b'), HMAC('sha256', a, b)",
        "SELECT encrypt('aes-256-gcm', substring(x, 1, 2), k)",
        "CREATE TABLE t (a Int8) ENGINE = Redis('h:6379', 0)",
        "BACKUP TABLE t TO Disk('backups', 't.zip')",
        "CREATE TABLE t (a Int8) ENGINE = Memory SETTINGS disk = disk(type = s3, endpoint = 'https://x/y')",
        "SELECT a.token = b.token FROM a JOIN b ON a.`token` = b.`token`",
        "SELECT * FROM t WHERE url = 'https://h:8443/a?b=c&page=1'",
        "SELECT JSONExtractString(j, 'password'), 'sha256_password', splitByChar(',', 'a=b;c=d')",
        "ALTER TABLE t ADD COLUMN token String DEFAULT 'x' AFTER password",
        "CREATE TABLE t (a Int8) ENGINE = MergeTree PARTITION BY 'p' ORDER BY a TTL d GROUP BY a SET x = 'y'",
        "INSERT INTO t (password_hash, key) VALUES ('a', 'b')",
        "SELECT {token:String}, {password:String}",
        "GRANT NAMED COLLECTION ON n TO u",
    ],
)
def test_what_is_no_secret_stays(sql: str) -> None:
    assert redact(sql) == sql


@given(ANY_TEXT)
def test_redacting_never_raises_and_twice_is_as_good_as_once(sql: str) -> None:
    once = redact(sql)
    assert redact(once) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The host's log says why.", "The host's log says why."),
        ("It doesn't answer; the queue's full", "It doesn't answer; the queue's full"),
        ("Ask the hosts' owners.", "Ask the hosts' owners."),
        (
            "(http://h:8123): PASSWORD 'x', --port 1 # BY",
            "(http://h:8123): PASSWORD '[HIDDEN]', --port 1 # BY",
        ),
        ("at http://ada:x@h:8123/ it's refused", "at http://ada:[HIDDEN]@h:8123/ it's refused"),
        ("node01's: MySQL('h', 'd', 't', 'u', 'x')", "node01's: MySQL('h', 'd', 't', 'u', '[HIDDEN]')"),
        ("the nodes' word: MySQL('h', 'd', 't', 'u', 'x')", "the nodes[HIDDEN]"),
        ("SOURCE(USER 'boss' PASSWORD 'x')", "SOURCE(USER 'boss' PASSWORD '[HIDDEN]')"),
        (
            "the node's error: CREATE USER u IDENTIFIED BY 'hunter2'",
            "the node's error: CREATE USER u IDENTIFIED BY '[HIDDEN]'",
        ),
        ("CREATE USER u IDENTIFIED BY'hunter2'", "CREATE USER u IDENTIFIED BY'[HIDDEN]'"),
        ("CREATE USER u IDENTIFIED BY's'", "CREATE USER u IDENTIFIED BY'[HIDDEN]'"),
        ("create user u identified by's 1'", "create user u identified by'[HIDDEN]'"),
    ],
)
def test_an_apostrophe_in_a_sentence_hides_nothing_and_shows_nothing(text: str, expected: str) -> None:
    assert redact_prose(text) == expected


@given(st.text())
def test_prose_never_shows_more_than_the_statement_in_it(secret: str) -> None:
    literal = "'" + secret.replace("\\", "\\\\").replace("'", "\\'") + "'"
    shown = redact_prose(f"The host's error: CREATE USER u IDENTIFIED BY {literal}")
    assert shown == "The host's error: CREATE USER u IDENTIFIED BY '[HIDDEN]'"


@pytest.mark.parametrize(
    "template",
    [
        "Code: 62. DB::Exception: Syntax error: failed at position 31 (sha256_pasword): pasword BY '?'.",
        "Syntax error: failed at position 27 (A): A k='?'. Expected one of: ON, AS, end of query.",
        "Syntax error: failed at position 29 ('t'): 't', 'u', '?'). Expected one of: token",
        "Syntax error: failed at position 26 ('?'): '?'. Expected one of: WITH",
        "Expected a column in: '?'",
        "cannot run CREATE NAMED COLLECTION n AS k='?'",
        "cannot run CREATE DATABASE d ENGINE = MySQL('h', 'd', 'u', '?')",
        "Table doesn't exist: SELECT * FROM mysql('h', 'd', 't', 'u', '?')",
        "password: ?",
        "with PWD = ? it's refused",
        'cannot read {"password":"?"}',
        "sent Authorization: Bearer ?",
        "at https://h/x&api_key=?",
    ],
)
def test_no_secret_stays_in_an_error(template: str) -> None:
    shown = redact_prose(template.replace("?", SECRET))
    assert SECRET not in shown
    assert "[HIDDEN]" in shown
    assert redact_prose(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Table `db`.`t` doesn't exist",
        "Unknown setting 'bad_x': for storage MySQL.",
        "Cannot resolve 'a' in SELECT a FROM t WHERE b = 'x'",
        "ada: Authentication failed: password is incorrect, or there is no user with such name.",
        "Missing columns: 'token' while processing query: 'SELECT token FROM t', required: 'token' 'a'",
        "Unrecognized token: `x` at http://ada@h:8123/ --port 1",
    ],
)
def test_an_error_without_a_secret_stays(text: str) -> None:
    assert redact_prose(text) == text


def test_a_syntax_error_still_says_where_it_is() -> None:
    text = "Syntax error: failed at position 15 (IDENTIFED): IDENTIFED BY 'x'. Maybe you meant: IDENTIFIED."
    assert redact_prose(text) == text.replace("BY 'x'", "[HIDDEN]")


_OF_CHDB = [
    "CREATE USER u IDENTIFIED BY ?",
    "CREATE USER u IDENTIFIED BY ? HOST ANY",
    "CREATE USER u IDENTIFIED BY `?`",
    'CREATE USER u IDENTIFIED BY "?"',
    "CREATE USER u IDENTIFIED BY '?",
    "CREATE USER u IDENTIFIED ?",
    "CREATE USER u PASSWORD ?",
    "CREATE USER u IDENTIFED BY ? HOST ANY",
    "CREATE USER u HOST ANYY IDENTIFIED ?",
    "ALTER USER u IDENTIFIED WITH plaintext_password AS ?",
    "CREATE NAMED COLLECTION n AS password ?",
    "SET password ?",
    "CREATE TABLE t (a Int8) ENGINE = Kafka SETTINGS kafka_sasl_password ?",
    "CREATE TABLE t (a Int8) ENGIN = S3('https://b/x', KEY, ?, CSV)",
    "SELEC * FROM remote('h', d, t, u, ?)",
]


@pytest.mark.slow
@pytest.mark.parametrize("secret", ["hunter2", "hun$ter2", "4711", "hunter2!x"])
@pytest.mark.parametrize("template", _OF_CHDB)
def test_no_secret_without_quotes_stays_in_a_syntax_error_of_clickhouse(template: str, secret: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        chdb.query(f"EXPLAIN AST {template.replace('?', secret)}")
    said = str(caught.value)
    assert "Syntax error" in said
    shown = redact_prose(said)
    assert secret not in shown
    assert "failed at position" in shown
    assert redact_prose(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Syntax error: failed at position 12 (c): c FROM t. Expected one of: token, Comma, FROM, ORDER BY",
        "Syntax error: failed at position 1 (line 1, col 1): SELEC 1. Expected one of: SELECT, WITH",
        "Syntax error: failed at position 3 (x) (line 2, col 1): x (a Int8)\nENGINE=Log. Expected: a",
        "Syntax error: failed at position 9 (end of query): . Expected one of: string literal",
        "Syntax error: Heredoc is not closed: failed at position 3 (line 1)",
    ],
)
def test_a_syntax_error_without_a_secret_still_shows_the_statement(text: str) -> None:
    assert redact_prose(text) == text


def test_bare_words_are_hidden_where_they_are_values() -> None:
    assert redact("SELECT * FROM mysql(h, d, t, u, hunter)") == "SELECT * FROM mysql(h, d, t, u, '[HIDDEN]')"
    assert (
        redact("SELECT * FROM mysql(c, password = hunter)") == "SELECT * FROM mysql(c, password = '[HIDDEN]')"
    )
    assert redact("SOURCE(MYSQL(password hunter user 'u'))") == "SOURCE(MYSQL(password '[HIDDEN]' user 'u'))"
    assert redact("CREATE TABLE t (a Int8) ENGINE = Redis('h:6379', 123456)").endswith("'[HIDDEN]')")


def test_values_in_the_query_of_a_url_are_hidden() -> None:
    assert redact("SELECT * FROM url('https://h/x?token=a&b=c')") == (
        "SELECT * FROM url('https://h/x?token=[HIDDEN]&b=c')"
    )
    assert redact_prose("at https://h/x?api_key=a it's 1") == "at https://h/x?api_key=[HIDDEN] it's 1"


def test_sql_in_strings_in_strings_is_hidden_at_any_depth() -> None:
    sql = f"CREATE USER u IDENTIFIED BY '{SECRET}'"
    for _ in range(7):
        sql = "SELECT formatQuery('" + sql.replace("\\", "\\\\").replace("'", "\\'") + "')"
        shown = redact(sql)
        assert SECRET not in shown
        assert redact(shown) == shown


@given(st.lists(st.sampled_from(_PIECES), max_size=12).map("".join))
def test_any_mixture_is_redacted_once_and_for_all(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
    said = redact_prose(text)
    assert redact_prose(said) == said
