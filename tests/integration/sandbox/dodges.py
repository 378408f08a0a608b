"""Programs that try to use what no limit counts, to speak in another's name, or to run on."""

PAGE_TABLES = """
import mmap, sys
held = []
while len(held) < 64:
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    held.append(mmap.mmap(-1, 2**33, flags=private, prot=mmap.PROT_READ))
    for at in range(0, 2**33, 2**21): held[-1][at]
print("BREACH all of it")
"""

SOCKET_BUFFERS = """
import socket, os, time
for _ in range(30):
    if os.fork() == 0:
        held = []
        try:
            while True:
                a, b = socket.socketpair()
                a.setblocking(False)
                try:
                    while True: a.send(bytes(65536))
                except BlockingIOError: pass
                held.append(b)
        except OSError: pass
        time.sleep(60)
time.sleep(60)
print("BREACH all of it")
"""

PASSED_SOCKETS = """
import array, socket, os, time
for _ in range(30):
    if os.fork() == 0:
        hold, held = socket.socketpair()
        try:
            while True:
                pairs = [socket.socketpair() for _ in range(50)]
                for a, _b in pairs:
                    a.setblocking(False)
                    try:
                        while True: a.send(bytes(65536))
                    except BlockingIOError: pass
                rights = array.array("i", [b.fileno() for _a, b in pairs])
                hold.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                for a, b in pairs: a.close(); b.close()
        except OSError: pass
        time.sleep(60)
time.sleep(60)
print("BREACH all of it")
"""

SHARED_PAGES = """
import mmap, time
held = mmap.mmap(-1, 2**30)
for at in range(0, 2**30, 2**21):
    held[at:at + 2**21] = b"x" * 2**21
    held.madvise(mmap.MADV_DONTNEED, at, 2**21)  # out of this process, not out of memory
time.sleep(1)
print("BREACH all of it")
"""

FIRST_THREADS_END = """
import ctypes, os, threading, time
leave = {{"x86_64": 60, "aarch64": 93}}[os.uname().machine]
done, say = os.pipe()
for _ in range({}):
    if os.fork() == 0:
        os.setsid()
        kept = bytearray(b"x") * ({} << 20)
        threading.Thread(target=time.sleep, args=(60,)).start()
        os.write(say, b"x")
        ctypes.CDLL(None).syscall(leave, 0)
    os.read(done, 1)
time.sleep({} or 0.1)
"""
"""Of processes, their MiB, and seconds: whose first thread ended looks like a zombie."""
MAPPINGS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
done, say = os.pipe()
for _ in range(30):
    if os.fork() == 0:
        first = libc.mmap(None, ctypes.c_size_t(65000 * 4096), 1, 0x22, -1, ctypes.c_long(0))
        for n in range(0, 65000, 2):
            libc.mprotect(ctypes.c_void_p(first + n * 4096), ctypes.c_size_t(4096), 0)
        os.write(say, b"x")
        time.sleep(60)
for _ in range(30): os.read(done, 1)
time.sleep(1)
print("BREACH all of it")
"""

LOCKS = """
import fcntl, struct
with open("locked", "w") as file:
    for n in range(20000):
        fcntl.fcntl(file, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 2 * n, 1, 0))
    __import__("time").sleep(1)
print("BREACH all of it")
"""

SPLICED_PAGES = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
read, write = os.pipe()
page = mmap.mmap(-1, 2**20)
class Vector(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
vector = Vector(ctypes.addressof(ctypes.c_char.from_buffer(page)), 4096)
print(libc.vmsplice(write, ctypes.byref(vector), ctypes.c_ulong(1), 8), ctypes.get_errno())
"""

_VFORKS = """
import ctypes, os, platform, signal, struct, threading, time
libc = ctypes.CDLL(None)
CLONE, CLONE_VFORK = {"x86_64": 56, "aarch64": 220}[platform.machine()], 0x4000
def waits_for_its_child():
    if libc.syscall(CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        while True: libc.sleep(100)
"""

WAITS_FOR_ITS_CHILD = f"""{_VFORKS}
if os.fork() == 0:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    waits_for_its_child()
time.sleep(0.3)
"""

_WAKES = f"""{_VFORKS}
timers = []
signal.signal(signal.SIGCONT, lambda *_: None)
def arms():
    timers.clear()
    event = struct.pack("qiii44x", 0, signal.SIGCONT, 4, threading.get_native_id())
    for _ in range(6):
        timers.append(ctypes.c_void_p())
        libc.timer_create(1, event, ctypes.byref(timers[-1]))
def tells():  # once each, since a stop takes a timer's pending signal, and with it a periodic timer
    for number, timer in enumerate(timers):
        later = struct.pack("qqqq", 0, 0, 0, (6 + 2 * number) * 10**6)
        libc.timer_settime(timer, 0, later, 0)
    with open("/workspace/partial", "w") as file: file.write(str(time.time()))
    os.replace("/workspace/partial", "/workspace/awake")
    time.sleep(0.003)
"""

WAKES_ITSELF = f"""{_WAKES}
if os.fork() == 0:
    arms()
    while True: tells()
time.sleep(0.3)
"""

WAKES_WHILE_ANOTHER_WAITS = f"""{_WAKES}
def wakes():
    arms()
    while True: tells()
if os.fork() == 0:
    threading.Thread(target=wakes).start()
    waits_for_its_child()
time.sleep(0.3)
"""

HANDS_ON = f"""{_WAKES}
if os.fork() == 0:
    arms()
    while True:
        until = time.monotonic() + 0.4
        while time.monotonic() < until: tells()
        ready, says = os.pipe()
        os.set_blocking(ready, False)
        child = os.fork()
        while child:
            os.kill(child, signal.SIGCONT)
            try: os.read(ready, 1); os._exit(0)
            except OSError: tells()
        arms()
        os.write(says, b".")
        os.close(ready); os.close(says)
time.sleep(0.3)
"""

DRAIN = """
import os, threading, time
def drain(number):
    taken = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    while True:
        try: os.read(taken, 65536)
        except OSError: pass
for number in (1, 2):
    threading.Thread(target=drain, args=(number,), daemon=True).start()
for _ in range(2000):
    os.write(1, b"x" * 100)
    os.write(2, b"y" * 100)
print("last")
"""

TELLS_BY_A_TERMINAL = """
import os
terminal, other = os.openpty()
os.open(os.ttyname(other), os.O_RDWR)  # now the controlling one
try:
    controlling = os.open("/dev/tty", os.O_RDWR)
    os.write(controlling, b"x")
except OSError: pass
"""

NAMES_THE_CHANNEL = """
import os, stat, struct
def say(what):
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and stat.S_ISSOCK(os.fstat(number).st_mode): os.write(number, what)
        except OSError: pass
"""
