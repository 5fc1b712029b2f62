"""The `<etcd>` section, and places that are named `etcd://`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.keeper_backup import _keeper_place
from engine.config.load import load_client_config
from engine.config.model import Etcd, ZooKeeper
from engine.errors import ConfigError

ETCD = "<etcd><node><host>e1</host></node><node><host>e2</host><port>23790</port></node>{}</etcd>"


def load(tmp_path: Path, text: str):
    file = tmp_path / "config.xml"
    file.write_text(f"<clickhouse>{text}</clickhouse>")
    return load_client_config(file).zookeeper


def test_an_etcd_section_stands_in_the_place_of_zookeeper(tmp_path):
    more = "<root>/a/</root><user>u</user><password>p</password><key_prefix>k/</key_prefix>"
    assert load(tmp_path, ETCD.format(more + "<max_txn_ops>512</max_txn_ops>")) == Etcd(
        hosts=(("e1", 2379), ("e2", 23790)),
        root="/a",
        user="u",
        password="p",
        key_prefix="k/",
        max_txn_ops=512,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ETCD.format("") + "<zookeeper><node><host>z</host></node></zookeeper>", "zookeeper"),
        ("<etcd><user>u</user></etcd>", "names no server"),
        (ETCD.format("<identity>nocolon</identity>"), "user:password"),
        (ETCD.format("<root>relative</root>"), "root"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, text)


def test_a_place_names_an_etcd_or_a_zookeeper_by_its_scheme():
    place = _keeper_place("etcd://e1,e2:23790/tree", None)
    assert place is not None and place.root == "/tree"
    assert place.section == Etcd(hosts=(("e1", 2379), ("e2", 23790)))
    place = _keeper_place("zk://z1/tree", None)
    assert place is not None and place.section == ZooKeeper(hosts=(("z1", 2181),))
