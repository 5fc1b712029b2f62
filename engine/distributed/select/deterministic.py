"""Whether a sharding key says the same for the same row every time.

Every name in it has to be known: a column, a function of `FUNCTIONS`, a word of the grammar. What is not
known, such as a user's function or one of a later version, may depend on more than its arguments, and rows
would be missed silently; a shard too many costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection

from engine.distributed.select.model import names
from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind, literal_value

FUNCTIONS = names(
    "halfMD5 sipHash64 sipHash64Keyed sipHash128 cityHash64 farmHash64 farmFingerprint64 metroHash64 "
    "murmurHash2_32 murmurHash2_64 murmurHash3_32 murmurHash3_64 murmurHash3_128 gccMurmurHash "
    "kafkaMurmurHash xxHash32 xxHash64 xxh3 wyHash64 intHash32 intHash64 javaHash javaHashUTF16LE "
    "hiveHash URLHash MD5 SHA1 SHA256 jumpConsistentHash kostikConsistentHash plus minus multiply divide "
    "intDiv intDivOrZero modulo moduloOrZero moduloLegacy negate gcd lcm byteSwap bitAnd bitOr bitXor "
    "bitNot bitShiftLeft bitShiftRight bitRotateLeft bitRotateRight bitTest bitCount equals notEquals "
    "less greater lessOrEquals greaterOrEquals and or xor in notIn like notLike multiIf isNotNull "
    "assumeNotNull toNullable isZeroOrNull has empty notEmpty toUInt8 toUInt16 toUInt32 toUInt64 "
    "toUInt128 toUInt256 toInt8 toInt16 toInt32 toInt64 toInt128 toInt256 toUInt8OrZero toUInt16OrZero "
    "toUInt32OrZero toUInt64OrZero toInt8OrZero toInt16OrZero toInt32OrZero toInt64OrZero toFloat32 "
    "toFloat64 toString toFixedString toStringCutToZero toUUID toIPv4 toIPv6 toBool toLowCardinality "
    "toDate toDate32 toDateTime toDateTime64 toDecimal32 toDecimal64 toDecimal128 accurateCast "
    "reinterpret reinterpretAsUInt8 reinterpretAsUInt16 reinterpretAsUInt32 reinterpretAsUInt64 "
    "reinterpretAsInt8 reinterpretAsInt16 reinterpretAsInt32 reinterpretAsInt64 reinterpretAsString "
    "toYear toQuarter toMonth toDayOfYear toDayOfMonth toDayOfWeek toHour toMinute toSecond toISOYear "
    "toISOWeek toWeek toYearWeek toYYYYMM toYYYYMMDD toYYYYMMDDhhmmss toUnixTimestamp toMonday "
    "toStartOfYear toStartOfQuarter toStartOfMonth toStartOfWeek toStartOfDay toStartOfHour "
    "toStartOfMinute toStartOfInterval toStartOfFiveMinutes toStartOfTenMinutes toStartOfFifteenMinutes "
    "toRelativeYearNum toRelativeMonthNum toRelativeWeekNum toRelativeDayNum toRelativeHourNum "
    "toRelativeMinuteNum toRelativeSecondNum toUnixTimestamp64Milli toUnixTimestamp64Micro "
    "toUnixTimestamp64Nano lowerUTF8 upperUTF8 lengthUTF8 substringUTF8 startsWith endsWith trimBoth "
    "trimLeft trimRight concatWithSeparator splitByChar domain domainWithoutWWW topLevelDomain "
    "firstSignificantSubdomain path protocol cutQueryString cutFragment UUIDStringToNum UUIDNumToString "
    "IPv4StringToNum IPv4NumToString IPv6StringToNum tuple tupleElement array arrayElement map mapKeys "
    "mapValues "
)
"""Deterministic functions by their exact names: a user's function may have the same name in other case."""
FUNCTIONS_OF_ANY_CASE = names(
    "abs mod ceil floor round trunc sign greatest least if ifnull nullif coalesce isnull not cast date year "
    "month day crc32 crc32ieee crc64 lower upper length concat substring substr left right reverse hex ascii"
)
_BEFORE_A_BRACKET = names("AND OR NOT IN CASE WHEN THEN ELSE BETWEEN LIKE DIV MOD")
_KEYWORDS = _BEFORE_A_BRACKET | names("AS IS NULL END TRUE FALSE")


def is_deterministic(key: str, columns: Collection[str]) -> bool:
    """`columns` are those of the table."""
    cursor = Cursor(key)
    words = ["", *cursor.words, ""]
    for at, token in enumerate(cursor.tokens, start=1):
        if not token.is_name:
            continue
        name = literal_value(token)
        is_word = token.kind is TokenKind.WORD
        if words[at + 1] == "(":
            is_known = name in FUNCTIONS or name.lower() in FUNCTIONS_OF_ANY_CASE
            is_known = is_known or (is_word and words[at] in _BEFORE_A_BRACKET)
        else:
            is_part = words[at - 1] in (".", "AS", "::")  # of a tuple, or a type
            is_known = is_part or name in columns or (is_word and words[at] in _KEYWORDS)
        if not is_known:
            return False
    return True
