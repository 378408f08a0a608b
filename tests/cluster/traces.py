"""What the parts write outside of the state folder, with no setting that says otherwise."""

import contextlib
import json
from pathlib import Path

from tests.cluster import network

_NETWORK_RESULTS = Path("/var/lib/cni/results")
"""Of the CNI library: what the plugins answered for each pod, and in which namespace."""
_LOG_LINKS = Path("/var/log/containers")
"""Of the kubelet, for collectors of logs; each leads to a file in the state folder."""
_SHIM_SOCKETS = Path("/run/containerd/s")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""Of the kubelet, whatever its root folder is; with its socket."""
_FOLDERS = (
    _SHIM_SOCKETS, _SHIM_SOCKETS.parent, _DEVICE_PLUGINS, _DEVICE_PLUGINS.parent,
    _NETWORK_RESULTS, _NETWORK_RESULTS.parent, _LOG_LINKS, network.FOLDER,
)  # fmt: skip
_ABSENT = "absent-before.json"


def note(state):
    """Remember which folders are not there yet: those are removed in the end, and no others."""
    absent = [str(folder) for folder in _FOLDERS if not folder.exists()]
    (state / _ABSENT).write_text(json.dumps(absent))


def remove(state):
    """Remove them; to be called while the state folder is there, which says what is whose."""
    for path in _files(state):
        path.unlink(missing_ok=True)
    for folder in _own_folders(state):
        with contextlib.suppress(OSError):  # not empty, or in use: `found` tells these apart
            folder.rmdir()


def found(state):
    """Those that are there; of folders, those that hold what is somebody else's do not count."""
    return [*_files(state), *(one for one in _own_folders(state) if not any(one.iterdir()))]


def _files(state):
    return [*_shim_sockets(state), *_network_results(state), *_links_into(state), *_socket(state)]


def _own_folders(state):
    noted = state / _ABSENT
    absent = json.loads(noted.read_text()) if noted.exists() else []
    return [folder for folder in map(Path, absent) if folder.is_dir()]


def _network_results(state):
    namespace = f'"netns":"{state}/'
    results = _NETWORK_RESULTS.glob("*") if _NETWORK_RESULTS.is_dir() else ()
    return [path for path in results if namespace in path.read_text()]


def _socket(state):
    """The kubelet's, for device plugins; another kubelet's folder was there before."""
    socket = _DEVICE_PLUGINS / "kubelet.sock"
    return [socket] if _DEVICE_PLUGINS in _own_folders(state) and socket.is_socket() else []


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
