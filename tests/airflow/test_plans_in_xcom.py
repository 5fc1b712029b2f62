"""An operation's plan on its way through XCom."""

from __future__ import annotations

import base64
import zlib

from engine.operations.act import Act, Danger, Plan
from engine.operations.finding import Finding, FindingKind, Severity

SECRET = "hunter2-in-the-clear"


def test_a_packed_plan_is_the_same_plan_and_no_word_of_it_tells_a_secret() -> None:
    from oncluster_airflow.operation_plan import from_xcom, to_xcom

    sentence = f"Code: 62. Syntax error: CREATE USER u IDENTIFIED BY '{SECRET}'"
    act = Act("kind", "d.t", sentence, sentence, "n1:9000", {"parts": ["all_1_1_0"]}, Danger.DESTROYS)
    finding = Finding(
        FindingKind.STUCK_DDL, Severity.WARNING, "c", sentence, sentence, evidence={"last": sentence, "n": 1}
    )
    plan = Plan("repair", "c", (act,), (finding,), (sentence,))
    value = to_xcom(plan)
    assert SECRET not in zlib.decompress(base64.b85decode(value["packed"])).decode()
    back = from_xcom(value)
    assert back.checksum == plan.checksum
    assert [(each.act_id, each.payload) for each in back.acts] == [(act.act_id, act.payload)]
    assert back.findings[0].evidence["n"] == 1 and "IDENTIFIED BY" in back.notes[0]
