"""What gRPC's failures mean to a session in etcd."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

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


class ForgetfulEtcd(grpc.GenericRpcHandler):
    """Knows the last token that it gave, until `forget`; thinks for a moment about passwords."""

    def __init__(self) -> None:
        self.tokens_given = 0
        self.known = ""

    def forget(self) -> None:
        self.known = ""

    def service(self, details: Any) -> Any:
        token = dict(details.invocation_metadata).get("token", "")
        if details.method == messages.AUTHENTICATE[0]:
            return _answering(messages.AuthenticateRequest, self._authenticate)

        async def status(request: Any, context: Any) -> Any:
            if not token:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty")
            if token != self.known:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
            return messages.STATUS[1](leader=7)

        return _answering(messages.StatusRequest, status)

    async def _authenticate(self, request: Any, context: Any) -> Any:
        self.tokens_given += 1
        given = f"token-{self.tokens_given}"
        for _ in range(100):  # those who come meanwhile have none yet
            await asyncio.sleep(0)
        self.known = given
        return messages.AUTHENTICATE[1](token=given)


def _answering(request_class: Any, answer: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=request_class.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )


async def test_a_token_that_etcd_has_forgotten_is_asked_for_once_by_all_requests_under_way() -> None:
    etcd = ForgetfulEtcd()
    server = aio.server()
    server.add_generic_rpc_handlers((etcd,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = EtcdChannel(Etcd(hosts=(), user="root", password="pw"), "127.0.0.1", port)
    await channel.authenticate(timeout_s=10)

    async def ask() -> int:
        answer = await channel.call(messages.STATUS, messages.StatusRequest(), timeout_s=10)
        return int(answer.leader)

    etcd.forget()
    early = [asyncio.create_task(ask()) for _ in range(5)]
    while etcd.tokens_given < 2:
        await asyncio.sleep(0)
    assert await asyncio.gather(*early, *(ask() for _ in range(5))) == [7] * 10
    assert etcd.tokens_given == 2
    await channel.close()
    await server.stop(None)
