"""Which arguments of engines, table functions and functions are secret, by their position or their name.

Source: ClickHouse's own list of secret arguments (FunctionSecretArgumentsFinder) goes by position too.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.sql.secret_texts import is_secret_name
from engine.sql.tokens import Token, TokenKind, literal_value

Argument = list[tuple[int, Token]]
"""The significant tokens of one argument, each with its place among the statement's; of calls within it only
the name and the brackets."""

Finder = Callable[[list[Argument]], list[Argument]]

_EQUALS = ("=", "==")


def _words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


# As in `system.formats`, and the older names. A key id may begin like one of them, so that the whole counts.
_FORMATS = _words_of(
    """
    arrow arrowstream auto avro avroconfluent bsoneachrow buffers capnproto csv csvwithnames
    csvwithnamesandtypes customseparated customseparatedignorespaces customseparatedignorespaceswithnames
    customseparatedignorespaceswithnamesandtypes customseparatedwithnames customseparatedwithnamesandtypes
    dwarf form geojson hash hivetext json jsonasobject jsonasstring jsoncolumns jsoncolumnswithmetadata
    jsoncompact jsoncompactcolumns jsoncompacteachrow jsoncompacteachrowwithnames
    jsoncompacteachrowwithnamesandtypes jsoncompacteachrowwithprogress jsoncompactstrings
    jsoncompactstringseachrow jsoncompactstringseachrowwithnames jsoncompactstringseachrowwithnamesandtypes
    jsoncompactstringseachrowwithprogress jsoneachrow jsoneachrowwithprogress jsonl jsonlines
    jsonobjecteachrow jsonstrings jsonstringseachrow jsonstringseachrowwithprogress lineasstring
    lineasstringwithnames lineasstringwithnamesandtypes markdown md msgpack mysqldump mysqlwire native ndjson
    npy null odbcdriver2 one orc parquet parquetmetadata png postgresqlwire pretty prettycompact
    prettycompactmonoblock prettycompactnoescapes prettycompactnoescapesmonoblock prettyjsoneachrow
    prettyjsonlines prettymonoblock prettyndjson prettynoescapes prettynoescapesmonoblock prettyspace
    prettyspacemonoblock prettyspacenoescapes prettyspacenoescapesmonoblock prometheus protobuf protobuflist
    protobufsingle puffin puffinmetadata raw rawblob rawwithnames rawwithnamesandtypes regexp rowbinary
    rowbinarywithdefaults rowbinarywithnames rowbinarywithnamesandtypes rowbinarywithnamesandtypesanddefaults
    sqlinsert tabseparated tabseparatedraw tabseparatedrawwithnames tabseparatedrawwithnamesandtypes
    tabseparatedwithnames tabseparatedwithnamesandtypes template templateignorespaces tskv tsv tsvraw
    tsvrawwithnames tsvrawwithnamesandtypes tsvwithnames tsvwithnamesandtypes values vertical xml
    """
)

# Of `disk(…)` everything else is hidden: ClickHouse hides all but the type.
_NOT_SECRET_OF_DISKS = _words_of(
    """
    type disk path name endpoint region metadata_type object_storage_type metadata_path max_size algorithm
    readonly url container_name storage_account_url cache_on_write_operations bucket
    """
)


def finder_of(name: str, *, of_database: bool = False) -> Finder | None:
    """What tells the secret arguments of the function or engine; None if it has none."""
    name = name.lower()
    if of_database and name in _SQL_SERVERS:
        return _at(4)  # A database has no table among its arguments: `host, db, user, password`.
    return _FUNCTIONS.get(name) or _PLAIN_FUNCTIONS.get(name)


def takes_words(name: str) -> bool:
    """Whether bare words are values there: a table function takes them as strings, a function as columns."""
    return name.lower() in _FUNCTIONS


def _is_named(argument: Argument) -> bool:
    return len(argument) > 1 and argument[1][1].text in _EQUALS


def _positional(arguments: list[Argument]) -> list[Argument]:
    """Arguments without those given by `name = value`, whose names tell."""
    return [argument for argument in arguments if not _is_named(argument)]


def _at(*positions: int) -> Finder:
    """The arguments at these positions, counted from 1."""

    def find(arguments: list[Argument]) -> list[Argument]:
        positional = _positional(arguments)
        return [positional[p - 1] for p in positions if p <= len(positional)]

    return find


def _from(position: int) -> Finder:
    """All arguments from this position on."""
    return lambda arguments: _positional(arguments)[position - 1 :]


def _is_format(argument: Argument) -> bool:
    return len(argument) == 1 and literal_value(argument[0][1]).lower() in _FORMATS


def _s3(url: int) -> Finder:
    """`url, key id, secret[, session token][, format…]`; `url, format…` and `url, NOSIGN` have no secret."""

    def find(arguments: list[Argument]) -> list[Argument]:
        behind = _positional(arguments)[url:]
        if len(behind) < 2 or _is_format(behind[0]) or (behind[0] and _text(behind[0]) == "NOSIGN"):
            return []
        token = behind[2:3] if len(behind) > 2 and not _is_format(behind[2]) else []
        return [behind[1], *token]

    return find


def _azure(container: int) -> Finder:
    """`connection string | url, container, blob[, account, key][, format…]`."""

    def find(arguments: list[Argument]) -> list[Argument]:
        behind = _positional(arguments)[container + 1 :]
        return behind[1:2] if len(behind) > 1 and not _is_format(behind[0]) else []

    return find


def _text(argument: Argument) -> str:
    return literal_value(argument[0][1]).upper()


def _remote(arguments: list[Argument]) -> list[Argument]:
    """`address, db, table, user, password` or `address, db.table, user, password`."""
    positional = _positional(arguments)
    secret = [a for a in positional[:1] if any("@" in token.text for _, token in a)]
    if len(positional) < 4:
        return secret
    joined = len(positional[1]) != 1 or "." in literal_value(positional[1][0][1])
    # With four the last one may be a user's name, or the password behind a table of the current database.
    if joined or len(positional) == 4:
        return [*secret, *positional[3:5]]
    is_password = len(positional[4]) == 1 and positional[4][0][1].kind in (
        TokenKind.STRING,
        TokenKind.HEREDOC,
    )
    return [*secret, *(positional[4:5] if is_password else positional[3:5])]


def _redis(arguments: list[Argument]) -> list[Argument]:
    """`address, number of the database, password…`: no number of a database has three digits."""
    positional = _positional(arguments)
    second = positional[1] if len(positional) > 1 else []
    is_number = len(second) == 1 and second[0][1].kind is TokenKind.NUMBER
    hides_second = len(second[0][1].text) > 2 if is_number else len(positional) == 2
    return [*([second] if hides_second and second else []), *positional[2:]]


def _values(arguments: list[Argument]) -> list[Argument]:
    """The values of `headers('Authorization' = 'x')`."""
    return [argument[2:] for argument in arguments if _is_named(argument)]


def _http_header(arguments: list[Argument]) -> list[Argument]:
    """The value of a dictionary source's `HEADER(NAME 'x' VALUE 'y')`."""
    return [
        argument[at + 1 :]
        for argument in arguments
        for at, (_, token) in enumerate(argument)
        if token.text.upper() == "VALUE"
    ]


def _disk(arguments: list[Argument]) -> list[Argument]:
    """Of a disk in SETTINGS; that of BACKUP has no names before its values."""
    return [
        argument[2:]
        for argument in arguments
        if _is_named(argument) and literal_value(argument[0][1]).lower() not in _NOT_SECRET_OF_DISKS
    ]


def _equals(arguments: list[Argument]) -> list[Argument]:
    """The other side of `equals(password, 'x')`."""
    if len(arguments) != 2:
        return []
    return [
        other
        for name, other in (arguments, arguments[::-1])
        if name and name[-1][1].is_name and is_secret_name(name[-1][1])
    ]


_S3_LIKE = """
    s3 gcs oss cosn s3queue deltalake deltalakes3 hudi iceberg icebergs3 paimon paimons3 minio icebergcatalog
    datalakecatalog
"""
_SQL_SERVERS = ("mysql", "postgresql", "materializedpostgresql", "materializedmysql")
_S3_CLUSTERS = """
    s3cluster gcscluster deltalakecluster deltalakes3cluster hudicluster icebergcluster icebergs3cluster
    paimoncluster paimons3cluster
"""
_AZURE = "azureblobstorage azurequeue icebergazure deltalakeazure paimonazure"
_AZURE_CLUSTERS = (
    "azureblobstoragecluster icebergazurecluster deltalakeazurecluster paimonazurecluster azurecluster"
)
_FUNCTIONS: dict[str, Finder] = {
    **{name: _s3(1) for name in _S3_LIKE.split()},
    **{name: _s3(2) for name in _S3_CLUSTERS.split()},
    **{name: _azure(2) for name in _AZURE.split()},
    **{name: _azure(3) for name in _AZURE_CLUSTERS.split()},
    **{name: _at(5) for name in _SQL_SERVERS},
    "mongodb": _at(5),
    "redis": _redis,
    "externaldistributed": _at(6),
    "remote": _remote,
    "remotesecure": _remote,
    "headers": _values,
    "extra_credentials": _values,
    "header": _http_header,
    "arrowflight": _from(3),
    "ytsaurus": _from(3),
    "disk": _disk,
}
_CRYPTOGRAPHY = "encrypt decrypt tryencrypt trydecrypt aes_encrypt_mysql aes_decrypt_mysql"
_PLAIN_FUNCTIONS: dict[str, Finder] = {
    **{name: _from(2) for name in _CRYPTOGRAPHY.split()},
    "hmac": _from(3),
    "equals": _equals,
}
