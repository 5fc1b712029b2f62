"""The system's certificate authorities are read when they are needed, and then they are."""

from __future__ import annotations

import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from engine.tls import authorities_on_demand
from tests.unit.node.test_interserver_tls import certificate_for


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's only authority."""
    file = certificate_for(tmp_path, "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return file


@pytest.mark.usefixtures("authority")
def test_authorities_are_read_before_the_first_connection() -> None:
    with authorities_on_demand():
        context = ssl.create_default_context()
    assert context.cert_store_stats()["x509"] == 0
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="127.0.0.1")
    assert context.cert_store_stats()["x509"] == 1
    assert type(context) is ssl.SSLContext


@pytest.mark.usefixtures("authority")
def test_a_context_on_demand_is_as_strict_as_any() -> None:
    with authorities_on_demand():
        context = ssl.create_default_context()
    usual = ssl.create_default_context()
    for aspect in ("verify_mode", "check_hostname", "verify_flags", "options", "minimum_version"):
        assert getattr(context, aspect) == getattr(usual, aspect)


@pytest.mark.usefixtures("authority")
def test_contexts_made_elsewhere_read_them_at_once() -> None:
    with authorities_on_demand():
        pass
    assert ssl.create_default_context().cert_store_stats()["x509"] == 1


def test_an_authority_that_is_named_is_read_at_once(authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with authorities_on_demand():
        context = ssl.create_default_context(cafile=str(authority))
    assert context.cert_store_stats()["x509"] == 1


def test_what_starts_a_node_is_light_so_that_chdb_starts_beside_the_rest() -> None:
    program = "import sys, engine.node; print('aiohttp' in sys.modules, 'yaml' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False"]
