"""The parts of the local cluster that need neither root nor a kernel's help."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from pearl_dev.base_images import mirror_sources
from pearl_dev.cgroups import Cgroups
from pearl_dev.cli import parser
from pearl_dev.docker_archive import Image, layer, write
from pearl_dev.errors import ClusterError
from pearl_dev.host import MOUNT_POINTS, Host
from pearl_dev.images import Recipe, build
from pearl_dev.layout import MAX_NODES, SLOTS, Addresses, ClusterSpec, check_spec
from pearl_dev.packages import version_knows_cdi
from pearl_dev.processes import Ledger, Process, boot_id, start_ticks
from pearl_dev.settings import Settings
from pearl_dev.volumes import local_volume

if TYPE_CHECKING:
    from pathlib import Path


def test_clusters_in_different_slots_share_no_address() -> None:
    networks = []
    for slot in range(SLOTS):
        addresses = Addresses(slot)
        networks += [ipaddress.ip_network(text) for text in (*addresses.ranges, addresses.cable)]
    networks.sort()
    assert not any(first.overlaps(second) for first, second in pairwise(networks))
    assert networks[0] == ipaddress.ip_network("10.88.0.0/18")


def test_every_address_of_a_cluster_lies_in_the_ranges_that_the_host_guards() -> None:
    addresses = Addresses(7)
    guarded = [ipaddress.ip_network(text) for text in (*addresses.ranges, addresses.cable)]
    single = [addresses.host, addresses.gateway, addresses.control_plane, addresses.dns, addresses.kubernetes_service]
    single += [addresses.node(index) for index in range(MAX_NODES)]
    single += [addresses.node_pods(MAX_NODES - 1).split("/")[0], addresses.imagined.split("/")[0]]
    for text in single:
        assert any(ipaddress.ip_address(text) in network for network in guarded), text


@pytest.mark.parametrize(
    ("said", "knows"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", False),
        ("containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6", True),
        ("containerd containerd.io 1.7.1 1677a17964311325ed1c31e2c0a3589ce6d5c30d", False),
        ("containerd github.com/containerd/containerd/v2 v2.2.9 deadbeef", True),
        ("something else", False),
    ],
)
def test_a_containerd_that_drops_the_devices_of_claims_is_not_used(said: str, knows: bool) -> None:
    assert version_knows_cdi(said) is knows


def test_a_spec_survives_its_file() -> None:
    spec = ClusterSpec("demo", 2, nodes=3, gpus=0, kwok_nodes=7, monitoring=False)
    assert ClusterSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("name", "nodes", "named"),
    [("Demo", 2, "--name"), ("a" * 21, 2, "--name"), ("demo", 9, "--nodes"), ("demo", -1, "--nodes")],
)
def test_impossible_options_are_refused_by_name(name: str, nodes: int, named: str) -> None:
    with pytest.raises(ClusterError, match=named):
        check_spec(name, nodes)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    for name, value in (("vm/overcommit_memory", "0"), ("kernel/panic", "1")):
        setting = tmp_path / "root/proc/sys" / name
        setting.parent.mkdir(parents=True, exist_ok=True)
        setting.write_text(f"{value}\n")
    (tmp_path / "root/var/lib/cni").mkdir(parents=True)
    return Host(tmp_path / "state/host.json", tmp_path / "root")


def test_kernel_settings_and_folders_are_as_before_after_a_crash_and_a_second_start(host: Host) -> None:
    host.save()
    panic = host.root / "proc/sys/kernel/panic"
    panic.write_text("10")  # a kubelet did, then everything was killed
    host.save()  # must not take the kubelet's value for the host's
    assert all((host.root / point.lstrip("/")).is_dir() for point in MOUNT_POINTS)
    host.restore()
    assert panic.read_text() == "1"
    assert (host.root / "var/lib/cni").is_dir()  # was there before
    assert not (host.root / "var/lib/kubelet").exists()
    assert not host.record.exists()


def test_a_mount_point_that_somebody_uses_by_now_stays(host: Host) -> None:
    host.save()
    (host.root / "var/lib/kubelet/theirs").touch()
    host.restore()
    assert (host.root / "var/lib/kubelet/theirs").exists()


def test_a_process_id_that_was_used_again_is_not_taken_for_ours() -> None:
    ours = start_ticks(os.getpid())
    assert ours is not None
    assert Process("me", os.getpid(), ours, boot_id()).alive()
    assert not Process("earlier", os.getpid(), ours - 1, boot_id()).alive()
    assert not Process("before the restart", os.getpid(), ours, "another boot").alive()


def test_a_stopped_process_is_gone_and_forgotten(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "processes.json")
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    started = ledger.start("sleeper", command, log=tmp_path / "log", environment={})
    assert ledger.processes() == {"sleeper": started}
    assert started.alive()
    ledger.stop(["sleeper", "never started"])
    assert not started.alive()
    assert ledger.processes() == {}


@pytest.mark.parametrize(
    "line",
    [
        "deb http://mirror.example/debian bookworm main",
        "URIs: http://mirror.example/debian/",
        "deb [arch=amd64] http://mirror.example/debian trixie main",
    ],
)
def test_base_image_takes_its_packages_from_where_the_host_takes_its_own(tmp_path: Path, line: str) -> None:
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "debian.sources").write_text(f"{line}\n")
    (folder / "other.list").write_text("deb https://vendor.example/apt stable main\n")
    assert mirror_sources(tmp_path) == "deb http://mirror.example/debian bookworm main"


def test_the_usual_mirror_is_used_where_the_host_is_no_debian(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://mirror.example/ubuntu noble main\n")
    assert mirror_sources(tmp_path) is None


def test_groups_of_a_node_are_removed_with_all_below(tmp_path: Path) -> None:
    for tree in ("memory", "unified"):
        (tmp_path / tree / "pearl-dev-x.0/kubepods/pod1").mkdir(parents=True)
        (tmp_path / tree / "pearl-dev-x.1").mkdir()
    Cgroups(tmp_path).remove("pearl-dev-x.0")
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["pearl-dev-x.1", "pearl-dev-x.1"]


def test_controllers_are_handed_down_on_cgroup_v2(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids rdma\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpuset cpu memory\n")
    Cgroups(tmp_path).create("pearl-dev-x.0")
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+pids"  # what was missing and offered
    assert (tmp_path / "pearl-dev-x.0").is_dir()


def test_an_archive_is_the_same_for_the_same_content(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF")
    for name in ("a", "b"):
        layer(tmp_path / f"{name}-layer.tar", {"program": program, "usr/bin/program": "/program"})
        write(tmp_path / f"{name}.tar", Image(names=("docker.io/pearl/x:1",)), [tmp_path / f"{name}-layer.tar"])
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_an_image_is_known_by_the_content_it_is_made_of(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "Dockerfile").write_text("FROM python:3.11-slim\n")
    (tmp_path / "app.py").write_text("one")
    recipe = Recipe(tmp_path / "Dockerfile", tmp_path, "docker.io/pearl/x:1", inputs=("app.py", "ignored"))
    first = recipe.digest()
    (tmp_path / "ignored").write_text("noise")
    (tmp_path / "README").write_text("not an input")
    assert recipe.digest() == first
    (tmp_path / "app.py").write_text("two")
    assert recipe.digest() != first


def test_an_image_that_kubernetes_would_try_to_pull_is_refused(tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path, {})
    with pytest.raises(ClusterError, match="latest"):
        build(settings, Recipe(tmp_path / "Dockerfile", tmp_path, "docker.io/pearl/x"))


def test_a_volume_from_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="existing folder"):
        local_volume("models", tmp_path / "absent", "default")


def test_a_claim_is_bound_to_its_own_volume(tmp_path: Path) -> None:
    volume, claim = local_volume("models", tmp_path, "team", read_only=True)
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"] == "team-models"
    assert volume["spec"]["claimRef"]["name"] == claim["metadata"]["name"] == "models"
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadOnlyMany"]


def test_a_command_with_options_of_its_own_reaches_exec_whole() -> None:
    options = parser().parse_args(["exec", "--name", "demo", "--", "kubectl", "get", "pods", "-A"])
    assert options.name == "demo"
    assert options.command[-4:] == ["kubectl", "get", "pods", "-A"]
