"""Keeper's tree in an etcd (version 3.4 or newer), with ZooKeeper's semantics.

    keeper = await connect(config, env)

For whoever asks it is like `engine.keeper.zookeeper`: one object is one session, whatever happens to its
connection, and the errors are the same. What etcd does not have is done here, by the sessions themselves:

    layout.py    which keys hold the tree           record.py    a node as it stands there
    overlay.py   a write carried out in memory      plan.py      and as one transaction of etcd
    turns.py     or for several sequence numbers    store.py     reads and writes, each at one instant
    changes.py   what a write tells                 feed.py      and how watches hear of it, in order
    session.py   one session and its watches        link.py      one connection of it
    requests.py  what it is asked, in order         call.py      and one request
    reaper.py    ephemeral nodes of ended sessions  clock.py     one clock for all
    channel.py   calls to etcd                      messages.py  and their form
    embedded.py  an etcd on this machine, for tests

**What differs from ZooKeeper.** zxids are revisions of etcd: ordered and the same for all, but not dense.
ACLs are kept and honoured by every session of this project; etcd itself does not know them, so whoever may
write to etcd past this project may do anything: its users and TLS keep others out. Times come from one
session's clock at a time (`clock.py`). Sessions last two seconds at least, and whole seconds.

The decision page `docs/decisions/keeper-on-etcd.md` tells why it is done so.
"""

from engine.keeper.etcd.session import connect

__all__ = ["connect"]
