"""What becomes of a statement that is carried out a second time on the same host. Pure."""

from __future__ import annotations

from engine.sql import AlterCommand, Statement, StatementKind

_A = AlterCommand
_AGAIN_AND_AGAIN = frozenset(
    {
        *(_A.CLEAR_COLUMN, _A.DELETE, _A.UPDATE, _A.EXECUTE, _A.OTHER),
        *(command for command in _A if "PARTITION" in command),
    }
)
_SWAPS = frozenset({StatementKind.EXCHANGE_TABLES, StatementKind.EXCHANGE_DICTIONARIES})


def takes_effect_again(statement: Statement) -> bool:
    """It changes rows or definitions once more and nobody notices, such as UPDATE, TRUNCATE or EXCHANGE.

    Others fail visibly the second time, as CREATE and RENAME do, or change nothing, as with IF EXISTS.
    """
    match statement.kind:
        case StatementKind.ALTER_TABLE:
            return not _AGAIN_AND_AGAIN.isdisjoint(statement.alter_commands)
        case StatementKind.RENAME_TABLE:
            return len(statement.tables) > 2  # a chain of names may end where it began
        case kind if kind in _SWAPS:
            return True
        case kind if kind.value.startswith("DROP "):
            return False
        case _:
            return statement.is_destructive or statement.rewrites_data
