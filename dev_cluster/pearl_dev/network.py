"""The cluster's network: namespaces of its own, one cable to the host, no way out.

```
 host ── pearl-sN ═══ uplink ── namespace of the control plane ── pearl0 (bridge) ── node.0, node.1, …
```

The cluster's namespace has no default route, so nothing in it can reach past the host.
On the host, routes that *drop* stand behind the ones that lead into the cable: from
before it exists until after it is gone, a packet for a cluster address cannot take the
host's default route. Nothing else on the host's network is touched.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pearl_dev.errors import ClusterError
from pearl_dev.processes import NETNS
from pearl_dev.shell import run, succeeds

if TYPE_CHECKING:
    from pearl_dev.layout import Addresses, ClusterSpec

DROP_METRIC = "4242"
CABLE_METRIC = "42"


def up(spec: ClusterSpec) -> None:
    """Make the namespaces, the cable and the routes."""
    guard(spec)
    _cable(spec)
    _hub(spec)
    for index in range(spec.nodes):
        _node(spec, index)
    route_services(spec, 0)


def guard(spec: ClusterSpec) -> None:
    """Make the host drop packets for the cluster's addresses.

    Raises:
        ClusterError: one of the ranges is in use here.
    """
    addresses = spec.addresses
    for wanted in (*addresses.ranges, addresses.cable):
        others = json.loads(run(["ip", "-j", "route", "show", "root", wanted]))
        foreign = [
            route
            for route in others
            if route.get("metric") not in (int(DROP_METRIC), int(CABLE_METRIC)) and route.get("dev") != spec.cable
        ]
        if foreign:
            raise ClusterError(f"the host already has a route inside {wanted}, which the cluster needs: {foreign[0]}")
        run(["ip", "route", "replace", "blackhole", wanted, "metric", DROP_METRIC])


def _cable(spec: ClusterSpec) -> None:
    addresses = spec.addresses
    run(["ip", "netns", "add", spec.netns])
    run(["ip", "link", "add", spec.cable, "type", "veth", "peer", "name", "uplink", "netns", spec.netns])
    # The address is the loopback's, not the cable's: programs that take every interface
    # of the host for a way to their peers (UCX does) must not find this one.
    run(["ip", "address", "add", f"{addresses.host}/32", "dev", "lo"])
    run(["ip", "link", "set", spec.cable, "up"])
    to_cable = ["dev", spec.cable, "src", addresses.host, "metric", CABLE_METRIC]
    run(["ip", "route", "replace", addresses.gateway, "scope", "link", *to_cable])
    for wanted in addresses.ranges:
        run(["ip", "route", "replace", wanted, "via", addresses.gateway, "onlink", *to_cable])


def _hub(spec: ClusterSpec) -> None:
    inside = ["ip", "-n", spec.netns]
    addresses = spec.addresses
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "address", "add", f"{addresses.gateway}/30", "dev", "uplink"])
    run([*inside, "link", "set", "uplink", "up"])
    # Some hosts answer no ARP for an address of the loopback.
    hardware = json.loads(run(["ip", "-j", "link", "show", "dev", spec.cable]))[0]["address"]
    run([*inside, "neighbour", "replace", addresses.host, "lladdr", hardware, "dev", "uplink", "nud", "permanent"])
    run([*inside, "link", "add", "pearl0", "type", "bridge"])
    run([*inside, "address", "add", f"{addresses.control_plane}/24", "dev", "pearl0"])
    run([*inside, "link", "set", "pearl0", "up"])
    set_sysctl(spec.netns, "net/ipv4/ip_forward", "1")


def _node(spec: ClusterSpec, index: int) -> None:
    scope, addresses = spec.node_scope(index), spec.addresses
    inside = ["ip", "-n", scope]
    run(["ip", "netns", "add", scope])
    run(["ip", "-n", spec.netns, "link", "add", f"node{index}", "type", "veth", "peer", "name", "eth0", "netns", scope])
    run(["ip", "-n", spec.netns, "link", "set", f"node{index}", "master", "pearl0", "up"])
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "address", "add", f"{addresses.node(index)}/24", "dev", "eth0"])
    run([*inside, "link", "set", "eth0", "up"])
    # No default route here either: only what belongs to the cluster is known.
    for wanted in (addresses.pods, addresses.services, addresses.cable):
        run([*inside, "route", "add", wanted, "via", addresses.control_plane])
    run(["ip", "-n", spec.netns, "route", "replace", addresses.node_pods(index), "via", addresses.node(index)])
    set_sysctl(scope, "net/ipv4/ip_forward", "1")


def route_services(spec: ClusterSpec, index: int) -> None:
    """Send what the host or the control plane asks of a Service through this node's kube-proxy."""
    run(["ip", "-n", spec.netns, "route", "replace", spec.addresses.services, "via", spec.addresses.node(index)])


def set_sysctl(netns: str, name: str, value: str) -> None:
    """Set a network setting inside a namespace."""
    run(["nsenter", f"--net={NETNS / netns}", "sh", "-c", f"echo {value} > /proc/sys/{name}"])


def default_routes(netns: str) -> list[str]:
    """Default routes inside a namespace: there must be none."""
    return [line for line in run(["ip", "-n", netns, "route", "show", "default"]).splitlines() if line]


def users(addresses: Addresses) -> list[str]:
    """Programs on the host that hold a connection to the cluster."""
    ranges = " or ".join(f"dst {wanted}" for wanted in (*addresses.ranges, addresses.cable))
    return sorted(set(re.findall(r'\("([^"]+)",pid=\d+', run(["ss", "-Htnp", ranges]))))


def down(spec: ClusterSpec) -> None:
    """Remove everything `up` made, also when it did not get far, but for the dropping routes."""
    existing = {entry.name for entry in NETNS.iterdir()} if NETNS.exists() else set()
    for netns in reversed(spec.all_netns):
        if netns in existing:
            run(["ip", "netns", "delete", netns])
    if succeeds(["ip", "link", "show", "dev", spec.cable]):
        run(["ip", "link", "delete", spec.cable])
    if f" {spec.addresses.host}/32 " in run(["ip", "-o", "address", "show", "dev", "lo"]):
        run(["ip", "address", "delete", f"{spec.addresses.host}/32", "dev", "lo"])


def unguard(addresses: Addresses) -> None:
    """Remove the dropping routes: the very last step."""
    for wanted in (*addresses.ranges, addresses.cable):
        if run(["ip", "route", "show", "type", "blackhole", wanted]).strip():
            run(["ip", "route", "delete", "blackhole", wanted, "metric", DROP_METRIC])
