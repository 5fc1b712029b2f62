"""Limits of a statement's text: they hold for what a client sends, and not for what a node makes of it.

`max_query_size` is looked at where the text is received, and chDB has none (`session_connection`).

Source: ClickHouse's IParser, checkASTSizeLimits and executeQuery.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.setting_values import number_of

MAX_QUERY_SIZE = "max_query_size"
_STRICT_NAMES = "enforce_strict_identifier_format"
_BY_EXPLAIN_AST = {
    "max_ast_depth": 1,
    "max_ast_elements": 1,
    "max_parser_depth": 3,
    "max_parser_backtracks": 1,
}
"""How much more than a statement the same behind EXPLAIN AST has."""
_BY_NODE = {
    "max_ast_depth": 1_000,
    "max_ast_elements": 1_000_000_000,
    "max_expanded_ast_elements": 1_000_000_000,
    "max_parser_depth": 1_000,
    "max_parser_backtracks": 1_000_000_000,
}
"""How much more a node may make of it."""
OF_TEXT = frozenset({_STRICT_NAMES, *_BY_NODE})


def lifted(told: Mapping[str, str]) -> dict[str, str]:
    """Of the settings `told` those that limit a text, as they are for one of the node's."""
    usual = {_STRICT_NAMES: "0"} if _STRICT_NAMES in told else {}
    return {**usual, **_raised(told, _BY_NODE)}


def behind_explain_ast(told: Mapping[str, str]) -> dict[str, str]:
    """The settings with which chDB finds a text too large if, and only if, it is with those `told`, though
    EXPLAIN AST stands before it. Empty if nothing is limited."""
    is_strict = {_STRICT_NAMES: told[_STRICT_NAMES]} if told.get(_STRICT_NAMES, "0") != "0" else {}
    return {**is_strict, **_raised(told, _BY_EXPLAIN_AST)}


def _raised(told: Mapping[str, str], by: Mapping[str, int]) -> dict[str, str]:
    """0 is no limit. What is no number chDB refuses."""
    raised: dict[str, str] = {}
    for name, more in by.items():
        try:
            limit = number_of(told.get(name, "0"))
        except ValueError:
            continue
        if limit:
            raised[name] = str(int(limit) + more)
    return raised
