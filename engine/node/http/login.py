"""Who is let in, as often as a quota lets somebody try (`failed_sequential_authentications`).

Source: ClickHouse's AccessControl::authenticate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aiohttp import web

from engine.config.model import User
from engine.config.quotas import QuotaAmount
from engine.node.http.auth import authenticate, credentials_of
from engine.node.http.signed_reads import SignedReads
from engine.node.quotas import QuotaAccount, Quotas, quota_client

_FAILED = QuotaAmount.FAILED_SEQUENTIAL_AUTHENTICATIONS


class Logins:
    """Of one node."""

    def __init__(self, users: Mapping[str, User], quotas: Quotas, signed: SignedReads) -> None:
        self._users = users
        self._quotas = quotas
        self._signed = signed

    def of_request(self, request: web.Request, parameters: Mapping[str, str]) -> tuple[User, QuotaAccount]:
        """As `of`, also of another node's read that is signed."""
        address = request.remote or ""
        header = request.headers.get("Authorization", "")
        user = self._signed.user_of(
            header, request.method, request.raw_path, address, has_body=request.body_exists
        )
        if user is None:
            return self.of(request.headers, parameters, address)
        return user, self._quotas.account(user, quota_client(address, request.headers, parameters))

    def of(
        self, headers: Mapping[str, str], parameters: Mapping[str, str], address: str
    ) -> tuple[User, QuotaAccount]:
        """The user of one request, and what the request is counted on. Raises SqlError 516, and 201 for one
        try too many, also with the right password. Who has not logged in yet chooses no key of a quota."""
        credentials = credentials_of(headers, parameters)
        client = quota_client(address, headers, parameters)
        named = self._users.get(credentials.user)
        if named is None or named.quota is None or not named.quota.limits(_FAILED):
            user = authenticate(self._users, credentials, address)
        else:
            tries = self._quotas.account(named, replace(client, key=""))
            tries.charge({_FAILED: 1})
            user = authenticate(self._users, credentials, address)
            tries.reset(_FAILED)
        return user, self._quotas.account(user, client)
