"""What is only for tests is in no image that runs in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = [ROOT / "Dockerfile", *sorted((ROOT / "worker_image").glob("Dockerfile*"))]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_image_is_given_neither_the_simulator_nor_the_development_cluster(file: Path) -> None:
    # The wheel of an image is built from what the build stage was given, folder by folder: a folder that is not
    # copied is not in it.
    given = [
        source
        for line in file.read_text().splitlines()
        if line.startswith("COPY ") and "--from=" not in line
        for source in line.split()[1:-1]
    ]
    assert given
    folders = {source.split("/")[0] for source in given}
    assert folders <= {
        *("crds", "planner", "operator", "gateway", "worker_image", "requirements"),
        *("pyproject.toml", "README.md", "LICENSE", "NOTICE"),
    }
    assert not any(source in (".", "./", "*") for source in given)
