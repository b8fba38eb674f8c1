"""Builds Kubernetes, CoreDNS, helm, kwok, Prometheus, a DRA driver and two small tools of ours from source.

Each Go module under `dev_cluster/go` is built once and kept under
`CACHE/bin/HASH`, where the hash covers its sources, go.mod, go.sum and the build flags.
Only the programs are kept, not Go's build cache; modules that are built together share it.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pearl_dev.errors import ClusterError, CommandError
from pearl_dev.go_toolchain import toolchain
from pearl_dev.packages import find, knows_cdi
from pearl_dev.settings import SOURCE
from pearl_dev.shell import run
from pearl_worker.cache import drop_unused, no_space, used

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pearl_dev.go_toolchain import Go
    from pearl_dev.progress import Progress, Step
    from pearl_dev.settings import Settings

BUILD_GIB = 9.0
"""Room for Go's caches while everything is built; half a GiB stays."""
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl")
"""What the one `kube` program is, depending on the name it is started by."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program of a module.

    Attributes:
        package: import path of its main package, "." for the module's root.
        stamps: variables set at link time to the version of a required module.
    """

    name: str
    package: str
    stamps: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module and what is built from it; `cold` is roughly how long that takes."""

    folder: str
    cold: str
    tags: str
    programs: tuple[Program, ...]

    @property
    def source(self) -> Path:
        """The module's files."""
        return SOURCE / "go" / self.folder


KUBERNETES = "k8s.io/kubernetes"
PROMETHEUS = "github.com/prometheus/prometheus"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")

MODULES = (
    Module("tools", "1 minute", "", (Program("pause", "./pause"), Program("fakegpu", "./fakegpu"))),
    Module(
        "kube",
        "6 to 12 minutes on 2 cores",
        "notest,grpcnotrace",
        (
            Program("kube", ".", tuple((f"{package}.gitVersion", KUBERNETES) for package in VERSION_PACKAGES)),
            Program("coredns", "./coredns"),
            Program(
                "helm", "helm.sh/helm/v3/cmd/helm", (("helm.sh/helm/v3/internal/version.version", "helm.sh/helm/v3"),)
            ),
            Program(
                "kwok", "sigs.k8s.io/kwok/cmd/kwok", (("sigs.k8s.io/kwok/pkg/consts.Version", "sigs.k8s.io/kwok"),)
            ),
        ),
    ),
    Module(
        "dra",
        "1 minute on 2 cores",
        "notest,grpcnotrace",  # as kube, to share what both compile; the driver itself needs Kubernetes 1.36's packages
        (Program("dra-example-kubeletplugin", "sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin"),),
    ),
    Module(
        "prometheus",
        "2 to 5 minutes on 2 cores",
        "remove_all_sd,enable_kubernetes_sd",
        tuple(
            Program(name, f"{PROMETHEUS}/cmd/{name}", (("github.com/prometheus/common/version.Version", PROMETHEUS),))
            for name in ("prometheus", "promtool")
        ),
    ),
)

CONTAINERD = Module(
    "containerd",
    "2 to 3 minutes on 2 cores",
    "notest,grpcnotrace,no_btrfs,no_devmapper,no_zfs",
    (
        Program("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        Program("containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"),
        Program("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ),
)
"""Only where the machine's own containerd is too old to give a container the devices of a ResourceClaim."""


def needed() -> tuple[Module, ...]:
    """What this machine's clusters are made of."""
    return MODULES if knows_cdi() else (*MODULES, CONTAINERD)


@dataclass(frozen=True, slots=True)
class Binaries:
    """Folders of built programs."""

    folders: tuple[Path, ...]

    def __getitem__(self, name: str) -> Path:
        """Path of one program.

        Raises:
            KeyError: it is not one of ours.
        """
        for folder in self.folders:
            if (folder / name).exists():
                return folder / name
        raise KeyError(name)

    def or_hosts(self, name: str) -> Path:
        """Path of a program that the machine may have itself.

        Raises:
            KeyError: neither has it.
        """
        try:
            return self[name]
        except KeyError:
            found = find(name)
            if found is None:
                raise
            return Path(found)

    @property
    def path(self) -> str:
        """The folders as for PATH."""
        return ":".join(str(folder) for folder in self.folders)


def ensure(settings: Settings, progress: Progress) -> Binaries:
    """Programs from the cache; what is not there is built."""
    modules = needed()
    folders = {module.folder: settings.binaries / digest(module) for module in modules}
    if not all(folder.is_dir() for folder in folders.values()):
        with _only_one(settings.binaries):
            absent = [module for module in modules if not folders[module.folder].is_dir()]
            if len(absent) == len(modules) and (lack := no_space(settings.cache, BUILD_GIB)):
                raise ClusterError(f"Kubernetes and the other programs cannot be built: {lack}")
            go = toolchain(settings, progress)
            for module in absent:
                _build_module(go, module, folders[module.folder], progress)
                drop_unused(folders[module.folder], f"{module.folder}-*")
            go.drop_scratch()
    return Binaries(tuple(used(folder) for folder in folders.values()))


def digest(module: Module) -> str:
    """Hash of everything a module's programs depend on."""
    total = hashlib.sha256(repr(module).encode())
    for file in sorted(path for path in module.source.rglob("*") if path.is_file()):
        total.update(f"{file.relative_to(module.source)}\0".encode())
        total.update(file.read_bytes())
    return f"{module.folder}-{total.hexdigest()[:16]}"


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_module(go: Go, module: Module, target: Path, progress: Progress) -> None:
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    names = ", ".join(program.name for program in module.programs)
    progress.say(f"Building {names} from source, once (about {module.cold})")
    with progress.step(f"Download Go module {module.folder}"):
        run([go.program, "mod", "download"], cwd=module.source, environment=go.environment)
    for program in module.programs:
        with progress.step(f"Build {program.name}") as step:
            _build(go, module, program, fresh / program.name, step)
    if (fresh / "kube").exists():
        for component in COMPONENTS:
            (fresh / component).symlink_to("kube")
    fresh.rename(target)


def _build(go: Go, module: Module, program: Program, target: Path, step: Step) -> None:
    argv = [
        go.program,
        "build",
        "-v",
        "-tags",
        module.tags,
        "-ldflags",
        _ldflags(module, program),
        "-o",
        str(target),
        program.package,
    ]
    listing = run(
        [go.program, "list", "-deps", "-tags", module.tags, program.package],
        cwd=module.source,
        environment=go.environment,
    )
    total = len(listing.splitlines())
    with subprocess.Popen(argv, cwd=module.source, env=go.environment, stderr=subprocess.PIPE, text=True) as build:
        lines = []
        for line in build.stderr or ():
            lines.append(line)
            step.update(f"{len(lines)} of at most {total} packages")
    if build.returncode != 0:
        raise CommandError(argv, build.returncode, "".join(lines))


def _ldflags(module: Module, program: Program) -> str:
    required = (module.source / "go.mod").read_text()
    flags = ["-s", "-w"]
    for variable, requirement in program.stamps:
        found = re.search(rf"^\s*(?:require )?{re.escape(requirement)} (v\S+)", required, re.MULTILINE)
        if found is None:
            raise KeyError(f"{requirement} is not in {module.source / 'go.mod'}")
        flags.append(f"-X {variable}={found[1]}")
        if requirement == KUBERNETES:  # helm and kubectl compare these numbers
            package, (major, minor) = variable.rpartition(".")[0], found[1].lstrip("v").split(".")[:2]
            flags += [
                f"-X {package}.gitMajor={major}",
                f"-X {package}.gitMinor={minor}",
                f"-X {package}.gitTreeState=clean",
            ]
    return " ".join(flags)
