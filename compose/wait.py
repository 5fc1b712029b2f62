"""Waits until every container of a docker-compose project is healthy: `wait.py [--timeout S] COMPOSE …`.

`make compose-up` runs it after `up -d`: docker-compose of before version 2 has no `--wait`. Standard library
only, since it runs on the host, with whatever Python 3 there is. Exit code 0: all are healthy, and those that
run once have ended well. Otherwise 1, with what the check of the first sick container said last, and the end
of its log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

POLL_S = 2.0
TIMEOUT_S = 600.0
_TAIL_LINES = 20
_TRIES = 5


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"{' '.join(command)}: {done.stderr.strip()}")
        sys.exit(1)
    return done.stdout


def project_containers(compose: Sequence[str]) -> list[str]:
    """The ids of the project's containers. Asked once: docker-compose is slow to start."""
    return run([*compose, "ps", "--all", "--quiet"]).split()


def inspect(numbers: Sequence[str]) -> list[dict[str, Any]]:
    """What Docker knows of them, without those of `docker-compose run`."""
    found = json.loads(run(["docker", "inspect", *numbers])) if numbers else []
    return [one for one in found if one["Config"]["Labels"].get("com.docker.compose.oneoff") != "True"]


def service_of(container: dict[str, Any]) -> str:
    return str(container["Config"]["Labels"]["com.docker.compose.service"])


def verdict(container: dict[str, Any]) -> str:
    """`healthy`, `ended well`, `starting`, or in words what is wrong."""
    state = container["State"]
    if container.get("RestartCount", 0) >= _TRIES:
        return f"ended {container['RestartCount']} times, with exit code {state['ExitCode']}"
    if state["Status"] in ("created", "restarting"):
        return "starting"
    if state["Status"] == "exited":
        return "ended well" if state["ExitCode"] == 0 else f"ended with exit code {state['ExitCode']}"
    return str(state["Health"]["Status"]) if "Health" in state else "healthy"


def explain(container: dict[str, Any], what: str) -> None:
    say(f"\n{service_of(container)}: {what}")
    checks = container["State"].get("Health", {}).get("Log") or []
    if checks:
        say(f"  its check said last: {checks[-1]['Output'].strip() or 'nothing'}")
    log = subprocess.run(
        ["docker", "logs", "--tail", str(_TAIL_LINES), container["Id"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    say("  the end of its log:")
    for line in log.stdout.splitlines():
        say(f"    {line}")


def main(arguments: list[str]) -> int:
    timeout_s = TIMEOUT_S
    if arguments[:1] == ["--timeout"]:
        timeout_s, arguments = float(arguments[1]), arguments[2:]
    started_s = time.monotonic()
    said: dict[str, str] = {}
    numbers = project_containers(arguments)
    while True:
        found = inspect(numbers)
        verdicts = {service_of(one): verdict(one) for one in found}
        for service, word in verdicts.items():
            if said.get(service) != word and word != "starting":
                say(f"  {service:<24}{word:<14}{time.monotonic() - started_s:6.1f} s")
            said[service] = word
        waited_for = [service for service, word in verdicts.items() if word == "starting"]
        sick = [one for one in found if verdict(one) not in ("healthy", "ended well", "starting")]
        if sick:
            explain(sick[0], verdict(sick[0]))
            return 1
        if found and not waited_for:
            return 0
        if time.monotonic() - started_s > timeout_s:
            say(f"\nNot healthy after {timeout_s:.0f} s: {', '.join(waited_for) or 'there is no container'}.")
            return 1
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
