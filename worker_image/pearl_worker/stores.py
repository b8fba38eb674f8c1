"""Where weights lie: a volume that trainer and workers share, a web server, an object store.

A store hands out small files as bytes and weight files as local paths; it checks nothing, `weights` does.
"""

import asyncio
import importlib
import shutil
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urljoin

import aiohttp

from pearl_api.wire.weights import WeightsFile
from pearl_worker.ports import WeightsError
from pearl_worker.settings import resolve_uri

_CHUNK_BYTES = 4 << 20
_SILENCE_SECONDS = 30.0
_FAILURES = (OSError, aiohttp.ClientError)


class Store(Protocol):
    """Reads one location; `uri` is a version's directory as the manifest names it."""

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file; None = it is not there. Raises WeightsError when that cannot be told."""

    async def local(self, uri: str, file: WeightsFile) -> Path:
        """A weight file on a local path. Raises WeightsError."""

    def discard(self, path: Path) -> None:
        """What `local` gave is no good: get it anew the next time."""

    def keep_only(self, files: Collection[WeightsFile]) -> None:
        """Free the disk of everything else."""


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

    def discard(self, path: Path) -> None:
        """Nothing: it is the trainer's."""

    def keep_only(self, files: Collection[WeightsFile]) -> None:
        """Nothing: the trainer prunes."""

    def _directory(self, uri: str) -> Path:
        return self._root / resolve_uri(uri)


class Remote(Protocol):
    """Something files are downloaded from. Raises one of `_FAILURES` where it cannot be reached."""

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file; None = it is not there."""

    def stream(self, uri: str, name: str, offset: int) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """The bytes from `offset` on, or from the 0 that is given back where it cannot begin in the middle."""


class DownloadStore:
    """Weights from elsewhere; an interrupted download goes on where it stopped."""

    def __init__(self, remote: Remote, directory: Path) -> None:
        """`directory` is this worker's own."""
        self._remote = remote
        self._directory = directory

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file."""
        try:
            return await self._remote.read(uri, name)
        except _FAILURES as error:
            raise WeightsError(f"{_shown(uri, name)} cannot be read: {error or 'timed out'}") from error

    async def local(self, uri: str, file: WeightsFile) -> Path:
        """Download it, unless a file of its hash is here."""
        target = self._directory / file.sha256 / Path(file.path).name
        partial = target.with_suffix(".part")
        try:
            if target.exists():
                return target
            target.parent.mkdir(parents=True, exist_ok=True)
            if _size(partial) != file.bytes:
                await self._download(uri, file, partial)
            return partial.rename(target)
        except _FAILURES as error:
            raise WeightsError(f"{_shown(uri, file.path)} cannot be downloaded: {error or 'timed out'}") from error

    async def _download(self, uri: str, file: WeightsFile, partial: Path) -> None:
        have = _size(partial)
        wanted = have if have < file.bytes else 0
        async with self._remote.stream(uri, file.path, wanted) as (start, chunks):
            with partial.open("r+b" if start else "wb") as out:
                out.seek(start)
                async for chunk in chunks:
                    await asyncio.to_thread(out.write, chunk)
        if (have := _size(partial)) < file.bytes:
            raise OSError(f"it ended after {have} of {file.bytes} bytes")

    def discard(self, path: Path) -> None:
        """Remove it."""
        path.unlink(missing_ok=True)

    def keep_only(self, files: Collection[WeightsFile]) -> None:
        """Remove the files of other versions."""
        kept = {file.sha256 for file in files}
        for folder in self._directory.glob("*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)


class WebServer:
    """A `Remote` behind HTTP."""

    def __init__(self, session: aiohttp.ClientSession, root: str) -> None:
        self._session = session
        self._root = root.rstrip("/") + "/"

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file under `uri`, which is relative to the root or a URL."""
        async with self._session.get(self._url(uri, name)) as answer:
            if answer.status == HTTPStatus.NOT_FOUND:
                return None
            answer.raise_for_status()
            return await answer.read()

    @asynccontextmanager
    async def stream(self, uri: str, name: str, offset: int) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """A range of a file; a server without ranges sends the whole."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_SILENCE_SECONDS)
        async with self._session.get(self._url(uri, name), headers=headers, timeout=timeout) as answer:
            answer.raise_for_status()
            start = offset if answer.status == HTTPStatus.PARTIAL_CONTENT else 0
            yield start, answer.content.iter_chunked(_CHUNK_BYTES)

    def _url(self, uri: str, name: str) -> str:
        return urljoin(urljoin(self._root, uri.rstrip("/") + "/" if uri else ""), name)


class ObjectStore:
    """A `Remote` that `fsspec` knows by its scheme: `s3://`, `gs://`, `abfs://` and more.

    `fsspec` reads credentials and end points from the places its file systems do, and from `FSSPEC_...` variables.
    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._files: Any = None

    async def read(self, uri: str, name: str) -> bytes | None:
        """A small file under `uri`, which is relative to the root or a URL of the same scheme."""
        try:
            content: bytes = await asyncio.to_thread(self._system().cat_file, self._path(uri, name))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise _unreachable(error) from error
        return content

    @asynccontextmanager
    async def stream(self, uri: str, name: str, offset: int) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
        """A file from `offset` on."""
        try:
            file = await asyncio.to_thread(self._system().open, self._path(uri, name), "rb")
            with file:
                file.seek(offset)
                yield offset, _chunks(file)
        except Exception as error:
            raise _unreachable(error) from error

    def _system(self) -> Any:
        if self._files is None:
            core = importlib.import_module("fsspec.core")
            self._files, _ = core.url_to_fs(self._root)
        self._files.invalidate_cache()  # a listing from before would hide what was published since
        return self._files

    def _path(self, uri: str, name: str) -> str:
        directory = uri if "://" in uri else f"{self._root}/{uri}" if uri else self._root
        return f"{directory.rstrip('/')}/{name}"


def _unreachable(error: Exception) -> OSError:
    # Every file system of fsspec has its own tree of errors; a missing package is one of them.
    return error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")


async def _chunks(file: Any) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
        yield chunk


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _shown(uri: str, name: str) -> str:
    return f"{uri.rstrip('/')}/{name}" if uri else name
