"""Whether what was found out about a text holds for the same text later.

The analysis folds constants: what `today()` was is part of it. So a text is repeatable only if every function
that it names is known to say the same for the same arguments, and if it reads nothing but its one Distributed
table: what other tables look like may change without a statement on this node. Both are read twice, from the
text and from the analysis, because each could hide a call (a function without brackets; a folded parameter).
What is not known is not repeatable, which costs time and nothing else.
"""

from __future__ import annotations

from engine.distributed.select.model import names
from engine.distributed.select.pushing import SAFE
from engine.distributed.select.query_tree import QueryTree
from engine.distributed.select.two_phase import MERGEABLE
from engine.sql.cursor import Cursor
from engine.sql.tokens import TokenKind

_MORE = names(
    "_cast cast todatetime todatetime64 tofloat32 tofloat64 toint8 toint16 toint32 toint64 toint128 toint256 "
    "touint128 touint256 todecimal32 todecimal64 todecimal128 tostartofinterval toquarter tostartofweek "
    "tomonday tostartofquarter todayofyear toisoweek toisoyear toweek dateadd datesub datediff adddays "
    "addmonths addyears subtractdays subtractmonths tointervalsecond tointervalminute tointervalhour "
    "tointervalday tointervalweek tointervalmonth tointervalquarter tointervalyear round floor ceil ceiling "
    "trunc sqrt pow power exp log log2 log10 ln sign intdiv modulo mod divide greatest least nullif "
    "assumenotnull tonullable substring substr concat position replaceall replaceone replace match extract "
    "trim reverse tuple array arrayelement map mapkeys mapvalues mapcontains hasall hasany arraysort "
    "arrayreverse indexof bitxor bitnot cityhash64 murmurhash3_64 formatdatetime lengthutf8 "
    "between subcolumn getsubcolumn"
)
FUNCTIONS = frozenset(name.lower() for name in SAFE | MERGEABLE | _MORE) | frozenset(
    f"{name.lower()}if" for name in MERGEABLE
)
"""In lower case."""
_KEYWORDS = names(
    "SELECT DISTINCT ON AS AND OR NOT IN IS LIKE ILIKE BETWEEN CASE WHEN THEN ELSE FROM PREWHERE WHERE BY "
    "HAVING LIMIT OFFSET ORDER GROUP ROLLUP CUBE SETS EXCEPT COLUMNS DIV MOD SETTINGS FINAL ALL"
)
"""What may stand before a bracket and is no function."""
_CALLS_WITHOUT_BRACKETS = ("CURRENT", "LOCAL", "SESSION", "SYSTEM", "NOW", "TODAY", "USER", "YESTERDAY")
_MAX_CHARACTERS = 8192


def is_repeatable(sql: str, tree: QueryTree | None, *, places: int) -> bool:
    """`sql` is the statement, `tree` its analysis, `places` the number of Distributed tables it reads."""
    if tree is None or places != 1 or len(sql) > _MAX_CHARACTERS:
        return False
    cursor = Cursor(sql)
    words = cursor.words
    if words.count("SELECT") != 1:
        return False
    for at, word in enumerate(words):
        if word.startswith(_CALLS_WITHOUT_BRACKETS):
            return False
        if words[at + 1 : at + 2] != ["("]:
            continue
        if cursor.tokens[at].kind is TokenKind.IDENTIFIER:
            return False
        is_word = cursor.tokens[at].kind is TokenKind.WORD
        if is_word and word not in _KEYWORDS and word.lower() not in FUNCTIONS:
            return False
    return _reads_one_table(tree) and all(
        node.fact("function_name").lower() in FUNCTIONS
        for node in tree.root.walk()
        if node.kind == "FUNCTION"
    )


def _reads_one_table(tree: QueryTree) -> bool:
    kinds = [node.kind for node in tree.root.walk() if node.id >= 0]
    return (
        kinds.count("QUERY") == 1
        and kinds.count("TABLE_FUNCTION") == 1
        and not {"TABLE", "UNION"}.intersection(kinds)
    )
