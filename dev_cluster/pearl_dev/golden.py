"""Image layers unpacked once, then shared by all nodes.

Importing an image unpacks it, which is slow and happens per node. So the base images
are imported once into a *golden* containerd root; a node starts from a copy in which
the layers, which never change, are hard links and only the databases are real copies.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_dev.shell import run
from pearl_worker.cache import drop_unused, used

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pearl_dev.binaries import Binaries
    from pearl_dev.progress import Progress
    from pearl_dev.settings import Settings

IMPORT = """
set -eu
"$1" --config "$3/containerd.toml" >"$3/containerd.log" 2>&1 & daemon=$!
for _ in $(seq 200); do "$2" -a "$3/sock" version >/dev/null 2>&1 && break; sleep 0.1; done
"$2" -a "$3/sock" -n k8s.io images import "$4"
kill $daemon; wait $daemon || true
"""


def ensure(settings: Settings, binaries: Binaries, archives: Sequence[Path], progress: Progress) -> Path:
    """A containerd root that holds these image archives.

    The archives' names carry their content hash, so the list of names is the key. Each
    longer list starts from the root of the list without its last archive.
    """
    containerd = binaries.or_hosts("containerd")
    key = hashlib.sha256(f"{containerd.parent.name} {run([containerd, '--version'])}".encode())
    for archive in archives:
        key.update(archive.name.encode())
    target = settings.cache / "golden" / key.hexdigest()[:16]
    if target.is_dir():
        return used(target)
    parent = ensure(settings, binaries, archives[:-1], progress) if len(archives) > 1 else None
    with progress.step(f"Unpack image {archives[-1].stem}"):
        _unpack(binaries, parent, archives[-1], target)
    drop_unused(target)
    return target


def _unpack(binaries: Binaries, parent: Path | None, archive: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=".new-"))
    if parent is not None:
        clone(parent, fresh)
    with tempfile.TemporaryDirectory(prefix="pearl-golden-") as work:  # socket paths must be short
        (Path(work) / "containerd.toml").write_text(
            f'version = 2\nroot = "{fresh}"\nstate = "{work}/state"\n[grpc]\n  address = "{work}/sock"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        )
        run(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "--kill-child=KILL",
             "bash", "-c", IMPORT, "golden", binaries.or_hosts("containerd"), binaries.or_hosts("ctr"), work, archive],
        )  # fmt: skip
    fresh.chmod(0o711)
    fresh.rename(target)


def clone(source: Path, target: Path) -> None:
    """Copy a containerd root: hard links where the file system allows, databases for real."""
    same_disk = source.stat().st_dev == target.stat().st_dev
    run(["cp", "-a", *(["-l"] if same_disk else []), f"{source}/.", target])
    for copy in target.glob("*/*.db"):
        copy.unlink()
        shutil.copy2(source / copy.relative_to(target), copy)
