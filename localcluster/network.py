"""The bridge on the host, and a veth pair from it to each node's network namespace."""

import ipaddress
import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from localcluster.errors import HostError
from localcluster.run import run
from localcluster.specs import MOST_NODES
from localcluster.state import StateFolder

SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"
API_PORT = 6443

_CANDIDATES = tuple(ipaddress.ip_network(f"10.{number}.0.0/16") for number in range(200, 250))
_FIRST_NODE = 10
_FIRST_SEAT = 100


@dataclass(frozen=True)
class NetworkPlan:
    """The addresses of one cluster, all from one /16.

    The nodes and the bridge share the first /24, the pods of node i (from 1) have the i-th.
    """

    block: str

    @property
    def _prefix(self) -> str:
        return ".".join(self.block.split(".")[:2])

    @property
    def host(self) -> str:
        """The bridge's address, on which the API server listens for host and nodes."""
        return f"{self._prefix}.0.1"

    @property
    def server(self) -> str:
        return f"https://{self.host}:{API_PORT}"

    def node(self, index: int) -> str:
        """Return the address of node `index`, from 1."""
        return f"{self._prefix}.0.{_FIRST_NODE + index}"

    def seat(self, number: int) -> str:
        """Return the address of control-plane seat `number`, from 1."""
        return f"{self._prefix}.0.{_FIRST_SEAT + number}"

    def pods(self, index: int) -> str:
        """Return the address range of the pods on node `index`, from 1."""
        return f"{self._prefix}.{index}.0/24"


def choose(taken: Iterable[str]) -> NetworkPlan:
    """Return a plan that overlaps none of the ranges in `taken`; raise HostError if all do."""
    networks = [ipaddress.ip_network(each, strict=False) for each in taken]
    used = [each for each in networks if isinstance(each, IPv4Network) and each.prefixlen > 0]
    for candidate in _CANDIDATES:
        if not any(candidate.overlaps(each) for each in used):
            return NetworkPlan(str(candidate))
    text = "no free address range: wanted one of 10.200.0.0/16 to 10.249.0.0/16; free one of them"
    raise HostError(text)


def routes_on_host() -> list[str]:
    """Return every address range that this machine has a route to."""
    found = json.loads(run(["ip", "-4", "-j", "route", "show", "table", "all"]) or "[]")
    return [each["dst"] for each in found if each["dst"][0].isdigit()]


def create_bridge(state: StateFolder, plan: NetworkPlan) -> None:
    """Make the cluster's bridge with the host's address on it."""
    bridge = _bridge(state)
    _batch(
        f"link add {bridge} type bridge",
        f"addr add {plan.host}/24 dev {bridge}",
        f"link set {bridge} up",
    )


def join(state: StateFolder, plan: NetworkPlan, index: int, namespace: Path) -> None:
    """Connect the network namespace pinned at `namespace` to the bridge as node `index`."""
    veth = _veth(state, index)
    others = [each for each in range(1, MOST_NODES + 1) if each != index]
    _batch(
        f"link add {veth} type veth peer name eth0 netns {namespace}",
        f"link set {veth} master {_bridge(state)} up",
        f"route replace {plan.pods(index)} via {plan.node(index)}",
    )
    _batch(
        "link set lo up",
        f"addr add {plan.node(index)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {plan.host}",
        *(f"route add {plan.pods(other)} via {plan.node(other)}" for other in others),
        inside=namespace,
    )
    # No kube-proxy: the one service that every pod may need is a rule that dies with the node.
    run(["nsenter", f"--net={namespace}", "nft", "-f", "-"], stdin=service_rules(plan))


def join_seat(state: StateFolder, plan: NetworkPlan, number: int, namespace: Path) -> None:
    """Connect the network namespace pinned at `namespace` to the bridge as seat `number`."""
    veth = f"{state.link_prefix}s{number}"
    _batch(
        f"link add {veth} type veth peer name eth0 netns {namespace}",
        f"link set {veth} master {_bridge(state)} up",
    )
    _batch(
        "link set lo up",
        f"addr add {plan.seat(number)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {plan.host}",
        inside=namespace,
    )


def service_rules(plan: NetworkPlan) -> str:
    """Return the nftables rules that forward the `kubernetes` Service to the API server."""
    rule = f"ip daddr {SERVICE_ADDRESS} tcp dport 443 dnat to {plan.host}:{API_PORT}"
    return (
        "table ip localcluster {\n"
        f"  chain pods {{ type nat hook prerouting priority -100; {rule}; }}\n"
        f"  chain node {{ type nat hook output priority -100; {rule}; }}\n"
        "}\n"
    )


def links(state: StateFolder) -> list[str]:
    """Return the cluster's interfaces that exist on the host now."""
    # Not /sys/class/net: that shows the network namespace in which /sys was mounted.
    names = [name for _, name in socket.if_nameindex()]
    return sorted(each for each in names if each.startswith(state.link_prefix))


def remove_links(state: StateFolder) -> None:
    """Remove the cluster's interfaces; their routes go with them."""
    found = links(state)
    if found:
        # A veth may vanish with its namespace between the listing and the removal.
        _batch(*(f"link del {each}" for each in found), force=True)


def leave(state: StateFolder, index: int) -> None:
    """Remove node `index` from the bridge."""
    _batch(f"link del {_veth(state, index)}")


def leave_seat(state: StateFolder, number: int) -> None:
    """Remove seat `number` from the bridge."""
    _batch(f"link del {state.link_prefix}s{number}")


def _bridge(state: StateFolder) -> str:
    return f"{state.link_prefix}b"


def _veth(state: StateFolder, index: int) -> str:
    return f"{state.link_prefix}v{index}"


def _batch(*commands: str, inside: Path | None = None, force: bool = False) -> None:
    enter = [] if inside is None else ["nsenter", f"--net={inside}"]
    forced = ["-force"] if force else []
    text = "".join(f"{each}\n" for each in commands)
    if force:
        run(["sh", "-c", "ip -force -batch - || true"], stdin=text)
        return
    run([*enter, "ip", *forced, "-batch", "-"], stdin=text)
