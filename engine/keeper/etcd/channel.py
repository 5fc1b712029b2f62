"""One connection to one member of etcd: calls, conversations, and what their failures mean.

    LinkLost     the connection broke, the member has no leader, or it answers what nobody understands:
                 whatever was under way has an unknown outcome, and another connection is needed
    EtcdRefuses  a definite no; nothing was done. But see `EtcdRefuses.is_full`

A channel never connects again by itself. It has its own TCP connection, so that the end of one is not the end
of another's.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

# A child that is forked only to become another program must not wait for gRPC's threads, nor hear of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from grpc import aio

from engine.config.model import Etcd
from engine.errors import ConfigError
from engine.keeper.etcd import messages

_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 64 * 1024),
)
_DEFINITE = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

_ENDS = (aio.AioRpcError, aio.UsageError, aio.InternalError, asyncio.InvalidStateError)
"""What gRPC raises in a conversation that has ended: the last one from a write after the end was seen."""


class LinkLost(Exception):
    """The connection is of no use any more."""


class EtcdRefuses(Exception):
    """etcd's definite answer to a call."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def is_full(self) -> bool:
        """The quota of its storage is used up; only an operator can help. etcd says so, too, of a request
        that it has carried out while it noticed; every later one that writes is refused for this reason."""
        return "space exceeded" in self.text

    @property
    def is_busy(self) -> bool:
        return "too many requests" in self.text


def _credentials(config: Etcd) -> grpc.ChannelCredentials:
    """As with a node's own certificate, the key may stand in the certificate's file. Raises ConfigError."""
    key_file = config.private_key_file or config.certificate_file
    if config.private_key_file and not config.certificate_file:
        raise ConfigError(f"There is a private key for TLS to etcd, {key_file}, and no certificate for it.")
    _check_files(config, key_file)
    try:
        ca = Path(config.ca_file).read_bytes() if config.ca_file else _system_authorities()
        return grpc.ssl_channel_credentials(
            root_certificates=ca,
            private_key=Path(key_file).read_bytes() if key_file else None,
            certificate_chain=Path(config.certificate_file).read_bytes() if key_file else None,
        )
    except OSError as error:
        raise ConfigError(f"Cannot read {error.filename}, named for TLS to etcd: {error.strerror}.") from None


def _check_files(config: Etcd, key_file: str) -> None:
    """gRPC would take files without a certificate for a server that cannot be reached. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    names = ""
    try:
        if names := config.ca_file:
            context.load_verify_locations(names)
        if names := config.certificate_file:
            names = f"{names} and {key_file}" if key_file != names else names
            context.load_cert_chain(config.certificate_file, key_file)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{names}, named for TLS to etcd: {error.reason or error}.",
            hint="Files are PEM; a certificate needs its own private key, in its file or beside it.",
        ) from None
    except OSError:
        return  # whoever reads the file says which it is


def _system_authorities() -> bytes | None:
    """None: those that gRPC brings along."""
    found = ssl.get_default_verify_paths().cafile
    return Path(found).read_bytes() if found else None


class EtcdChannel:
    """Made for one endpoint; `close` it."""

    def __init__(self, config: Etcd, host: str, port: int) -> None:
        """Raises ConfigError for files of TLS that cannot be read."""
        target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._config = config
        self._channel = (
            aio.secure_channel(target, _credentials(config), options=_CHANNEL_OPTIONS)
            if config.secure
            else aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        )
        self._methods: dict[str, Any] = {}
        self._token: tuple[tuple[str, str], ...] = ()
        self._authenticating = asyncio.Lock()

    async def close(self) -> None:
        await self._channel.close()

    async def authenticate(self, *, timeout_s: float) -> None:
        """Show user and password, if the configuration has any. Raises LinkLost, EtcdRefuses."""
        if self._config.user:
            request = messages.AuthenticateRequest(name=self._config.user, password=self._config.password)
            answer = await self._call(messages.AUTHENTICATE, request, timeout_s, ())
            self._token = (("token", answer.token),)

    async def call(self, method: tuple[str, Any], request: Any, *, timeout_s: float | None = None) -> Any:
        """Raises LinkLost, EtcdRefuses."""
        token = self._token
        try:
            return await self._call(method, request, timeout_s, token)
        except EtcdRefuses as refused:
            # etcd forgets its tokens after a while, and when it starts; it has looked at nothing else of the
            # request.
            if refused.code is not grpc.StatusCode.UNAUTHENTICATED or not token:
                raise
            async with self._authenticating:
                if self._token is token:
                    await self.authenticate(timeout_s=timeout_s or self._config.operation_timeout_ms / 1000)
            return await self._call(method, request, timeout_s, self._token)

    async def _call(
        self,
        method: tuple[str, Any],
        request: Any,
        timeout_s: float | None,
        token: tuple[tuple[str, str], ...],
    ) -> Any:
        path, answer_class = method
        call = self._methods.get(path)
        if call is None:
            call = self._methods[path] = self._channel.unary_unary(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer_class.FromString,
            )
        try:
            return await call(request, timeout=timeout_s, metadata=token or None)
        except aio.AioRpcError as error:
            raise _meaning(error) from None
        except aio.UsageError as error:  # the channel was closed meanwhile
            raise LinkLost(str(error)) from None

    def converse(self, method: tuple[str, Any], request_class: Any) -> Conversation:
        """Begin a conversation. etcd ends it when its member loses the leader."""
        path, answer_class = method
        call = self._channel.stream_stream(
            path,
            request_serializer=request_class.SerializeToString,
            response_deserializer=answer_class.FromString,
        )
        return Conversation(call(metadata=(*self._token, ("hasleader", "true"))))


class Conversation:
    """Requests and answers over one stream. Methods raise LinkLost."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def say(self, request: Any) -> None:
        try:
            await self._call.write(request)
        except _ENDS as error:
            raise _end(error) from None

    async def hear(self) -> Any:
        try:
            answer = await self._call.read()
        except _ENDS as error:
            raise _end(error) from None
        if answer is aio.EOF:
            raise LinkLost("etcd has ended the conversation")
        return answer

    async def answers(self) -> AsyncIterator[Any]:
        while True:
            yield await self.hear()

    def end(self) -> None:
        self._call.cancel()


def _end(error: Exception) -> LinkLost:
    if isinstance(error, aio.AioRpcError):
        return LinkLost(error.details() or str(error.code()))
    return LinkLost(str(error))


def _meaning(error: aio.AioRpcError) -> LinkLost | EtcdRefuses:
    text = error.details() or str(error.code())
    if error.code() in _DEFINITE:
        return EtcdRefuses(error.code(), text)
    return LinkLost(text)
