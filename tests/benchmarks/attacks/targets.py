"""What attacks aim at: stand-ins in a network without a way out, and secrets planted beside it.

TEST-NET addresses (RFC 5737, RFC 3849) play the internet. They sit on a bridge of this network
namespace, since not every kernel has dummy devices; nothing leads from there to anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

INTERNET, INTERNET_6, METADATA = "203.0.113.9", "2001:db8::9", "169.254.169.254"
CONTROL_PLANE, OTHER = "198.51.100.6", "198.51.100.7"
_DEVICE = "attacked0"


def has_way_out() -> bool:
    """Whether packets could leave: an address or a route that is neither local nor of TEST-NET."""
    shown = subprocess.run(["ip", "-json", "address"], capture_output=True, check=True).stdout
    ours = ("127.", "192.0.2.", "198.51.100.", "203.0.113.", "169.254.", "10.244.", "10.96.")
    ours_6 = ("::1", "fe80:", "2001:db8:")
    for device in json.loads(shown):
        for address in device.get("addr_info", ()):
            allowed = ours if address["family"] == "inet" else ours_6
            if not address["local"].startswith(allowed):
                return True
    return False


def make_network() -> None:
    """The addresses, on a device of their own; they go with the namespace, or with `remove`."""
    own_addresses = (f"{INTERNET}/32", f"{METADATA}/32", f"{CONTROL_PLANE}/32", f"{OTHER}/32")
    for words in (
        "link set lo up",
        f"link add {_DEVICE} type bridge",
        *(f"address add {address} dev {_DEVICE}" for address in own_addresses),
        f"-6 address add {INTERNET_6}/128 dev {_DEVICE} nodad",
        f"link set {_DEVICE} up",
    ):
        subprocess.run(["ip", *words.split()], check=True)


def remove_network() -> None:
    """Take the device away again, from a namespace that is not ours alone."""
    subprocess.run(["ip", "link", "delete", _DEVICE], check=False)


@contextlib.contextmanager
def planted(*, control_plane: bool) -> Iterator[dict[str, object]]:
    """Stand-ins that answer, and secrets: the file, the socket and the process of this machine.

    Args:
        control_plane: whether a cluster's own servers have stand-ins too; where there is a cluster,
            `of_the_cluster` names the real ones, which listen at every address of this network.
    """
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        folder.chmod(0o755)
        (folder / "planted").write_text("a secret of the machine", encoding="ascii")
        abstract = f"\0espalier-attacked-{os.getpid()}"
        held.enter_context(_answering(socket.AF_UNIX, abstract))
        mark = f"86400.{os.getpid()}"
        sleeper = held.enter_context(subprocess.Popen(["sleep", mark]))
        held.callback(sleeper.kill)
        found: dict[str, object] = {
            "planted": str(folder / "planted"),
            "abstract": abstract,
            "mark": mark,
            "pid": sleeper.pid,
            "shared_memory": 0x4553,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            "cmdline": Path("/proc/cmdline").read_text(encoding="utf-8").strip(),
        }
        places = {
            "metadata": (METADATA, 80),
            "internet": (INTERNET, 443),
            "loopback": ("127.0.0.1", 18080),
        }
        of_a_cluster = {
            "api_server": (CONTROL_PLANE, 6443),
            "api_service": (CONTROL_PLANE, 443),
            "kubelet": (CONTROL_PLANE, 10250),
            "node": (OTHER, 8443),
            "other_sandbox": (OTHER, 8080),
        }
        for name, place in {**places, **(of_a_cluster if control_plane else {})}.items():
            held.enter_context(_answering(socket.AF_INET, place))
            found[name] = list(place)
        held.enter_context(_answering(socket.AF_INET6, (INTERNET_6, 443)))
        found["internet_6"] = [INTERNET_6, 443]
        held.enter_context(_answering(socket.AF_INET, (INTERNET, 123), socket.SOCK_DGRAM))
        found["internet_udp"] = [INTERNET, 123]
        yield found


def of_the_cluster(kubeconfig: str, other_pod: str) -> dict[str, object]:
    """The real ones: API server, its service, kubelet and scheduler beside it, another sandbox."""
    from espalier.cluster.kubernetes_api import cluster_configuration

    server = urlsplit(cluster_configuration(kubeconfig).host)
    return {
        "api_server": [server.hostname, server.port],
        "api_service": ["10.96.0.1", 443],
        "kubelet": [server.hostname, 10250],
        "node": [server.hostname, 10259],
        "other_sandbox": [other_pod, 8080],
    }


@contextlib.contextmanager
def _answering(family: int, place: object, kind: int = socket.SOCK_STREAM) -> Iterator[None]:
    server = socket.socket(family, kind)
    server.bind(place)
    if kind == socket.SOCK_STREAM:
        server.listen(64)
    threading.Thread(target=_answer, args=(server, kind), daemon=True).start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()


def _answer(server: socket.socket, kind: int) -> None:
    while True:
        try:
            if kind == socket.SOCK_DGRAM:
                _, sender = server.recvfrom(512)
                if sender is None:  # shut down
                    return
                server.sendto(b"an answer", sender)
                continue
            connection, _ = server.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(0.5)
            if connection.recv(512).startswith(b"GET"):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nsecret-credentials")


def control(text: str, targets: dict[str, object]) -> bool:
    """Whether the same program succeeds outside of any sandbox."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"TARGETS": json.dumps(targets)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    return b"BREACH" in done.stdout
