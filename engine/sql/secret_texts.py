"""Secrets that are told by words around them, wherever they stand: in strings, comments and sentences.

Passwords within URLs, values in queries of URLs, keys in connection strings, headers of HTTP, JSON.
"""

from __future__ import annotations

import re

from engine.sql.tokens import Token, TokenKind, literal_value

HIDDEN = "[HIDDEN]"
SUSPICIOUS = re.compile(
    r"identif|passw|pwd|passphrase|secret|token|credential|api_?key|access_?key|private_?key|account_?key|key_hex|auth_header|authoriz"
    r"|\b(?:by|salt)\s*['\"$]|named\s+collection"
    r"|\b(?:s3|gcs|oss|cosn|azure|mysql|postgresql|mongodb|redis|remote|iceberg|deltalake|hudi|paimon"
    r"|externaldistributed|arrowflight|ytsaurus|headers?|hmac|aes_|(?:try)?(?:en|de)crypt|disk)\w*\s*\(",
    re.IGNORECASE,
)
"""Words around secrets, and calls with secret arguments: where none of it is, nothing is looked for."""

_SECRET_NAME = re.compile(
    r"(?:.*[_.])?(?:password|passwd|pwd|passphrase|secret|secret_key|access_key|secret_access_key"
    r"|access_key_id|account_key|private_key|api_key|apikey|token|sas|credential|credentials"
    r"|connection_string|sasl_password|client_secret|encryption_key|key_hex|auth_header|authorization)"
    r"(?:_\d+|_hex|_sha256_hex|_double_sha1_hex)?\Z"
    r"|(?:kafka|rabbitmq|nats)_.*(?:password|secret|token|credential).*\Z",
    re.IGNORECASE,
)
# No repetition stands before these words, so that long texts take no longer than their length.
_WORDS = (
    r"password|passwd|passphrase|pwd|client_?secret|secret|accountkey|sharedaccesskey|sharedaccesssignature"
    r"|x-amz-(?:signature|security-token|credential)|x-goog-(?:signature|credential)|token|api[_-]?key"
    r"|(?:access|account|private|secret|encryption)[_-]?key(?:[_-]id)?|(?<![A-Za-z])sig(?:nature)?|auth_header"
)
# What nothing closes is hidden to its end: looked for again and again it would cost time.
_VALUE = r"(?:\{[^}]*+\}?|[^;&\s'\"]+)"
_CONNECTION_STRING = re.compile(rf"(?P<before>(?:{_WORDS}|[?&]key)[ \t]{{0,8}}=[ \t]{{0,8}}){_VALUE}", re.I)
# In a literal nothing but `;` and `&` ends a value.
_WHOLE_VALUE = r"(?:\{[^}]*+\}?[^;&]*|[^;&\s][^;&]*)"
_LITERAL_CONNECTION_STRING = re.compile(
    rf"(?P<before>(?:{_WORDS}|[?&]key)[ \t]{{0,8}}=[ \t]{{0,8}}){_WHOLE_VALUE}", re.I
)
_URL_PASSWORD = re.compile(
    r"(?P<before>\b[A-Za-z][A-Za-z0-9+.\-]{0,40}://[^\s:@/'\"]{0,200}:)[^\s'\"]{1,1000}(?=@)"
)
_LITERAL_URL = re.compile(
    r"(?P<before>\s*+(?:jdbc:)?[A-Za-z][A-Za-z0-9+.\-]{0,40}://[^\s:@/]*+:).+(?=@)", re.S
)
_AUTHORIZATION = re.compile(
    r"(?P<before>\b(?:authorization|cookie|x-api-key|api-key|x-auth-token|x-clickhouse-key)['\"]?"
    r"[ \t]{0,8}[:=][ \t]{0,8}['\"]?)(?:(?:basic|bearer|token|digest|negotiate)[ \t]{1,8})?[^\s'\",;]+",
    re.I,
)
_BEARER = re.compile(r"(?P<before>\bbearer[ \t]{1,8})[\w.~+/=\-]{8,}", re.I)
_JSON = re.compile(
    rf"(?P<before>(?:{_WORDS}|credentials?)(?P<quote>(?P<escaped>\\)?['\"])\s{{0,8}}:\s{{0,8}})"
    r"(?:(?(escaped)\\\"(?:[^\"\\]|\\[^\"])*+(?:\\\")?|\"(?:[^\"\\]|\\.)*+\"?)|'[^']*+'?|[^\s,}\]'\"\[\\]+)",
    re.I | re.S,
)
_SAID = re.compile(
    r"(?P<before>(?<![{:])(?:password|passwd|passphrase|pwd|secret|api_?key|access_?key)"
    r"[ \t]{0,4}:[ \t]{0,4})(?:\"[^\"]*+\"?|'[^']*+'?|[^\s:,;}'\"\[\]()]+)",
    re.I,
)


def is_secret_name(token: Token) -> bool:
    """Whether the value of a setting, argument or column of this name is a secret."""
    if token.kind not in (TokenKind.WORD, TokenKind.IDENTIFIER, TokenKind.STRING):
        return False
    return _SECRET_NAME.match(literal_value(token)) is not None


def clean_text(text: str) -> str:
    """A text of any kind without the secrets that words around them tell."""
    if "://" in text and "@" in text:
        text = _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", text)
    return _clean_words(text, _CONNECTION_STRING)


def clean_literal(value: str) -> str:
    """The same for the value of one string literal, which is one URL or connection string if it begins so."""
    if "://" in value and "@" in value:
        whole = _LITERAL_URL.match(value)
        if whole is not None:
            value = whole["before"] + HIDDEN + value[whole.end() :]
        value = _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", value)
    return _clean_words(value, _LITERAL_CONNECTION_STRING)


def clean_sentence(text: str) -> str:
    """The same for a sentence, with `password: x`."""
    text = clean_text(text)
    return _SAID.sub(rf"\g<before>{HIDDEN}", text) if ":" in text else text


def _clean_words(text: str, connection_string: re.Pattern[str]) -> str:
    if ":" in text or "=" in text:
        text = _AUTHORIZATION.sub(rf"\g<before>{HIDDEN}", text)
    if "earer" in text or "EARER" in text:
        text = _BEARER.sub(rf"\g<before>{HIDDEN}", text)
    if ":" in text:
        text = _JSON.sub(rf"\g<before>\g<quote>{HIDDEN}\g<quote>", text)
    if "=" in text:
        text = connection_string.sub(rf"\g<before>{HIDDEN}", text)
    return text
