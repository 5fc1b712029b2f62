"""What is built from a `Keeper`'s operations. Each file says what its caller must do when a connection or a
session is lost; none of them tries again by itself, except `SessionHolder`, which opens sessions."""

from engine.keeper.recipes.ephemeral import (
    remove_ephemeral_if_content_matches,
    remove_unowned,
)
from engine.keeper.recipes.lock import Fence, KeeperLock
from engine.keeper.recipes.nodes import (
    MULTI_BATCH_SIZE,
    ancestors,
    create_ancestors,
    create_if_not_exists,
    create_or_update,
    remove_recursive,
    try_remove,
)
from engine.keeper.recipes.session_holder import SessionHolder, SessionHook
from engine.keeper.recipes.waiting import (
    Signal,
    wait_until_changed,
    wait_until_exists,
    wait_until_gone,
)

__all__ = [
    "MULTI_BATCH_SIZE",
    "Fence",
    "KeeperLock",
    "SessionHolder",
    "SessionHook",
    "Signal",
    "ancestors",
    "create_ancestors",
    "create_if_not_exists",
    "create_or_update",
    "remove_ephemeral_if_content_matches",
    "remove_recursive",
    "remove_unowned",
    "try_remove",
    "wait_until_changed",
    "wait_until_exists",
    "wait_until_gone",
]
