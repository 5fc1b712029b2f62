"""Settings that a replicated table has in chDB and a user never sees.

    max_bytes_to_merge_at_{max,min}_space_in_pool = 1   chDB merges nothing by itself
    max_number_of_merges_with_ttl_in_pool = 0           … nor because of a TTL, which the others allow
    remove_empty_parts = 0                              parts without rows stay: Keeper knows them
    fsync_after_insert = 0, fsync_part_directory = 0    parts are forced to disk once, when they are staged;
                                                        chDB would do it again for each part of a swap (ten
                                                        times the time on a busy disk)
    max_suspicious_broken_parts{,_bytes} = many         broken parts are counted by `startup_check`: chDB,
                                                        with a limit of its own, would not start at all
    assign_part_uuids = 0                               a part's UUID is its replicated name (`part_uuid`)
    max_table_size_{rows,bytes_{,un}compressed} = 0     chDB would refuse to show what others have written
    min_{bytes,rows,level}_for_full_part_storage = 0    each file of a part is a file, and not a piece of one:
                                                        parts are sent and compared by their files

They survive restarts, as `SYSTEM STOP MERGES` does not, and they leave OPTIMIZE … FINAL and mutations alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import Code, SqlError
from engine.sql.tokens import Token, TokenKind, scan

HIDDEN_SETTINGS: Mapping[str, str] = {
    "max_bytes_to_merge_at_max_space_in_pool": "1",
    "max_bytes_to_merge_at_min_space_in_pool": "1",
    "max_number_of_merges_with_ttl_in_pool": "0",
    "remove_empty_parts": "0",
    "fsync_after_insert": "0",
    "fsync_part_directory": "0",
    "max_suspicious_broken_parts": "1000000000",
    "max_suspicious_broken_parts_bytes": "1000000000000000000",
    "assign_part_uuids": "0",
    "max_table_size_rows": "0",
    "max_table_size_bytes_compressed": "0",
    "max_table_size_bytes_uncompressed": "0",
    "min_bytes_for_full_part_storage": "0",
    "min_rows_for_full_part_storage": "0",
    "min_level_for_full_part_storage": "0",
}

_BEHIND_SETTINGS = ("COMMENT", "AS", "EMPTY")


def with_hidden_settings(create: str) -> str:
    """A CREATE TABLE text with the hidden settings; what it says of them itself is replaced.

    Raises SqlError 62 for text without ENGINE.
    """
    return with_settings(create, HIDDEN_SETTINGS)


def without_hidden_settings(create: str) -> str:
    """The text without the hidden settings, and without SETTINGS if no other is there."""
    return with_settings(create, dict.fromkeys(HIDDEN_SETTINGS))


def missing_settings(create: str) -> Mapping[str, str]:
    """Hidden settings that a CREATE TABLE text has not, or not so."""
    here = settings_of(create)
    return {name: value for name, value in HIDDEN_SETTINGS.items() if here.get(name) != value}


def with_settings(create: str, changes: Mapping[str, str | None]) -> str:
    """A CREATE TABLE text with other settings: values are SQL literals, None removes.

    Raises SqlError 62 for text without ENGINE.
    """
    tokens = [token for token in scan(create) if token.is_significant]
    engine = _top_level(tokens, ("ENGINE",), 0)
    if engine is None:
        raise SqlError(Code.SYNTAX_ERROR, f"Expected ENGINE in: {create[:200]}")
    start = _top_level(tokens, ("SETTINGS",), engine)
    end = _top_level(tokens, _BEHIND_SETTINGS, engine if start is None else start)
    head_end = tokens[(start if start is not None else end or len(tokens)) - 1].end
    tail = "" if end is None else create[tokens[end].start :].rstrip("; \n")
    items: dict[str, str] = {}
    if start is not None:
        items = _items(create, tokens[start + 1 : end])
    for name, value in changes.items():
        items.pop(name, None)
        if value is not None:
            items[name] = value
    text = create[:head_end].rstrip("; \n")
    if items:
        text += " SETTINGS " + ", ".join(f"{name} = {value}" for name, value in items.items())
    return f"{text} {tail}" if tail else text


def settings_of(create: str) -> dict[str, str]:
    """The SETTINGS of a CREATE TABLE text: SQL literals by name."""
    tokens = [token for token in scan(create) if token.is_significant]
    engine = _top_level(tokens, ("ENGINE",), 0)
    start = None if engine is None else _top_level(tokens, ("SETTINGS",), engine)
    if start is None:
        return {}
    return _items(create, tokens[start + 1 : _top_level(tokens, _BEHIND_SETTINGS, start)])


def _items(create: str, tokens: list[Token]) -> dict[str, str]:
    items: dict[str, str] = {}
    depth, first = 0, 0
    for at, token in enumerate([*tokens, None]):
        if token is not None:
            depth += (token.text in "([{") - (token.text in ")]}") if len(token.text) == 1 else 0
        if token is None or (depth == 0 and token.text == ","):
            item = [each for each in tokens[first:at] if each.text != ";"]
            name = item[0].text.strip("`") if item else ""
            if len(item) >= 3 and item[1].text == "=":
                items[name] = create[item[2].start : item[-1].end]
            elif len(item) == 1:
                items[name] = "1"
            first = at + 1
    return items


def _top_level(tokens: list[Token], words: tuple[str, ...], start: int) -> int | None:
    depth = 0
    for at in range(len(tokens)):
        token = tokens[at]
        if len(token.text) == 1:
            depth += (token.text in "([{") - (token.text in ")]}")
        if at >= start and depth == 0 and token.kind is TokenKind.WORD and token.text.upper() in words:
            return at
    return None
