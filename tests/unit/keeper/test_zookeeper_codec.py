"""What a ZooKeeper's refusals mean."""

from __future__ import annotations

import pytest
from kazoo.exceptions import EXCEPTIONS

from engine.errors import (
    BadArguments,
    ConnectionLoss,
    KeeperAnswer,
    NodeExists,
    OnclusterError,
    OperationTimeout,
    SessionExpired,
)
from engine.keeper.zookeeper_codec import decode_error


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (-110, NodeExists),
        (-125, BadArguments),  # a quota
        (-7, OperationTimeout),
        (-112, SessionExpired),
        (-118, ConnectionLoss),  # the session has moved
        (-122, ConnectionLoss),  # the request took too long
        (-127, ConnectionLoss),  # too many requests: another time it is taken
    ],
)
def test_what_may_be_tried_again_is_no_refusal(code: int, meaning: type[OnclusterError]) -> None:
    error = decode_error(EXCEPTIONS[code](), "/a", 1)
    assert type(error) is meaning
    assert isinstance(error, KeeperAnswer) == (meaning in (NodeExists, BadArguments))
