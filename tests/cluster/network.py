"""The network that the cluster lives in: a namespace of its own, from which no packet leaves."""

import subprocess
from pathlib import Path

from tests.cluster.places import NAMESPACE, ClusterError

NODE_NAME = "node1"
NODE_ADDRESS = "192.0.2.10"
"""Of TEST-NET-1 (RFC 5737), as every address here leads nowhere outside."""
API_SERVER = f"https://{NODE_ADDRESS}:6443"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
PODS = "10.244.0.0/24"
POD_NETWORK = "espalier-pods"

FOLDER = Path("/run/netns")
"""Of the names that `ip` knows namespaces by."""
_PATH = FOLDER / NAMESPACE
_LINKS = (
    "link set lo up",
    # a bridge, since not every kernel has dummy devices
    "link add node0 type bridge",
    f"address add {NODE_ADDRESS}/24 dev node0",
    "link set node0 up",
    # the kubelet and services want a default route; this one ends on a bridge without ports
    "route add default dev node0",
)
_FORWARDING = "/proc/sys/net/ipv4/ip_forward"
_FILTERED_BRIDGE = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
"""Lets answers between two pods of one bridge pass where service addresses are put back."""


def exists():
    return _PATH.exists()


def make():
    """Make the namespace with the node's address in it."""
    _ip("netns", "add", NAMESPACE)
    for line in _LINKS:
        _ip("-n", NAMESPACE, *line.split())
    for setting in (_FORWARDING, *([_FILTERED_BRIDGE] if bridge_is_filtered() else [])):
        subprocess.run(inside("sh", "-c", f"echo 1 > {setting}"), check=True)


def bridge_is_filtered():
    """Whether this kernel can do that; else every packet to a service comes from the node."""
    return _FILTERED_BRIDGE.exists()


def remove():
    """Remove it; what it held of devices goes with it."""
    if exists():
        _ip("netns", "delete", NAMESPACE)
    if FOLDER.is_dir() and not any(FOLDER.iterdir()):
        # `ip netns add` mounted the folder on itself; without names in it, nobody needs that
        subprocess.run(["umount", str(FOLDER)], check=False, capture_output=True)


def is_entered():
    """Whether this process is in it already."""
    return exists() and Path("/proc/self/ns/net").stat().st_ino == _PATH.stat().st_ino


def inside(*command):
    """The command, to be run in the namespace.

    nsenter, and not `ip netns exec`: that mounts another /sys, which has no cgroups in it.
    """
    return ["nsenter", f"--net={_PATH}", "--", *map(str, command)]


def members():
    """Every process whose network this is."""
    if not exists():
        return []
    own = _PATH.stat().st_ino
    return [pid for pid in _processes() if _network_of(pid) == own]


def _network_of(pid):
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None


def _processes():
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def _ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
