"""Finds and checks weights: the manifest, the index it names, the files the index names (`pearl_api.wire.weights`).

Nothing here touches the engine. Whatever the store, it ends in local files whose bytes were hashed, so that a
half-written, torn or forged version never reaches a model.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from pearl_api.wire.weights import INDEX, MANIFEST, WeightsFile, WeightsIndex, WeightsManifest
from pearl_worker.ports import NoBaseError, WeightsError
from pearl_worker.stores import DirectoryStore, Store

_SUFFIX = ".safetensors"


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
        paths = [await self._checked(manifest, file) for file in files]
        self._store.keep_only(files)
        return paths

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
        if found != file.sha256:
            self._store.discard(path)
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first(error: ValidationError) -> str:
    detail = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
