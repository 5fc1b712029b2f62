"""Clauses about the answer rather than the deed: FORMAT, INTO OUTFILE, and the SETTINGS beside them."""

from __future__ import annotations

from engine.setting_values import plain_number
from engine.sql.draft import Draft
from engine.sql.edit import Edit, apply_edits
from engine.sql.kinds import AlterCommand
from engine.sql.kinds import StatementKind as K
from engine.sql.parse import draft_of
from engine.sql.settings_clauses import TRUE, is_bare
from engine.sql.tokens import TokenKind, literal_value

# Kinds whose trailing SETTINGS are the query's own even without FORMAT; elsewhere they belong to the table's
# storage, to the SELECT, or to the backup.
_SETTINGS_OF_THE_QUERY = frozenset(
    {
        K.DROP_TABLE,
        K.DROP_VIEW,
        K.DROP_DICTIONARY,
        K.DROP_DATABASE,
        K.DETACH_TABLE,
        K.DETACH_VIEW,
        K.DETACH_DICTIONARY,
        K.DETACH_DATABASE,
        K.TRUNCATE_TABLE,
        K.TRUNCATE_DATABASE,
        K.UNDROP_TABLE,
        K.RENAME_TABLE,
        K.RENAME_DICTIONARY,
        K.RENAME_DATABASE,
        K.EXCHANGE_TABLES,
        K.EXCHANGE_DICTIONARIES,
        K.ALTER_TABLE,
        K.ALTER_DATABASE,
        K.OPTIMIZE,
        K.KILL_QUERY,
        K.KILL_MUTATION,
    }
)


def without_output_clauses(sql: str) -> str:
    """`sql` without FORMAT, INTO OUTFILE and the query's own SETTINGS, as the initiator ships it.

    SETTINGS that belong to a table's storage, to a SELECT or to a backup stay. What was taken out of the
    settings is `output_settings(sql)`, for the entry's `settings:` line.
    """
    d = draft_of(sql)
    cut = _cut(d)
    if cut is None:
        return sql
    start = d.tokens[cut - 1].end if cut else 0
    return apply_edits(sql, [Edit(start, d.tokens[-1].end, "")])


def output_settings(sql: str) -> dict[str, str]:
    """The settings that `without_output_clauses` takes out: name → value, strings without their quotes."""
    d = draft_of(sql)
    cut = _cut(d)
    if cut is None:
        return {}
    d.at = cut
    settings: dict[str, str] = {}
    while d.skip_to("SETTINGS"):
        d.at += 1
        while True:
            name = d.identifier()
            if name is not None and is_bare(d):
                settings[name] = TRUE
                if d.accept(","):
                    continue
                break
            if name is None or not d.accept("="):
                break
            begins = d.at
            while not d.at_end and d.word not in (",", "FORMAT", "INTO", "SETTINGS"):
                if not d.skip_brackets():
                    d.at += 1
            settings[name] = _value(d, begins, d.at)
            if not d.accept(","):
                break
    return settings


def _value(d: Draft, begins: int, ends: int) -> str:
    if ends <= begins:
        return ""
    if ends == begins + 1 and d.tokens[begins].kind in (TokenKind.STRING, TokenKind.HEREDOC):
        return literal_value(d.tokens[begins])
    return plain_number(d.sql[d.tokens[begins].start : d.tokens[ends - 1].end])


def _cut(d: Draft) -> int | None:
    """The index of the first token of the output clauses, which reach to the end; None if there are none."""
    if d.tail is None:
        return None
    cuts: list[int] = []
    has_own_settings = d.kind in _SETTINGS_OF_THE_QUERY and AlterCommand.MODIFY_QUERY not in d.alter_commands
    d.at = d.tail
    while d.skip_to("FORMAT", "INTO", "SETTINGS"):
        at = d.at
        is_outfile = d.looking_at("INTO", "OUTFILE") and d.into_outfile is not None
        is_format = d.word == "FORMAT" and d.format is not None and _is_format(d, at)
        is_own = d.word == "SETTINGS" and has_own_settings and _begins_settings(d, at)
        if is_outfile or is_format or is_own:
            cuts.append(at)
        d.at = at + 1
    return min(cuts) if cuts else None


def _begins_settings(d: Draft, at: int) -> bool:
    behind = d.words[at + 1 : at + 3]
    if "=" in behind:
        return behind[0] != "("  # `MODIFY COLUMN c SETTINGS (…)` belongs to the column.
    # A name without a value, and not the type of a column that is called so.
    d.at = at + 2
    return "_" in "".join(behind[:1]) and is_bare(d) and d.words[at - 1] not in ("COLUMN", "EXISTS")


def _is_format(d: Draft, at: int) -> bool:
    return d.words[at + 2 : at + 3] in ([], ["SETTINGS"], ["INTO"]) and at + 1 < len(d.tokens)
