"""Secrets out of SQL text, for everything that is shown or kept: logs, the ledger, tables, notifications.

What is *executed* needs the secret: never run what this returns. The rules go by tokens, not by a parse, so
they also hold for statements nobody understands, and where they doubt they hide: a name too many hidden is a
nuisance, a password shown is a leak.

Hidden are: `IDENTIFIED … BY 'x'` and its SALT; values of names such as `password = 'x'` and dictionaries'
`PASSWORD 'x'`; every value of a named collection; the password arguments of engines and table functions; keys
of the encrypt functions; header values of `url(…)` and HTTP dictionaries; passwords within URLs and keys
within connection strings, wherever these stand.

Source: ClickHouse's own list of secret arguments (FunctionSecretArgumentsFinder) goes by position too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from engine.errors import SqlError
from engine.sql.edit import Edit, apply_edits
from engine.sql.tokens import Token, TokenKind, literal_value, scan

HIDDEN = "[HIDDEN]"
_HIDDEN_LITERAL = f"'{HIDDEN}'"

_SECRET_NAME = re.compile(
    r"(?:.*_)?(?:password|passwd|pwd|passphrase|secret|secret_key|access_key|secret_access_key|access_key_id"
    r"|account_key|private_key|api_key|apikey|token|sas|credential|credentials|connection_string"
    r"|sasl_password|client_secret|encryption_key|key_hex)(?:_\d+|_hex|_sha256_hex|_double_sha1_hex)?\Z"
    r"|(?:kafka|rabbitmq|nats)_.*(?:password|secret|token|credential).*\Z",
    re.IGNORECASE,
)
_URL_PASSWORD = re.compile(r"(?P<before>\b[A-Za-z][A-Za-z0-9+.\-]*://[^\s:@/'\"]*:)[^\s'\"]+(?=@)")
_CONNECTION_STRING = re.compile(
    r"(?P<before>\b(?:AccountKey|SharedAccessKey|SharedAccessSignature|Password|Pwd|sig|X-Amz-Signature"
    r"|X-Amz-Security-Token|access_token)=)[^;&\s'\"]+",
    re.IGNORECASE,
)
_LITERALS = frozenset({TokenKind.STRING, TokenKind.HEREDOC, TokenKind.NUMBER})
_QUOTED = frozenset({TokenKind.STRING, TokenKind.HEREDOC, TokenKind.IDENTIFIER})

_MAX_PASSES = 20
"""Functions with secrets within functions with secrets: deeper than this, every literal is hidden instead."""

Argument = list[Token]
"""The significant tokens of one argument."""


def redact(sql: str) -> str:
    """`sql` with its secrets replaced by `[HIDDEN]`.

    Never raises: of text that cannot be tokenized, what comes behind the fault is hidden whole.
    """
    tokens: list[Token] = []
    tail = ""
    try:
        for token in scan(sql):
            tokens.append(token)
    except SqlError:
        end = tokens[-1].end if tokens else 0
        tail = HIDDEN
        sql = sql[:end]
    hidden = {token.start: token for token in _secrets([t for t in tokens if t.is_significant])}
    edits = [Edit(token.start, token.end, _HIDDEN_LITERAL) for token in hidden.values()]
    for token in tokens:
        if token.start not in hidden and token.kind in (
            TokenKind.STRING,
            TokenKind.HEREDOC,
            TokenKind.IDENTIFIER,
            TokenKind.COMMENT,
        ):
            cleaned = _clean(token.text)
            if cleaned != token.text:
                edits.append(Edit(token.start, token.end, cleaned))
    return apply_edits(sql, edits) + tail


_APOSTROPHE = re.compile(r"(?<=[a-z0-9])(?<!\bby)'(?=(?:s|t|re|ll|ve|d)\b(?!'))")
# `hosts' answers`: only where no other quote stands, since it may as well end a string.
_APOSTROPHE_OF_MANY = re.compile(r"(?<=[a-z]s)'(?=[\s.,;:)])")
_QUOTE = re.compile(r"['\"`$]")
_STANDS_FOR_ONE = "\ue027"
# In a sentence these begin no comment: what stands behind an address or an option is looked at, too.
_COMMENTS = {"//": "\ue02f\ue02f", "--": "\ue02d\ue02d", "#": "\ue023"}


def redact_prose(text: str) -> str:
    """The same for sentences in which SQL may stand, such as errors: the apostrophe of `the queue's` begins
    no string, and `//` no comment. Where a quote is left that nothing ends, it cannot be told what is within
    quotes and what is between them: all from the first one on is hidden."""
    protected = _APOSTROPHE.sub(_STANDS_FOR_ONE, text)
    if protected.count("'") == 1:
        protected = _APOSTROPHE_OF_MANY.sub(_STANDS_FOR_ONE, protected)
    for marker, stand_in in _COMMENTS.items():
        protected = protected.replace(marker, stand_in)
    try:
        for _ in scan(protected):
            pass
    except SqlError:
        protected = _QUOTE.split(protected, maxsplit=1)[0] + HIDDEN
    shown = redact(protected).replace(_STANDS_FOR_ONE, "'")
    for marker, stand_in in _COMMENTS.items():
        shown = shown.replace(stand_in, marker)
    return _clean(shown)


def _clean(text: str) -> str:
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\g<before>{HIDDEN}", text)
    if "=" in text:
        text = _CONNECTION_STRING.sub(rf"\g<before>{HIDDEN}", text)
    return text


def _secrets(tokens: list[Token]) -> Iterator[Token]:
    """The tokens to hide."""
    words = [token.text.upper() if token.kind is TokenKind.WORD else token.text for token in tokens]
    is_collection = words[1:3] == ["NAMED", "COLLECTION"]
    has_credentials = "IDENTIFIED" in words
    finders = _DATABASE_ENGINES if words[1:2] == ["DATABASE"] else _FUNCTIONS
    budget = _MAX_PASSES * (len(tokens) + 1)
    for at, token in enumerate(tokens):
        before = words[at - 1] if at else ""
        if token.kind in _QUOTED and has_credentials and before in ("BY", "SALT"):
            yield token
        elif token.kind in _LITERALS:
            if before == "=" and at >= 2 and (is_collection or _is_secret_name(tokens[at - 2])):
                yield token
            elif _is_secret_name(tokens[at - 1]) and at and tokens[at - 1].kind is TokenKind.WORD:
                yield token  # As in a dictionary's SOURCE: PASSWORD 'x'.
        if at + 1 < len(tokens) and words[at + 1] == "(":
            finder = finders.get(literal_value(token).lower()) if token.kind in _NAMES else None
            if finder is not None:
                arguments = _arguments(tokens, at + 1)
                budget -= sum(map(len, arguments))
                if budget < 0:
                    yield from (t for t in tokens if t.kind in _QUOTED)
                    return
                for argument in finder(arguments):
                    yield from (t for t in argument if t.kind in _QUOTED)


def _is_secret_name(token: Token) -> bool:
    if token.kind not in (TokenKind.WORD, TokenKind.IDENTIFIER, TokenKind.STRING):
        return False
    return _SECRET_NAME.match(literal_value(token)) is not None


_NAMES = frozenset({TokenKind.WORD, TokenKind.IDENTIFIER})


def _arguments(tokens: list[Token], opening: int) -> list[Argument]:
    """The arguments of the call whose bracket opens at `opening`."""
    arguments: list[Argument] = [[]]
    depth = 0
    for token in tokens[opening:]:
        if token.kind is TokenKind.PUNCTUATION and token.text in "([{":
            depth += 1
            if depth == 1:
                continue
        elif token.kind is TokenKind.PUNCTUATION and token.text in ")]}":
            depth -= 1
            if depth == 0:
                break
        elif token.text == "," and depth == 1:
            arguments.append([])
            continue
        arguments[-1].append(token)
    return arguments


# --- which arguments are secret -----------------------------------------------------------------------------

_FORMATS = re.compile(
    r"auto|(?:custom|pretty|json|bson|csv|tsv|tabseparated|tskv|rowbinary|parquet|orc|arrow|avro|native|values"
    r"|protobuf|capnproto|msgpack|lineasstring|rawblob|one|form|template|regexp|npy|prometheus|sqlinsert|hive"
    r"|mysqldump|markdown|xml|vertical|null)[a-z]*",
    re.IGNORECASE,
)


def _positional(arguments: list[Argument]) -> list[Argument]:
    """Arguments without those given by `name = value`, whose names tell."""
    return [a for a in arguments if not (len(a) > 1 and a[1].text == "=")]


def _at(*positions: int) -> Callable[[list[Argument]], list[Argument]]:
    """The arguments at these positions, counted from 1."""

    def find(arguments: list[Argument]) -> list[Argument]:
        positional = _positional(arguments)
        return [positional[p - 1] for p in positions if p <= len(positional)]

    return find


def _from(position: int) -> Callable[[list[Argument]], list[Argument]]:
    """All arguments from this position on."""
    return lambda arguments: _positional(arguments)[position - 1 :]


def _is_format(argument: Argument) -> bool:
    return len(argument) == 1 and _FORMATS.fullmatch(literal_value(argument[0])) is not None


def _s3(url: int) -> Callable[[list[Argument]], list[Argument]]:
    """`url, key id, secret[, session token][, format…]`; `url, format…` and `url, NOSIGN` have no secret."""

    def find(arguments: list[Argument]) -> list[Argument]:
        behind = _positional(arguments)[url:]
        if len(behind) < 2 or _is_format(behind[0]) or behind[0][0].text.upper() == "NOSIGN":
            return []
        token = behind[2:3] if len(behind) > 2 and not _is_format(behind[2]) else []
        return [behind[1], *token]

    return find


def _azure(container: int) -> Callable[[list[Argument]], list[Argument]]:
    """`connection string | url, container, blob[, account, key][, format…]`."""

    def find(arguments: list[Argument]) -> list[Argument]:
        behind = _positional(arguments)[container + 1 :]
        return behind[1:2] if len(behind) > 1 and not _is_format(behind[0]) else []

    return find


def _remote(arguments: list[Argument]) -> list[Argument]:
    """`address, db, table, user, password` or `address, db.table, user, password`."""
    positional = _positional(arguments)
    if len(positional) < 4:
        return []
    joined = len(positional[1]) > 1 or "." in literal_value(positional[1][0])
    return positional[3:5] if joined else positional[4:5]


def _headers(arguments: list[Argument]) -> list[Argument]:
    """The values of `headers('Authorization' = 'x')`."""
    return [argument[2:] for argument in arguments if len(argument) > 2 and argument[1].text == "="]


def _http_header(arguments: list[Argument]) -> list[Argument]:
    """The value of a dictionary source's `HEADER(NAME 'x' VALUE 'y')`."""
    return [
        argument[at + 1 : at + 2]
        for argument in arguments
        for at, token in enumerate(argument)
        if token.text.upper() == "VALUE"
    ]


_S3_LIKE = """
    s3 gcs oss cosn s3queue deltalake deltalakes3 hudi iceberg icebergs3 paimon paimons3 minio icebergcatalog
    datalakecatalog
"""
_SQL_SERVERS = ("mysql", "postgresql", "materializedpostgresql", "materializedmysql")
_CLUSTERS = (
    "s3cluster gcscluster deltalakecluster deltalakes3cluster hudicluster icebergcluster icebergs3cluster"
)
_FUNCTIONS: dict[str, Callable[[list[Argument]], list[Argument]]] = {
    **{name: _s3(1) for name in _S3_LIKE.split()},
    **{name: _s3(2) for name in _CLUSTERS.split()},
    **{name: _azure(2) for name in ("azureblobstorage", "azurequeue", "icebergazure", "deltalakeazure")},
    **{name: _azure(3) for name in ("azureblobstoragecluster", "icebergazurecluster")},
    **{name: _at(5) for name in _SQL_SERVERS},
    "mongodb": _at(5),
    "redis": _from(3),
    "externaldistributed": _at(6),
    "remote": _remote,
    "remotesecure": _remote,
    "headers": _headers,
    "header": _http_header,
    "arrowflight": _from(3),
    "ytsaurus": _from(3),
    **{
        name: _from(2)
        for name in (
            "encrypt",
            "decrypt",
            "tryencrypt",
            "trydecrypt",
            "aes_encrypt_mysql",
            "aes_decrypt_mysql",
        )
    },
}
# A database has no table among its arguments: `host, db, user, password`.
_DATABASE_ENGINES = _FUNCTIONS | {name: _at(4) for name in _SQL_SERVERS}
