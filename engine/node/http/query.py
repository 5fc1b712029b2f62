"""One request, parsed at the edge: what is asked, how it shall be answered.

Parameters that are not reserved are settings, those that begin with `param_` are query parameters. Source:
ClickHouse's HTTPHandler.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from engine.errors import Code, SqlError
from engine.node.http.formats import checked_format
from engine.node.statements.reads_key import query_id_of
from engine.storage.text_limits import MAX_QUERY_SIZE

DEFAULT_FORMAT = "TabSeparated"
DEFAULT_BUFFER_BYTES = 1 << 20
MAX_QUERY_BYTES = 262_144
DEFAULT_SESSION_TIMEOUT_S = 60
MAX_SESSION_TIMEOUT_S = 3600
TOKEN_SETTING = "oncluster_token"
TOKEN_HEADER = "X-Oncluster-Token"

_RESERVED = frozenset(
    {
        "query",
        "compress",
        "decompress",
        "user",
        "password",
        "quota_key",
        "query_id",
        "stacktrace",
        "role",
        "buffer_size",
        "wait_end_of_query",
        "session_id",
        "session_timeout",
        "session_check",
        "close_session",
        "client_protocol_version",
        "database",
        "default_format",
        TOKEN_SETTING,
    }
)
_LEAST_INTERVAL_S = 0.02
_EXTERNAL_SUFFIXES = ("_format", "_types", "_structure")


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """`session_id` and what belongs to it."""

    session_id: str
    timeout_s: int
    must_exist: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class HttpQuery:
    """Everything of a request but its body and its credentials.

    `buffer_bytes`: how much of the result is held back, so that an error among it still gets its own status;
    None means all of it. `is_readonly`: asked with GET, or by the setting; its value 1 is `is_fixed`, too: no
    other setting may be changed. `replace_wait_s`: a statement that runs under the same id is killed, and so
    long waited for. `is_for_any_origin`: pages of other hosts may read the answer (CORS). `token` names a
    submission of ON CLUSTER. `max_query_bytes` None: what the session says. `native_revision`: of the
    protocol that the client reads Native by, 0 for none.
    """

    query: str = ""
    database: str = ""
    format: str = DEFAULT_FORMAT
    query_id: str = ""
    session: SessionRequest | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    is_readonly: bool = False
    is_fixed: bool = False
    compresses_blocks: bool = False
    decompresses_blocks: bool = False
    compresses_http: bool = False
    buffer_bytes: int | None = DEFAULT_BUFFER_BYTES
    max_query_bytes: int | None = None
    replace_wait_s: float | None = None
    is_for_any_origin: bool = False
    token: str = ""
    native_revision: int = 0
    progress_interval_s: float | None = None


def parameters_of(query_string: str) -> list[tuple[str, str]]:
    """Of a URL, as it was sent; bytes that are no UTF-8 pass as they are (surrogates)."""
    return parse_qsl(query_string, keep_blank_values=True, errors="surrogateescape")


def parse_query(
    method: str,
    headers: Mapping[str, str],
    parameters: Iterable[tuple[str, str]],
    *,
    new_query_id: str,
    has_external_data: bool = False,
) -> HttpQuery:
    """Raises SqlError 374 for a session timeout out of range, 744 for an empty session id, 27 for a number or
    a yes or no that is none, 73 for a format's name that is none, 457 for a query parameter that is no UTF-8,
    512 for a role: the configuration's users have none."""
    values: dict[str, str] = {}
    settings: dict[str, str] = {}
    params: dict[str, str] = {}
    for name, value in parameters:
        if not name:
            continue
        if name.startswith("param_"):
            params[name.removeprefix("param_")] = _checked_parameter(name, value)
        elif name == "role" and value:
            raise SqlError(
                Code.SET_NON_GRANTED_ROLE,
                f"Role {value} should be granted to set as a current.",
                hint="A node's users are those of its configuration, and have no roles.",
            )
        elif name in _RESERVED:
            values[name] = value
        elif not (has_external_data and name.endswith(_EXTERNAL_SUFFIXES)):
            settings[name] = value
    # A session could not leave readonly mode again: the node sees to it for this one statement.
    readonly = settings.pop("readonly", "0")
    readonly_level = 0 if readonly == "false" else _number(readonly, 0)
    # chDB is told the query id as the log_comment, by which KILL QUERY and closed connections find it.
    settings.pop("log_comment", None)
    interval_ms = _number(settings.get("http_headers_progress_interval_ms"), 100)
    tells_progress = _flag(settings, "send_progress_in_http_headers")
    replace_wait_ms = _number(settings.pop("replace_running_query_max_wait_ms", None), 5000)
    waits = _is_on(values, "wait_end_of_query") or _flag(settings, "http_wait_end_of_query")
    buffer_text = settings.get("http_response_buffer_size") or values.get("buffer_size")
    of_reads = query_id_of("" if "session_id" in values else values.get("session_timeout", ""), new_query_id)
    query_id = values.get("query_id") or headers.get("X-ClickHouse-Query-Id") or of_reads
    return HttpQuery(
        query=values.get("query", ""),
        database=headers.get("X-ClickHouse-Database") or values.get("database", ""),
        format=checked_format(
            headers.get("X-ClickHouse-Format") or values.get("default_format") or DEFAULT_FORMAT
        ),
        query_id="".join(c for c in query_id if c.isprintable()) or new_query_id,
        session=_session(values),
        settings=settings,
        params=params,
        is_readonly=method != "POST" or readonly_level > 0,
        is_fixed=readonly_level == 1,
        compresses_blocks=_is_on(values, "compress"),
        decompresses_blocks=_is_on(values, "decompress"),
        compresses_http=_flag(settings, "enable_http_compression", default=True),
        buffer_bytes=None if waits else _number(buffer_text, DEFAULT_BUFFER_BYTES),
        replace_wait_s=replace_wait_ms / 1000 if _flag(settings, "replace_running_query") else None,
        is_for_any_origin=_flag(settings, "add_http_cors_header") and "Origin" in headers,
        max_query_bytes=max_query_bytes(settings),
        token=headers.get(TOKEN_HEADER) or values.get(TOKEN_SETTING, ""),
        native_revision=_number(values.get("client_protocol_version"), 0),
        progress_interval_s=max(interval_ms / 1000, _LEAST_INTERVAL_S) if tells_progress else None,
    )


def _checked_parameter(name: str, value: str) -> str:
    """chDB takes only text for a query parameter. Raises SqlError 457."""
    try:
        (name + value).encode()
    except UnicodeEncodeError:
        shown = name.encode("utf-8", "backslashreplace").decode()
        raise SqlError(Code.BAD_QUERY_PARAMETER, f"{shown} is no UTF-8") from None
    return value


def max_query_bytes(settings: Mapping[str, str]) -> int | None:
    """What `max_query_size` says, None where it is not set. 0 is no limit, as with ClickHouse."""
    text = settings.get(MAX_QUERY_SIZE)
    return (_number(text, 0) or sys.maxsize) if text else None


def _session(values: Mapping[str, str]) -> SessionRequest | None:
    session_id = values.get("session_id")
    if session_id is None:
        return None
    if not session_id:
        raise SqlError(Code.SESSION_ID_EMPTY, "Session id query parameter was provided, but it was empty")
    text = values.get("session_timeout", str(DEFAULT_SESSION_TIMEOUT_S))
    if not _is_number(text):
        raise SqlError(Code.INVALID_SESSION_TIMEOUT, f"Invalid session timeout: '{text}'")
    if int(text) > MAX_SESSION_TIMEOUT_S:
        raise SqlError(
            Code.INVALID_SESSION_TIMEOUT,
            f"Session timeout '{text}' is larger than max_session_timeout: {MAX_SESSION_TIMEOUT_S}.",
        )
    return SessionRequest(
        session_id,
        int(text),
        must_exist=_is_on(values, "session_check"),
        is_last=_is_on(values, "close_session"),
    )


def _is_on(values: Mapping[str, str], name: str) -> bool:
    """Of a parameter that is no setting, which nobody looks at later. ClickHouse reads one character, and
    not every version the same from it."""
    text = values.get(name, "0")
    if text.lower() not in ("0", "1", "false", "true"):
        raise SqlError(
            Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED, f"Cannot parse '{text}' as a boolean for {name}"
        )
    return _flag(values, name)


def _flag(values: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Of a setting: chDB refuses a value that is none."""
    text = values.get(name)
    return default if text is None else text.lower() in ("1", "true")


def _number(text: str | None, default: int) -> int:
    if not text:
        return default
    if not _is_number(text):
        raise SqlError(Code.CANNOT_PARSE_INPUT_ASSERTION_FAILED, f"Cannot parse '{text}' as a number")
    return int(text)


def _is_number(text: str) -> bool:
    """One of 64 bits, about."""
    return text.isascii() and text.isdigit() and len(text) <= 19
