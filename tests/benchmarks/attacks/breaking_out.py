"""Attacks on what holds a program: the server beside it, the kernel below it, rights it lacks."""

from tests.benchmarks.attacks.attack import program

ATTACKS = (
    program(
        "server",
        "kill sandboxd, by number, by group and all at once",
        """
me = os.getpid()
for p in [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != me]:
    for n in (9, 15, 19):
        tried(f"kill {p}", lambda: os.kill(p, n) or True)
        tried(f"killpg {p}", lambda: os.killpg(p, n) or True)
tried("kill -1", lambda: os.kill(-1, 9) or True)
""",
    ),
    program(
        "server",
        "signal sandboxd by a descriptor of it",
        """
for name in ("/proc/1", f"/proc/{os.getppid()}"):
    tried("pidfd", lambda: signal.pidfd_send_signal(os.open(name, os.O_RDONLY), 9) or True)
tried("pidfd_open", lambda: os.pidfd_open(1))
""",
    ),
    program(
        "server",
        "have the kernel signal sandboxd",
        """
import fcntl
r, w = os.pipe()
for p in (1, os.getppid()):
    tried("F_SETOWN", lambda: fcntl.fcntl(r, 8, p) == 0)
    tried("FIOSETOWN", lambda: fcntl.ioctl(r, 0x8901, struct.pack("i", p)) is not None)
tried("F_SETSIG", lambda: fcntl.fcntl(r, 10, 9) == 0)
""",
    ),
    program(
        "server",
        "trace sandboxd",
        "for p in (1, os.getppid()):\n    called('attach', 101, 16, p, 0, 0)\n"
        "    called('seize', 101, 0x4206, p, 0, 0)\ncalled('traceme', 101, 0, 0, 0, 0)",
        milder="called('traceme', 101, 0, 0, 0, 0)",
    ),
    program(
        "server",
        "read sandboxd's memory",
        """
buffer = ctypes.create_string_buffer(64)
class V(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
mine, theirs = V(ctypes.addressof(buffer), 64), V(0x400000, 64)
for p in (1, os.getppid()):
    called("readv", 310, p, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
    tried("mem", lambda: open(f"/proc/{p}/mem", "rb"))
""",
    ),
    program(
        "server",
        "read sandboxd's token from its environment, descriptors and maps",
        """
for p in [p for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]:
    for name in ("environ", "maps", "auxv", "syscall", "stack", "io"):
        tried(f"{p}/{name}", lambda: open(f"/proc/{p}/{name}", "rb").read(1))
    for name in ("exe", "cwd", "root", "fd/3", "fd/0"):
        tried(f"{p}/{name}", lambda: os.readlink(f"/proc/{p}/{name}"))
    def descriptors():
        numbers = os.listdir(f"/proc/{p}/fd")  # gVisor tells them, and opens none
        return not T["own_kernel"] or [open(f"/proc/{p}/fd/{n}", "rb") for n in numbers]
    tried(f"{p}/fd", descriptors)
""",
    ),
    program(
        "server",
        "find the token in what is its own",
        """
needle = T["token_beginning"]
held = " ".join(value for name, value in os.environ.items() if name != "TARGETS")
for name in os.listdir("/proc/self/fd"):
    try:
        os.lseek(int(name), 0, 0)
        held += os.read(int(name), 2**16).decode(errors="replace")
    except (OSError, ValueError): pass
if needle in held or "SANDBOXD_" in held: breach("token")
""",
    ),
    program(
        "server",
        "talk to sandboxd without its token, or take its socket",
        """
found = []
for family, address in ((socket.AF_INET, ("127.0.0.1", 8080)), (socket.AF_UNIX, "/socket")):
    try:
        with socket.socket(family) as s:
            s.settimeout(1)
            s.connect(address)
            s.sendall(b"POST /run HTTP/1.1\\r\\nhost: x\\r\\ncontent-length: 2\\r\\n\\r\\n{}")
            found.append(s.recv(64))
    except OSError: pass
for said in found:
    if b" 401 " not in said: breach(said)
for n in range(3, 256):
    tried(f"descriptor {n}", lambda: os.fstat(n).st_mode)
""",
    ),
    program(
        "server",
        "slow sandboxd down",
        """
import resource
for p in (1, os.getppid()):
    tried("prlimit", lambda: resource.prlimit(p, resource.RLIMIT_NOFILE, (0, 0)))
    tried("affinity", lambda: os.sched_setaffinity(p, {0}) or True)
    tried("nice", lambda: os.setpriority(os.PRIO_PROCESS, p, 19) or True)
tried("nice of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19) or True)
tried("score", lambda: open("/proc/1/oom_score_adj", "w").write("1000"))
""",
    ),
    program(
        "server",
        "lie over the channels of its own run",
        """
for n in range(3, 64):
    try: os.write(n, b'{"wait_status": 0, "clean": true, "cpu_s": 0, "max_rss_bytes": 0}\\n')
    except OSError: continue
    breach(n)
""",
    ),
    program(
        "server",
        "set the clock",
        """
now = struct.pack("qq", 1, 0)
called("settimeofday", 164, now, 0)
called("clock_settime", 227, 0, now)
called("clock_adjtime", 305, 0, struct.pack("I", 0x8002) + bytes(204))
tried("rtc", lambda: open("/dev/rtc0", "rb"))
""",
    ),
    program(
        "escape",
        "write what the kernel reads below /proc",
        """
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches",
             "/proc/sys/kernel/hostname", "/proc/sys/fs/binfmt_misc/register",
             "/proc/irq/default_smp_affinity", "/proc/acpi/wakeup"):
    tried(path, lambda: os.open(path, os.O_WRONLY))
for name in ("uid_map", "gid_map", "projid_map"):  # its own: to open it is no harm
    tried(name, lambda: os.write(os.open(f"/proc/self/{name}", os.O_WRONLY), b"0 0 1"))
""",
    ),
    program(
        "escape",
        "read the machine through /proc",
        """
for path in ("/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/vmallocinfo",
             "/proc/slabinfo", "/proc/kpagecount", "/proc/sched_debug"):
    tried(path, lambda: open(path, "rb").read(1))
tried("addresses", lambda: any(line.split()[0].strip("0") for line in open("/proc/kallsyms")))
""",
    ),
    program(
        "escape",
        "write below /sys, debugfs and the control groups",
        """
for top in ("/sys/kernel", "/sys/fs/cgroup", "/sys/kernel/debug", "/sys/power"):
    for folder, _, names in os.walk(top):
        for name in names[:40]:
            tried(f"{folder}/{name}", lambda: os.open(f"{folder}/{name}", os.O_WRONLY))
        if folder.count("/") > 6: break
tried("cgroup", lambda: os.mkdir("/sys/fs/cgroup/x") or True)
""",
    ),
    program(
        "escape",
        "leave its control groups",
        """
os.makedirs("/tmp/c", exist_ok=True)
called("mount cgroup", 165, b"c", b"/tmp/c", b"cgroup", 0, b"memory")
called("mount cgroup2", 165, b"c", b"/tmp/c", b"cgroup2", 0, 0)
for line in open("/proc/self/cgroup"):
    path = "/sys/fs/cgroup" + line.strip().split(":")[2] + "/cgroup.procs"
    tried(path, lambda: os.open(path, os.O_WRONLY))
""",
    ),
    program(
        "escape",
        "mount, and move mounts",
        """
os.makedirs("/tmp/m", exist_ok=True)
called("tmpfs", 165, b"t", b"/tmp/m", b"tmpfs", 0, 0)
called("proc", 165, b"p", b"/tmp/m", b"proc", 0, 0)
called("bind", 165, b"/", b"/tmp/m", b"", 4096, 0)
called("remount", 165, b"", b"/", b"", 32 | 4096, 0)
called("umount", 166, b"/proc", 2)
called("pivot_root", 155, b"/tmp", b"/tmp/m")
called("fsopen", 430, b"tmpfs", 0)
called("open_tree", 428, -100, b"/", 1)
""",
    ),
    program(
        "escape",
        "new namespaces, and rights in them",
        """
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000, 0x8000000, 0x2000000):
    called(hex(flag), 272, flag)
called("clone", 56, 0x10000000 | 17, 0, 0, 0, 0)
called("clone3", 435, struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)
""",
    ),
    program(
        "escape",
        "enter another's namespaces",
        """
for p in (1, os.getppid()):
    for name in ("ns/mnt", "ns/net", "ns/pid", "ns/user"):
        def enter():
            f = os.open(f"/proc/{p}/{name}", os.O_RDONLY)
            return libc.setns(f, 0) == 0
        tried(name, enter)
""",
    ),
    program(
        "escape",
        "chroot, and out of it",
        "called('chroot', 161, b'/tmp')\n"
        "tried('root', lambda: open('/proc/1/root/etc/passwd').read())",
    ),
    program(
        "escape",
        "open files of the machine by their handles",
        "called('open_by_handle_at', 304, -100, struct.pack('IIQ', 8, 1, 2), 0)\n"
        "called('name_to_handle_at', 303, -100, b'/', bytes(128), bytes(8), 0)",
    ),
    program(
        "escape",
        "devices: make them, and open those that are there",
        """
for kind, number in ((stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(1, 1))):
    tried("mknod", lambda: os.mknod(f"/tmp/d{number}", kind | 0o666, number) or True)
for name in ("mem", "kmem", "port", "kmsg", "sda", "vda", "loop-control", "kvm", "vsock",
             "dri/card0", "nvidia0", "btrfs-control", "uinput", "hwrng"):
    tried(name, lambda: os.open(f"/dev/{name}", os.O_RDWR))
def tunnel():
    request = struct.pack("16sH22x", b"out", 0x1002)  # a tap without packet information
    return fcntl.ioctl(os.open("/dev/net/tun", os.O_RDWR), 0x400454CA, request)
tried("net/tun", tunnel)
def file_system():
    options = f"fd={os.open('/dev/fuse', os.O_RDWR)},rootmode=40000,user_id=0,group_id=0"
    return libc.mount(b"f", b"/tmp", b"fuse", 0, options.encode()) == 0
tried("fuse", file_system)
harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue",
            "fd", "stdin", "stdout", "stderr", "core", "console"}
if T["own_kernel"]: harmless |= {"fuse", "net", "char"}  # gVisor itself answers there
else:
    for name in ("fuse", "net/tun"): tried(name, lambda: os.open(f"/dev/{name}", os.O_RDWR))
if extra := set(os.listdir("/dev")) - harmless: breach(extra)
""",
    ),
    program(
        "escape",
        "load code into the kernel",
        """
called("init_module", 175, bytes(64), 64, b"")
called("finit_module", 313, 0, b"", 0)
called("bpf", 321, 5, bytes(128), 128)
called("kexec_load", 246, 0, 0, 0, 0)
called("perf_event_open", 298, bytes(128), 0, -1, -1, 0)
""",
    ),
    program(
        "escape",
        "ways into the kernel that programs need not have",
        """
called("io_uring_setup", 425, 8, bytes(120))
called("userfaultfd", 323, 0)
called("keyctl", 250, 0, -3, 0)
called("add_key", 248, b"user", b"x", b"x", 1, -3)
called("swapon", 167, b"/tmp/x", 0)
called("acct", 163, b"/tmp/x")
called("reboot", 169, 0xfee1dead, 672274793, 0)
""",
    ),
    program(
        "escape",
        "the system calls of another machine (x32)",
        """
for number in (39, 101, 165, 272): called(f"x32 {number}", number | 0x40000000, 0, 0, 0, 0)
""",
    ),
    program(
        "rights",
        "become root, or anyone else",
        """
for name, work in {
    "setuid": lambda: os.setuid(0), "setgid": lambda: os.setgid(0),
    "setgroups": lambda: os.setgroups([0]), "setresuid": lambda: os.setresuid(0, 0, 0),
    "setuid of a neighbour": lambda: os.setuid(os.getuid() + 1),
}.items():
    tried(name, lambda: work() is None)
called("capset", 126, struct.pack("II", 0x20080522, 0), struct.pack("IIIIII", *[2**32 - 1] * 6))
""",
    ),
    program(
        "rights",
        "programs with the setuid bit",
        """
for command in (["su", "-c", "id -u"], ["sudo", "-n", "id", "-u"], ["pkexec", "id", "-u"]):
    try: said = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=2)
    except (OSError, subprocess.TimeoutExpired): continue
    if said.stdout.strip() == b"0": breach(command)
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
if status["NoNewPrivs"].strip() != "1" or int(status["CapBnd"], 16): breach("rights to gain")
import shutil
shutil.copy("/bin/id" if os.path.exists("/bin/id") else "/usr/bin/env", "/tmp/id")
tried("chmod u+s", lambda: os.chmod("/tmp/id", 0o6755))
if subprocess.run(["/tmp/id", "-u"], capture_output=True).stdout.strip() == b"0": breach("root")
""",
    ),
    program(
        "files",
        "write outside of the workspace",
        """
for folder in ("/", "/usr", "/usr/bin", "/etc", "/opt/sandbox", "/opt/sandbox/bin", "/dev", "/var",
               "/lib", "/root", "/home", "/boot", "/proc", "/sys", "/run"):
    tried(folder, lambda: os.open(f"{folder}/espalier", os.O_CREAT | os.O_WRONLY))
    tried(f"chmod {folder}", lambda: os.chmod(folder, 0o777) is None)
import sandboxd
tried("sandboxd", lambda: os.open(sandboxd.__file__, os.O_WRONLY))
""",
    ),
    program(
        "files",
        "a hard link to a file of the system, or of another user",
        """
for path in ("/etc/passwd", "/usr/bin/env", "/proc/1/environ"):
    tried(path, lambda: os.link(path, "/workspace/linked") is None)
""",
    ),
)
