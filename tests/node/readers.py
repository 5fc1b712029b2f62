"""Clients that ask nodes the same question all the time, while a test changes what they read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from tests.node.http_client import HttpAt

IS_RIGHT = Callable[[str, str], bool]
"""Of an answer and the one before it on the same node, which is empty at first. `error 60` is one, too."""


class Reader(threading.Thread):
    """Asks one node the same question again and again."""

    def __init__(self, node: HttpAt, sql: str, is_right: IS_RIGHT) -> None:
        super().__init__(daemon=True)
        self.node, self._sql, self._is_right = node, sql, is_right
        self.is_over = False
        self.answers: dict[str, int] = {}
        self.wrong = "it has not come to its end"

    def run(self) -> None:
        before = ""
        while True:
            is_last = self.is_over
            reply = self.node.post(self._sql)
            answer = reply.text if reply.status == 200 else f"error {reply.code}"
            if not self._is_right(answer, before):
                self.wrong = f"{reply.text!r} after {before!r}, answers: {self.answers}"
                return
            before = answer
            self.answers[before] = self.answers.get(before, 0) + 1
            if is_last:
                self.wrong = ""
                return


@contextmanager
def reading(nodes: Sequence[HttpAt], sql: str, is_right: IS_RIGHT) -> Iterator[list[Reader]]:
    """All nodes are asked from before the block's beginning until behind its end."""
    readers = [Reader(node, sql, is_right) for node in nodes]
    for reader in readers:
        assert is_right(reader.node.query(sql), "")
        reader.start()
    try:
        yield readers
    finally:
        for reader in readers:
            reader.is_over = True
        for reader in readers:
            reader.join()
    for reader in readers:
        assert not reader.wrong, f"{reader.node.url}: {reader.wrong}"
        print(sum(reader.answers.values()), "answers")


def one_of(answers: Collection[str]) -> IS_RIGHT:
    return lambda answer, before: answer in answers
