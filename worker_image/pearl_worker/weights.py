"""Finds and checks weights: the manifest, the index it names, the files the index names (`pearl_api.wire.weights`).

Nothing here touches the engine. A source is a directory on shared storage or an HTTP server; both end in local
files whose bytes were hashed, so that a half-written or forged version never reaches a model.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Protocol
from urllib.parse import urljoin

import aiohttp
from pydantic import ValidationError

from pearl_api.wire.weights import INDEX, MANIFEST, WeightsFile, WeightsIndex, WeightsManifest
from pearl_worker.ports import NoBaseError, WeightsError
from pearl_worker.settings import resolve_uri

_CHUNK_BYTES = 4 << 20
_SUFFIX = ".safetensors"


class Store(Protocol):
    """Reads one location; `uri` is a version's directory as the manifest names it."""

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file; None = it is not there. Raises WeightsError when that cannot be told."""

    async def local(self, uri: str, file: WeightsFile) -> Path:
        """A weight file on a local path. Raises WeightsError."""


class CheckedSource:
    """A `ports.WeightSource` over a store: everything it hands out was hashed."""

    def __init__(self, store: Store, model: str) -> None:
        self._store = store
        self._model = Path(model)

    async def manifest(self) -> WeightsManifest | None:
        """The newest manifest; None = none was published."""
        text = await self._store.read("", MANIFEST)
        if text is None:
            return None
        try:
            return WeightsManifest.model_validate_json(text)
        except ValidationError as error:
            raise WeightsError(f"{MANIFEST} is wrong: {_first(error)}") from error

    async def fetch(self, manifest: WeightsManifest) -> Sequence[Path]:
        """The checked safetensors files of `manifest`, in the order of its index."""
        text = await self._store.read(manifest.uri, INDEX)
        if text is None:
            raise WeightsError(f"version {manifest.version}: {manifest.uri}/{INDEX} is missing")
        if hashlib.sha256(text).hexdigest() != manifest.sha256:
            raise WeightsError(f"version {manifest.version}: {INDEX} does not have the hash that {MANIFEST} names")
        try:
            index = WeightsIndex.model_validate_json(text)
        except ValidationError as error:
            raise WeightsError(f"version {manifest.version}: {INDEX} is wrong: {_first(error)}") from error
        files = [file for file in index.files if file.path.endswith(_SUFFIX)]
        if not files:
            raise WeightsError(f"version {manifest.version}: {INDEX} names no *{_SUFFIX} file")
        return [await self._checked(manifest, file) for file in files]

    async def base(self) -> Sequence[Path]:
        """The files of version 0."""
        files = sorted(self._model.glob("*" + _SUFFIX))
        if not files:
            raise NoBaseError(f"{self._model} holds no *{_SUFFIX} file; version 0 can only be loaded by a restart")
        return files

    async def _checked(self, manifest: WeightsManifest, file: WeightsFile) -> Path:
        path = await self._store.local(manifest.uri, file)
        where = f"version {manifest.version}: {file.path}"
        try:
            size = path.stat().st_size
            found = "" if size != file.bytes else await asyncio.to_thread(_sha256, path)
        except OSError as error:
            raise WeightsError(f"{where} cannot be read: {error}") from error
        if size != file.bytes:
            raise WeightsError(f"{where} has {size} bytes and not {file.bytes}")
        if found != file.sha256:
            raise WeightsError(f"{where} does not have the hash that {INDEX} names")
        return path


class NoSource:
    """A rollout without `spec.weights.source`: version 0 for ever."""

    def __init__(self, model: str) -> None:
        self._base = CheckedSource(DirectoryStore(Path(model)), model)

    async def manifest(self) -> WeightsManifest | None:
        """None."""
        return None

    async def fetch(self, manifest: WeightsManifest) -> Sequence[Path]:
        """Never asked for, since there is no manifest."""
        raise WeightsError(f"version {manifest.version} has no source: set PEARL_WEIGHTS_SOURCE")

    async def base(self) -> Sequence[Path]:
        """The files of version 0."""
        return await self._base.base()


class DirectoryStore:
    """Weights on a volume that trainer and workers share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # Below a claim the trainer makes the folder with its first update; the claim itself must be there.
        claim = len(Path("/pvc/CLAIM").parts)
        self._mount = Path(*root.parts[:claim]) if root.is_relative_to("/pvc") else root

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file under `uri`, which is relative to the root or absolute."""
        path = self._directory(uri) / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            if not self._mount.is_dir():
                raise WeightsError(f"weights source {self._mount} is no directory: mount it") from None
            return None
        except OSError as error:
            raise WeightsError(f"{path} cannot be read: {error}") from error

    async def local(self, uri: str, file: WeightsFile) -> Path:
        """The file itself."""
        return self._directory(uri) / file.path

    def _directory(self, uri: str) -> Path:
        return self._root / resolve_uri(uri)


class HttpStore:
    """Weights on a web server; files are downloaded, and an interrupted download goes on where it stopped."""

    def __init__(self, session: aiohttp.ClientSession, root: str, directory: Path) -> None:
        self._session = session
        self._root = root.rstrip("/") + "/"
        self._directory = directory

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file under `uri`, which is relative to the root or a URL."""
        url = self._url(uri, name)
        try:
            async with self._session.get(url) as answer:
                if answer.status == HTTPStatus.NOT_FOUND:
                    return None
                answer.raise_for_status()
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise WeightsError(f"{url} cannot be read: {error or 'timed out'}") from error

    async def local(self, uri: str, file: WeightsFile) -> Path:
        """Download it, unless a file of its hash is here."""
        target = self._directory / file.sha256 / Path(file.path).name
        if target.exists():
            return target
        partial = target.with_suffix(".part")
        target.parent.mkdir(parents=True, exist_ok=True)
        url = self._url(uri, file.path)
        try:
            await self._download(url, partial)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise WeightsError(f"{url} cannot be downloaded: {error or 'timed out'}") from error
        if partial.stat().st_size != file.bytes or await asyncio.to_thread(_sha256, partial) != file.sha256:
            partial.unlink()
            raise WeightsError(f"{url} is not the file that {INDEX} names")
        return partial.rename(target)

    async def _download(self, url: str, partial: Path) -> None:
        have = _size(partial)
        headers = {"Range": f"bytes={have}-"} if have else {}
        async with self._session.get(url, headers=headers, timeout=aiohttp.ClientTimeout(sock_read=30)) as answer:
            if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # nothing is missing
                return
            answer.raise_for_status()
            with partial.open("ab" if answer.status == HTTPStatus.PARTIAL_CONTENT else "wb") as out:
                async for chunk in answer.content.iter_chunked(_CHUNK_BYTES):
                    out.write(chunk)

    def _url(self, uri: str, name: str) -> str:
        return urljoin(urljoin(self._root, uri.rstrip("/") + "/" if uri else ""), name)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
