"""Permissions."""

from __future__ import annotations

import pytest

from engine.errors import AuthFailed, BadVersion, InvalidAcl, MultiFailed, NoAuth, NoNode
from engine.keeper import OPEN_ACL, Acl, Check, Create, SetData
from engine.keeper.tree import ADMIN, CREATE, DELETE, READ, WRITE, digest_identity

ALL = READ | WRITE | CREATE | DELETE | ADMIN
ALICE = Acl(ALL, *digest_identity(b"alice:secret"))
CREATOR = (Acl(ALL, "auth", ""),)


async def test_a_node_is_open_to_the_world_by_default(keeper):
    await keeper.create("/a")
    assert await keeper.get_acl("/a") == OPEN_ACL


async def test_get_acl_of_a_missing_node_is_no_node(keeper):
    with pytest.raises(NoNode):
        await keeper.get_acl("/a")


async def test_set_acl_raises_the_acl_version_only(keeper):
    await keeper.create("/a")
    stat = await keeper.set_acl("/a", [Acl(READ | ADMIN, "world", "anyone")])
    assert (stat.aversion, stat.version, stat.cversion) == (1, 0, 0)
    assert await keeper.get_acl("/a") == (Acl(READ | ADMIN, "world", "anyone"),)


async def test_set_acl_with_another_version_is_bad_version(keeper):
    await keeper.create("/a")
    with pytest.raises(BadVersion):
        await keeper.set_acl("/a", OPEN_ACL, version=3)
    await keeper.set_acl("/a", OPEN_ACL, version=0)
    assert (await keeper.exists("/a")).aversion == 1


@pytest.mark.parametrize(
    "acl",
    [
        [],
        [Acl(ALL, "world", "somebody")],
        [Acl(ALL, "digest", "no-colon")],
        [Acl(ALL, "nonsense", "x")],
        [Acl(ALL, "auth", "")],
    ],
    ids=["none", "world", "digest", "scheme", "auth without identity"],
)
async def test_an_acl_that_makes_no_sense_is_refused(keeper, acl):
    with pytest.raises(InvalidAcl):
        await keeper.create("/a", acl=acl)
    assert await keeper.exists("/a") is None


async def test_a_digest_opens_only_to_who_knows_the_password(keeper, other):
    await keeper.add_auth("digest", b"alice:secret")
    await keeper.create("/a", b"1", acl=[ALICE])
    with pytest.raises(NoAuth):
        await other.get("/a")
    await other.add_auth("digest", b"alice:wrong")
    with pytest.raises(NoAuth):
        await other.get("/a")
    await other.add_auth("digest", b"alice:secret")
    assert (await other.get("/a")).data == b"1"


async def test_identities_of_one_session_add_up(keeper, other):
    await keeper.create("/a", acl=[ALICE])
    await keeper.create("/b", acl=[Acl(ALL, *digest_identity(b"bob:secret"))])
    await other.add_auth("digest", b"alice:secret")
    await other.add_auth("digest", b"bob:secret")
    await other.sync("/")
    assert (await other.get("/a")).data == (await other.get("/b")).data == b""


async def test_the_scheme_auth_stands_for_all_identities_of_the_creator(keeper, other):
    await keeper.add_auth("digest", b"alice:secret")
    await keeper.add_auth("digest", b"bob:secret")
    await keeper.create("/a", acl=CREATOR)
    assert set(await keeper.get_acl("/a")) == {ALICE, Acl(ALL, *digest_identity(b"bob:secret"))}
    await other.add_auth("digest", b"bob:secret")
    await other.sync("/")
    await other.get("/a")


@pytest.mark.parametrize(
    ("perm", "call"),
    [
        (READ, lambda k: k.get("/a")),
        (READ, lambda k: k.children("/a")),
        (READ, lambda k: k.exists("/a")),
        (WRITE, lambda k: k.set("/a", b"")),
        (CREATE, lambda k: k.create("/a/new")),
        (DELETE, lambda k: k.remove("/a/child")),
        (ADMIN, lambda k: k.set_acl("/a", OPEN_ACL)),
    ],
    ids=["get", "children", "exists", "set", "create", "remove", "set_acl"],
)
async def test_each_permission_opens_its_operation_and_no_other(keeper, perm, call):
    await keeper.create("/a")
    await keeper.create("/a/child")
    await keeper.add_auth("digest", b"alice:secret")
    await keeper.set_acl("/a", [Acl(ALL & ~perm, "world", "anyone"), Acl(ADMIN, ALICE.scheme, ALICE.id)])
    if perm != ADMIN:
        with pytest.raises(NoAuth):
            await call(keeper)
    await keeper.set_acl("/a", [Acl(perm, "world", "anyone")])
    await call(keeper)


async def test_exists_asks_for_permission_to_read_only_where_there_is_a_node(keeper):
    await keeper.create("/a", acl=[ALICE])
    assert await keeper.exists("/missing") is None
    for ask in (keeper.exists("/a"), keeper.exists_many(["/missing", "/a"])):
        with pytest.raises(NoAuth):
            await ask


async def test_permission_to_remove_is_the_parents(keeper):
    await keeper.create("/open")
    await keeper.create("/open/closed", acl=[ALICE])
    await keeper.remove("/open/closed")
    assert (await keeper.children("/open")).names == ()


async def test_acl_is_hidden_from_who_may_neither_read_nor_administer(keeper, other):
    await keeper.create("/a", acl=[ALICE])
    with pytest.raises(NoAuth):
        await other.get_acl("/a")


async def test_digests_are_blotted_out_for_who_is_no_administrator(keeper, other):
    await keeper.create("/a", acl=[ALICE, Acl(READ, "world", "anyone")])
    assert await other.get_acl("/a") == (Acl(ALL, "digest", "alice:x"), Acl(READ, "world", "anyone"))


async def test_a_multi_is_refused_for_lack_of_permission(keeper):
    await keeper.create("/a", acl=[Acl(READ, "world", "anyone")])
    with pytest.raises(MultiFailed) as caught:
        await keeper.multi([Create("/b"), SetData("/a", b"x")])
    assert caught.value.index == 1 and isinstance(caught.value.error, NoAuth)
    assert await keeper.exists("/b") is None
    assert await keeper.multi([Check("/a")]) == [None]


async def test_an_unknown_scheme_fails_and_costs_the_session(keeper, other):
    with pytest.raises(AuthFailed):
        await other.add_auth("nonsense", b"x")
    assert other.is_expired
    assert not keeper.is_expired


async def test_an_identity_of_the_configuration_owns_what_it_creates(backend, keeper):
    """As ClickHouse does with `<identity>`."""
    owner = await backend.open(identity="alice:secret")
    await owner.create("/a", b"1")
    await owner.multi([Create("/b", b"2")])
    assert await owner.get_acl("/a") == await owner.get_acl("/b") == (ALICE,)
    with pytest.raises(NoAuth):
        await keeper.get("/a")
    same = await backend.open(identity="alice:secret")
    assert [node.data for node in await same.get_many(["/a", "/b"])] == [b"1", b"2"]
