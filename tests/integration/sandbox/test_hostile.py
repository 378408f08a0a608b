"""Programs that mean harm: what they try does not work, and the sandbox goes on working.

Bounded in time and number, and without a packet that could leave the sandbox's own network.
"""

import dataclasses
import hashlib
import json
import os
import secrets
import socket
import threading
import time

import pytest

from espalier.sandbox.bubblewrap import MASKED_FILES, MASKED_FOLDERS
from sandboxd.syscalls import ALLOWED, SILENT
from tests.integration.sandbox.backends import ON_THIS_MACHINE, is_on_gvisor

pytestmark = pytest.mark.contract

_MOST_ROUNDS = 20


def _accept(server, reached):
    connection, _ = server.accept()
    reached.append(connection)
    connection.close()


def _works(run, sandbox):
    assert run(sandbox.exec(["echo", "still here"])).stdout == b"still here\n"
    assert run(sandbox.run_python("print(6 * 7)")).stdout == b"42\n"
    assert run(sandbox.python("6 * 7")).stdout == b"42\n"


def _left(run, sandbox):
    """Processes besides sandboxd, its two spawners, and those of this very look."""
    code = """
import os
names = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        names[int(pid)] = open(f"/proc/{pid}/cmdline").read().replace("\\0", " ")
    except OSError:
        pass
print([name for pid, name in names.items() if pid != os.getpid() and "sandboxd" not in name])
"""
    return run(sandbox.exec(["python", "-c", code])).stdout


@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n"
        "    except OSError: pass",
        "import signal\nsignal.signal(15, 1)\nimport os\nwhile True:\n    try:\n"
        "        if os.fork(): os._exit(0)\n    except OSError: pass",
    ],
    ids=["plain", "a session each", "parents leave"],
)
def test_a_fork_bomb_ends_with_its_run(run, own_sandbox, bomb):
    run(own_sandbox.python("x = 1"))
    result = run(own_sandbox.exec(["python", "-c", bomb], timeout_s=1.5))
    assert result.killed_by in {"wall_time", None}
    assert _left(run, own_sandbox) == b"[]\n"
    _works(run, own_sandbox)


def test_daemons_do_not_outlive_their_run(run, sandbox):
    code = """
import os, sys, time
for depth in range(3):
    if os.fork():
        os._exit(0) if depth else None
        break
    os.setsid()
else:
    os.closerange(0, 3)
    time.sleep(30)
    os._exit(0)
print("parent leaves")
"""
    assert run(sandbox.exec(["python", "-c", code])).duration_s < 5
    assert run(sandbox.exec(["sh", "-c", "setsid nohup sleep 30 >/dev/null 2>&1 &"])).succeeded
    assert _left(run, sandbox) == b"[]\n"


def test_zombies_do_not_pile_up(run, sandbox):
    code = "import os\nfor _ in range(20):\n    if os.fork() == 0: os._exit(0)\n"
    for _ in range(4):
        assert run(sandbox.exec(["python", "-c", code])).succeeded
    look = "import glob\nfor p in glob.glob('/proc/[0-9]*/stat'): print(open(p).read().split()[2])"
    assert b"Z" not in run(sandbox.exec(["python", "-c", look])).stdout.split()


_SIGNALS = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
own = os.getpid()
others = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != own]
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGINT):
    for send in (
        *(lambda p=p: os.kill(p, number) for p in others),
        *(lambda p=p: os.kill(-p, number) for p in others),
        lambda: os.kill(-1, number),
        *(lambda p=p: os.close(os.pidfd_open(p)) for p in others),
    ):
        try:
            send()
            print("sent", number)
        except OSError:
            pass
import resource
for p in others:
    for change in (
        lambda: resource.prlimit(p, resource.RLIMIT_NOFILE, (0, 0)),
        lambda: os.sched_setaffinity(p, {0}),
        lambda: os.setpriority(os.PRIO_PROCESS, p, 19),
        lambda: os.setpriority(os.PRIO_USER, 0, 19),
    ):
        try:
            change()
            print("changed", p)
        except OSError:
            pass
"""


def test_no_program_can_signal_or_slow_down_the_server(run, own_sandbox):
    result = run(own_sandbox.exec(["python", "-c", _SIGNALS]))
    assert (result.stdout, result.exit_status) == (b"", 0), result
    assert run(own_sandbox.run_python(_SIGNALS)).stdout == b""
    _works(run, own_sandbox)


def test_no_program_can_have_the_kernel_signal_the_server(run, own_sandbox):
    code = """
import fcntl, os, signal
reading, writing = os.pipe()
for pid in (1, 2, 3, os.getppid()):
    for command, value in ((fcntl.F_SETOWN, pid), (10, signal.SIGKILL)):  # F_SETSIG
        try:
            fcntl.fcntl(reading, command, value)
            print("set")
        except OSError:
            pass
"""
    assert run(own_sandbox.exec(["python", "-c", code])).stdout == b""
    _works(run, own_sandbox)


_READING = """
import json, os
NAMES = ("environ", "mem", "maps", "smaps", "cwd", "exe", "root", "auxv", "syscall", "io", "stack")
WAYS = {
    "link": os.readlink,
    "list": lambda path: os.listdir(path) or None,
    "read": lambda path: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1),
    "write": lambda path: os.open(path, os.O_WRONLY | os.O_NONBLOCK),
    "hold": lambda path: os.open(path, os.O_PATH),
    "look": os.stat,
    "link of the name": lambda path: os.readlink("", dir_fd=os.open(path, NAME)),
    "the name again": lambda path: os.open(f"/proc/self/fd/{os.open(path, NAME)}", os.O_RDONLY),
}
NAME = os.O_PATH | os.O_NOFOLLOW

def tried(path, ways):
    for way in ways:
        try:
            if WAYS[way](path):
                done.append([path, way])
        except OSError:
            pass
        os.closerange(3, 64)

done, listed = [], {}
others = [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]
for pid in others:
    for name in NAMES:
        tried(f"/proc/{pid}/{name}", ("link", "list", "read"))
    for folder in ("fd", "map_files", "ns"):
        try:
            listed[f"/proc/{pid}/{folder}"] = found = os.listdir(f"/proc/{pid}/{folder}")
        except OSError:
            continue
        for number in found:
            tried(f"/proc/{pid}/{folder}/{number}", WAYS)
print(json.dumps([len(others), done, listed]))
"""


def test_nothing_of_the_server_can_be_read(run, backend, sandbox):
    """On gVisor a program is told which descriptors the others have, by number alone."""
    for ask in (sandbox.exec(["python", "-c", _READING]), sandbox.run_python(_READING)):
        others, done, listed = json.loads(run(ask).stdout)
        assert others >= 3  # sandboxd and its spawners
        assert done == []
        if is_on_gvisor(backend):
            assert {path.split("/")[-1] for path in listed} <= {"fd"}
            assert all(number.isdigit() for found in listed.values() for number in found)
        else:
            assert listed == {}


_SEARCH = """
import hashlib, re
found = 0
for line in open("/proc/self/maps"):
    start, end, mode = re.match(r"(\\w+)-(\\w+) (\\S+)", line).groups()
    if mode.startswith("rw"):
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(int(start, 16))
            held = memory.read(int(end, 16) - int(start, 16))
        at = held.find(BEGINNING)
        while at >= 0:
            found += hashlib.sha256(held[at : at + LENGTH]).hexdigest() == DIGEST
            at = held.find(BEGINNING, at + 1)
print(found)
"""


def _search(secret):
    """A program that counts a secret in its own memory, and has only its digest and beginning."""
    names = {"BEGINNING": secret[:6], "LENGTH": len(secret)}
    names["DIGEST"] = hashlib.sha256(secret).hexdigest()
    return "".join(f"{name} = {value!r}\n" for name, value in names.items()) + _SEARCH


def test_the_token_is_nowhere_in_a_program(run, sandbox):
    planted = f"planted = {b'x' * 43!r}\n{_search(b'x' * 43)}"
    assert int(run(sandbox.run_python(planted)).stdout) > 0, "the search finds what is there"
    secret = sandbox.http.headers["authorization"].split()[1].encode()
    assert run(sandbox.run_python(_search(secret))).stdout == b"0\n"


def test_a_program_holds_no_descriptor_but_its_own(run, sandbox):
    look = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    assert run(sandbox.exec(["python", "-c", look])).stdout == b"[0, 1, 2]\n"
    assert run(sandbox.run_python(look)).stdout == b"[0, 1, 2]\n"
    assert run(sandbox.python(look)).stdout == b"[0, 1, 2, 3]\n"  # by 3 its calls come


_PROBES = (335, 336)
"""uretprobe and uprobe, which the kernel's own code alone may make: any other gets SIGILL."""
_REFUSED_CALLS = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
numbers = json.loads(os.environ["NUMBERS"])
allowed = []
for number in numbers:
    ctypes.set_errno(0)
    if libc.syscall(number, *[ctypes.c_long(0)] * 6) != -1 or ctypes.get_errno() not in (1, 38):
        allowed.append(number)
print(allowed)
for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    if libc.syscall(CLONE, ctypes.c_long(flag | 17), *[ctypes.c_long(0)] * 4) != -1:
        os._exit(9)
"""


def test_system_calls_that_lead_out_are_refused(run, sandbox):
    table = ALLOWED[os.uname().machine]
    listed = {*table.values(), *SILENT[os.uname().machine].values()}
    numbers = [number for number in range(470) if number not in {*listed, *_PROBES}]
    code = _REFUSED_CALLS.replace("CLONE", str(table["clone"]))
    result = run(sandbox.exec(["python", "-c", code], env={"NUMBERS": json.dumps(numbers)}))
    assert (result.stdout, result.exit_status) == (b"[]\n", 0), result


@pytest.mark.parametrize("family", [16, 17, 38, 40])  # netlink, packet, alg, vsock
def test_sockets_that_no_network_namespace_holds_are_refused(run, sandbox, family):
    code = f"import socket; socket.socket({family}, socket.SOCK_RAW if {family} != 40 else 1)"
    assert run(sandbox.exec(["python", "-c", code])).exit_status == 1


_GETTING_OUT = """
import socket
for address in (("127.0.0.1", PORT), ("192.0.2.1", 80), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, timeout=1)
        print("reached", address)
    except OSError:
        pass
mine = socket.create_server(("127.0.0.1", 0))
socket.create_connection(mine.getsockname()).close()
print("own loopback", len([1 for line in open("/proc/net/dev") if ":" in line]))
"""
"""Says how many interfaces there are."""


@pytest.fixture
def getting_out():
    """A program that tries, and that nobody but the positive control got to this machine's port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reached = []
        threading.Thread(target=_accept, args=(server, reached), daemon=True).start()
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        end = time.monotonic() + 5
        while not reached and time.monotonic() < end:
            time.sleep(0.01)
        yield ["python", "-c", _GETTING_OUT.replace("PORT", str(port))]
    assert len(reached) == 1


def test_nothing_is_reached_but_what_a_sandbox_serves_to_itself(run, backend, sandbox, getting_out):
    result = run(sandbox.exec(getting_out))
    if backend.name in ON_THIS_MACHINE:
        assert result.stdout == b"own loopback 1\n", result
    else:
        assert (result.stdout, result.exit_status) == (b"", 1), result
        assert b"Address family not supported by protocol" in result.stderr


def test_a_pod_whose_programs_may_have_internet_sockets_has_loopback(run, backend, getting_out):
    if backend.name in ON_THIS_MACHINE:
        pytest.skip(f"{backend.name}: has a network namespace that leads nowhere, and loopback")

    async def said():
        pods = backend.settings.pods.model_copy(update={"internet_sockets": True})
        settings = dataclasses.replace(backend.settings, pods=pods)
        other = dataclasses.replace(
            backend, settings=settings, run_id=f"test-{secrets.token_hex(4)}"
        )
        try:
            return await (await other.create()).exec(getting_out)
        finally:
            await other.close()

    result = run(said())
    assert result.stdout == b"own loopback 2\n", result  # a pod is reached by one more interface


def test_local_sockets_of_the_host_are_not_there(run, sandbox):
    with socket.socket(socket.AF_UNIX) as server:
        name = f"\0espalier-test-{os.getpid()}"
        server.bind(name)
        server.listen()
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(name)
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert run(sandbox.exec(["python", "-c", code])).exit_status == 1


def test_no_program_gains_rights(run, sandbox):
    code = """
import os, socket
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
names = ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
print(os.getuid(), *(status[name].strip() for name in names))
changes = (
    lambda: os.setuid(0),
    lambda: os.setgroups([0]),
    lambda: os.mknod("dev", 0o20666, 259),
    lambda: os.chroot("/"),
    lambda: socket.sethostname("x"),
)
for change in changes:
    try:
        change()
        print("done")
    except OSError:
        pass
"""
    user, *rights = run(sandbox.exec(["python", "-c", code])).stdout.split()
    assert int(user) >= 1000
    assert rights == [b"0" * 16, b"0" * 16, b"1", b"2"]


@pytest.mark.parametrize(
    "make",
    [
        "os.close(os.open(f'/dev/shm/{i}-ROUND', os.O_CREAT | os.O_WRONLY))",
        "os.mkdir(f'/tmp/{i}-ROUND')",
        "os.mkdir(f'/workspace/{i}-ROUND')",
    ],
)
def test_many_empty_files_end_the_run(run, own_sandbox, make):
    """On a busy machine a later one: what one made in its time stays for the next."""
    for number in range(_MOST_ROUNDS):
        code = f"import os\nfor i in range(10**7): {make.replace('ROUND', str(number))}"
        result = run(own_sandbox.exec(["python", "-c", code]))
        if result.killed_by == "files":
            break
        assert result.killed_by in {None, "wall_time"}
        assert result.signal in {9, 24}  # SIGXCPU, and SIGKILL a second later
    assert result.killed_by == "files"
    run(own_sandbox.reset())
    _works(run, own_sandbox)


def test_output_after_the_end_is_not_waited_for(run, sandbox):
    """A pipe handed to the session stays open when its run has ended."""
    run(
        sandbox.python("""
import array, os, socket, threading
server = socket.socket(socket.AF_UNIX)
server.bind("/tmp/there")
server.listen()
def keep():
    connection, _ = server.accept()
    global held
    held = connection.recvmsg(1, 64)
threading.Thread(target=keep, daemon=True).start()
""")
    )
    give = """
import array, socket
away = socket.socket(socket.AF_UNIX)
away.connect("/tmp/there")
away.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1]))])
print("given")
"""
    result = run(sandbox.exec(["python", "-c", give]))
    assert (result.stdout, result.exit_status) == (b"given\n", 0)


_FACTS = """
import os
masked = {masked}
for path in masked:
    if os.path.isdir(path):
        assert not os.listdir(path), path
    elif os.path.exists(path):
        try:
            with open(path, "rb") as file:
                assert not file.read(64), path
        except PermissionError:
            pass
        try:
            os.unlink(path)
        except OSError:
            pass
        else:
            raise AssertionError(f"{{path}} could be unmasked")
for name in ("cpuinfo", "meminfo", "stat", "uptime", "loadavg", "self/status", "filesystems"):
    with open(f"/proc/{{name}}") as file:
        assert file.read(), name
print("nothing")
"""


def test_disks_and_devices_of_the_machine_are_masked(run, sandbox, seen_from_here):
    asked = _FACTS.format(masked=repr((*MASKED_FILES, *MASKED_FOLDERS)))
    assert run(sandbox.python(asked)).text.strip() == "nothing"
