"""A probe between two uses of a sandbox: what a program finds there, to be the same every time.

It is taken when a sandbox is fresh and again after every reset. Whatever differs was left by a
borrower, and would have biased the next one's rewards without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from espalier.sandbox.errors import SandboxLost
from espalier.sandbox.protocol import Sandbox

PROBE = """
import hashlib, json, os, resource, stat, sys

def files(folder):
    digest, number = hashlib.sha256(), 0
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(folders + names):
            whole = os.path.join(path, name)
            found = os.lstat(whole)
            told = [whole, found.st_mode, found.st_uid]
            if stat.S_ISLNK(found.st_mode):
                told.append(os.readlink(whole))
            elif stat.S_ISREG(found.st_mode):
                told += [found.st_size, int(found.st_mtime)]
                with open(whole, "rb") as file:
                    told.append(hashlib.file_digest(file, "sha256").hexdigest())
            digest.update(repr(told).encode())
            number += 1
    own = os.stat(folder)
    return [number, digest.hexdigest(), own.st_mode, os.listxattr(folder)]

def orphans():
    number = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                number += file.read().rpartition(b")")[2].split()[1] == b"1"
        except OSError:
            continue
    return number

def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()

MEMORY = (resource.RLIMIT_DATA, resource.RLIMIT_AS)  # beyond what the interpreter has now
found = {
    "variables": sorted(os.environ.items()),
    "modules": len(sys.modules),
    "orphans": orphans(),
    "mounts": digest("/proc/self/mounts"),
    "limits": [resource.getrlimit(n) for n in range(16) if n not in MEMORY],
    "folder": os.getcwd(),
}
for folder in ("/workspace", "/tmp", "/var/tmp", "/dev/shm"):
    if os.path.isdir(folder):
        found[folder] = files(folder)
print(json.dumps(found))
"""


async def probe(sandbox: Sandbox) -> Mapping[str, object]:
    """What a program finds in a sandbox now.

    Raises:
        SandboxLost: the probe itself did not run as it should.
    """
    result = await sandbox.run_python(PROBE)
    if not result.succeeded:
        raise SandboxLost(f"{sandbox.name}: its probe ended with {result}")
    try:
        return json.loads(result.stdout)
    except ValueError as error:
        raise SandboxLost(f"{sandbox.name}: its probe said {result.stdout!r}") from error


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Names of what is no longer as it was: signs of pollution."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
