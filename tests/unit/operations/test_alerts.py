"""People are told once, again while it lasts, and once more when it is over; each channel by itself."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.operations.alerts import (
    Alert,
    ChannelFailed,
    Delivered,
    Item,
    Links,
    Message,
    News,
    Policy,
    decide,
    deliver,
    take_back,
    tell,
)
from engine.operations.finding import Finding, FindingKind, Severity
from engine.operations.records import AlertRecord, Records

HOUR_S = 3600.0
CLUSTER = "order_cluster"


class Clock:
    """An Env whose clock is set by the test."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now = now_s
        self.rng = random.Random(0)

    def now_s(self) -> float:
        return self.now

    def monotonic_s(self) -> float:
        return self.now

    async def sleep(self, delay_s: float) -> None:
        self.now += delay_s

    def new_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.rng.getrandbits(128))


class Mailbox:
    """A channel that keeps what it is sent."""

    def __init__(self, name: str = "mail") -> None:
        self.name = name
        self.messages: list[Message] = []
        self.is_broken = False

    def send(self, message: Message) -> None:
        if self.is_broken:
            raise ChannelFailed("no connection")
        self.messages.append(message)

    @property
    def news(self) -> list[list[tuple[str, str]]]:
        """Per message: (news, where)."""
        return [[(item.news.value, item.alert.where) for item in m.items] for m in self.messages]


def finding(
    host: str = "node01:9000",
    subject: str = "shop.orders",
    kind: FindingKind = FindingKind.LAGGING,
    severity: Severity = Severity.WARNING,
    delay_s: int = 900,
) -> Finding:
    return Finding(
        kind,
        severity,
        CLUSTER,
        what=f"{subject} on {host} is {delay_s} s behind",
        advice="Look at its queue.",
        host=host,
        subject=subject,
        evidence={"absolute_delay_s": delay_s},
    )


class Place:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.records = Records(folder / "records.db", env=self.clock)
        self.mail = Mailbox()
        self.chat = Mailbox("chat")

    def look(self, *found: Finding, after_s: float = 300.0) -> Delivered:
        """One look some minutes later, and what is told of it."""
        self.clock.now += after_s
        self.records.see_findings(CLUSTER, "health", found)
        return deliver(self.records, [self.mail, self.chat], CLUSTER, links=Links("http://airflow/run/1"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# --- over time ----------------------------------------------------------------------------------------------


def test_a_trouble_is_told_once_however_often_it_is_seen_and_whatever_its_figures(place: Place) -> None:
    for delay_s in (900, 1200, 1500):
        place.look(finding(delay_s=delay_s))

    assert place.mail.news == [[("new", "node01:9000 shop.orders")]]


def test_what_lasts_is_told_again_after_some_hours_and_not_before(place: Place) -> None:
    place.look(finding())
    place.look(finding(), after_s=3.9 * HOUR_S)
    assert len(place.mail.messages) == 1
    place.look(finding(), after_s=0.2 * HOUR_S)
    place.look(finding(), after_s=1 * HOUR_S)

    assert [m[0][0] for m in place.mail.news] == ["new", "reminder"]
    assert "told 1 times before" in place.mail.messages[1].text


def test_it_is_said_once_when_it_is_over_and_told_again_when_it_comes_back(place: Place) -> None:
    place.look(finding())
    place.look()
    assert len(place.mail.messages) == 1, "gone for no time yet"
    place.look(after_s=700)
    place.look()
    place.look(finding())

    assert [m[0][0] for m in place.mail.news] == ["new", "resolved", "new"]
    assert "over" in place.mail.messages[1].subject


def test_a_trouble_that_comes_and_goes_is_one_trouble(place: Place) -> None:
    for _ in range(5):
        place.look(finding())
        place.look()

    assert len(place.mail.messages) == 1


def test_a_trouble_that_grows_worse_is_told_at_once_and_one_that_eases_is_not(place: Place) -> None:
    place.look(finding())
    place.look(finding(severity=Severity.CRITICAL))
    place.look(finding(severity=Severity.WARNING))
    place.look(finding(severity=Severity.CRITICAL))
    assert [m[0][0] for m in place.mail.news] == ["new", "worse"]

    place.look()
    place.look(after_s=700)
    assert [m[0][0] for m in place.mail.news] == ["new", "worse", "resolved"]
    assert place.records.alerts(CLUSTER, "mail") == {}


def test_what_is_merely_worth_knowing_is_not_told(place: Place) -> None:
    place.look(finding(severity=Severity.INFO))

    assert place.mail.messages == []


def test_many_findings_are_one_message(place: Place) -> None:
    place.look(*(finding(host=f"node{n:02d}:9000") for n in range(40)))

    (message,) = place.mail.messages
    assert len(message.items) == 40
    assert "and 30 more" in message.text


# --- channels -----------------------------------------------------------------------------------------------


def test_a_channel_that_does_not_work_leaves_the_others_and_hears_it_later(place: Place) -> None:
    place.mail.is_broken = True
    delivered = place.look(finding())
    assert delivered == Delivered({"chat": 1}, {"mail": "no connection"})

    place.mail.is_broken = False
    place.look(finding())
    assert [len(place.mail.messages), len(place.chat.messages)] == [1, 1]
    assert place.mail.news == place.chat.news == [[("new", "node01:9000 shop.orders")]]


def test_who_never_heard_of_it_is_not_told_that_it_is_over(place: Place) -> None:
    place.mail.is_broken = True
    place.look(finding())
    place.mail.is_broken = False
    place.look()
    place.look(after_s=700)

    assert place.mail.messages == []
    assert [m[0][0] for m in place.chat.news] == ["new", "resolved"]


def test_a_crash_between_sending_and_remembering_tells_it_twice_rather_than_never(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(place.records, "record_message", crash)
        place.look(finding())
    place.look(finding())

    assert [m[0][0] for m in place.mail.news] == ["new", "new"]


def test_clusters_do_not_answer_for_each_other(place: Place) -> None:
    place.look(finding())
    place.records.see_findings("log_cluster", "health", [])
    deliver(place.records, [place.mail], "log_cluster")

    assert [m[0][0] for m in place.mail.news] == ["new"]


def failure(severity: Severity = Severity.CRITICAL) -> Alert:
    return Alert("check of order_cluster", "task-failed", severity, "dag:health", "The check fails", "Look.")


def test_what_is_no_finding_is_told_and_taken_back_in_the_same_way(place: Place) -> None:
    assert take_back(place.records, place.mail, failure()) is None
    told = [tell(place.records, place.mail, failure()) for _ in range(3)]
    place.clock.now += 5 * HOUR_S
    told.append(tell(place.records, place.mail, failure()))
    over = take_back(place.records, place.mail, failure())

    assert [item.news if item else None for item in told] == [News.NEW, None, None, News.REMINDER]
    assert over is not None and over.news is News.RESOLVED
    assert take_back(place.records, place.mail, failure()) is None
    assert len(place.mail.messages) == 3


# --- decisions ----------------------------------------------------------------------------------------------


def told(alert: Alert, *, at_ms: int) -> dict[str, AlertRecord]:
    return {alert.fingerprint: AlertRecord(alert.fingerprint, "mail", at_ms, at_ms, 1)}


@pytest.mark.parametrize("remind_after_s", [0.0, 60.0])
def test_reminders_can_be_turned_off(remind_after_s: float) -> None:
    alert = Alert.of_finding(finding())
    items = decide(
        [alert],
        [],
        told(alert, at_ms=0),
        now_ms=10**12,
        policy=Policy(remind_after_s=remind_after_s),
    )
    assert [item.news for item in items] == ([News.REMINDER] if remind_after_s else [])


def test_the_worst_stands_first() -> None:
    alerts = [
        Alert.of_finding(finding(host="a")),
        Alert.of_finding(finding(host="b", severity=Severity.CRITICAL)),
    ]
    items = decide(alerts, [], {}, now_ms=0, policy=Policy())

    assert [item.alert.host for item in items] == ["b", "a"]


# --- messages -----------------------------------------------------------------------------------------------


def message(alerts: Sequence[Alert], news: News = News.NEW) -> Message:
    return Message(
        CLUSTER,
        tuple(Item(news, alert, at_ms=1_700_000_000_000) for alert in alerts),
        Links("http://airflow/run/1", "https://docs.example.org/"),
    )


def test_a_message_says_what_where_since_when_what_to_do_and_where_to_look() -> None:
    alert = replace(Alert.of_finding(finding()), since_ms=1_700_000_000_000)
    text = message([alert]).text

    for part in (
        "shop.orders on node01:9000 is 900 s behind",
        "since 2023-11-14T22:13:20+00:00",
        "What to do: Look at its queue.",
        "https://docs.example.org/runbooks/lagging.md",
        "http://airflow/run/1",
    ):
        assert part in text
    assert message([alert]).subject == (
        "[oncluster] order_cluster: warning: shop.orders on node01:9000 is 900 s behind"
    )


def test_what_to_do_is_said_once_for_all_of_a_kind() -> None:
    text = message([Alert.of_finding(finding(host=f"n{n}")) for n in range(5)]).text

    assert text.count("Look at its queue.") == 1
    assert "on n0, n1, n2, n3, n4." in text


def test_chat_programs_get_their_form_within_their_limits_and_no_markup_of_ours() -> None:
    alerts = [
        Alert.of_finding(finding(host=f"n{n}", kind=kind, subject="<!channel> & " + "x" * 5000))
        for n in range(12)
        for kind in FindingKind
    ]
    body = message(alerts).to_slack()

    assert set(body) == {"text", "attachments"}
    assert len(body["attachments"]) <= 50
    texts = [block["text"]["text"] for a in body["attachments"] for block in a["blocks"]]
    assert all(len(text) <= 3000 for text in texts)
    assert "<!channel>" not in json.dumps(body)
    assert any("<http://airflow/run/1|" in text for text in texts)


def test_a_web_address_gets_every_item() -> None:
    alerts = [Alert.of_finding(finding(host=f"n{n}")) for n in range(60)]
    body = message(alerts).to_json()

    assert len(body["items"]) == 60
    assert body["items"][0]["evidence"] == {"absolute_delay_s": 900}
    assert body["items"][0]["runbook"] == "https://docs.example.org/runbooks/lagging.md"
    assert json.loads(json.dumps(body)) == body


def test_line_breaks_end_neither_a_subject_nor_an_item() -> None:
    sent = message([Alert.of_finding(finding(subject="a\r\nBcc: eve@example.org\nb"))])

    assert "\n" not in sent.subject and "\r" not in sent.text
    assert "\nBcc" not in sent.text


def test_what_ended_while_it_was_being_told_is_said_to_be_over(place: Place) -> None:
    # 1. One run sees it; before it sends, another run sees that it is gone.
    place.records.see_findings(CLUSTER, "health", [finding()])
    alert = Alert.of_record(place.records.open_findings(CLUSTER)[0])
    place.records.see_findings(CLUSTER, "health", [])
    place.clock.now += 60
    # 2. The first one sends.
    place.records.record_message(CLUSTER, "mail", told=[alert.fingerprint])
    place.look(after_s=900)

    assert [m[0][0] for m in place.mail.news] == ["resolved"]


def test_secrets_in_findings_do_not_leave() -> None:
    shown = Finding(
        FindingKind.SCHEMA_DRIFT,
        Severity.WARNING,
        CLUSTER,
        what="node01's table differs: ENGINE = MySQL('h:3306', 'db', 't', 'u', 'hunter2')",
        advice="Look at both hosts' definitions.",
        evidence={"differences": "SOURCE(CLICKHOUSE(USER 'u' PASSWORD 'hunter2'))", "count": 2},
    )
    sent = message([Alert.of_finding(shown)])

    for text in (sent.subject, sent.text, json.dumps(sent.to_json()), json.dumps(sent.to_slack())):
        assert "hunter2" not in text
    assert "Look at both hosts' definitions." in sent.text and "node01's table differs" in sent.text


def test_a_message_about_what_is_over_is_calm() -> None:
    over = message([Alert.of_finding(finding(severity=Severity.CRITICAL))], News.RESOLVED)

    assert over.severity is Severity.INFO
    assert over.subject == "[oncluster] order_cluster: over: lagging"
    assert "What to do" not in over.text
