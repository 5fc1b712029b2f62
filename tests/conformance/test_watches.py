"""One-shot watches: what arms them, what fires them, and in which order they come.

That a watch does not fire is shown without waiting: a read of the same session that sees the change comes
after every event of that change.
"""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import NoNode
from engine.keeper import Create, CreateMode, EventType, Remove, SetData, WatchEvent
from engine.keeper.base import OPEN_ACL
from engine.testing.seen import Seen


async def test_get_arms_a_data_watch_that_a_set_fires(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.get("/a", watch=seen)
    await other.set("/a", b"x")
    assert await seen.wait() == WatchEvent(EventType.CHANGED, "/a")


async def test_exists_arms_a_data_watch_that_a_set_fires(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.exists("/a", watch=seen)
    await other.set("/a", b"x")
    assert await seen.wait() == WatchEvent(EventType.CHANGED, "/a")


async def test_exists_of_a_missing_node_waits_for_its_creation(keeper, other):
    seen = Seen()
    assert await keeper.exists("/a", watch=seen) is None
    await other.create("/a")
    assert await seen.wait() == WatchEvent(EventType.CREATED, "/a")


@pytest.mark.parametrize("read", ["get", "exists"])
async def test_a_data_watch_fires_on_removal(keeper, other, read):
    await keeper.create("/a")
    seen = Seen()
    await getattr(keeper, read)("/a", watch=seen)
    await other.remove("/a")
    assert await seen.wait() == WatchEvent(EventType.DELETED, "/a")


@pytest.mark.parametrize("read", ["get", "children"])
async def test_a_read_of_a_missing_node_arms_nothing(keeper, other, read):
    seen = Seen()
    with pytest.raises(NoNode):
        await getattr(keeper, read)("/a", watch=seen)
    await other.multi([Create("/a"), SetData("/a", b"x"), Create("/a/b")])
    await keeper.sync("/a")
    assert (await keeper.get("/a")).data == b"x"
    assert seen.events == []


async def test_a_child_watch_fires_on_a_new_child(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.children("/a", watch=seen)
    await other.create("/a/b")
    assert await seen.wait() == WatchEvent(EventType.CHILD, "/a")


async def test_a_child_watch_fires_on_the_removal_of_a_child(keeper, other):
    await keeper.multi([Create("/a"), Create("/a/b")])
    seen = Seen()
    await keeper.children("/a", watch=seen)
    await other.remove("/a/b")
    assert await seen.wait() == WatchEvent(EventType.CHILD, "/a")


async def test_a_child_watch_fires_on_the_removal_of_its_node(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.children("/a", watch=seen)
    await other.remove("/a")
    assert await seen.wait() == WatchEvent(EventType.DELETED, "/a")


async def test_the_removal_of_a_child_fires_its_own_watch_and_its_parents(keeper, other):
    await keeper.multi([Create("/a"), Create("/a/b")])
    parent, child = Seen(), Seen()
    await keeper.children("/a", watch=parent)
    await keeper.children("/a/b", watch=child)
    await other.remove("/a/b")
    assert await child.wait() == WatchEvent(EventType.DELETED, "/a/b")
    assert await parent.wait() == WatchEvent(EventType.CHILD, "/a")


async def test_a_watch_on_the_root_fires(keeper, other):
    seen = Seen()
    await keeper.children("/", watch=seen)
    await other.create("/a")
    assert await seen.wait() == WatchEvent(EventType.CHILD, "/")


async def test_a_child_watch_does_not_fire_on_sets_nor_below_its_children(keeper, other):
    await keeper.multi([Create("/a"), Create("/a/b")])
    seen = Seen()
    await keeper.children("/a", watch=seen)
    await other.set("/a", b"x")
    await other.set("/a/b", b"x")
    await other.create("/a/b/c")
    await other.remove("/a/b/c")
    await keeper.sync("/a")
    assert (await keeper.exists("/a/b")).cversion == 2
    assert seen.events == []


async def test_a_data_watch_does_not_fire_on_children(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.get("/a", watch=seen)
    await other.create("/a/b")
    await keeper.sync("/a")
    assert (await keeper.exists("/a")).num_children == 1
    assert seen.events == []


async def test_a_change_of_permissions_fires_nothing(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.get("/a", watch=seen)
    await keeper.children("/a", watch=seen)
    await other.set_acl("/a", OPEN_ACL)
    await keeper.sync("/a")
    assert (await keeper.exists("/a")).aversion == 1
    assert seen.events == []


async def test_a_watch_fires_once(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.get("/a", watch=seen)
    await other.set("/a", b"1")
    await other.set("/a", b"2")
    await keeper.sync("/a")
    assert (await keeper.get("/a")).data == b"2"
    assert seen.types == [EventType.CHANGED]


async def test_a_watch_armed_again_fires_again(keeper, other):
    await keeper.create("/a")
    first, second = Seen(), Seen()
    await keeper.get("/a", watch=first)
    await other.set("/a", b"1")
    await first.wait()
    assert (await keeper.get("/a", watch=second)).data == b"1"
    await other.set("/a", b"2")
    await second.wait()
    assert (first.types, second.types) == ([EventType.CHANGED], [EventType.CHANGED])


async def test_the_same_watch_armed_twice_fires_once(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.get("/a", watch=seen)
    await keeper.exists("/a", watch=seen)
    await other.set("/a", b"1")
    await keeper.sync("/a")
    await keeper.get("/a")
    assert seen.types == [EventType.CHANGED]


async def test_several_watches_on_one_node_all_fire(keeper, other):
    await keeper.create("/a")
    watches = [Seen() for _ in range(3)]
    for seen in watches:
        await keeper.get("/a", watch=seen)
    await other.set("/a", b"1")
    for seen in watches:
        assert await seen.wait() == WatchEvent(EventType.CHANGED, "/a")


async def test_data_and_child_watches_are_kept_apart(keeper, other):
    await keeper.create("/a")
    data, child = Seen(), Seen()
    await keeper.get("/a", watch=data)
    await keeper.children("/a", watch=child)
    await other.create("/a/b")
    await child.wait()
    assert data.events == []
    await other.set("/a", b"1")
    assert await data.wait() == WatchEvent(EventType.CHANGED, "/a")
    assert child.types == [EventType.CHILD]


async def test_a_removal_tells_both_kinds_once(keeper, other):
    await keeper.create("/a")
    data, child, both = Seen(), Seen(), Seen()
    await keeper.get("/a", watch=data)
    await keeper.children("/a", watch=child)
    await keeper.get("/a", watch=both)
    await keeper.children("/a", watch=both)
    await other.remove("/a")
    await keeper.sync("/")
    assert await keeper.exists("/a") is None
    assert data.types == child.types == both.types == [EventType.DELETED]


async def test_ones_own_changes_fire_ones_own_watches(keeper):
    await keeper.create("/a")
    seen = Seen()
    await keeper.get("/a", watch=seen)
    await keeper.set("/a", b"1")
    assert seen.types == [EventType.CHANGED]  # ahead of the reply to the set


async def test_an_event_comes_before_any_later_read_that_sees_the_change(keeper, other):
    """Numbered: 1 arm, 2 the other session writes, 3 reads go on until one sees it; then the event is
    there."""
    await keeper.create("/a", b"0")
    for round_number in range(1, 30):
        seen = Seen()
        await keeper.get("/a", watch=seen)
        writing = asyncio.create_task(other.set("/a", str(round_number).encode()))
        while (await keeper.get("/a")).data != str(round_number).encode():
            pass
        assert seen.types == [EventType.CHANGED]
        await writing


async def test_events_of_one_session_come_in_the_order_of_the_changes(keeper, other):
    names = [f"/{number}" for number in range(20)]
    order = []
    for name in names:
        await keeper.exists(name, watch=lambda event: order.append(event.path))
    for name in names:
        await other.create(name)
    await keeper.sync("/")
    await keeper.exists("/")
    assert order == names


async def test_several_changes_before_arming_again_are_seen_as_one(keeper, other):
    await keeper.create("/a")
    seen = Seen()
    await keeper.children("/a", watch=seen)
    for number in range(5):
        await other.create(f"/a/{number}")
    await keeper.sync("/a")
    assert len((await keeper.children("/a")).names) == 5
    assert seen.types == [EventType.CHILD]


async def test_create_and_remove_in_one_multi_fire_both(keeper, other):
    seen, parent = Seen(), Seen()
    await keeper.exists("/x", watch=seen)
    await keeper.children("/", watch=parent)
    await other.multi([Create("/x"), Remove("/x")])
    await keeper.sync("/")
    await keeper.exists("/")
    assert seen.types == [EventType.CREATED]
    assert parent.types == [EventType.CHILD]


async def test_watches_do_not_cross_sessions(keeper, other):
    """A hundred child watches of a closed session never fire; the two of the living one do, once."""
    await keeper.create("/a")
    of_closed, of_living = [Seen() for _ in range(100)], [Seen(), Seen()]
    for seen in of_closed:
        await other.children("/a", watch=seen)
    for seen in of_living:
        await keeper.children("/a", watch=seen)
    await other.close()
    await keeper.create("/a/b")
    await keeper.exists("/a")
    assert [seen.types for seen in of_living] == [[EventType.CHILD]] * 2
    assert [seen.types for seen in of_closed] == [[EventType.SESSION]] * 100


async def test_many_watches_at_once_all_fire_exactly_once(keeper, other):
    watches = {}
    for number in range(100):
        await keeper.create(f"/{number}")
    for number in range(100):
        watches[number] = Seen()
        await keeper.get(f"/{number}", watch=watches[number])
    await asyncio.gather(*(other.set(f"/{number}", b"1") for number in range(100)))
    await keeper.sync("/")
    await keeper.exists("/")
    assert [seen.types for seen in watches.values()] == [[EventType.CHANGED]] * 100


async def test_the_end_of_a_session_that_removes_an_ephemeral_fires_as_a_removal(keeper, other):
    await keeper.create("/a")
    await other.create("/a/e", mode=CreateMode.EPHEMERAL)
    node, parent = Seen(), Seen()
    await keeper.exists("/a/e", watch=node)
    await keeper.children("/a", watch=parent)
    await other.close()
    assert await node.wait() == WatchEvent(EventType.DELETED, "/a/e")
    assert await parent.wait() == WatchEvent(EventType.CHILD, "/a")
    assert (await keeper.exists("/a")).cversion == 2
