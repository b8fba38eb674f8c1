"""Builds the project's own images with buildah from the locally made base image.

    archive = build(settings, dockerfile=Path("Dockerfile"), context=Path("."), tag="docker.io/pearl/operator:dev")
    cluster.load_image(archive)

An image is built once per content: Dockerfile, tag, build arguments and every file of
the context that git would track. Only those files are given to the build.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_dev import base_images
from pearl_dev.errors import ClusterError, CommandError
from pearl_dev.packages import install, missing
from pearl_dev.progress import Progress
from pearl_dev.shell import run
from pearl_worker.cache import drop_unused, used

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pearl_dev.settings import Settings

KEPT_ARCHIVES = 2
ARCHIVE_UNUSED_SECONDS = 3600.0
"""Each commit may make an archive of hundreds of megabytes, which is of no use once it was loaded."""
HOST_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
"""Lent to the build read-only: with them package indexes answer as they do on the host."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made of.

    Attributes:
        dockerfile: the Dockerfile; its `FROM` must be the Python base image.
        context: folder that `COPY` reads from.
        tag: full name of the image, with a tag other than `latest`.
        inputs: paths below the context that the image needs; empty: all that git tracks.
        arguments: values for the Dockerfile's `ARG`s.
    """

    dockerfile: Path
    context: Path
    tag: str
    inputs: Sequence[str] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> list[Path]:
        """The files the build may see, relative to the context."""
        listed = run(["git", "-C", self.context, "ls-files", "-z", "-co", "--exclude-standard", "--", *self.inputs])
        return sorted({Path(name) for name in listed.split("\0") if name and (self.context / name).is_file()})

    def digest(self) -> str:
        """Hash of everything the image depends on, the base image's recipe apart."""
        total = hashlib.sha256(repr((self.tag, sorted(self.arguments.items()))).encode())
        total.update(self.dockerfile.read_bytes())
        for name in self.files():
            total.update(f"{name}\0{(self.context / name).stat().st_mode}\0".encode())
            total.update((self.context / name).read_bytes())
        return total.hexdigest()[:16]


def build(settings: Settings, recipe: Recipe, progress: Progress | None = None) -> Path:
    """Archive of the image, built when its content is new.

    Raises:
        ClusterError: the tag cannot be used in the cluster.
        CommandError: the build failed; the message ends with its output.
    """
    shown = progress or Progress(quiet=True)
    if ":" not in recipe.tag.rpartition("/")[2] or recipe.tag.endswith(":latest"):
        raise ClusterError(
            f"image tag {recipe.tag!r}: give a tag other than 'latest', which Kubernetes would try to pull"
        )
    absent = missing()
    if absent:
        install(absent)
    base = base_images.python(settings, shown)
    short = recipe.tag.rpartition("/")[2].replace(":", "-")
    target = settings.images / f"{short}-{recipe.digest()}-{base.stem.rpartition('-')[2][:6]}.tar"
    if not target.exists():
        with shown.step(f"Build image {recipe.tag}"):
            Buildah(settings.cache / "buildah").build(recipe, base, target)
        drop_unused(target, f"{short}-*.tar", keep=KEPT_ARCHIVES, unused_seconds=ARCHIVE_UNUSED_SECONDS)
    return used(target)


@dataclass(frozen=True, slots=True)
class Buildah:
    """buildah with a storage of its own, in a mount namespace of its own."""

    root: Path

    def build(self, recipe: Recipe, base: Path, target: Path) -> None:
        """Build and write the archive."""
        self._ensure_base(base)
        with tempfile.TemporaryDirectory(prefix="pearl-build-") as work:
            context = Path(work) / "context"
            for name in recipe.files():
                (context / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(recipe.context / name, context / name)
            context.mkdir(exist_ok=True)
            lent = [f"--volume={file}:{file}:ro" for file in HOST_FILES if Path(file).exists()]
            arguments = [f"--build-arg={name}={value}" for name, value in recipe.arguments.items()]
            self._run(
                "build", "--isolation=chroot", "--network=host", "--pull-never", "--layers", *lent, *arguments,
                "--file", str(recipe.dockerfile.resolve()), "--tag", recipe.tag, str(context),
            )  # fmt: skip
        fresh = target.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        self._run("push", "--quiet", recipe.tag, f"docker-archive:{fresh}:{recipe.tag}")
        fresh.replace(target)

    def _ensure_base(self, base: Path) -> None:
        mark = self.root / f"{base.stem}.pulled"
        if mark.exists():
            return
        self.root.mkdir(parents=True, exist_ok=True)
        first, *others = base_images.PYTHON.names
        for stale in self.root.glob("*.pulled"):
            stale.unlink()
        try:
            self._run("rmi", "--all", "--force")  # layers cached on another base would be taken for good
        except CommandError:
            shutil.rmtree(self.root / "storage", ignore_errors=True)
        self._run("pull", "--quiet", f"docker-archive:{base}:{first}")
        for name in others:
            self._run("tag", first, name)
        mark.touch()

    def _run(self, verb: str, *words: str) -> str:
        storage = ["--root", str(self.root / "storage"), "--runroot", str(self.root / "run")]
        return run(["unshare", "--mount", "buildah", *storage, verb, *words])
