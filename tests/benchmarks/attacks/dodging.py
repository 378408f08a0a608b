"""Ways to dodge, by number: attacks on what limits, judges or separates the runs of a policy.

1 lose one's own sandbox   2 speak for the session   3 memory of nobody   4 run on between calls
5 reach another run        6 pass as deterministic   7 tell the next borrower
8 starve the neighbours    9 parts of the kernel that no program needs, and a server that lies
"""

import asyncio
import tempfile
import time
from pathlib import Path

from espalier.sandbox import SandboxLost
from espalier.sandbox.client import SandboxClient, Token
from tests.benchmarks.attacks.attack import LIMITS, asking, program
from tests.integration.sandbox import dodges

_CPU = """
def cpu(pid):
    words = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
"""
_RAN_ON = """
try:
    if cpu(spinner) - before > 0.3: breach(f"{cpu(spinner) - before:.1f} s between two calls")
except OSError: pass
"""
_SPINS = f"""{_CPU}
def spin():
    while True: pass
def spinning(first=lambda: None):
    global spinner, before
    r, w = os.pipe()
    if os.fork() == 0:
        first()
        os.write(w, b"%10d" % os.getpid())
        spin()
    spinner = int(os.read(r, 10))
    time.sleep(0.2)
    before = cpu(spinner)
"""


def _left_running(name, text):
    return program("processes", name, f"{_SPINS}{text}", later=_RAN_ON, point=4)


async def _drain(sandbox, _):
    breaches = []
    for ask in (
        sandbox.exec(["python", "-c", dodges.DRAIN]),
        sandbox.run_python(dodges.DRAIN),
        sandbox.python(dodges.DRAIN),
    ):
        result = await ask
        if result.killed_by is not None:
            breaches.append(f"ended by {result.killed_by}")
    return breaches


_NAIVE_READER = """
r, w = os.pipe()
os.set_blocking(r, False)
os.write(w, b"x")
import select
select.select([r], [], [])
os.read(os.open(f"/proc/self/fd/{r}", os.O_RDONLY), 9)
try: os.read(r, 9)
except BlockingIOError: breach("a reader that was told of data finds none")
"""


async def _reply(sandbox, _):
    breaches = []
    for reply in (b'{"exit_status": 0}\n', b"\0\0\0\1\0", b"\0\0\0\1\0" * 2, b"x" * 4096):
        code = f"{dodges.NAMES_THE_CHANNEL}say({reply!r})\nraise ValueError('a failure')"
        if (await sandbox.python(code)).succeeded:
            breaches.append(f"{reply[:20]!r} made a failure a success")
        following = await sandbox.python("print('next')")
        if (following.stdout, following.exit_status) != (b"next\n", 0):
            breaches.append(f"{reply[:20]!r} reached the next call: {following.stdout!r}")
    return breaches


_NAIVE_SERVER = """
ours, theirs = socket.socketpair()
if os.fork() == 0:
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number != ours.fileno() and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, b"went well")
        except OSError: pass
    os._exit(1)
os.wait()
if ours.recv(64) == b"went well": breach("a failure that says it went well")
"""


async def _same_order(sandbox, _):
    """Each interpreter orders a set of strings anew, unless it is forked from a warm one."""
    ask = "print(list({str(n) for n in range(50)}))"
    orders = {(await sandbox.exec(["python", "-c", ask])).stdout for _ in range(4)}
    return ["four interpreters order a set alike"] if len(orders) == 1 else []


_ORDER_OF_FORKS = """
found = set()
for _ in range(4):
    r, w = os.pipe()
    if os.fork() == 0:
        os.write(w, repr(list({str(n) for n in range(50)})).encode())
        os._exit(0)
    found.add(os.read(r, 4096))
if len(found) == 1: breach("forks order a set alike")
"""


async def _folders(sandbox, _):
    made = "import os\nfor n in range(30000): os.mkdir(f'/workspace/{n}')"
    await sandbox.exec(["python", "-c", made])
    removing = asyncio.create_task(sandbox.reset())
    slowest_s = 0.0
    while not removing.done():
        asked_s = time.monotonic()
        await sandbox.wait_until_ready(10.0)
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
        await asyncio.sleep(0.01)
    await removing
    return [f"the server did not answer for {slowest_s:.1f} s"] if slowest_s > 2 else []


async def _lies(*_):
    breaches = []
    frame = b'{"stream": "stdout", "data": "%s"}\n' % (b"QUFB" * 16384)
    end = b'{"end": {"exit_status": [], "signal": null}}\n'
    for name, said in {
        "output without end": frame * 64,
        "a line without end": b"x" * 2**22,
        "an end that is none": end,
        "nothing": b"",
    }.items():
        head = b"HTTP/1.1 200 OK\r\ncontent-type: x\r\nconnection: close\r\n\r\n"

        async def answer(reader, writer, answered=head + said):
            await reader.readuntil(b"\r\n\r\n")
            try:
                writer.write(answered)
                await writer.drain()
            except OSError:
                pass
            writer.close()

        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "socket"))
            async with await asyncio.start_unix_server(answer, path):
                client = SandboxClient("liar", LIMITS, Token(), f"unix:{path}")
                try:
                    result = await client.exec(["true"])
                    breaches.append(f"{name} was taken: {str(result)[:60]}")
                except SandboxLost:
                    pass
                await client.close_connections()
    return breaches


_TELLS_BY_TIME = """
for folder in ("/workspace", "/tmp", "/dev/shm"):
    try: os.utime(folder, (10**9, 10**9))
    except OSError: pass
    while not 0.5 <= time.time() % 1 < 0.501: pass
    os.mkdir(f"{folder}/x")
    os.rmdir(f"{folder}/x")
time.sleep(0.1)  # when it ends is no message of the folders
"""
_READS_TIME = """
told = [os.stat(folder).st_mtime for folder in ("/workspace", "/tmp", "/dev/shm")]
if all(at == 10**9 or 0.49 <= at % 1 < 0.51 for at in told): breach(told)
"""

ATTACKS = (
    asking("server", "drain its own output", _drain, point=1, milder=_NAIVE_READER),
    asking("server", "reply in the session's name", _reply, point=2, milder=_NAIVE_SERVER),
    program(
        "resources",
        "page tables",
        dodges.PAGE_TABLES,
        milder=dodges.PAGE_TABLES.replace("< 64", "< 4"),
        point=3,
        wall_s=9.0,
    ),
    program(
        "resources",
        "socket buffers of many processes",
        dodges.SOCKET_BUFFERS.replace("time.sleep(60)\nprint", "time.sleep(5)\nprint"),
        milder="""
held = []
while len(held) < 300:
    held.append(socket.socketpair())
    held[-1][0].setblocking(False)
    try:
        while True: held[-1][0].send(bytes(65536))
    except BlockingIOError: pass
breach("60 MB")
""",
        point=3,
        wall_s=9.0,
    ),
    program(
        "resources",
        "sockets in flight, full",
        dodges.PASSED_SOCKETS.replace("time.sleep(60)\nprint", "time.sleep(5)\nprint"),
        milder=dodges.PASSED_SOCKETS.replace("range(30)", "range(2)").replace(
            "time.sleep(60)\nprint", "time.sleep(1)\nprint"
        ),
        point=3,
        wall_s=9.0,
    ),
    program(
        "resources",
        "pages given to pipes (vmsplice)",
        f"{dodges.SPLICED_PAGES.replace('print(libc.vmsplice', 'given = (libc.vmsplice')}"
        "if given[0] > 0: breach(given)",
        point=3,
    ),
    program(
        "resources",
        "shared pages that no process has mapped in",
        dodges.SHARED_PAGES,
        milder=dodges.SHARED_PAGES.replace("2**30", "2**28"),
        point=3,
        wall_s=9.0,
    ),
    program(
        "resources",
        "half a million mappings",
        dodges.MAPPINGS,
        milder=dodges.MAPPINGS.replace("range(30)", "range(2)"),
        point=3,
        wall_s=9.0,
    ),
    program(
        "resources",
        "file locks without end",
        dodges.LOCKS.replace("print(", "if not T['own_kernel']: print("),
        milder=dodges.LOCKS.replace("20000", "5000"),
        point=3,
        wall_s=9.0,
    ),
    _left_running("a child of the session that spins between calls", "spinning()"),
    _left_running(
        "a daemon of the session, in a session of its own",
        "spinning(lambda: os.setsid() and os.fork() and time.sleep(60))",
    ),
    _left_running(
        "a thread of the session that spins between calls",
        "spinner = os.getpid()\nthreading.Thread(target=spin, daemon=True).start()\n"
        "time.sleep(0.2)\nbefore = cpu(spinner)",
    ),
    _left_running(
        "children of a subreaper of the session",
        "spinning(lambda: libc.prctl(36, 1, 0, 0, 0) or (os.fork() and time.sleep(60)))",
    ),
    _left_running(
        "a timer that continues what was stopped",
        """
def timer():
    signal.signal(signal.SIGCONT, lambda *_: None)
    at = ctypes.c_int()
    libc.syscall(222, 1, struct.pack("qii48x", 0, signal.SIGCONT, 0), ctypes.byref(at))
    libc.syscall(223, at, 0, struct.pack("qqqq", 0, 10**7, 0, 10**7), 0)
spinning(timer)
""",
    ),
    _left_running(
        "two that continue each other",
        """
def friend():
    other = os.fork() or os.getppid()
    def go_on():
        while True: os.kill(other, signal.SIGCONT)
    for _ in range(2): threading.Thread(target=go_on, daemon=True).start()
spinning(friend)
""",
    ),
    _left_running(
        "a timer that kills a leader, whose group is then continued",
        """
def orphaned():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leader = os.getpid()
    if os.fork():
        at = ctypes.c_int()
        libc.syscall(222, 1, struct.pack("qii48x", 0, 9, 0), ctypes.byref(at))
        libc.syscall(223, at, 0, struct.pack("qqqq", 0, 0, 0, 5 * 10**8), 0)
        time.sleep(60)
    os.setpgid(0, 0)
    libc.prctl(1, signal.SIGCONT, 0, 0, 0)
spinning(orphaned)
""",
    ),
    program(
        "others",
        "output, memory, limits and signals of another run",
        """
mine = {os.getpid(), os.getppid()}
import resource
everyone = {int(p) for p in os.listdir("/proc") if p.isdigit()}
for pid in sorted(everyone - mine):
    tried(f"output {pid}", lambda: os.write(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY), b"forged"))
    tried(f"memory {pid}", lambda: os.open(f"/proc/{pid}/mem", os.O_RDWR))
    tried(f"environ {pid}", lambda: open(f"/proc/{pid}/environ").read(1))
    tried(f"cwd {pid}", lambda: os.readlink(f"/proc/{pid}/cwd"))
    tried(f"kill {pid}", lambda: os.kill(pid, signal.SIGCONT) is None)
    tried(f"limit {pid}", lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)))
    tried(f"stop {pid}", lambda: os.kill(pid, signal.SIGSTOP) is None)
""",
        beside="time.sleep(2)",
        point=5,
    ),
    asking("others", "a set's order, the same in every try", _same_order, point=6,
           milder=_ORDER_OF_FORKS),
    program("others", "times of shared folders tell the next borrower", _TELLS_BY_TIME,
            then=_READS_TIME, point=7),
    program(
        "others",
        "a port that waits (TIME_WAIT) tells the next borrower",
        """
def talk():
    with socket.create_server(("127.0.0.1", 45678)) as server:
        client = socket.create_connection(("127.0.0.1", 45678))
        accepted = server.accept()[0]
        accepted.close()
        client.close()
tried("", talk)
""",
        then="""
try: socket.socket().bind(("127.0.0.1", 45678))
except OSError as error:
    if error.errno == errno.EADDRINUSE: breach("the port is in use")
""",
        point=7,
    ),
    program(
        "others",
        "counters of the loopback tell the next borrower",
        """
def talk():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted = server.accept()[0]
        for _ in range(100):
            client.sendall(bytes(50000))
            left = 50000
            while left: left -= len(accepted.recv(left))
tried("", talk)
""",
        then="""
words = [line.split() for line in open("/proc/net/dev") if "lo:" in line][0]
if int(words[1]) > 10**6: breach(words[1])
""",
        point=7,
    ),
    program(
        "others",
        "the number of the last process tells the next borrower",
        "for _ in range(600):\n    if os.fork() == 0: os._exit(0)\n    os.wait()",
        then="if os.getpid() > 500: breach(os.getpid())",
        point=7,
    ),
    program(
        "others",
        "the number of the last file tells the next borrower",
        """
for n in range(20000):
    os.close(os.open("/tmp/x", os.O_CREAT | os.O_WRONLY))
    os.unlink("/tmp/x")
""",
        then="""
if os.fstat(os.open("/tmp/y", os.O_CREAT | os.O_WRONLY)).st_ino > 15000: breach("/tmp")
""",
        point=7,
    ),
    program(
        "resources",
        "pseudo-terminals of the machine",
        """
held = []
try:
    while len(held) < 200: held.append(os.openpty())
except OSError: pass
time.sleep(1)
if len(held) > 100: breach(len(held))
""",
        milder="""
held = [os.openpty() for _ in range(110)]
breach(len(held))
""",
        point=8,
    ),
    program(
        "resources",
        "inotify and its limit per user",
        "called('inotify_init1', 294, 0)\ncalled('inotify_init', 253)\n"
        "called('fanotify_init', 300, 0, 0)",
        milder="called('inotify_init1', 294, 0)",
        point=8,
    ),
    program(
        "server",
        "a lease that keeps whoever opens the file waiting",
        """
f = os.open("/workspace/leased", os.O_CREAT | os.O_RDWR)
tried("lease", lambda: fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0)
tried("lease", lambda: fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK) == 0)
""",
        point=8,
    ),
    asking("server", "30,000 folders at a reset", _folders, point=8, milder="""
began = time.monotonic()
for n in range(30000): os.mkdir(f"/workspace/{n}")
import shutil
shutil.rmtree("/workspace", ignore_errors=True)
if time.monotonic() - began > 0.2: breach("a server that removes them itself waits as long")
"""),
    program(
        "rights",
        "be spared when memory runs out",
        """
def spared():
    with open("/proc/self/oom_score_adj", "r+") as file:
        file.write("0")
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    return not T["own_kernel"]
tried("oom_score_adj", spared)
""",
        point=9,
    ),
    program(
        "network",
        "socket families, kinds, protocols and options that none needs",
        """
for family in (1, 2, 10, 16, 17, 38, 40, 44):
    for kind in (1, 2, 3, 4, 5):
        for protocol in (0, 1, 132, 136, 262):
            if (family in (1, 2, 10) and kind in (1, 2, 5) and protocol == 0): continue
            tried((family, kind, protocol), lambda: socket.socket(family, kind, protocol))
with socket.socketpair()[0] as s:
    for level, option in ((1, 26), (1, 50), (1, 47), (1, 60), (6, 31), (6, 14), (0, 64), (1, 32)):
        tried((level, option), lambda: s.setsockopt(level, option, bytes(16)) is None)
""",
        point=9,
    ),
    program(
        "files",
        "which machine it is: boot_id and the kernel's command line",
        """
for name, path in (("boot_id", "/proc/sys/kernel/random/boot_id"), ("cmdline", "/proc/cmdline")):
    tried(name, lambda: T[name] and T[name] in open(path).read() and not T["own_kernel"])
""",
        point=9,
    ),
    asking("others", "a server that lies to the client", _lies, point=9, milder="""
ours, theirs = socket.socketpair()
if os.fork() == 0:
    for _ in range(64): theirs.sendall(bytes(65536))
    os._exit(0)
theirs.close()
if len(b"".join(iter(lambda: ours.recv(65536), b""))) == 2**22: breach("who reads on has it all")
"""),
)  # fmt: skip
