"""What pip installs is all that an Airflow and a Spark of one's own need: plugin, provider, data source."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli.exits import ExitCode

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = os.pathsep.join((str(ROOT), str(ROOT / "plugins")))
PARTS = ("engine", "plugins", "spark_apps", "pyproject.toml", "README.md")
LOOK = """
import json
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
from engine.etl.launch import APPLICATION
from oncluster_airflow.web import app
from spark_apps.clickhouse_cluster import register

plugins, errors = plugins_manager._get_plugins()
views = [view["name"] for plugin in plugins for view in plugin.external_views]
print(json.dumps({
    "plugins": [plugin.name for plugin in plugins],
    "errors": errors,
    "views": views,
    "applications": [each["name"] for plugin in plugins for each in plugin.fastapi_apps],
    "hook": getattr(ProvidersManager().hooks.get("zookeeper"), "hook_class_name", None),
    "application": str(APPLICATION),
    "files": [app.__file__, register.__code__.co_filename],
}))
"""


ONE_DISTRIBUTION = """
import importlib.metadata
modules = [importlib.metadata]
try:
    import importlib_metadata
    modules.append(importlib_metadata)  # which Airflow takes with Python 3.11
except ImportError:
    pass

def only_one(discovered):
    for each in discovered:
        if each.metadata["Name"] != "oncluster" or str(each.locate_file("")) == {place!r}:
            yield each

for module in modules:
    def discover(cls, discovered=module.Distribution.discover, **how):
        return only_one(discovered(**how))

    module.Distribution.discover = classmethod(discover)
"""
"""Run when Python starts: of those that make venv and this test have installed, one is there, or none."""


def looked(home: Path, *, path: str, plugins: Path, installed: Path | None = None) -> dict[str, object]:
    """What a process of Airflow finds, outside of the checkout."""
    (home / "sitecustomize.py").write_text(ONE_DISTRIBUTION.format(place=str(installed)))
    environment = dict(os.environ)
    environment |= {
        "PYTHONPATH": f"{home}{os.pathsep}{path}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    process = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr[-2000:]
    answer: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed it."""
    source = tmp_path_factory.mktemp("source")
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    site = tmp_path_factory.mktemp("site")
    install = ["install", "--no-deps", "--no-build-isolation", "--no-compile", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *install, str(source)],
        check=True,
        cwd=source.parent,
    )
    return site


@pytest.mark.slow
def test_what_is_installed_is_whole(site: Path, tmp_path: Path) -> None:
    home = tmp_path
    found = looked(home, path=str(site), plugins=home / "no plugins", installed=site)

    assert (found["plugins"], found["errors"]) == (["oncluster"], {})
    assert found["views"] == ["Clusters"]
    assert found["applications"] == ["oncluster"]
    assert found["hook"] == "oncluster_airflow.hooks.keeper.KeeperHook"
    files = found["files"]
    assert isinstance(files, list)
    assert Path(str(found["application"])).is_file()
    for file in (*files, found["application"]):
        assert Path(str(file)).is_relative_to(site)
    demo = subprocess.run(
        [sys.executable, "-m", "engine.cli", "demo"],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(site), "ONCLUSTER_HOME": str(home / "stack")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert demo.returncode == ExitCode.REFUSED, demo.stderr
    assert "started from a checkout of oncluster" in demo.stderr
    templates = {path.name for path in (site / "oncluster_airflow" / "web" / "templates").iterdir()}
    assert templates == {path.name for path in (ROOT / "plugins/oncluster_airflow/web/templates").iterdir()}


@pytest.mark.extended
def test_where_it_is_in_both_places_it_is_found_once(site: Path, tmp_path: Path) -> None:
    found = looked(tmp_path, path=str(site), plugins=ROOT / "plugins", installed=site)
    assert (found["plugins"], found["errors"]) == (["oncluster"], {})


@pytest.mark.extended
def test_where_it_is_not_installed_the_plugins_folder_is_enough(tmp_path: Path) -> None:
    """`plugins` in Airflow's place for it, and the checkout in Python's path."""
    found = looked(tmp_path, path=CHECKOUT, plugins=ROOT / "plugins")
    assert (found["plugins"], found["errors"]) == (["oncluster"], {})
