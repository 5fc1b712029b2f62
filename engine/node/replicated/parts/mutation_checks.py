"""What UPDATE and DELETE of a replicated table may not say.

Each replica runs a mutation by itself, and the same rows have to come out. So what may give another value
elsewhere or later is refused, as ClickHouse does; and what no replica of this kind can do is refused before
it stands in Keeper, where it would be tried for ever.

    now(), NOW(), `rand`()   names are compared as chDB does, quoted or not
    CURRENT_TIMESTAMP        some functions need no parentheses; a column, an alias or an argument of a lambda
                             of that name is none
    f(v)                     a SQL user function is what its body says

Source: ClickHouse's MutationsInterpreter, findFirstNonDeterministicFunction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from engine.errors import Code, SqlError
from engine.node.replicated.parts.partition_sql import AlterPiece
from engine.node.statements.asked_settings import flag, settings_of
from engine.node.statements.statement import Asked
from engine.part_storage.part_columns import refuse_untellable
from engine.sql import AlterCommand
from engine.sql.cursor import Cursor
from engine.sql.tokens import literal_value
from engine.sql.user_functions import called_in, with_bodies

_EXPRESSIONS = frozenset({AlterCommand.DELETE, AlterCommand.UPDATE})
_NO_FUNCTIONS = frozenset(
    {"and", "or", "not", "in", "where", "like", "between", "case", "when", "then", "else"}
)
"""Words before a parenthesis. Of others that are no function chDB is asked in vain."""
_WITHOUT_PARENTHESES = frozenset(
    {
        "curdate", "current_date", "current_database", "current_timestamp", "current_user",
        "currentdatabase", "currenthandler", "currentrequesturl", "currentuser", "database", "localtime",
        "localtimestamp", "now", "schema", "session_user", "today", "user",
    }
)  # fmt: skip
"""Of the functions that are not deterministic, those that chDB 26.9 calls by their bare name, in any case."""


@dataclass(frozen=True, slots=True)
class Functions:
    """chDB's own. Names of those that are found whatever the case are in lower case in `any_case`, and their
    other names in `exact`, each with whether it always gives the same."""

    exact: Mapping[str, bool] = field(default_factory=dict)
    any_case: Mapping[str, bool] = field(default_factory=dict)

    def is_known(self, name: str) -> bool:
        return name in self.exact or name.lower() in self.any_case or name.lower() in _NO_FUNCTIONS

    def is_fickle(self, name: str) -> bool:
        return not self.exact.get(name, True) or not self.any_case.get(name.lower(), True)


class MutationChecks:
    """Of one node. chDB's list of its functions is read once: that takes it long."""

    def __init__(self) -> None:
        self._functions: Functions | None = None

    async def check(self, asked: Asked, pieces: Sequence[AlterPiece], columns: Collection[str]) -> None:
        """`columns` are the table's. Raises SqlError 36 for what is not the same everywhere, unless
        `allow_nondeterministic_mutations` is set, and 48 for what cannot be done."""
        texts = [piece.text for piece in pieces if piece.command in _EXPRESSIONS]
        if not texts:
            return
        own = self._functions
        if own is None:
            own = self._functions = await _own_functions(asked)
        if not all(own.is_known(name) for text in texts for name in called_in(text)):
            of_users = await _user_functions(asked)
            texts = [each for text in texts for each in with_bodies(text, of_users)]
        refuse_untellable(texts)
        if not flag(settings_of(asked), "allow_nondeterministic_mutations", False):
            for text in texts:
                refuse_fickle(text, own, columns)


def refuse_fickle(text: str, functions: Functions, columns: Collection[str]) -> None:
    """Raises SqlError 36 for an expression that may give something else on another replica."""
    c = Cursor(text)
    if "SELECT" in c.words:
        raise SqlError(
            Code.BAD_ARGUMENTS,
            "ALTER UPDATE/ALTER DELETE statement with subquery may be nondeterministic, see "
            "allow_nondeterministic_mutations setting",
        )
    words = ["", *c.words, ""]
    named_here = {
        literal_value(token)
        for at, token in enumerate(c.tokens)
        if words[at] == "AS" or words[at + 2] == "->"
    }
    for at, token in enumerate(c.tokens):
        if not token.is_name:
            continue
        name, before, behind = literal_value(token), words[at], words[at + 2]
        if behind == "(":
            is_fickle = functions.is_fickle(name)
        else:
            is_fickle = (
                name.lower() in _WITHOUT_PARENTHESES
                and "." not in (before, behind)
                and name not in columns
                and name not in named_here
            )
        if is_fickle:
            raise SqlError(
                Code.BAD_ARGUMENTS,
                "The source storage is replicated so ALTER UPDATE/ALTER DELETE statements must use "
                f"only deterministic functions. Function '{name}' is non-deterministic",
                hint="Write its value in its place, or set allow_nondeterministic_mutations = 1.",
            )


async def _own_functions(asked: Asked) -> Functions:
    result = await asked.session.clone().query(
        "SELECT name, case_insensitive, ifNull(deterministic, 1) FROM system.functions "
        "WHERE origin != 'SQLUserDefined'",
        format="JSONCompactEachRow",
    )
    exact, any_case = {}, {}
    for name, is_any_case, is_deterministic in map(json.loads, result.data.splitlines()):
        if is_any_case:
            any_case[str(name).lower()] = bool(is_deterministic)
        else:
            exact[str(name)] = bool(is_deterministic)
    return Functions(exact, any_case)


async def _user_functions(asked: Asked) -> Mapping[str, str]:
    result = await asked.session.clone().query(
        "SELECT name, create_query FROM system.functions WHERE origin = 'SQLUserDefined'",
        format="JSONCompactEachRow",
    )
    return {str(name): str(create) for name, create in map(json.loads, result.data.splitlines())}
