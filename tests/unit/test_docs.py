"""The documentation is true: links lead somewhere, commands exist, Python examples run."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import fields
from functools import lru_cache
from pathlib import Path

import click
import pytest

from engine.cli.main import PARTS, cli
from engine.config.health_model import HealthSettings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if language in languages]


def commands_in(page: Path) -> list[str]:
    """Lines of shell blocks that start with one of our commands, continued lines joined."""
    found = []
    for block in blocks(page, "sh", "bash", "shell", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            text = line.strip().removeprefix("$ ")
            text = re.sub(r"^(?:[A-Z_]+=\S+\s+)*", "", text)
            if re.match(r"(oncluster|make)\b", text):
                found.append(text)
    return found


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Git forges make them."""
    text = FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or not page.exists():
            continue
        seen.add(page)
        for target in LINK.findall(page.read_text()):
            path = target.partition("#")[0]
            if path.endswith(".md") and ":" not in path:
                todo.append((page.parent / path).resolve())
    assert {name(page) for page in PAGES} - {name(page) for page in seen} == set()


@lru_cache
def make_targets() -> frozenset[str]:
    listed = subprocess.run(["make", "-qpn"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return frozenset(re.findall(r"^([a-z][a-z-]*):", listed, re.MULTILINE))


def check_oncluster(words: list[str]) -> str:
    """What is wrong with a call of `oncluster`; empty if nothing."""
    command: click.Command = cli
    context = click.Context(cli, info_name="oncluster")
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        child = command.get_command(context, rest[0])
        if child is None:
            return f"no command {rest[0]!r}"
        command, rest = child, rest[1:]
        context = click.Context(command, parent=context)
    try:
        _, surplus, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as error:
        return f"{command.name}: {error.format_message()}"
    return f"{command.name} takes no argument {surplus[0]!r}" if surplus else ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist_with_the_options_shown(page: Path) -> None:
    wrong = []
    for line in commands_in(page):
        words = shlex.split(re.split(r"\s[|>&]|\s#", line)[0], comments=True)
        words = words[: words.index("#")] if "#" in words else words
        if words[0] == "make":
            missing = [w for w in words[1:] if "=" not in w and w not in make_targets()]
            if missing:
                wrong.append(f"{line}: no target {missing}")
        elif problem := check_oncluster(words):
            wrong.append(f"{line}: {problem}")
    assert wrong == []


OF_ONE_CLUSTER = re.compile(
    r"oncluster (?:cluster|health|cleanup|drift|migrate (?:plan|apply|rollback|resume|mark|history|unlock)) "
)
OF_MIGRATIONS = re.compile(r"oncluster migrate ")


@pytest.mark.parametrize("page", [p for p in PAGES if "runbooks" not in p.parts], ids=name)
def test_commands_on_one_cluster_say_which(page: Path) -> None:
    """The local stack has two. Runbooks leave it to their index."""
    for_all = page.read_text().find("export ONCLUSTER_CLUSTER=") >= 0
    missing = [
        line
        for line in commands_in(page)
        if OF_ONE_CLUSTER.match(line)
        and "--cluster " not in line
        and (OF_MIGRATIONS.match(line) or not for_all)
    ]
    assert missing == []


OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
OF_OTHERS = frozenset(
    {
        *("--auto-compaction-mode", "--auto-compaction-retention", "--max-txn-ops"),  # etcd
        *("--build", "--rm", "--py-files", "--help"),  # docker-compose, spark-submit, everybody
    }
)


@lru_cache
def options_in_the_code() -> frozenset[str]:
    """Of `oncluster`, of benchmarks and of Spark applications."""
    files = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "spark_apps").rglob("*.py")]
    files += (ROOT / "engine" / "cli").glob("*.py")
    return frozenset(
        option
        for file in files
        for option in OPTION.findall(" ".join(re.findall(r'"(--\S+)"', file.read_text())))
    )


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_options_named_in_sentences_exist(page: Path) -> None:
    code = " ".join(re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text())))
    assert set(OPTION.findall(code)) - options_in_the_code() - OF_OTHERS == set()


def test_the_limits_of_health_checks_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "how-to" / "health.md").read_text()
    told = {limit: float(value) for limit, value in re.findall(r"\| `(\w+)` \| (\d+) ", page)}
    settings = HealthSettings()
    known = {field.name: getattr(settings.limits, field.name) for field in fields(settings.limits)}
    known |= {field.name: getattr(settings, field.name) for field in fields(settings)}
    assert told == {limit: value for limit, value in known.items() if limit not in ("limits", "overrides")}


VARIABLE = re.compile(r"\bONCLUSTER_[A-Z0-9_]*[A-Z0-9]\b")


@lru_cache
def variables_in_the_code() -> frozenset[str]:
    files = [
        file
        for folder in ("engine", "plugins", "dags", "spark_apps", "compose", "tests", "benchmarks")
        for file in (ROOT / folder).rglob("*.*")
        if file.suffix in (".py", ".sh") and file != Path(__file__).resolve()
    ]
    return frozenset(found for file in files for found in VARIABLE.findall(file.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_environment_variables_are_read_somewhere(page: Path) -> None:
    text = re.sub(r"`…(_[A-Z_]+)`", "", page.read_text())
    assert set(VARIABLE.findall(text)) - variables_in_the_code() == set()


@pytest.mark.parametrize("part", sorted(PARTS))
def test_variables_that_help_names_are_read_somewhere(part: str) -> None:
    found: set[str] = set()
    todo: list[tuple[click.Command, click.Context]] = []
    command = cli.get_command(click.Context(cli), part)
    assert command is not None
    todo.append((command, click.Context(command, info_name=part)))
    while todo:
        command, context = todo.pop()
        found |= set(VARIABLE.findall(command.get_help(context)))
        if isinstance(command, click.Group):
            children = [command.get_command(context, child) for child in command.list_commands(context)]
            todo += [(child, click.Context(child, parent=context)) for child in children if child is not None]
    assert found <= variables_in_the_code()


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example starts no server and needs no network; one that does is shown as `text` and says so."""
    monkeypatch.chdir(tmp_path)
    examples = [(page, index, body) for page in PAGES for index, body in enumerate(blocks(page, "python"))]
    assert examples, "the README has one"
    for page, index, body in examples:
        exec(compile(body, f"{name(page)}[{index}]", "exec"), {"__name__": "example"})


def test_the_checker_of_commands_sees_wrong_ones() -> None:
    assert check_oncluster(["oncluster", "up", "--port-base", "0"]) == ""
    assert "no command" in check_oncluster(["oncluster", "upp"])
    assert "--fast" in check_oncluster(["oncluster", "up", "--fast"])
    assert "no argument" in check_oncluster(["oncluster", "up", "now"])


def test_the_checker_of_links_knows_headings() -> None:
    assert "two-commands" in anchors(ROOT / "README.md")
