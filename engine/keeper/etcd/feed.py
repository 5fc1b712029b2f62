"""What etcd tells of its own accord: changes of the tree, ends of sessions, the time.

One conversation with up to three watches. Changes are listened to from the first watch that the session arms;
a session that watches nothing is told nothing.

**Events come before data.** A read knows the revision of the last write of anybody at its moment; its result
is held back until the changes up to there were told (`reached`).

**Nothing falls between a read and its watch.** The read may be overtaken by changes that come after its
moment; they are kept while reads are under way, and told to the watches that the read arms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from engine.keeper.etcd import messages
from engine.keeper.etcd.changes import unpack_changes
from engine.keeper.etcd.channel import Conversation, EtcdChannel, LinkLost
from engine.keeper.etcd.layout import Layout
from engine.keeper.tree import Change

_CLOCK, _SESSIONS, _CHANGES = 1, 2, 3


class Feed:
    """Of one connection. The callbacks are called in the order of the revisions."""

    def __init__(
        self,
        channel: EtcdChannel,
        layout: Layout,
        *,
        on_changes: Callable[[int, list[Change]], None],
        on_session_end: Callable[[int], None],
        on_clock: Callable[[bytes | None], None],
    ) -> None:
        self._layout = layout
        self._on_changes = on_changes
        self._on_session_end = on_session_end
        self._on_clock = on_clock
        self._conversation: Conversation = channel.converse(messages.WATCH, messages.WatchRequest)
        self._moved = asyncio.Event()
        self._overtaking: list[tuple[int, list[Change]]] | None = None
        self.is_following = False
        """Whether changes of the tree are listened to."""
        self.position = 0
        """The revision up to which they were told."""

    async def begin(self, after: int) -> None:
        """Listen to what happens to sessions and the clock after a revision. Raises LinkLost."""
        layout = self._layout
        await self._watch(_CLOCK, layout.clock, b"", after)
        await self._watch(_SESSIONS, layout.sessions, layout.sessions_end, after)

    async def follow(self, after: int) -> None:
        """Listen to changes of the tree after a revision. Raises LinkLost."""
        if not self.is_following:
            self.is_following = True
            self.position = after
            await self._watch(_CHANGES, self._layout.event, b"", after)

    async def _watch(self, watch_id: int, key: bytes, range_end: bytes, after: int) -> None:
        create = messages.WatchCreateRequest(
            key=key, range_end=range_end, start_revision=after + 1, watch_id=watch_id
        )
        await self._conversation.say(messages.WatchRequest(create_request=create))

    async def reached(self, revision: int) -> None:
        """Wait until the changes up to a revision, at which there was a write, were told."""
        while self.is_following and self.position < revision:
            self._moved.clear()
            await self._moved.wait()

    def read_begins(self) -> None:
        """Keep what is told from now on."""
        self._overtaking = []

    def read_ends(self, revision: int) -> list[Change]:
        """What was told already although it came after the revision of the read."""
        kept, self._overtaking = self._overtaking or [], None
        return [change for at, changes in kept if at > revision for change in changes]

    async def listen(self) -> None:
        """Until the connection breaks. Raises LinkLost."""
        async for answer in self._conversation.answers():
            if answer.canceled:
                raise LinkLost(f"etcd has ended a watch: {answer.cancel_reason or 'compacted'}")
            for event in answer.events:
                self._take(event)

    def _take(self, event: Any) -> None:
        kv = event.kv
        is_put = event.type == messages.EVENT_PUT
        if kv.key == self._layout.event:
            if is_put and kv.mod_revision > self.position:
                changes = unpack_changes(kv.value)
                self.position = kv.mod_revision
                if self._overtaking is not None:
                    self._overtaking.append((kv.mod_revision, changes))
                self._on_changes(kv.mod_revision, changes)
                self._moved.set()
        elif kv.key == self._layout.clock:
            self._on_clock(kv.value if is_put else None)
        elif not is_put:
            session_id = self._layout.session_of(kv.key)
            if session_id is not None:
                self._on_session_end(session_id)

    def end(self) -> None:
        self._conversation.end()
