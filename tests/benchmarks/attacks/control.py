"""The positive control of an attack: the same program succeeds where nothing holds it.

Under bubblewrap alone, by an unused user, without sandboxd: no filter of system calls, no Landlock,
no limits but those that keep this machine whole. First without rights; then with all rights in
namespaces of its own. What sandboxd would have measured is measured here: processes, memory, output
and what is left. At most five seconds and 300 processes each, and none outlives its control.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import asdict

from tests.benchmarks.attacks import targets as aims
from tests.benchmarks.attacks.attack import LIMITS, PRELUDE, Attack, whole

_FIRST_USER = 0x6FFF0000
_WITHIN_S = 15.0
_HOLDER = """
import json, os, signal, subprocess, sys, time
asked = json.loads(os.environ.pop("ASKED"))
most = asked["limits"]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
def start(text, out=None):
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.DEVNULL, stdout=out,
                            stderr=out, start_new_session=True)
def others():
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and p != "1"]
def resident():
    found = 0
    for pid in others():
        try: found += int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096
        except (OSError, IndexError): pass
    return found
said = os.memfd_create("said")
if asked["beside"]:
    start(asked["beside"], said)
    time.sleep(0.7)
first = start(asked["program"], said)
began = time.monotonic()
found = ""
while first.poll() is None and time.monotonic() - began < asked["within_s"] and not found:
    if asked["goes_on"]:
        if len(others()) > most["processes"] + 8: found = "processes"
        elif resident() > most["memory_bytes"] + 2**26: found = "memory"
        elif os.fstat(said).st_size > most["output_bytes"]: found = "output"
    time.sleep(0.01)
if asked["goes_on"] and not found:
    if first.poll() is None:
        first.terminate()
        time.sleep(0.2)
    found = "it goes on" if others() else ""
if asked["beside"] or asked["elsewhere"]: time.sleep(1.5)
if found: print("BREACH", found, flush=True)
os.lseek(said, 0, 0)
sys.stdout.write(os.read(said, 2**20).decode(errors="replace"))
sys.stdout.flush()
if asked["then"]: start(asked["then"]).wait(10)
os._exit(0)
"""


def succeeds(attack: Attack, targets: Mapping[str, object]) -> bool:
    """Whether the act succeeds outside of sandboxes."""
    if attack.has_control:
        return aims.control(attack.source, dict(targets))
    if not (attack.program or attack.milder):
        return False
    return any(_breaches(attack, targets, rights) for rights in ((), _ALL_RIGHTS))


def why_not(attack: Attack) -> str:
    """Why an attack without a control has none."""
    if attack.asks is not None:
        return "it asks sandboxd's own API"
    if attack.kind in {"escape", "rights", "server", "files"}:
        return "no user of this machine can do it either"
    return "it did not succeed outside of sandboxes either"


_ALL_RIGHTS = ("--uid", "0", "--gid", "0", "--cap-add", "ALL")


def _breaches(attack: Attack, targets: Mapping[str, object], rights: tuple[str, ...]) -> bool:
    program = attack.milder or attack.program
    if attack.later:
        program += f"\ntime.sleep(1.5)\n{attack.later}"
    asked = {
        "program": whole(program),
        "beside": whole(attack.beside or attack.elsewhere) if _has_others(attack) else "",
        "elsewhere": bool(attack.elsewhere),
        "then": f"{PRELUDE}{attack.then}" if attack.then else "",
        "goes_on": attack.goes_on and not attack.milder,
        "within_s": 2.0 if attack.goes_on and not attack.milder else 8.0,
        "limits": asdict(LIMITS),
    }
    stand_ins = {"own_kernel": False, "token_beginning": "unguarded", "most_bytes": 2**26}
    told = dict(targets) | stand_ins
    user = str(_FIRST_USER + secrets.randbelow(2**16))
    as_user = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    command = [
        *(as_user if os.geteuid() == 0 else ()),
        *("prlimit", "--nproc=300", "--nofile=4096", "--core=0", "--"),
        *_bubblewrap(rights or ("--uid", "1000", "--gid", "1000")),
        *("--setenv", "ASKED", json.dumps(asked), "--setenv", "TARGETS", json.dumps(told)),
        *("--setenv", "SANDBOXD_TOKEN", "unguarded", "--", "/usr/bin/python3", "-c", _HOLDER),
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return re.search(rb"^BREACH ", done.stdout, re.MULTILINE) is not None


def _has_others(attack: Attack) -> bool:
    return bool(attack.beside or attack.elsewhere)


def _bubblewrap(user: tuple[str, ...]) -> list[str]:
    folders = ("/workspace", "/tmp", "/dev/shm")
    return [
        *("bwrap", "--unshare-user", *user, "--unshare-pid", "--unshare-net", "--unshare-ipc"),
        *("--unshare-uts", "--as-pid-1", "--die-with-parent", "--ro-bind", "/usr", "/usr"),
        *(w for name in ("bin", "lib", "lib64", "sbin") for w in _link(name)),
        *("--proc", "/proc", "--dev", "/dev"),
        *(w for f in folders for w in ("--perms", "1777", "--size", str(2**30), "--tmpfs", f)),
        *("--chdir", "/workspace", "--clearenv", "--setenv", "HOME", "/workspace"),
        *("--setenv", "PATH", "/usr/bin:/bin"),
    ]


def _link(name: str) -> tuple[str, ...]:
    return ("--symlink", f"usr/{name}", f"/{name}")
