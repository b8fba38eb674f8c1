"""Published weights are checked, byte for byte, before anything is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from pearl_trainer import weights as trainer
from pearl_worker.ports import WeightsError
from pearl_worker.weights import CheckedSource, DirectoryStore, HttpStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """Version 1, published by the trainer's own SDK."""
    source, made = tmp_path / "weights", tmp_path / "made"
    source.mkdir()
    made.mkdir()
    for name in ("b.safetensors", "a.safetensors", "config.json"):
        (made / name).write_bytes(name.encode() * 1000)
    trainer.publish(str(source), 1, made)
    return source


def source_of(directory: Path) -> CheckedSource:
    return CheckedSource(DirectoryStore(directory), "model")


async def test_reads_what_the_trainer_published(published: Path) -> None:
    source = source_of(published)
    manifest = await source.manifest()
    assert manifest is not None
    assert manifest.version == 1
    assert [path.name for path in await source.fetch(manifest)] == ["a.safetensors", "b.safetensors"]


async def test_no_manifest_is_version_0_and_no_directory_is_an_error(tmp_path: Path) -> None:
    assert await source_of(tmp_path).manifest() is None
    with pytest.raises(WeightsError, match="is no directory: mount it"):
        await source_of(tmp_path / "absent").manifest()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "a.safetensors").write_bytes(b"x" * 13000), "a.safetensors does not have the hash"),
        (lambda folder: (folder / "a.safetensors").write_bytes(b"x"), "has 1 bytes and not 13000"),
        (lambda folder: (folder / "a.safetensors").unlink(), "cannot be read"),
        (lambda folder: (folder / "index.json").write_text("{}"), "index.json does not have the hash"),
        (lambda folder: (folder / "index.json").unlink(), "index.json is missing"),
    ],
)
async def test_damage_is_found(published: Path, damage: Any, message: str) -> None:
    source = source_of(published)
    manifest = await source.manifest()
    damage(published / manifest.uri)
    with pytest.raises(WeightsError, match=message):
        await source.fetch(manifest)


async def test_an_index_cannot_point_out_of_its_directory(published: Path) -> None:
    source = source_of(published)
    manifest = await source.manifest()
    index = {"files": [{"path": "../a.safetensors", "bytes": 1, "sha256": "0" * 64}]}
    text = json.dumps(index).encode()
    (published / manifest.uri / "index.json").write_bytes(text)
    import hashlib

    forged = manifest.model_copy(update={"sha256": hashlib.sha256(text).hexdigest()})
    with pytest.raises(WeightsError, match=r"files\.0\.path"):
        await source.fetch(forged)


async def test_an_interrupted_download_goes_on_where_it_stopped(published: Path, tmp_path: Path) -> None:
    ranges = []

    @web.middleware
    async def note(request: Any, handler: Any) -> Any:
        ranges.append((request.path, request.headers.get("Range")))
        return await handler(request)

    app = web.Application(middlewares=[note])
    app.router.add_static("/w", published)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        source = CheckedSource(HttpStore(session, f"http://127.0.0.1:{port}/w", tmp_path / "local"), "model")
        manifest = await source.manifest()
        index = json.loads((published / "1" / "index.json").read_text())
        sha = next(file["sha256"] for file in index["files"] if file["path"] == "a.safetensors")
        partial = tmp_path / "local" / sha / "a.part"
        partial.parent.mkdir(parents=True)
        partial.write_bytes((published / "1" / "a.safetensors").read_bytes()[:5000])
        files = await source.fetch(manifest)
    await runner.cleanup()
    assert ("/w/1/a.safetensors", "bytes=5000-") in ranges
    assert files[0].read_bytes() == (published / "1" / "a.safetensors").read_bytes()
