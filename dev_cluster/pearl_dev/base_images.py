"""The images every cluster starts with, made here because there is no registry.

A small Debian with Python stands in for `python:3.11-slim`, so that the project's own
Dockerfiles build unchanged; the others hold one static program each.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_dev import docker_archive
from pearl_dev.docker_archive import Image
from pearl_dev.shell import run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pearl_dev.binaries import Binaries
    from pearl_dev.progress import Progress
    from pearl_dev.settings import Settings

SUITE = "bookworm"  # its Python is 3.11
PYTHON = Image(
    names=("docker.io/library/python:3.11-slim", "docker.io/library/python:3.11-slim-bookworm"),
    command=("python3",),
    environment=("LANG=C.UTF-8",),
)
DEBIAN_PACKAGES = (
    "python3", "python3-venv", "python3-pip", "ca-certificates", "curl", "procps",
    "libnuma1", "libgomp1", "libstdc++6",  # an engine on CPU loads these
)  # fmt: skip
LINKS = {"usr/local/bin/python": "/usr/bin/python3", "usr/local/bin/python3": "/usr/bin/python3"}
HOOKS = (
    'rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED',  # the image it stands in for lets pip install
    'cd "$1" && rm -rf usr/share/doc/* usr/share/man/* usr/share/locale/* var/cache/apt/* var/lib/apt/lists/*',
)


@dataclass(frozen=True, slots=True)
class Static:
    """An image that holds one of our static programs."""

    program: str
    user: str = ""

    @property
    def image(self) -> Image:
        """Its name and start."""
        return Image(names=(f"docker.io/pearl/{self.program}:1",), entrypoint=(f"/{self.program}",), user=self.user)


STATIC = (Static("pause", user="65535"), Static("coredns"), Static("prometheus", user="65534"), Static("fakegpu"))


def ensure(settings: Settings, binaries: Binaries, progress: Progress) -> list[Path]:
    """Archives of the base images, made when they are not cached."""
    settings.images.mkdir(parents=True, exist_ok=True)
    return [python(settings, progress), *static(settings, binaries)]


def static(settings: Settings, binaries: Binaries) -> list[Path]:
    """Archives of the images with one program each."""
    settings.images.mkdir(parents=True, exist_ok=True)
    return [_static(settings, binaries, one) for one in STATIC]


def python(settings: Settings, progress: Progress) -> Path:
    """Archive of the Python base image."""
    settings.images.mkdir(parents=True, exist_ok=True)
    recipe = repr((SUITE, PYTHON, DEBIAN_PACKAGES, LINKS, HOOKS))
    target = settings.images / f"python-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar"
    if not target.exists():
        with (
            progress.step(f"Python base image ({SUITE}, {len(DEBIAN_PACKAGES)} packages)"),
            tempfile.TemporaryDirectory() as work,
        ):
            root, links = Path(work) / "root.tar", Path(work) / "links.tar"
            hooks = [f"--customize-hook={hook}" for hook in HOOKS]
            sources = mirror_sources(Path("/etc/apt"))
            include = f"--include={','.join(DEBIAN_PACKAGES)}"
            run(
                [
                    "mmdebstrap",
                    "--quiet",
                    "--variant=minbase",
                    include,
                    *hooks,
                    SUITE,
                    root,
                    *(["-"] if sources else []),
                ],
                stdin=sources,
            )
            docker_archive.layer(links, LINKS)
            docker_archive.write(target, PYTHON, [root, links])
    return target


def mirror_sources(apt: Path) -> str | None:
    """Package sources for SUITE from where this Debian takes its own; None for the usual mirror.

    Reads both formats of source files and keeps only the archive's addresses.
    """
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    text = "\n".join(file.read_text() for file in files if file.is_file() and file.suffix in {".list", ".sources"})
    return "\n".join(f"deb {address} {suite} main" for address, suite in _archives(text.splitlines())) or None


def _archives(lines: Iterable[str]) -> list[tuple[str, str]]:
    found = []
    for line in lines:
        match = re.match(r"\s*(?:URIs:|deb(?:\s+\[[^]]*\])?)\s+(\S+/debian(-security)?)/?(?:\s|$)", line)
        if match:
            found.append((match[1], f"{SUITE}-security" if match[2] else SUITE))
    return list(dict.fromkeys(found))


def _static(settings: Settings, binaries: Binaries, static: Static) -> Path:
    program = binaries[static.program]
    recipe = hashlib.sha256(repr(static.image).encode())
    recipe.update(program.resolve().parent.name.encode())  # the folder's name is the build's hash
    target = settings.images / f"{static.program}-{recipe.hexdigest()[:16]}.tar"
    if not target.exists():
        with tempfile.TemporaryDirectory() as work:
            content = Path(work) / "layer.tar"
            docker_archive.layer(content, {static.program: program})
            docker_archive.write(target, static.image, [content])
    return target
