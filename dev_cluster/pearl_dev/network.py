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
from typing import TYPE_CHECKING

from pearl_dev.errors import ClusterError
from pearl_dev.processes import NETNS
from pearl_dev.shell import run, succeeds

if TYPE_CHECKING:
    from pearl_dev.layout import ClusterSpec

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
    run(["ip", "address", "add", f"{addresses.host}/30", "dev", spec.cable])
    run(["ip", "link", "set", spec.cable, "up"])
    for wanted in addresses.ranges:
        run(
            [
                "ip",
                "route",
                "replace",
                wanted,
                "via",
                addresses.gateway,
                "dev",
                spec.cable,
                "src",
                addresses.host,
                "metric",
                CABLE_METRIC,
            ]
        )


def _hub(spec: ClusterSpec) -> None:
    inside = ["ip", "-n", spec.netns]
    addresses = spec.addresses
    run([*inside, "link", "set", "lo", "up"])
    run([*inside, "address", "add", f"{addresses.gateway}/30", "dev", "uplink"])
    run([*inside, "link", "set", "uplink", "up"])
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


def down(spec: ClusterSpec) -> None:
    """Remove everything `up` made, also when it did not get far; the dropping routes go last."""
    existing = {entry.name for entry in NETNS.iterdir()} if NETNS.exists() else set()
    for netns in reversed(spec.all_netns):
        if netns in existing:
            run(["ip", "netns", "delete", netns])
    if succeeds(["ip", "link", "show", "dev", spec.cable]):
        run(["ip", "link", "delete", spec.cable])
    for wanted in (*spec.addresses.ranges, spec.addresses.cable):
        if run(["ip", "route", "show", "type", "blackhole", wanted]).strip():
            run(["ip", "route", "delete", "blackhole", wanted, "metric", DROP_METRIC])
