"""Sessions, their end, and what they take with them."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import NoNode, SessionExpired
from engine.keeper import CreateMode, EventType
from engine.keeper.embedded import HOST
from engine.testing.seen import Seen
from tests.conformance.conftest import MemoryBackend

EPHEMERAL = CreateMode.EPHEMERAL


async def test_sessions_have_different_ids(keeper, other):
    assert keeper.session_id and other.session_id and keeper.session_id != other.session_id


@pytest.mark.parametrize("asked_s", [0.05, 7.0, 9999.0])
async def test_the_timeout_is_clamped_to_what_the_server_grants(backend, asked_s):
    keeper = await backend.open(session_timeout_s=asked_s)
    least_s, most_s = backend.grants_s
    assert keeper.session_timeout_s == pytest.approx(min(max(asked_s, least_s), most_s))


async def test_a_session_says_where_it_is_connected_while_it_is(backend):
    link = await backend.open_on_a_link()
    connection = link.keeper.connection
    if isinstance(backend, MemoryBackend):
        assert connection is None, "its server is in this process"
        return
    assert (connection.host, connection.port, connection.index) == (HOST, link.proxy.port, 0)
    await link.lose()
    assert link.keeper.connection is None
    link.restore()
    await link.keeper.exists("/")
    again = link.keeper.connection
    assert again.since_s >= connection.since_s
    assert (again.port, again.requests >= connection.requests) == (link.proxy.port, True)


async def test_closing_removes_ephemeral_nodes_at_once_and_leaves_others(keeper, other):
    await other.create("/e", mode=EPHEMERAL)
    await other.create("/p")
    await other.close()
    await keeper.sync("/")
    assert await keeper.exists("/e") is None
    assert await keeper.exists("/p") is not None


async def test_closing_twice_is_fine(other):
    await other.close()
    await other.close()
    assert other.is_expired


async def test_a_closed_session_refuses_every_call(other):
    await other.close()
    for call in (
        other.get,
        other.create,
        other.exists,
        other.children,
        other.remove,
        other.sync,
        other.get_acl,
    ):
        with pytest.raises(SessionExpired):
            await call("/a")
    with pytest.raises(SessionExpired):
        await other.get_many(["/a"])


async def test_expiry_removes_ephemeral_nodes(backend, keeper, other):
    await other.create("/e", mode=EPHEMERAL)
    gone = Seen()
    await keeper.exists("/e", watch=gone)
    await backend.expire(other)
    assert (await gone.wait()).type is EventType.DELETED
    assert await keeper.exists("/e") is None


async def test_after_expiry_the_object_is_dead(backend, other):
    await backend.expire(other)
    assert other.is_expired
    with pytest.raises(SessionExpired):
        await other.get("/")
    await other.close()


async def test_a_new_session_after_expiry_is_another_one(backend, other):
    old_id = other.session_id
    await backend.expire(other)
    new = await backend.open()
    assert new.session_id != old_id and other.session_id == old_id
    assert other.is_expired and not new.is_expired


async def test_expiry_tells_every_pending_watch(backend, other):
    await other.create("/a")
    data, child, absent, fired = Seen(), Seen(), Seen(), Seen()
    await other.get("/a", watch=fired)
    await other.set("/a", b"x")
    await other.get("/a", watch=data)
    await other.children("/a", watch=child)
    await other.exists("/missing", watch=absent)
    await backend.expire(other)
    assert [(e.type, e.path) for s in (data, child, absent) for e in s.events] == [
        (EventType.SESSION, "/a"),
        (EventType.SESSION, "/a"),
        (EventType.SESSION, "/missing"),
    ]
    assert fired.types == [EventType.CHANGED]


async def test_expiry_calls_back_once(backend, other):
    calls = []
    over = asyncio.Event()
    other.on_expired(lambda: calls.append("first"))
    other.on_expired(over.set)
    await backend.expire(other)
    await other.close()
    assert calls == ["first"] and over.is_set()


async def test_a_callback_registered_after_the_end_is_called_too(other):
    await other.close()
    over = asyncio.Event()
    other.on_expired(over.set)
    async with asyncio.timeout(60):
        await over.wait()


async def test_closing_tells_pending_watches(other):
    seen = Seen()
    await other.children("/", watch=seen)
    await other.close()
    assert seen.types == [EventType.SESSION]


async def test_requests_of_one_session_are_executed_in_order(keeper):
    await keeper.create("/a", b"0")
    calls = []
    for number in range(1, 40):
        calls += [keeper.set("/a", str(number).encode()), keeper.get("/a")]
    answers = await asyncio.gather(*calls)
    assert [node.data for node in answers[1::2]] == [str(number).encode() for number in range(1, 40)]
    assert [stat.version for stat in answers[0::2]] == list(range(1, 40))


async def test_requests_under_way_when_the_session_is_closed_are_answered(other):
    calls = [asyncio.create_task(other.create(f"/{number}")) for number in range(20)]
    await asyncio.sleep(0)
    await other.close()
    assert await asyncio.gather(*calls) == [f"/{number}" for number in range(20)]


async def test_after_a_sync_a_session_sees_what_others_have_committed(keeper, other):
    for number in range(20):
        await keeper.create(f"/{number}")
        await other.sync("/")
        assert await other.exists(f"/{number}") is not None


async def test_a_sync_of_a_path_that_is_not_there_is_fine(keeper, other):
    await other.sync("/missing/deep")
    await keeper.create("/a")
    await other.sync("/missing/deep")
    assert await other.exists("/a") is not None


async def test_writes_of_two_sessions_are_one_history(keeper, other):
    await keeper.create("/a")
    stats = await asyncio.gather(*((keeper, other)[n % 2].set("/a", b"") for n in range(50)))
    assert sorted(stat.version for stat in stats) == list(range(1, 51))
    assert len({stat.mzxid for stat in stats}) == 50


async def test_the_removal_of_an_ephemeral_by_hand_leaves_nothing_to_remove_at_the_end(keeper, other):
    await other.create("/e", mode=EPHEMERAL)
    await keeper.remove("/e")
    await keeper.create("/e", b"persistent")
    await other.close()
    await keeper.sync("/")
    assert (await keeper.get("/e")).data == b"persistent"


async def test_a_node_of_an_ended_session_may_be_made_again_by_another(backend, keeper, other):
    await other.create("/e", b"old", mode=EPHEMERAL)
    await backend.expire(other)
    gone = Seen()
    if await keeper.exists("/e", watch=gone) is not None:
        await gone.wait()
    await keeper.create("/e", b"new", mode=EPHEMERAL)
    assert (await keeper.get("/e")).stat.ephemeral_owner == keeper.session_id


# --- the session's root -----------------------------------------------------------------------------------


async def test_a_root_that_does_not_exist_is_refused_in_clickhouses_words(backend):
    with pytest.raises(
        NoNode, match=r"root doesn't exist\. You should create root node .*/nowhere before start"
    ):
        await backend.open(root="/nowhere")


async def test_a_root_stands_in_front_of_every_path(backend, keeper):
    await keeper.create("/inner")
    below = await backend.open(root="/inner")
    seen = Seen()
    await below.children("/", watch=seen)
    assert await below.create("/a", b"1") == "/a"
    assert await below.create("/n-", mode=CreateMode.PERSISTENT_SEQUENTIAL) == "/n-0000000001"
    await keeper.sync("/")
    assert (await keeper.get("/inner/a")).data == b"1"
    assert (await seen.wait()).path == "/"
    with pytest.raises(NoNode) as caught:
        await below.get("/missing")
    assert caught.value.path == "/missing" and "inner" not in str(caught.value)


async def test_two_roots_do_not_see_each_other(backend, keeper):
    await keeper.create("/one")
    await keeper.create("/two")
    one, two = await backend.open(root="/one"), await backend.open(root="/two")
    await one.create("/a", b"1")
    await two.create("/a", b"2")
    assert (await one.get("/a")).data == b"1"
    assert (await two.get("/a")).data == b"2"
