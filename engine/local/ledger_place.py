"""Where the ledger is: $ONCLUSTER_LEDGER_URL, which may be a path, else a file of the local stack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.database import IN_MEMORY

LEDGER_VARIABLE = "ONCLUSTER_LEDGER_URL"
LEDGER_FILE = "ledger.db"
_SQLITE = "sqlite:///"


def ledger_url_of(home: Path, environ: Mapping[str, str]) -> str:
    """A URL that means the same in every working directory. It may hold a password."""
    given = environ.get(LEDGER_VARIABLE) or str(home / LEDGER_FILE)
    is_elsewhere = "://" in given and not given.startswith(_SQLITE)
    if is_elsewhere or given.removeprefix(_SQLITE) == IN_MEMORY:
        return given
    return _SQLITE + str(Path(given.removeprefix(_SQLITE)).absolute())


def is_own_ledger(url: str, home: Path) -> bool:
    """Whether it is the file of the stack in this directory."""
    return url == ledger_url_of(home.absolute(), {})
