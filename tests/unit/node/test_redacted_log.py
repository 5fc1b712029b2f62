"""What a node writes into its log of errors."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from engine.errors import Code, SqlError
from engine.node.redacted_log import ErrorsWithoutSecrets


def test_an_error_is_logged_without_the_secret_of_the_statement_in_it() -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.addFilter(ErrorsWithoutSecrets())
    log = logging.Logger("node")
    log.addHandler(handler)
    error = SqlError(Code.SYNTAX_ERROR, "Cannot run CREATE USER ada IDENTIFIED BY 'SECRET'")
    log.warning("ddl.will_try_again entry=%s code=%d error=%s", "query-0000000001", error.code, error)
    said = output.getvalue()
    assert said.startswith("ddl.will_try_again entry=query-0000000001 code=62 error=")
    assert "CREATE USER ada IDENTIFIED BY '[HIDDEN]'" in said
    assert "SECRET" not in said


def test_what_is_no_error_is_logged_as_it_is() -> None:
    record = logging.LogRecord("node", logging.INFO, "", 0, "token=%s at=%s", ("abc", 5), None)
    assert ErrorsWithoutSecrets().filter(record)
    assert record.getMessage() == "token=abc at=5"


def _said(raise_it: Callable[[], None]) -> str:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.addFilter(ErrorsWithoutSecrets())
    log = logging.Logger("node")
    log.addHandler(handler)
    try:
        raise_it()
    except Exception:
        log.exception("http.defect query_id=%s", "q")
    return output.getvalue()


def test_a_trace_names_every_place_and_no_secret() -> None:
    word = "hunter2"

    def fail() -> None:
        try:
            raise SqlError(Code.SYNTAX_ERROR, f"Cannot run CREATE USER ada IDENTIFIED BY '{word}'")
        except SqlError as error:
            raise RuntimeError(f"While running CREATE USER eve IDENTIFIED BY '{word}'") from error

    said = _said(fail)
    assert "SECRET" not in said.replace(
        "IDENTIFIED BY 'SECRET'\")", ""
    )  # the lines above are shown as they are
    assert "SqlError: " in said and "IDENTIFIED BY '[HIDDEN]'" in said
    assert said.index("SqlError: ") < said.index("caused:") < said.index("RuntimeError: While running")
    assert said.count("in fail") == 2
    assert "Traceback (most recent call last):" in said


def test_the_errors_of_a_group_and_what_was_handled_are_in_its_trace() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ExceptionGroup("two", [ValueError("one"), SqlError(Code.SYNTAX_ERROR, "other")])  # noqa: B904

    said = _said(fail)
    for part in ("KeyError: 'first'", "while this was handled:", "ExceptionGroup: two", "ValueError: one"):
        assert part in said
    assert "other" in said


def test_errors_that_cause_one_another_end() -> None:
    def fail() -> None:
        first, second = ValueError("first"), ValueError("second")
        first.__cause__, second.__cause__ = second, first
        raise first

    said = _said(fail)
    assert said.count("ValueError: first") == said.count("ValueError: second") == 1


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (
            "Invalid header token:\n\n  b'X-ClickHouse-Key hunter2'\n                  ^",
            "Invalid header token",
        ),
        ("Got more than 1048576 bytes when reading: bytearray(b'/?password=hunter2')", "bytes when reading"),
        ("Bad status line \"b'GET /?password=hunter2'\"", "Bad status line"),
    ],
)
def test_bytes_that_are_no_request_are_one_line_without_what_was_sent(message: str, shown: str) -> None:
    def fail() -> None:
        raise BadHttpMessage(message)

    said = _said(fail)
    assert said.count("\n") == 1 and said.startswith("http.malformed status=400 error=")
    assert shown in said
    assert "hunter2" not in said
