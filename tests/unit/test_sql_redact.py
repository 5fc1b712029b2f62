"""engine.sql.redact: no secret stays, and the rest is still readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sql import redact, redact_prose
from tests.unit.test_sql_tokens import ANY_TEXT

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
]


@pytest.mark.parametrize("template", _STATEMENTS)
def test_the_secret_is_gone(template: str) -> None:
    shown = redact(template.replace("?", SECRET))
    assert SECRET not in shown
    assert "[HIDDEN]" in shown


@given(st.sampled_from(_STATEMENTS), st.text("abcXYZ019-_.!%()=", min_size=6, max_size=12))
def test_no_password_of_usual_characters_survives(template: str, secret: str) -> None:
    secret = f"Zq{secret}qZ"
    if "=?" in template:
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
