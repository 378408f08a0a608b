"""What the parts write outside of the state folder, with no setting that says otherwise."""

import json
from pathlib import Path

from tests.cluster.network import POD_NETWORK

_NETWORK_RESULTS = Path("/var/lib/cni/results")
"""Of the CNI library: what the plugins answered for each pod."""
_LOG_LINKS = Path("/var/log/containers")
"""Of the kubelet, for collectors of logs; each leads to a file in the state folder."""


def remove(state):
    """Remove them; to be called while the state folder is there, which says what is whose."""
    for path in found(state):
        path.unlink(missing_ok=True)


def found(state):
    """Those that are there."""
    return [*_shim_sockets(state), *_NETWORK_RESULTS.glob(f"{POD_NETWORK}-*"), *_links_into(state)]


def _shim_sockets(state):
    """Of shims that were killed; each container's folder names its own."""
    for folder in state.glob("containers/io.containerd.runtime.v2.task/*/*"):
        for name in ("bootstrap.json", "address"):
            path = folder / name
            if path.exists():
                socket = Path(_address(path.read_text()).removeprefix("unix://"))
                if socket.is_socket():
                    yield socket


def _address(text):
    return json.loads(text)["address"] if text.startswith("{") else text.strip()


def _links_into(state):
    links = _LOG_LINKS.glob("*.log") if _LOG_LINKS.is_dir() else ()
    return [path for path in links if path.is_symlink() and path.readlink().is_relative_to(state)]
