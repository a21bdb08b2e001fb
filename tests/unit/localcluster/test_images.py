"""The OCI archive of the cluster's images."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from localcluster.images import Image, archive


def _files(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        read = ((each.name, opened.extractfile(each)) for each in opened.getmembers())
        return {name: file.read() for name, file in read if file is not None}


def test_every_reference_leads_to_a_blob_of_that_digest_and_size(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
    images = [Image(f"example/{name}:1", tmp_path / name) for name in ("one", "two")]
    files = _files(archive(images))
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads(files["index.json"])
    names = [each["annotations"]["io.containerd.image.name"] for each in index["manifests"]]
    assert names == ["example/one:1", "example/two:1"]

    def blob(reference: dict[str, object]) -> bytes:
        found = files[f"blobs/{str(reference['digest']).replace(':', '/')}"]
        assert len(found) == reference["size"]
        assert f"sha256:{hashlib.sha256(found).hexdigest()}" == reference["digest"]
        return found

    for described in index["manifests"]:
        manifest = json.loads(blob(described))
        config = json.loads(blob(manifest["config"]))
        (layer,) = (blob(each) for each in manifest["layers"])
        assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
        (entry,) = _files(layer)
        assert config["config"]["Entrypoint"] == [f"/{entry}"]


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    images = [Image("example/one:1", tmp_path / "one")]
    assert archive(images) == archive(images)


def test_a_binary_in_a_folder_is_found_by_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x")
    files = _files(archive([Image("example/one:1", tmp_path / "one", folder="usr/local/bin/")]))
    documents = [json.loads(each) for name, each in files.items() if each.startswith(b"{")]
    (config,) = [each["config"] for each in documents if "rootfs" in each]
    assert config == {"Entrypoint": ["/usr/local/bin/one"], "Env": ["PATH=/usr/local/bin/"]}
    (layer,) = [each for each in files.values() if not each.startswith(b"{")]
    assert list(_files(layer)) == ["usr/local/bin/one"]
