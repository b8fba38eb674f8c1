"""How a trainer publishes weights and a worker agent finds them: two small JSON files beside the weights.

`{source}/manifest.json` is a `WeightsManifest`; the trainer replaces it atomically (rename) *after* everything that
it names is written. `{uri}/index.json` is a `WeightsIndex`. No manifest means version 0, which is `model.uri`.

An agent believes the manifest, checks the index against the manifest's hash and every file against the index's, and
touches the engine only then. A published directory is never changed; old ones may be deleted once no worker loads
them (keep at least the last two versions).
"""

from typing import Final

from pydantic import Field

from pearl_api.base import Message

MANIFEST: Final = "manifest.json"
INDEX: Final = "index.json"
SHA256: Final = r"^[0-9a-f]{64}$"


class WeightsManifest(Message):
    """The wanted weights."""

    version: int = Field(ge=1, description="Grows with every update of the trainer; 0 is `model.uri`.")
    uri: str = Field(
        min_length=1, description="Directory with `index.json`: relative to the source, an absolute path or a URI."
    )
    sha256: str = Field(pattern=SHA256, description="Of the bytes of `index.json`.")


class WeightsFile(Message):
    """One file of a version."""

    path: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]*(/[A-Za-z0-9_][A-Za-z0-9_.\-]*)*$",
        description="Relative to the directory of the index; no `..`.",
    )
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=SHA256)


class WeightsIndex(Message):
    """All files of a version; those named `*.safetensors` are loaded, in this order."""

    files: list[WeightsFile] = Field(min_length=1)
