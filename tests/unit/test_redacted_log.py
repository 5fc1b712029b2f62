"""What a node writes into its log of errors."""

from __future__ import annotations

import io
import logging

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
