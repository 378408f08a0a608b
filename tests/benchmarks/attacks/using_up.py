"""Attacks on what is shared: memory, disk, processes, output, time."""

from tests.benchmarks.attacks.attack import program

_HOLD = "time.sleep(60)"

ATTACKS = (
    program("resources", "fork bomb", "while True:\n    try: os.fork()\n    except OSError: pass"),
    program(
        "resources",
        "fork bomb, a session in each process",
        "while True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
    ),
    program(
        "resources",
        "fork bomb whose parents leave",
        "while True:\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: pass",
    ),
    program(
        "resources",
        "fork bomb of a shell",
        "subprocess.run(['sh', '-c', 'f() { f | f & }; (f) & exec sleep 60'])",
    ),
    program(
        "resources",
        "thread bomb",
        """
made = 0
try:
    while made < 5000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        made += 1
except RuntimeError:
    pass
if made >= 5000: breach(made)
""",
        milder="""
for _ in range(100): threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
breach("100 threads")
""",
    ),
    program(
        "resources",
        "memory in one process",
        "held = []\nwhile True:\n    held.append(bytearray(2**24))\n"
        "    if len(held) > 64: breach('1 GiB')",
    ),
    program(
        "resources",
        "memory in many processes",
        """
for _ in range(30):
    if os.fork() == 0:
        held = []
        while True:
            try: held.append(bytearray(b"x" * 2**22))
            except MemoryError: time.sleep(60)
time.sleep(60)
""",
    ),
    program(
        "resources",
        "shared anonymous memory, passed on to children",
        """
import mmap
held = []
for _ in range(64):
    held.append(mmap.mmap(-1, 2**24))
    held[-1].write(b"x" * 2**24)
    if os.fork() == 0: time.sleep(60)
breach("1 GiB")
""",
    ),
    program(
        "resources",
        "memory of files without a name",
        """
held = []
for n in range(64):
    f = os.memfd_create(str(n))
    os.write(f, b"x" * 2**24)
    held.append(f)
breach("1 GiB")
""",
    ),
    program(
        "resources",
        "memory of pipes",
        """
import fcntl
for n in range(400):
    r, w = os.pipe()
    fcntl.fcntl(w, 1031, 2**20)
    os.set_blocking(w, False)
    try:
        while True: os.write(w, b"x" * 65536)
    except BlockingIOError: pass
breach("400 MiB")
""",
        milder="""
r, w = os.pipe()
tried("F_SETPIPE_SZ", lambda: fcntl.fcntl(w, 1031, 2**20))
""",
    ),
    program(
        "resources",
        "memory of socket buffers",
        """
held = []
for n in range(2000):
    a, b = socket.socketpair()
    a.setblocking(False)
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**24)
    try:
        while True: a.send(b"x" * 65536)
    except BlockingIOError: pass
    held.append((a, b))
breach("2000 buffers")
""",
    ),
    program(
        "resources",
        "System V shared memory that outlives its maker",
        "called('shmget', 29, 0, 2**26, 0o1600)",
    ),
    program("resources", "POSIX message queues", "called('mq_open', 240, b'q', 0o102, 0o600, 0)"),
    program(
        "resources",
        "fill the workspace",
        """
size = 0
with open("/workspace/full", "wb") as f:
    while size < 2**30:
        size += f.write(b"x" * 2**20)
        f.flush()
breach("1 GiB")
""",
    ),
    program(
        "resources",
        "fill every folder that can be written",
        """
total = 0
for folder in ("/workspace", "/tmp", "/dev/shm", "/var/tmp", "/run", "/dev/mqueue"):
    for n in range(128):
        try:
            with open(f"{folder}/{n}", "wb") as f:
                f.write(b"x" * 2**24)
                total += 2**24
        except OSError:
            break
if total > T["most_bytes"]: breach(total)
""",
    ),
    program(
        "resources",
        "a million empty files",
        """
for n in range(10**6): os.close(os.open(f"/tmp/{n}", os.O_CREAT | os.O_WRONLY))
breach("a million")
""",
    ),
    program(
        "resources",
        "a sparse file of a terabyte",
        "f = os.open('/workspace/x', os.O_CREAT | os.O_RDWR)\n"
        "tried('truncate', lambda: os.ftruncate(f, 2**40) or True)\n"
        "tried('fallocate', lambda: os.posix_fallocate(f, 0, 2**32) or True)",
    ),
    program(
        "resources",
        "flood of output",
        "while True: os.write(1, b'x' * 2**16)",
    ),
    program(
        "resources",
        "flood of errors, a byte at a time, from many threads",
        """
def say():
    while True: os.write(2, b"x")
for _ in range(8): threading.Thread(target=say, daemon=True).start()
time.sleep(60)
""",
    ),
    program(
        "resources",
        "descriptors without end",
        "held = []\ntry:\n    while len(held) < 10000: held.append(os.open('/', os.O_RDONLY))\n"
        "    breach(len(held))\nexcept OSError: pass",
        milder="held = [os.open('/', os.O_RDONLY) for _ in range(600)]\nbreach(len(held))",
    ),
    program(
        "resources",
        "processor time, ignoring the signal that says it is up",
        "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        "for _ in range(3): os.fork()\nwhile True: pass",
    ),
    program(
        "processes",
        "sleep on, ignoring every signal",
        "for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n" + _HOLD,
    ),
    program(
        "processes",
        "a daemon, forked twice, that closed everything",
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 1024)
        time.sleep(60)
    os._exit(0)
""",
    ),
    program(
        "processes",
        "daemons that fork away from whoever kills them",
        """
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
            time.sleep(0.0005)
""",
    ),
    program(
        "processes",
        "zombies that nobody collects",
        "for _ in range(30):\n    try:\n        if os.fork() == 0: os._exit(0)\n"
        "    except OSError: break",
    ),
    program(
        "processes",
        "children that stopped themselves",
        "for _ in range(5):\n    if os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "time.sleep(0.3)",
    ),
    program(
        "processes",
        "a storm of timers and signals",
        """
for n in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGTERM):
    signal.signal(n, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)
signal.setitimer(signal.ITIMER_PROF, 1e-5, 1e-5)
while True: os.kill(os.getpid(), signal.SIGTERM)
""",
    ),
)
