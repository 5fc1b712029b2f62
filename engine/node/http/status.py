"""Which HTTP status an exception gets. Source: ClickHouse's exceptionCodeToHTTPStatus, as of 2025/2026."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Code, OnclusterError, SqlError, Unavailable

_BAD_REQUEST = frozenset(
    {
        Code.CANNOT_PARSE_TEXT,
        Code.THERE_IS_NO_COLUMN,
        Code.DUPLICATE_COLUMN,
        Code.CANNOT_PARSE_ESCAPE_SEQUENCE,
        Code.CANNOT_PARSE_QUOTED_STRING,
        Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED,
        Code.BAD_ARGUMENTS,
        Code.UNKNOWN_ELEMENT_IN_AST,
        Code.CANNOT_PARSE_DATE,
        Code.CANNOT_PARSE_DATETIME,
        Code.ILLEGAL_COLUMN,
        Code.TYPE_MISMATCH,
        Code.SYNTAX_ERROR,
        Code.CANNOT_PARSE_NUMBER,
        Code.INCORRECT_DATA,
        Code.UNKNOWN_TYPE_OF_AST_NODE,
        Code.TOO_DEEP_AST,
        Code.TOO_BIG_AST,
        Code.UNEXPECTED_AST_STRUCTURE,
        Code.VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE,
        Code.CANNOT_PARSE_UUID,
        Code.CANNOT_COMPILE_REGEXP,
        Code.CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING,
        Code.CANNOT_PARSE_IPV4,
        Code.CANNOT_PARSE_IPV6,
    }
)
_FORBIDDEN = frozenset(
    {
        Code.UNKNOWN_USER,
        Code.WRONG_PASSWORD,
        Code.ACCESS_DENIED,
        Code.SET_NON_GRANTED_ROLE,
        Code.AUTHENTICATION_FAILED,
    }
)
_NOT_FOUND = frozenset(
    {
        Code.UNKNOWN_FUNCTION,
        Code.UNKNOWN_IDENTIFIER,
        Code.UNKNOWN_TYPE,
        Code.UNKNOWN_STORAGE,
        Code.UNKNOWN_TABLE,
        Code.UNKNOWN_AGGREGATE_FUNCTION,
        Code.UNKNOWN_FORMAT,
        Code.UNKNOWN_TYPE_OF_QUERY,
        Code.UNKNOWN_DATABASE,
        Code.UNKNOWN_SETTING,
        Code.UNKNOWN_DIRECTION_OF_SORTING,
        Code.UNKNOWN_DATABASE_ENGINE,
        Code.UNKNOWN_ROLE,
    }
)
_OTHER: Mapping[int, int] = {
    Code.REQUIRED_PASSWORD: 401,
    Code.TIMEOUT_EXCEEDED: 408,
    Code.HTTP_LENGTH_REQUIRED: 411,
    Code.QUERY_IS_TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.NOT_IMPLEMENTED: 501,
    Code.SOCKET_TIMEOUT: 503,
    Code.CANNOT_OPEN_FILE: 503,
    Code.CANNOT_SCHEDULE_TASK: 503,
}
_INTERNAL_SERVER_ERROR = 500
_SERVICE_UNAVAILABLE = 503


def status_of(error: OnclusterError) -> int:
    """By ClickHouse's code; 503 for what ClickHouse has no code for and may work later."""
    code = error.code
    if code in _BAD_REQUEST:
        return 400
    if code in _FORBIDDEN:
        return 403
    if code in _NOT_FOUND:
        return 404
    if code in _OTHER:
        return _OTHER[code]
    if isinstance(error, Unavailable) and code == 0:
        return _SERVICE_UNAVAILABLE
    return _INTERNAL_SERVER_ERROR


def exception_text(error: OnclusterError, version: str) -> str:
    """The body of an exception: `Code: 60. DB::Exception: … (UNKNOWN_TABLE) (version …)`, one line."""
    as_sql = error if isinstance(error, SqlError) else SqlError(error.code, error.message, hint=error.hint)
    return f"{as_sql.display_text} (version {version})\n"
