"""A node that falls silent is noticed, and whoever waits for it waits no more; others are left alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine.distributed.peers import Peer
from engine.env import SystemEnv
from engine.errors import NodeUnavailable, OnclusterError, ReplyLost
from engine.names import HostId
from engine.node.distributed.peers.peer_watch import Pace, PeerWatch
from engine.node.distributed.peers.shutting_down import shut_down_connections

PEER = Peer(HostId("other", 9000), "127.0.0.1", 1)


class Other:
    """A node that answers pings as `answers` says, and then for ever as its last one does."""

    def __init__(self, *answers: OnclusterError | None) -> None:
        self.answers = list(answers)
        self.failures = 0
        self.pings = 0
        self.watch = PeerWatch(SystemEnv(), self.ping, self.failed)
        self.watch.pace = Pace(every_s=0.0, ping_s=60.0)

    async def ping(self, peer: Peer) -> None:
        assert peer == PEER
        self.pings += 1
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer

    def failed(self, peer: Peer) -> None:
        self.failures += 1

    async def pinged(self, times: int) -> None:
        while self.pings < times:
            await asyncio.sleep(0)


def silence() -> OnclusterError:
    error = ReplyLost("no answer in time")
    error.__cause__ = TimeoutError()
    return error


async def test_who_asks_a_node_that_falls_silent_waits_no_more() -> None:
    other = Other(None, silence(), silence(), None)
    watching, apart = other.watch.begin([PEER]), other.watch.begin([])
    with pytest.raises(TimeoutError):
        await other.watch.unless_silent(PEER, asyncio.Event().wait())
    assert (watching.silent, apart.silent, other.failures) == ({PEER}, set(), 1)
    watching.end()
    watching.end()
    assert await other.watch.unless_silent(PEER, asyncio.sleep(0, "an answer")) == "an answer"
    await other.watch.close()


async def test_a_node_that_has_much_to_do_is_waited_for_as_long_as_it_answers_pings() -> None:
    other = Other(None, silence(), None, None)
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(other.watch.while_it_answers(PEER, answer))
    await other.pinged(4)
    answer.set_result("an answer")
    assert await asking == "an answer"
    fallen = Other(None, silence(), silence())
    never = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await fallen.watch.while_it_answers(PEER, never)
    assert never.cancelled()
    assert fallen.failures == 0


@pytest.mark.parametrize("other_error", [NodeUnavailable("refused"), ReplyLost("reset")])
async def test_a_node_that_says_anything_is_not_silent(other_error: OnclusterError) -> None:
    other = Other(None, silence(), None, silence(), other_error)
    watching = other.watch.begin([PEER])
    await other.pinged(12)
    assert (watching.silent, other.failures) == (set(), 0)
    watching.end()
    await other.watch.close()


async def test_a_statement_that_is_cancelled_while_it_asks_is_cancelled() -> None:
    other = Other(None)
    watching = other.watch.begin([PEER])
    asking = asyncio.create_task(other.watch.unless_silent(PEER, asyncio.Event().wait()))
    await other.pinged(3)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    watching.end()
    pings = other.pings
    for _ in range(10):
        await asyncio.sleep(0)
    assert other.pings == pings, "nobody watches any more"
    await other.watch.close()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_only_connections_that_a_thread_waits_on_and_that_lead_there_are_shut_down(
    listening: socket.socket,
) -> None:
    with ExitStack() as stack:
        elsewhere = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        to = listening.getsockname()
        threads, loops = (stack.enter_context(socket.create_connection(to)) for _ in range(2))
        loops.setblocking(False)
        others = stack.enter_context(socket.create_connection(elsewhere.getsockname()))
        accepted = [stack.enter_context(one.accept()[0]) for one in (listening, listening, elsewhere)]
        waiting = asyncio.create_task(asyncio.to_thread(threads.recv, 1))
        assert await shut_down_connections("localhost", to[1]) == 1
        assert await waiting == b""
        for one in accepted[1:]:
            one.sendall(b"x")
        assert await asyncio.get_running_loop().sock_recv(loops, 1) == b"x"
        assert others.recv(1) == b"x"
        assert await shut_down_connections("no.such.host.invalid", to[1]) == 0
