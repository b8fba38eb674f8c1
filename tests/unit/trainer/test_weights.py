"""Publishing weights: what a reader of the manifest may see, wherever the trainer stops."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from pearl_api.wire.weights import WeightsIndex, WeightsManifest
from pearl_trainer import ConfigurationError, VersionError, publish
from pearl_trainer import weights as weights_module
from pearl_trainer.weights import steps

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "weights"
    root.mkdir()
    return root


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "model-00001.safetensors").write_bytes(b"one" * 1000)
    (folder / "model-00002.safetensors").write_bytes(b"two" * 1000)
    (folder / "tokenizer" / "vocab.json").write_text("{}")
    return folder


def read(source: Path) -> int:
    """What an agent does: believe the manifest, check the index, check every file. 0 without a manifest."""
    if not (source / "manifest.json").exists():
        return 0
    manifest = WeightsManifest.model_validate_json((source / "manifest.json").read_bytes())
    folder = source / manifest.uri
    raw = (folder / "index.json").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == manifest.sha256
    for entry in WeightsIndex.model_validate_json(raw).files:
        content = (folder / entry.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
    return manifest.version


def test_a_published_version_can_be_checked_file_by_file(source: Path, checkpoint: Path) -> None:
    published = publish(f"file://{source}", 1, checkpoint)
    assert read(source) == 1
    assert published.bytes == 3000 + 3000 + 2
    index = json.loads((source / "1" / "index.json").read_text())
    assert [entry["path"] for entry in index["files"]] == [
        "model-00001.safetensors",
        "model-00002.safetensors",
        "tokenizer/vocab.json",
    ]
    assert checkpoint.joinpath("model-00001.safetensors").exists()


def test_the_manifest_never_names_an_incomplete_version(
    source: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_module, "CHUNK_BYTES", 700)
    publish(str(source), 1, checkpoint)
    total = len(list(steps(str(source), 2, checkpoint))) - 1
    assert total > 10
    version, seen = 2, set()
    for stop in range(total):
        attempt = steps(str(source), version + 1, checkpoint)
        list(islice(attempt, stop))
        attempt.close()  # the trainer dies here
        seen.add(read(source) - version)
        version = read(source)
    assert seen == {0}  # the last step is the one that publishes
    assert publish(str(source), version + 1, checkpoint).version == version + 1  # leftovers are no obstacle
    assert read(source) == version + 1


def test_moved_files_are_not_copied(source: Path, checkpoint: Path) -> None:
    inode = (checkpoint / "model-00001.safetensors").stat().st_ino
    publish(str(source), 7, [checkpoint / "model-00001.safetensors"], move=True)
    assert read(source) == 7
    assert (source / "7" / "model-00001.safetensors").stat().st_ino == inode
    assert not (checkpoint / "model-00001.safetensors").exists()


def test_old_versions_go_but_the_one_before_stays(source: Path, checkpoint: Path) -> None:
    for version in (1, 2, 3, 4):
        publish(str(source), version, checkpoint, keep=2)
    assert sorted(path.name for path in source.iterdir() if path.is_dir()) == ["3", "4"]


@pytest.mark.parametrize("version", [2, 1, 0, -1, True, 1.5])
def test_versions_must_grow(source: Path, checkpoint: Path, version: int) -> None:
    publish(str(source), 2, checkpoint)
    with pytest.raises(VersionError, match="pass"):
        publish(str(source), version, checkpoint)
    assert read(source) == 2


def test_what_cannot_be_published_is_named(source: Path, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model-00001.safetensors").touch()
    cases: list[tuple[str, object, str]] = [
        ("s3://bucket/weights", checkpoint, "PEARL_WEIGHTS_SOURCE"),
        (str(source / "missing"), checkpoint, "is no directory in this pod"),
        (str(source), [], "names no file"),
        (str(source), checkpoint / "nothing.safetensors", "is no file"),
        (str(source), {"../evil": checkpoint / "model-00001.safetensors"}, "file name '../evil'"),
        (str(source), {"index.json": checkpoint / "model-00001.safetensors"}, "PEARL's own"),
        (
            str(source),
            [checkpoint / "model-00001.safetensors", tmp_path / "other" / "model-00001.safetensors"],
            "two files have the same name",
        ),
    ]
    for where, files, said in cases:
        with pytest.raises(ConfigurationError, match=said):
            publish(where, 1, files)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="keep at least 2"):
        publish(str(source), 1, checkpoint, keep=1)
    assert list(source.iterdir()) == []


def test_a_damaged_manifest_is_reported_not_overwritten(source: Path, checkpoint: Path) -> None:
    (source / "manifest.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is damaged"):
        publish(str(source), 1, checkpoint)
    assert (source / "manifest.json").read_text() == "{"
