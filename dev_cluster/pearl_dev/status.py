"""Says what of a cluster runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pearl_dev.control_plane import versions
from pearl_dev.errors import CommandError
from pearl_dev.processes import Ledger

if TYPE_CHECKING:
    from pearl_dev.handle import Cluster


def report(running: Cluster) -> str:
    """A few lines of text: versions, processes, addresses, nodes."""
    spec = running.spec
    lines = [f"cluster {spec.name}" + (" (kind)" if spec.kind else f", slot {spec.slot}")]
    lines += [f"{name} {version}" for name, version in versions(running.binaries).items()]
    if not spec.kind:
        addresses = spec.addresses
        lines.append(
            f"pods {addresses.pods}  nodes {addresses.nodes}  services {addresses.services}  API {addresses.api_url}"
        )
        for process in Ledger(running.paths.ledger).processes().values():
            lines.append(f"{process.name:28} {'runs' if process.alive() else 'STOPPED'}  pid {process.pid}")
    try:
        lines.append(running.kubectl("get", "nodes", "-o", "wide", "--request-timeout=5s").rstrip())
    except CommandError as error:
        lines.append(f"the API server does not answer: {error.output.strip()}")
    return "\n".join(lines)
