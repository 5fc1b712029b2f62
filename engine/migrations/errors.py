"""What can go wrong with migrations, as branches of the error tree in `engine.errors`.

Unavailable
├─ LedgerUnavailable      the ledger's database cannot be reached; every write may be repeated
└─ TableNotMade           a host that is away has still to make what a statement changes
Refused
├─ MigrationFilesError    a folder that cannot be used: every problem with its file and line
├─ MigrationRefused       the plan, the lint or the state of the ledger forbids it
│   ├─ ChangedMigration     a file differs from what was applied from it
│   └─ ApprovalRequired     destructive, and nobody approved
└─ StaleFence             another run took over; this one must stop
Corrupt
└─ LedgerCorrupt          the ledger contradicts itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import Code, Corrupt, Refused, Unavailable


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing that is wrong, and where. `line` counts from 1; 0 means the file (or folder) as a whole.

    `rule` is the stable id under which `oncluster migrate lint` lists it.
    """

    path: str
    line: int
    rule: str
    message: str
    code: int = 0

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        code = f" (code {self.code})" if self.code else ""
        return f"{place}: {self.message} [{self.rule}]{code}"


class LedgerUnavailable(Unavailable):
    """The ledger's database cannot be reached or is locked.

    Whether the last write took effect may be unknown; that does no harm, because every write of the ledger
    is keyed by what it says and repeating it adds nothing.
    """


class TableNotMade(Unavailable):
    """A statement waits for hosts that have still to make the table which it changes (`order`)."""

    default_code = Code.UNFINISHED


class MigrationFilesError(Refused):
    """A folder of migrations that cannot be used; `problems` has every reason, in order."""

    default_code = Code.BAD_ARGUMENTS

    def __init__(self, folder: str, problems: Sequence[Problem]) -> None:
        self.folder = folder
        self.problems = tuple(sorted(problems))
        lines = "\n  ".join(str(problem) for problem in self.problems)
        code = next((problem.code for problem in self.problems if problem.code), None)
        super().__init__(f"The migrations in {folder} cannot be used:\n  {lines}", code=code)


class MigrationRefused(Refused):
    """Not possible in the present state; the hint says what is."""


class ChangedMigration(MigrationRefused):
    """Files differ from what was applied from them (M5); `problems` names each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(problems))
        lines = "\n  ".join(str(problem) for problem in self.problems)
        super().__init__(
            f"Files changed after they were applied:\n  {lines}",
            hint="Restore the files and put the change into a new migration.",
        )


class ApprovalRequired(MigrationRefused):
    """The plan destroys data and nobody approved it; `statements` says which."""

    def __init__(self, statements: Sequence[str]) -> None:
        self.statements = tuple(statements)
        lines = "\n  ".join(self.statements)
        super().__init__(
            f"This needs approval:\n  {lines}",
            hint="Read `oncluster migrate plan`, then repeat with --approve.",
        )


class StaleFence(Refused):
    """Another run holds the cluster's migration lock now; nothing more may be written by this one (M3)."""

    default_code = Code.ABORTED


class LedgerCorrupt(Corrupt):
    """Rows of the ledger contradict each other."""
