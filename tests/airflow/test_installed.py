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
    "hook": ProvidersManager().hooks["zookeeper"].hook_class_name,
    "application": str(APPLICATION),
    "files": [app.__file__, register.__code__.co_filename],
}))
"""


def looked(home: Path, *, path: str, plugins: Path) -> dict[str, object]:
    """What a process of Airflow finds, outside of the checkout."""
    environment = dict(os.environ)
    environment |= {
        "PYTHONPATH": path,
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


@pytest.mark.slow
def test_what_is_installed_is_whole(tmp_path: Path) -> None:
    source, site, home = tmp_path / "source", tmp_path / "site", tmp_path / "home"
    for directory in (source, home):
        directory.mkdir()
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--target", str(site), str(source)], check=True, cwd=home
    )

    found = looked(home, path=str(site), plugins=home / "no plugins")

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
def test_where_it_is_installed_and_in_the_plugins_folder_it_is_found_once(tmp_path: Path) -> None:
    found = looked(tmp_path, path=CHECKOUT, plugins=ROOT / "plugins")
    assert (found["plugins"], found["errors"]) == (["oncluster"], {})


@pytest.mark.extended
def test_where_it_is_not_installed_the_plugins_folder_is_enough(tmp_path: Path) -> None:
    """`plugins` in Airflow's place for it, and the checkout in Python's path."""
    for name in ("oncluster_plugin.py", ".airflowignore"):
        shutil.copy(ROOT / "plugins" / name, tmp_path / name)
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "whole = m.Distribution.discover\n"
        "m.Distribution.discover = classmethod(\n"
        "    lambda cls, **how: (d for d in whole(**how) if d.metadata['Name'] != 'oncluster')\n"
        ")\n"
    )
    found = looked(tmp_path, path=f"{tmp_path}{os.pathsep}{CHECKOUT}", plugins=tmp_path)
    assert (found["plugins"], found["errors"]) == (["oncluster"], {})
