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

WAITS_FOR_ITS_CHILD = """
import ctypes, os, platform, signal, threading, time
libc = ctypes.CDLL(None, use_errno=True)
CLONE, CLONE_VFORK = {"x86_64": 56, "aarch64": 220}[platform.machine()], 0x4000
if os.fork() == 0:
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    if libc.syscall(CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        while True: libc.sleep(100)
time.sleep(0.3)
"""

WAKES_ITSELF = """
import ctypes, os, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
if os.fork() == 0:
    signal.signal(signal.SIGCONT, lambda *_: None)
    timer = ctypes.c_void_p()
    event = struct.pack("qii48x", 0, signal.SIGCONT, 0)
    libc.timer_create(1, event, ctypes.byref(timer))
    libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 10**7, 0, 10**7), 0)
    while True:
        open("/workspace/awake", "w").write(str(time.time()))
        time.sleep(0.001)
time.sleep(0.3)
"""

WAKES_WHILE_ANOTHER_WAITS = """
import ctypes, os, platform, signal, struct, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
CLONE, CLONE_VFORK = {"x86_64": 56, "aarch64": 220}[platform.machine()], 0x4000
def wakes():
    timer = ctypes.c_void_p()
    event = struct.pack("qiii44x", 0, signal.SIGCONT, 4, threading.get_native_id())
    libc.timer_create(1, event, ctypes.byref(timer))
    libc.timer_settime(timer, 0, struct.pack("qqqq", 0, 10**7, 0, 10**7), 0)
    while True:
        open("/workspace/awake", "w").write(str(time.time()))
        time.sleep(0.001)
if os.fork() == 0:
    signal.signal(signal.SIGCONT, lambda *_: None)
    threading.Thread(target=wakes).start()
    if libc.syscall(CLONE, CLONE_VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
        while True: libc.sleep(100)  # and so the first thread waits in the kernel
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
