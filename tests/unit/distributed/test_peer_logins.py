"""How chDB is let in where it reads another node: what its statements say, and when a key is asked for."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.distributed.peers import Peer
from engine.distributed.read_signature import LIFETIME_S, KeyMaker, Signature
from engine.env import SystemEnv
from engine.errors import NodeUnavailable
from engine.names import HostId
from engine.node.distributed.peers.peer_logins import PeerLogins
from engine.node.statements.reads_key import READS_PLACE, FilledIn

PEER = Peer(HostId("n2", 9000), "n2", 8123, user="ann", password="pass-word")
TARGET = f"/?query=SELECT%201&session_timeout={READS_PLACE}"
KEY = KeyMaker(b"secret").key("ann", "ab" * 32, 5)
BASIC = base64.b64encode(b"ann:pass-word").decode()


class World(SystemEnv):
    """A peer that says `page` to whoever asks for a key, and a clock."""

    def __init__(self, page: str | None) -> None:
        super().__init__()
        self.page: str | Exception | None = page
        self.asked = 0
        self.s = 0.0
        self.logins = PeerLogins(self, lambda _: cast(Any, SimpleNamespace(page=self._page)))

    def monotonic_s(self) -> float:
        return self.s

    async def _page(self, path: str) -> str | None:
        self.asked += 1
        if isinstance(self.page, Exception):
            raise self.page
        return self.page

    async def text(self) -> str:
        """Of a statement that begins now."""
        text, closed = self.logins.reading(PEER, TARGET, "'a Int8'")
        assert closed is not None and BASIC not in text
        begun = FilledIn("key-of-statement")
        return FilledIn(begun.key, await self.logins.authorizations([closed], begun)).of(text)


async def test_a_statement_has_a_signature_of_what_it_reads_and_no_password() -> None:
    sql = await World(KEY.to_text()).text()
    assert sql.startswith(
        "url('http://n2:8123/?query=SELECT%201&session_timeout=key-of-statement', 'Native',"
    )
    signature = Signature.of(sql.partition("'Oncluster ")[2].partition("'")[0])
    assert signature is not None and signature.user == "ann"
    assert KEY.has_signed("/?query=SELECT%201&session_timeout=key-of-statement", signature)
    assert BASIC not in sql and "pass" not in sql


def test_reads_of_different_places_have_places_of_their_own() -> None:
    other = Peer(HostId("n3", 9000), "n3", 8123, user="ann", password="pass-word")
    bob = Peer(HostId("n2", 9000), "n2", 8123, user="bob", password="pass-word")
    reads = [(PEER, "/?a"), (PEER, "/?b"), (other, "/?a"), (bob, "/?a")]
    logins = World(None).logins
    found = (logins.reading(*each, "''")[1] for each in reads)
    places = {closed.place for closed in found if closed is not None}
    assert len(places) == 4


async def test_a_key_is_asked_for_once_in_a_while_and_when_the_peer_may_be_another_process() -> None:
    world = World(KEY.to_text())
    for asked, s in ((1, 0.0), (1, LIFETIME_S / 4 - 1), (2, LIFETIME_S / 4)):
        world.s = s
        await world.text()
        assert world.asked == asked
    world.logins.forget(PEER)
    await world.text()
    assert world.asked == 3


async def test_a_server_without_keys_is_sent_the_password_until_it_has_some() -> None:
    world = World(None)
    assert f"headers('Authorization' = 'Basic {BASIC}')" in await world.text()
    world.page = KEY.to_text()
    world.s = 59.0
    assert BASIC in await world.text()
    world.s = 60.0
    assert BASIC not in await world.text()


async def test_chdb_is_told_no_password_because_a_node_cannot_be_asked() -> None:
    world = World(None)
    world.page = NodeUnavailable("n2 cannot be reached.")
    with pytest.raises(NodeUnavailable):
        await world.text()


async def test_who_lets_everybody_in_is_asked_for_no_key() -> None:
    peer = Peer(HostId("n2", 9000), "n2", 8123)
    text, closed = World(None).logins.reading(peer, "/?x", "'a Int8'")
    assert (text, closed) == ("url('http://n2:8123/?x', 'Native', 'a Int8')", None)


def test_the_place_of_a_header_cannot_be_guessed() -> None:
    """Whoever names it in a statement of his own would be shown what is filled in there."""
    closed = [World(None).logins.reading(PEER, TARGET, "''")[1] for _ in range(2)]
    assert None not in closed and closed[0] != closed[1]
