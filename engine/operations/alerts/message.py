"""Many alerts as one message, for a mailbox, a web address and a chat program. Pure.

Ten findings of one kind are one paragraph with ten lines, and what to do is said once. A message has a
bounded length: what does not fit is counted, never cut in the middle.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.operations.alerts.alert import Alert
from engine.operations.alerts.decide import Item, News
from engine.operations.finding import Severity
from engine.wording import listed

# Chat programs refuse longer ones: 3,000 characters a section, 50 blocks (Slack's limits for blocks).
_SECTION_CHARS = 2900
_MAX_GROUPS = 20
_LINES_A_GROUP = 10
_LINE_CHARS = 400

_TITLES = {
    News.NEW: "New",
    News.WORSE: "Grown worse",
    News.REMINDER: "Still there",
    News.RESOLVED: "Over",
}
_COLOURS = {Severity.CRITICAL: "#c0392b", Severity.WARNING: "#d68910", Severity.INFO: "#2e86c1"}
_COLOUR_RESOLVED = "#239b56"


@dataclass(frozen=True, slots=True)
class Links:
    """Where to look: the run that found it (a URL, or empty) and where `docs/` can be read (a URL or a
    path)."""

    run: str = ""
    docs: str = "docs/"

    def page(self, relative: str) -> str:
        """Empty for no page."""
        return f"{self.docs.rstrip('/')}/{relative}" if relative else ""


@dataclass(frozen=True, slots=True)
class _Group:
    news: News
    items: tuple[Item, ...]

    @property
    def first(self) -> Alert:
        return self.items[0].alert

    @property
    def severity(self) -> Severity:
        return max(item.alert.severity for item in self.items)


@dataclass(frozen=True, slots=True)
class Message:
    """One message about one cluster."""

    cluster: str
    items: tuple[Item, ...]
    links: Links = Links()

    @property
    def severity(self) -> Severity:
        """Of what is still there; INFO when all is over."""
        return max((item.alert.severity for item in self._open), default=Severity.INFO)

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(sorted({item.alert.host for item in self.items if item.alert.host}))

    @property
    def subject(self) -> str:
        """One line."""
        if not self._open:
            over = {item.alert.kind for item in self.items}
            return f"[oncluster] {self.cluster}: over: {listed(sorted(over), most=3)}"
        kinds = list(dict.fromkeys(item.alert.kind for item in self._open))
        what = self._open[0].alert.what if len(self._open) == 1 else listed(kinds, most=3)
        return _cut(_one_line(f"[oncluster] {self.cluster}: {self.severity.word}: {what}"), 200)

    @property
    def text(self) -> str:
        """Plain text."""
        groups = self._groups()
        parts = [self._headline(), *("\n".join(_lines(group, self.links)) for group in groups[:_MAX_GROUPS])]
        if len(groups) > _MAX_GROUPS:
            parts.append(_and_more(groups[_MAX_GROUPS:]))
        if self.links.run:
            parts.append(f"Run: {self.links.run}")
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """For programs that want to know more than the text. Every item is in it."""
        return {
            "text": self.text,
            "kind": "findings",
            "cluster": self.cluster,
            "severity": self.severity.word,
            "link": self.links.run,
            "items": [
                {
                    "news": item.news.value,
                    "kind": item.alert.kind,
                    "severity": item.alert.severity.word,
                    "host": item.alert.host,
                    "subject": item.alert.subject,
                    "what": item.alert.what,
                    "advice": item.alert.advice,
                    "evidence": dict(item.alert.evidence),
                    "since": when(item.alert.since_ms),
                    "times_told": item.times_told,
                    "runbook": self.links.page(item.alert.runbook),
                    "fingerprint": item.alert.trouble,
                }
                for item in self.items
            ],
        }

    def to_slack(self) -> dict[str, Any]:
        """`text` for notifications and programs that know nothing else, one coloured attachment a group."""
        groups = self._groups()
        attachments = [
            attachment(
                "\n".join(_lines(group, self.links, mark=mrkdwn)),
                _COLOUR_RESOLVED if group.news is News.RESOLVED else _COLOURS[group.severity],
            )
            for group in groups[:_MAX_GROUPS]
        ]
        if len(groups) > _MAX_GROUPS:
            attachments.append(attachment(_and_more(groups[_MAX_GROUPS:]), _COLOURS[Severity.INFO]))
        if self.links.run:
            attachments.append(attachment(f"<{self.links.run}|Run in Airflow>", _COLOURS[Severity.INFO]))
        return {"text": mrkdwn(self.subject), "attachments": attachments}

    # --- inside -------------------------------------------------------------------------------------------

    @property
    def _open(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.news is not News.RESOLVED)

    def _headline(self) -> str:
        counts = [
            f"{count} {_TITLES[news].lower()}"
            for news in News
            if (count := sum(item.news is news for item in self.items))
        ]
        hosts = f" on {listed(self.hosts, most=6)}" if self.hosts else ""
        return f"Cluster {self.cluster}: {', '.join(counts)}{hosts}."

    def _groups(self) -> list[_Group]:
        """By news and kind, in the order of the items, which is the worst first."""
        grouped: dict[tuple[News, str], list[Item]] = {}
        for item in self.items:
            grouped.setdefault((item.news, item.alert.kind), []).append(item)
        return [_Group(news, tuple(items)) for (news, _), items in grouped.items()]


def when(ms: int | None) -> str:
    """ISO 8601 in UTC, empty for None."""
    if ms is None:
        return ""
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat(timespec="seconds")


def mrkdwn(text: str) -> str:
    """The three characters that chat programs read as their own markup, escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def attachment(text: str, colour: str) -> dict[str, Any]:
    """A coloured block of at most the length that chat programs take."""
    section = {"type": "section", "text": {"type": "mrkdwn", "text": _cut(text, _SECTION_CHARS)}}
    return {"color": colour, "fallback": _cut(text, _SECTION_CHARS), "blocks": [section]}


def _lines(group: _Group, links: Links, *, mark: Any = str) -> Iterator[str]:
    """A paragraph: a title, a line for each alert, what to do once for each advice."""
    yield mark(f"{_TITLES[group.news]}: {group.first.kind} ({group.severity.word})")
    for item in group.items[:_LINES_A_GROUP]:
        yield mark(_cut(f"- {_one_line(_line(item))}", _LINE_CHARS))
    if len(group.items) > _LINES_A_GROUP:
        yield mark(f"- and {len(group.items) - _LINES_A_GROUP} more")
    if group.news is not News.RESOLVED:
        for advice in _distinct(item.alert.advice for item in group.items)[:3]:
            yield mark(f"What to do: {advice}")
        if page := links.page(group.first.runbook):
            yield mark(f"Runbook: {page}")


def _line(item: Item) -> str:
    alert = item.alert
    where = f"{alert.where}: " if alert.where and alert.where not in alert.what else ""
    if item.news is News.RESOLVED:
        return f"{where}{alert.what} (over at {when(item.at_ms)})"
    since = f" (since {when(alert.since_ms)})" if alert.since_ms is not None else ""
    again = f" told {item.times_told} times before" if item.news is News.REMINDER else ""
    return f"{where}{alert.what}{since}{again}"


def _and_more(groups: Iterable[_Group]) -> str:
    rest = list(groups)
    count = sum(len(group.items) for group in rest)
    return f"And {count} more of {len(rest)} kinds: {listed([group.first.kind for group in rest], most=10)}."


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _one_line(text: str) -> str:
    """Line breaks would end a mail's subject, and an item of a list."""
    return " ".join(text.split())


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"
