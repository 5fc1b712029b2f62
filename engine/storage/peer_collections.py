"""Named collections with the passwords by which this node logs in on others.

chDB reads another node's rows by `url(collection, url = …)`. Whoever could name such a collection beside an
address of his own would have the password sent there. So no statement may name one (`guard`). Of a text that
chDB makes of rows nobody sees what it names; so names cannot be guessed, and are not listed. Who looks at
running statements can read them: `docs/concepts/node.md` says what is left to do.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from engine.env import Env

PREFIX = "oncluster_peer_"
HIDDEN = f"REVOKE SHOW NAMED COLLECTIONS ON {PREFIX}*"
"""For chDB's user: `system.named_collections` does not list them."""


def new_name(env: Env) -> str:
    """Of this process, and not to be guessed."""
    return f"{PREFIX}{env.new_uuid().hex}"


def forget(path: Path) -> None:
    """What an earlier process has left in chDB's directory, before chDB starts there."""
    for file in (path / "named_collections").glob(f"{PREFIX}*.sql"):
        with contextlib.suppress(OSError):
            file.unlink()
