"""What both backends share about the state of a session's connection."""

from __future__ import annotations

import enum

from engine.errors import NoNode
from engine.keeper.base import Acl

CREATOR_ACL = (Acl(31, "auth", ""),)
"""All permissions for the identities of whoever creates the node; the default of sessions with an
identity."""


class LinkState(enum.Enum):
    """CONNECTED · SUSPENDED: the connection broke, the session may live · OVER: the session has ended."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    OVER = "over"


def absent_root(root: str) -> NoNode:
    """What a client is told whose chroot does not exist; the text is ClickHouse's."""
    return NoNode(root, f"Zookeeper root doesn't exist. You should create root node {root} before start.")
