"""Published weights are checked, byte for byte, before anything is loaded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from pearl_trainer import weights as trainer
from pearl_worker.ports import WeightsError
from pearl_worker.stores import DirectoryStore, DownloadStore, ObjectStore, WebServer
from pearl_worker.weights import CheckedSource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
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


class Web:
    """The published directory behind HTTP; `ranges` are what was asked for, `cut` breaks off after so many bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ranges: list[tuple[str, str | None]] = []
        self.cut: int | None = None
        self.takes_ranges = True
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = self.folder / request.path.removeprefix("/w/")
        if not path.is_file():
            raise web.HTTPNotFound
        wanted = request.headers.get("Range")
        self.ranges.append((path.name, wanted))
        content, offset = path.read_bytes(), 0
        if wanted and self.takes_ranges:
            offset = int(wanted.removeprefix("bytes=").removesuffix("-"))
        response = web.StreamResponse(status=206 if offset else 200)
        if self.cut is None or path.suffix != ".safetensors":
            response.content_length = len(content) - offset
        await response.prepare(request)
        await response.write(content[offset:][: self.cut])
        if self.cut is not None and path.suffix == ".safetensors" and request.transport is not None:
            request.transport.abort()
        return response


@pytest.fixture
async def served(published: Path) -> AsyncIterator[Web]:
    site = Web(published)
    app = web.Application()
    app.router.add_get("/w/{path:.*}", site.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.url = f"http://127.0.0.1:{runner.addresses[0][1]}/w"
    yield site
    await runner.cleanup()


@pytest.mark.parametrize("takes_ranges", [True, False])
async def test_an_interrupted_download_goes_on_where_it_stopped(
    served: Web, published: Path, tmp_path: Path, takes_ranges: bool
) -> None:
    served.takes_ranges = takes_ranges
    async with aiohttp.ClientSession() as session:
        source = CheckedSource(DownloadStore(WebServer(session, served.url), tmp_path / "local"), "model")
        manifest = await source.manifest()
        served.cut = 5000
        with pytest.raises(WeightsError, match=r"1/a.safetensors cannot be downloaded"):
            await source.fetch(manifest)
        served.cut = None
        files = await source.fetch(manifest)
    assert [asked for asked in served.ranges if asked[0] == "a.safetensors"] == [
        ("a.safetensors", None),
        ("a.safetensors", "bytes=5000-"),
    ]
    assert [file.read_bytes() for file in files] == [
        (published / "1" / name).read_bytes() for name in ("a.safetensors", "b.safetensors")
    ]


async def test_a_download_that_is_not_what_was_published_is_thrown_away_and_begun_anew(
    served: Web, published: Path, tmp_path: Path
) -> None:
    path = published / "1" / "b.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"?")
    async with aiohttp.ClientSession() as session:
        source = CheckedSource(DownloadStore(WebServer(session, served.url), tmp_path / "local"), "model")
        manifest = await source.manifest()
        with pytest.raises(WeightsError, match=r"version 1: b.safetensors does not have the hash"):
            await source.fetch(manifest)
        path.write_bytes(good)
        assert (await source.fetch(manifest))[1].read_bytes() == good
    # What was good the first time was not fetched again.
    assert [name for name, _ in served.ranges if name.endswith(".safetensors")] == [
        *("a.safetensors", "b.safetensors", "b.safetensors")
    ]


async def test_only_the_newest_version_stays_on_the_disk(served: Web, published: Path, tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        source = CheckedSource(DownloadStore(WebServer(session, served.url), tmp_path / "local"), "model")
        await source.fetch(await source.manifest())
        (tmp_path / "made" / "b.safetensors").unlink()
        (tmp_path / "made" / "a.safetensors").write_bytes(b"new")
        trainer.publish(str(published), 2, tmp_path / "made")
        (file,) = await source.fetch(await source.manifest())
    assert [path for path in (tmp_path / "local").rglob("*") if path.is_file()] == [file]


async def test_weights_come_from_an_object_store_and_go_on_where_they_stopped(published: Path, tmp_path: Path) -> None:
    import fsspec

    bucket = fsspec.filesystem("memory")
    bucket.put(f"{published}/", "/bucket/run/", recursive=True)
    source = CheckedSource(DownloadStore(ObjectStore("memory://bucket/run"), tmp_path / "local"), "model")
    try:
        manifest = await source.manifest()
        assert manifest is not None
        index = json.loads((published / "1" / "index.json").read_text())
        sha = next(file["sha256"] for file in index["files"] if file["path"] == "a.safetensors")
        partial = tmp_path / "local" / sha / "a.part"
        partial.parent.mkdir(parents=True)
        partial.write_bytes(b"#" * 5000)  # wrong on purpose: it shows which bytes were not fetched again
        with pytest.raises(WeightsError, match="does not have the hash"):
            await source.fetch(manifest)
        files = await source.fetch(manifest)
        assert files[0].read_bytes() == (published / "1" / "a.safetensors").read_bytes()
        bucket.rm("/bucket/run/manifest.json")
        assert await source.manifest() is None
    finally:
        bucket.rm("/bucket", recursive=True)


@pytest.mark.parametrize(
    ("root", "problem"), [("s3://bucket/run", "s3fs"), ("nosuch://bucket", "nosuch"), ("file:///nowhere/run", None)]
)
async def test_a_store_that_cannot_be_used_says_what_is_missing(root: str, problem: str | None, tmp_path: Path) -> None:
    source = CheckedSource(DownloadStore(ObjectStore(root), tmp_path), "model")
    if problem is None:
        assert await source.manifest() is None
        return
    with pytest.raises(WeightsError, match=f"manifest.json cannot be read: .*{problem}"):
        await source.manifest()


@pytest.mark.parametrize("torn", ['{"version": 2, "uri": "2", "sha', "", '{"version": 2}'])
async def test_a_torn_manifest_is_no_manifest(published: Path, torn: str) -> None:
    (published / "manifest.json").write_text(torn)
    with pytest.raises(WeightsError, match=r"manifest.json is wrong"):
        await source_of(published).manifest()
