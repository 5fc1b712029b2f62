"""Makes the virtual environment: `python3 tools/make_venv.py .venv`. Standard library only.

The Makefile has found a Python that will do. Steps: create the environment with it; install what
requirements.lock says (with uv when it can be had, because it is several times faster, else with pip);
install this project itself, so that `oncluster` stands in the environment's bin. A stamp says for which lock
and which project file this was done; an interrupted run leaves no stamp and is simply done again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = "oncluster-stamp"


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def fail(text: str) -> None:
    say(f"make venv: {text}")
    sys.exit(1)


def digest() -> str:
    """Of everything that decides what is installed."""
    state = hashlib.sha256(f"{sys.version_info[:2]} {ROOT}".encode())
    for name in ("requirements.lock", "pyproject.toml"):
        state.update((ROOT / name).read_bytes())
    return state.hexdigest()


def run(title: str, command: list[str]) -> bool:
    """Run a step; while it takes long, say so; when it fails, show what it printed."""
    started = time.monotonic()
    live = sys.stderr.isatty()
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")}
    environment.setdefault("UV_SYSTEM_CERTS", "1")  # a company's proxy is known to the system, as pip asks it
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=ROOT
        )
        try:
            while True:
                try:
                    process.wait(timeout=1 if live else 15)
                    break
                except subprocess.TimeoutExpired:
                    seconds = f"{time.monotonic() - started:.0f} s"
                    if live:
                        sys.stderr.write(f"\r  {title} … {seconds} ")
                        sys.stderr.flush()
                    else:
                        say(f"  {title} … {seconds}")
        except BaseException:
            process.terminate()
            process.wait()
            raise
        word = "done" if process.returncode == 0 else f"failed (exit code {process.returncode})"
        start = "\r" if live else ""
        say(f"{start}  {title}: {word} in {time.monotonic() - started:.0f} s")
        if process.returncode != 0:
            output.seek(0)
            say(output.read().decode(errors="replace").rstrip())
    return process.returncode == 0


def create(venv: Path) -> None:
    python = venv / "bin" / "python"
    works = python.exists() and (
        subprocess.run([python, "-m", "pip", "--version"], check=False, capture_output=True).returncode == 0
    )
    same = works and (
        subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:2])"],
            check=False,
            capture_output=True,
            text=True,
        ).stdout.strip()
        == str(sys.version_info[:2])
    )
    if same:
        return
    if not run(
        f"creating {venv.name} with Python {sys.version.split()[0]}",
        [sys.executable, "-m", "venv", "--clear", str(venv)],
    ):
        fail(
            "Python could not make a virtual environment. On Debian and Ubuntu that is a package of its own: "
            f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        )


def install(venv: Path) -> None:
    python = str(venv / "bin" / "python")
    lock = str(ROOT / "requirements.lock")
    uv = venv / "bin" / "uv"
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
    if not uv.exists():
        pinned = [
            line.split(";")[0].strip()
            for line in Path(lock).read_text().splitlines()
            if line.startswith("uv==")
        ]
        run("getting uv, the fast installer", [*pip, "--quiet", *(pinned or ["uv"])])
    title = "installing the locked packages (about 1 GB the first time)"
    by_uv = uv.exists() and run(
        f"{title} with uv",
        [str(uv), "pip", "install", "--compile-bytecode", "--python", python, "-r", lock],
    )
    # An old pip without `wheel` would run setup.py instead, which leaves no list of a package's files.
    if not by_uv and not run(f"{title} with pip", [*pip, "--use-pep517", "-r", lock]):
        fail("the packages could not be installed; the reason stands above. No network? Disk full?")
    own = ["--no-deps", "--editable", str(ROOT)]
    by_uv = uv.exists() and run(
        "installing oncluster",
        [str(uv), "pip", "install", "--python", python, *own],
    )
    if not by_uv and not run("installing oncluster with pip", [*pip, "--quiet", *own]):
        fail("the project itself could not be installed; the reason stands above.")


def main() -> None:
    venv = Path(sys.argv[1]).absolute()
    stamp = venv / STAMP
    wanted = digest()
    if stamp.exists() and stamp.read_text().strip() == wanted:
        stamp.touch()
        return
    say("Preparing the virtual environment (again only when requirements.lock or pyproject.toml changes)")
    create(venv)
    stamp.unlink(missing_ok=True)
    install(venv)
    stamp.write_text(wanted + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        say("\nmake venv: interrupted; run it again to go on")
        sys.exit(130)
