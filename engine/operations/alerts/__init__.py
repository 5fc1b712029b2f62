"""Telling people what is wrong: once, again while it lasts, and once more when it is over.

    alert      one trouble as people are told of it
    decide     what there is to tell now, from what is open and what was told (pure)
    message    many alerts as one message: text, JSON, and blocks for chat programs (pure)
    deliver    sends a message over every channel and remembers what was told

Told at least once: a message is sent, then remembered. Who dies in between tells it twice; nobody is left
without.
"""

from engine.operations.alerts.alert import Alert
from engine.operations.alerts.decide import Gone, Item, News, Policy, decide
from engine.operations.alerts.deliver import Channel, ChannelFailed, Delivered, deliver, take_back, tell
from engine.operations.alerts.message import Links, Message

__all__ = [
    "Alert",
    "Channel",
    "ChannelFailed",
    "Delivered",
    "Gone",
    "Item",
    "Links",
    "Message",
    "News",
    "Policy",
    "decide",
    "deliver",
    "take_back",
    "tell",
]
