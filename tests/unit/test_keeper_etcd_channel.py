"""What gRPC's failures mean to a session in etcd."""

from __future__ import annotations

import pytest

from engine.config.model import Etcd
from engine.env import SystemEnv
from engine.keeper.etcd import messages
from engine.keeper.etcd.channel import EtcdChannel, LinkLost
from engine.ports import free_ports


async def test_a_conversation_that_has_ended_is_a_lost_link_for_whoever_speaks_and_listens() -> None:
    """gRPC refuses a write after it has seen the end in another way than one that meets it."""
    [port] = free_ports(1, env=SystemEnv())
    channel = EtcdChannel(Etcd(hosts=(("127.0.0.1", port),)), "127.0.0.1", port)
    conversation = channel.converse(messages.LEASE_KEEP_ALIVE, messages.LeaseKeepAliveRequest)
    for _ in range(2):
        with pytest.raises(LinkLost):
            await conversation.hear()
        with pytest.raises(LinkLost):
            await conversation.say(messages.LeaseKeepAliveRequest(ID=1))
    await channel.close()
