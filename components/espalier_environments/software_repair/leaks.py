"""The scan for leaks: proves before the first episode that no sandbox contains a hint at the fix.

    a tree       history, leftovers of patches, compiled sources, lines of the fix and of the tests
    a sandbox    git objects and caches of packages on its whole disk; those lines in installed
                 files, home folders and temporary folders

A line is searched for together with its neighbour in the fixed file, and only if that pair is not
in the original file.
"""

from __future__ import annotations

import inspect
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from espalier.records import DataError
from espalier.sandbox import Sandbox
from espalier_environments.software_repair import leak_scan
from espalier_environments.software_repair.diffs import FilePatch

_LEAST_CHARACTERS = 4
"""Added lines must be longer than this to count: `else:` and brackets are everywhere."""
_SHOWN = 8
_MOST_FOUND = 50
"""Most findings reported by one run of the scan in a sandbox."""
_SKIPPED = ("/proc", "/sys", "/dev")
_READ = (
    "/workspace/", "/tmp/", "/home/", "/root/", "/opt/", "/srv/", "/var/", "/usr/local/src/",
    "/usr/src/",
)  # fmt: skip
_RUN_S = 20.0
"""Scanning time per run: one more folder may follow, and a sandbox gives a run a minute of CPU."""
_RUN_WITHIN_S = 60.0
_SCAN_WITHIN_S = 900.0
"""Time limit of a whole scan: a disk that was never read takes a minute for 200,000 files."""


class LeakError(DataError):
    """Something that gives a fix away is readable for the policy."""


def fix_pairs(patches: Iterable[FilePatch]) -> frozenset[str]:
    """Return digests of the pairs of lines that patches add, as `leak_scan` searches for them."""
    found: set[str] = set()
    for patch in patches:
        for hunk in patch.hunks:
            old = {leak_scan.normalized(line) for line in hunk.old}
            before = set(leak_scan.pair_digests("".join(hunk.old)))
            new = [line for line in map(leak_scan.normalized, hunk.new) if line]
            for first, second in pairwise(new):
                added = [line for line in (first, second) if line not in old]
                if any(len(line) > _LEAST_CHARACTERS for line in added):
                    found |= set(leak_scan.pair_digests(f"{first}\n{second}")) - before
    return frozenset(found)


def refuse_leaks(
    where: str,
    files: Mapping[str, str],
    pairs: frozenset[str],
    *,
    tests: Sequence[tuple[str, str]] = (),
    ignored: Sequence[str] = (),
) -> None:
    """Check that files show no lines of the fix, and no hidden test's call and result on one line.

    Args:
        where: name of the tree for the message.
        files: path -> content.
        pairs: digests from `fix_pairs`.
        tests: hidden calls with their results; both on one line are a leak.
        ignored: patterns of paths that a person has checked.

    Raises:
        LeakError: something was found, which the message names.
    """
    encoded = ((path, text.encode("utf-8", "surrogateescape")) for path, text in files.items())
    found = list(leak_scan.scanned(encoded, pairs))
    if tests:
        found += [
            (path, f"the hidden test {call}")
            for path, text in files.items()
            for call, result in tests
            if call in text
            and any(call in line and result in line.replace(call, "") for line in text.split("\n"))
        ]
    _refuse(where, [leak for leak in found if not leak_scan.is_ignored(leak[0], ignored)])


async def refuse_leaks_of_sandbox(
    sandbox: Sandbox, pairs: frozenset[str], *, ignored: Sequence[str] = ()
) -> None:
    """Check that nothing on the disk of a sandbox gives a fix away.

    Raises:
        LeakError: something was found, or the scan did not finish.
        SandboxError: the sandbox was lost.
    """
    position = "/"
    ends = time.monotonic() + _SCAN_WITHIN_S
    while position:
        if time.monotonic() > ends:
            raise LeakError(
                f"the sandbox {sandbox.name}: the scan for what gives a fix away took more than "
                f"{_SCAN_WITHIN_S:g} s, and {position} comes next. Use an image with fewer files"
            )
        position, leaks = await _scan_from(position, sandbox, pairs, ignored)
        _refuse(f"the sandbox {sandbox.name}", leaks)


async def _scan_from(
    position: str, sandbox: Sandbox, pairs: frozenset[str], ignored: Sequence[str]
) -> tuple[str, list[tuple[str, str]]]:
    """Scan for a while; return the next folder, empty if none is left, and what was found."""
    mark = secrets.token_hex(8)
    given = {
        "mark": mark, "position": position, "seconds": _RUN_S, "ignored": list(ignored),
        "pairs": sorted(pairs), "skipped": _SKIPPED, "read": _READ,
    }  # fmt: skip
    result = await sandbox.run_python(
        f"{inspect.getsource(leak_scan)}\n{_MAIN}",
        stdin=json.dumps(given).encode(),
        timeout_s=_RUN_WITHIN_S,
    )
    lines = result.stdout.decode(errors="replace").splitlines()
    if len(lines) < 2 or lines[-1] != mark:
        why = f"killed by its limit {result.killed_by}" if result.killed_by else "it failed"
        why = "its output was cut" if result.truncated else why
        raise LeakError(
            f"the sandbox {sandbox.name}: the scan for leaks of the fix did not end ({why}; "
            f"this part of it began at {position}): "
            f"{result.stderr.decode(errors='replace')[-300:] or 'it wrote no error'}"
        )
    return json.loads(lines[-2]), [(path, leak) for path, leak in map(json.loads, lines[:-2])]


_MAIN = f"""
def _main():
    import json, sys, time
    given = json.load(sys.stdin)
    skipped, pairs, left = given["skipped"], set(given["pairs"]), {_MOST_FOUND}
    pending = folders_from(given["position"], skipped)
    ends = time.monotonic() + given["seconds"]
    while pending:
        below, leaks = scan_folder(pending.pop(), skipped, pairs, given["read"])
        pending += reversed(below)
        leaks = [leak for leak in leaks if not is_ignored(leak[0], given["ignored"])]
        for leak in leaks[:left]:
            print(json.dumps(leak))
        left = max(0, left - len(leaks))
        if time.monotonic() > ends:
            break
    print(json.dumps(pending[-1] if pending else ""))
    print(given["mark"])
_main()
"""


def _refuse(where: str, found: list[tuple[str, str]]) -> None:
    told = [f"{path} ({leak})" for path, leak in found]
    if told:
        more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
        raise LeakError(
            f"{where} gives a fix away: {', '.join(told[:_SHOWN])}{more}. Take it out; what is no "
            "leak is passed over by environment.ignored_leaks"
        )
