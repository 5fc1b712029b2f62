"""The same random operations go to the memory Keeper and to ZooKeeper, or to etcd; every answer and the whole
tree must agree.

Transaction ids and times are different by nature and left out; everything else of a Stat is compared.
"""

from __future__ import annotations

import random

import pytest

from engine.env import SystemEnv
from engine.errors import KeeperAnswer, MultiFailed
from engine.keeper import Acl, Check, Children, Create, CreateMode, Keeper, Node, Op, Remove, SetData, Stat
from engine.keeper.memory import MemoryKeeperServer
from engine.keeper.tree import digest_identity
from engine.testing.seen import Seen
from tests.few import few_first

pytestmark = pytest.mark.slow

SEEDS = range(30)
STEPS = 150
NAMES = ("a", "b", "c", "n-", "n-0000000001", "e")
ACLS = (
    (Acl(31, "world", "anyone"),),
    (Acl(1, "world", "anyone"),),
    (Acl(30, "world", "anyone"),),
    (Acl(31, *digest_identity(b"alice:secret")),),
    (Acl(31, "auth", ""),),
    (),
)


def comparable(answer: object, owners: dict[int, str]) -> object:
    """An answer without what may differ."""
    match answer:
        case Stat():
            return (
                answer.version,
                answer.cversion,
                answer.aversion,
                owners.get(answer.ephemeral_owner, answer.ephemeral_owner),
                answer.data_length,
                answer.num_children,
                answer.mzxid == answer.czxid,
                answer.pzxid == answer.czxid,
            )
        case Node():
            return answer.data, comparable(answer.stat, owners)
        case Children():
            return answer.names, comparable(answer.stat, owners)
        case MultiFailed():
            return "MultiFailed", answer.index, answer.op_codes, answer.path
        case KeeperAnswer():
            return type(answer).__name__, answer.path
        case list() | tuple():
            return [comparable(each, owners) for each in answer]
        case _:
            return answer


class Steps:
    """Draws operations from a seed; alike for both."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def path(self) -> str:
        depth = self.rng.choice((1, 1, 2, 2, 2, 3))
        return "".join("/" + self.rng.choice(NAMES) for _ in range(depth))

    def version(self) -> int:
        return self.rng.choice((-1, -1, -1, 0, 1, 2))

    def op(self) -> Op:
        path = self.path()
        match self.rng.randrange(9):
            case 0 | 1 | 2 | 3:
                acl = self.rng.choice(ACLS) if self.rng.random() < 0.1 else ACLS[0]
                mode = self.rng.choice((*CreateMode, CreateMode.PERSISTENT, CreateMode.PERSISTENT))
                bad = self.rng.random() < 0.03
                return Create(path + "/." if bad else path, self.rng.randbytes(3), mode, acl)
            case 4 | 5:
                return Remove(path, self.version())
            case 6 | 7:
                return SetData(path, self.rng.randbytes(4), self.version())
            case _:
                return Check(path, self.version())

    def draw(self):
        """(name of a session, what to do with it)."""
        who = self.rng.choice(("one", "two"))
        path, kind = self.path(), self.rng.randrange(20)
        if kind < 8:
            op = self.op()
            match op:
                case Create():
                    return who, f"{op}", lambda k: k.create(op.path, op.data, mode=op.mode, acl=op.acl)
                case Remove():
                    return who, f"{op}", lambda k: k.remove(op.path, version=op.version)
                case SetData():
                    return who, f"{op}", lambda k: k.set(op.path, op.data, version=op.version)
                case Check():
                    return who, f"{op}", lambda k: k.multi([op])
        if kind < 12:
            ops = [self.op() for _ in range(self.rng.randint(1, 4))]
            return who, f"multi {ops}", lambda k: k.multi(ops)
        if kind == 12:
            acl = self.rng.choice(ACLS)
            return who, f"set_acl {path} {acl}", lambda k: k.set_acl(path, acl)
        if kind == 13:
            return who, f"get_acl {path}", lambda k: k.get_acl(path)
        if kind == 14:
            return who, "many", lambda k: k.get_many([path, "/a", "/b", "/missing"])
        name = self.rng.choice(("get", "exists", "children"))
        return who, f"{name} {path}", lambda k: getattr(k, name)(path)


async def dump(keeper: Keeper, path: str, owners: dict[int, str]) -> list[object]:
    """Everything below `path` that may be read."""
    found: list[object] = []
    try:
        children, node = await keeper.children(path), await keeper.get(path)
    except KeeperAnswer as answer:
        return [path, comparable(answer, owners)]
    found.append((path, comparable(node, owners), comparable(children, owners)))
    for name in children.names:
        found += await dump(keeper, f"{path.rstrip('/')}/{name}", owners)
    return found


async def play(seed: int, open_session) -> list[object]:
    """What one Keeper answers to one seed."""
    sessions = {"one": await open_session(), "two": await open_session()}
    owners = {keeper.session_id: who for who, keeper in sessions.items()}
    await sessions["two"].add_auth("digest", b"alice:secret")
    steps = Steps(seed)
    log: list[object] = []
    for number in range(STEPS):
        who, what, act = steps.draw()
        watches = {}
        watched = steps.path()[: steps.rng.choice((2, 9))]
        for name, keeper in sessions.items():
            watches[name] = (Seen(), Seen())
            for read, seen in zip(("exists", "children"), watches[name], strict=True):
                try:
                    await getattr(keeper, read)(watched, watch=seen)
                except KeeperAnswer:
                    pass
        try:
            answer: object = await act(sessions[who])
        except KeeperAnswer as refused:
            answer = refused
        for keeper in sessions.values():
            await keeper.sync("/")
        fired = [[event.type.name for seen in pair for event in seen.events] for pair in watches.values()]
        log.append((number, who, what, comparable(answer, owners), watched, fired))
    log.append(await dump(sessions["two"], "/", owners))
    await sessions["one"].close()
    await sessions["two"].sync("/")
    log.append(await dump(sessions["two"], "/", owners))
    await sessions["two"].close()
    return log


@pytest.mark.parametrize("seed", few_first(SEEDS, few=5))
async def test_memory_answers_as_zookeeper_does(zookeeper_backend, seed):
    of_memory = await play(seed, MemoryKeeperServer(SystemEnv()).connect)
    of_zookeeper = await play(seed, zookeeper_backend.open)
    for ours, theirs in zip(of_memory, of_zookeeper, strict=True):
        assert ours == theirs


@pytest.mark.parametrize("seed", few_first(SEEDS[:12], few=2))
async def test_etcd_answers_as_memory_does(etcd_backend, seed):
    of_memory = await play(seed, MemoryKeeperServer(SystemEnv()).connect)
    of_etcd = await play(seed, etcd_backend.open)
    for ours, theirs in zip(of_memory, of_etcd, strict=True):
        assert ours == theirs


async def test_the_comparison_reaches_every_answer():
    """A comparison in which everything fails alike would prove nothing."""
    reached = set()
    for seed in SEEDS:
        for entry in (await play(seed, MemoryKeeperServer(SystemEnv()).connect))[:-2]:
            answer = entry[3]
            reached.add(answer[0] if isinstance(answer, tuple) and isinstance(answer[0], str) else "ok")
            reached |= {f"watch {type_}" for types in entry[5] for type_ in types}
            if isinstance(answer, list):
                reached.add("multi ok")
    wanted = {"ok", "multi ok", "MultiFailed", "NoNode", "NodeExists", "BadVersion", "NotEmpty", "NoAuth"}
    wanted |= {"InvalidAcl", "NoChildrenForEphemerals", "BadArguments"}
    wanted |= {"watch CREATED", "watch DELETED", "watch CHANGED", "watch CHILD"}
    assert reached >= wanted
