"""Which HTTP status an exception gets. Source: ClickHouse's exceptionCodeToHTTPStatus, as of 2025/2026."""

from __future__ import annotations

from engine.errors import OnclusterError, SqlError, Unavailable

_BAD_REQUEST = frozenset(
    {6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117, 123, 167, 168, 223, 321, 376, 427, 441}
    | {675, 676}
)
_FORBIDDEN = frozenset({192, 193, 497, 512, 516})
_NOT_FOUND = frozenset({46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511})
_OTHER = {194: 401, 229: 413, 48: 501, 209: 503, 76: 503, 439: 503, 381: 411, 159: 408, 779: 415}
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
