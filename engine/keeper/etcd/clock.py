"""The time by which nodes are stamped: that of one session at a time, for all.

etcd has no clock to ask. So the session that holds the clock key writes its time there every few seconds, and
every other session sets its own clock by it as it hears of it. When its holder's session ends the key goes
with its lease; another one takes it and goes on by the time it was set to, so that times do not jump with the
holder.

A session that has just begun knows only what time it was at least; within `TICK_S` it hears.
"""

from __future__ import annotations

from engine.env import Env
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel, EtcdRefuses
from engine.keeper.etcd.layout import Layout

TICK_S = 5.0


class Clock:
    """Of one session, over all its connections."""

    def __init__(self, env: Env, layout: Layout) -> None:
        self._env = env
        self._layout = layout
        self._offset_ms = 0
        self._is_held = False
        self.is_free = True
        """Nobody holds the clock, as far as is known."""

    def now_ms(self) -> int:
        return int(self._env.now_s() * 1000) + self._offset_ms

    def found(self, value: bytes | None) -> None:
        """The clock key as it was read, an unknown while after it was written."""
        self.is_free = value is None
        if value is not None:
            behind_ms = int(value) - self.now_ms()
            if behind_ms > 0:
                self._offset_ms += behind_ms

    def heard(self, value: bytes | None) -> None:
        """The clock key was written now; None: its holder's session has ended."""
        self.is_free = value is None
        if value is None:
            self._is_held = False
        elif not self._is_held:
            self._offset_ms += int(value) - self.now_ms()

    async def tick(self, channel: EtcdChannel, session_id: int) -> None:
        """Tell the time if this session is the one that does, or if nobody does. Raises LinkLost,
        EtcdRefuses."""
        if not self._is_held and not self.is_free:
            return
        key = self._layout.clock
        put = messages.put_op(key, b"%d" % self.now_ms(), lease=session_id)
        held = messages.Compare(result=0, target=4, key=key, lease=session_id)
        free = messages.TxnRequest(compare=[messages.compare_created(key, 0)], success=[put])
        request = messages.TxnRequest(compare=[held], success=[put], failure=[messages.txn_op(free)])
        try:
            answer = await channel.call(messages.TXN, request)
        except EtcdRefuses as refused:
            if not refused.is_full:
                raise
            # A session outlives that. Whether it holds the clock now, the next tick will tell.
            self._is_held = True
            return
        self._is_held = bool(answer.succeeded or answer.responses[0].response_txn.succeeded)
        self.is_free = False
