"""The initial content of a node's containerd."""

from pathlib import Path

import pytest

from localcluster.seed import LINK, plant

LAYERS = "io.containerd.snapshotter.v1.{}/snapshots"
BLOB = "io.containerd.content.v1.content/blobs/sha256/aa"
RECORDS = "io.containerd.metadata.v1.bolt/meta.db"


@pytest.fixture(params=["overlayfs", "native"])
def root(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("localcluster.seed.snapshotter_for", lambda *_: request.param)
    found = tmp_path / "seed" / "root"
    for name in (f"{LAYERS.format(request.param)}/1/fs/usr/bin/python3", BLOB, RECORDS):
        (found / name).parent.mkdir(parents=True)
        (found / name).write_text("of the seed")
    return found


def test_a_node_copies_records_and_links_layers(root: Path, tmp_path: Path) -> None:
    node = tmp_path / "n1"
    node.mkdir()
    plant(root, node)
    (node / "containerd" / RECORDS).write_text("of the node")
    assert (root / RECORDS).read_text() == "of the seed"
    assert (node / "containerd" / BLOB).samefile(root / BLOB)
    (layers,) = (node / "containerd").glob(LAYERS.format("*"))
    (place,) = layers.iterdir()
    assert list(place.iterdir()) == []  # for the mount
    assert (node / LINK / place.relative_to(node / "containerd") / "fs").is_dir()
