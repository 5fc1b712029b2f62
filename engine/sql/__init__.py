"""SQL text: tokens, statement classification, rewriting, redaction.

Pure Python over ClickHouse's lexical grammar; it judges nothing that only ClickHouse can judge. Rewriting
edits the ranges it found on tokens and leaves all other text byte for byte.
"""

from engine.sql.cluster import (
    before_on_cluster,
    expand_macros,
    macros_in,
    parse_and_strip,
    with_on_cluster,
    without_on_cluster,
    without_uuid,
)
from engine.sql.databases import mentions_empty_database, with_current_database, with_default_database
from engine.sql.kinds import AlterCommand, StatementKind
from engine.sql.one_line import one_line
from engine.sql.output import output_settings, without_output_clauses
from engine.sql.parameters import with_parameters
from engine.sql.parse import parallel_statements, parse_statement
from engine.sql.redact import redact, redact_bytes_as_text, redact_prose
from engine.sql.split import require_one_statement, split_statements
from engine.sql.statement import Statement, runs_once_per_shard
from engine.sql.tokens import Token, TokenKind, literal_value, name_of, scan, tokenize
from engine.sql.words import mentions_as

__all__ = [
    "AlterCommand",
    "Statement",
    "StatementKind",
    "Token",
    "TokenKind",
    "before_on_cluster",
    "expand_macros",
    "literal_value",
    "macros_in",
    "mentions_as",
    "mentions_empty_database",
    "name_of",
    "one_line",
    "output_settings",
    "parallel_statements",
    "parse_and_strip",
    "parse_statement",
    "redact",
    "redact_bytes_as_text",
    "redact_prose",
    "require_one_statement",
    "runs_once_per_shard",
    "scan",
    "split_statements",
    "tokenize",
    "with_current_database",
    "with_default_database",
    "with_on_cluster",
    "with_parameters",
    "without_on_cluster",
    "without_output_clauses",
    "without_uuid",
]
