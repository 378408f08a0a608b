"""Runs an attack in a sandbox of its own, beside a neighbour, and says what it achieved."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espalier.sandbox import Backend, ExecResult, Sandbox, SandboxError, SandboxLost
from espalier.sandbox.starting import WarmSandbox, probe
from tests.benchmarks.attacks.attack import LONG_WALL_S, PRELUDE, THROUGH, WALL_S, Attack, whole

_OVER_WITHIN_S = WALL_S + 8.0
_NEIGHBOUR_WAITS_S = 8.0
_BEFORE_S = 0.7
"""Of programs beside an attack, before it begins."""
_BETWEEN_CALLS_S = 1.5
_FREES_WITHIN_S = 3.0
"""A killed process needs a moment where it held half a million things of the kernel."""
_OWN_FILE = b"a neighbour's file"
_LOOK = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: words = open(f"/proc/{pid}/cmdline", "rb").read().replace(b"\\0", b" ")
    except OSError: continue
    if int(pid) != os.getpid() and b"sandboxd" not in words: print(pid, words)
"""
"""Processes that are neither sandboxd's nor this very look."""


@dataclass
class Verdict:
    """Of one attack on one backend.

    Attributes:
        breaches: what it achieved that it should not have; none is contained.
        untested: why it says nothing, where it does not.
        notes: what it cost its own sandbox.
        has_control: the same act succeeded where nothing holds it.
    """

    breaches: list[str] = field(default_factory=list)
    untested: str = ""
    notes: list[str] = field(default_factory=list)
    took_s: float = 0.0
    has_control: bool = False

    @property
    def told(self) -> str:
        """One cell of the table."""
        if self.untested:
            return f"not tested: {self.untested}"
        if self.breaches:
            return f"NOT CONTAINED: {'; '.join(self.breaches)[:120]}"
        return "; ".join(["contained", *self.notes])


async def judge(
    attack: Attack, backend: Backend, neighbour: Sandbox, targets: Mapping[str, object]
) -> Verdict:
    """Run it in a sandbox made for it, and look at what is left."""
    verdict = Verdict()
    sandbox = await backend.create()
    warm = None
    if attack.then:
        await sandbox.reset()
        warm = WarmSandbox(sandbox, None, await probe(sandbox))
    watching = asyncio.create_task(_watch(neighbour, verdict))
    others = [
        asyncio.create_task(_beside(text, where, targets, verdict))
        for text, where in ((attack.beside, sandbox), (attack.elsewhere, neighbour))
        if text
    ]
    await asyncio.sleep(_BEFORE_S if others else 0.0)
    clock = time.time() - time.monotonic()
    started = time.monotonic()
    try:
        await _run(attack, sandbox, dict(targets), verdict)
        await asyncio.gather(*others)
        if warm is not None:
            await _next_borrower(attack, warm, verdict)
        verdict.took_s = round(time.monotonic() - started, 2)
        if verdict.took_s > _OVER_WITHIN_S:
            verdict.breaches.append(f"it went on for {verdict.took_s} s")
        await _look_after(sandbox, verdict)
    except SandboxLost as lost:
        told = f"its own sandbox was lost ({str(lost)[-60:]})"
        (verdict.breaches if attack.point == 1 else verdict.notes).append(told)
    finally:
        for task in (watching, *others):
            task.cancel()
        await asyncio.gather(watching, *others, return_exceptions=True)
        await sandbox.close()
    if abs(time.time() - time.monotonic() - clock) > 1:
        verdict.breaches.append("the machine's clock was set")
    if Path(str(targets["planted"])).read_text(encoding="ascii") != "a secret of the machine":
        verdict.breaches.append("a file of the machine was changed")
    if await neighbour.get("mine") != _OWN_FILE:
        verdict.breaches.append("a neighbour's file was changed")
    return verdict


async def neighbour_of(backend: Backend) -> Sandbox:
    """A sandbox that has nothing to do with the attacks, and shall not notice them."""
    neighbour = await backend.create()
    await neighbour.put("mine", _OWN_FILE)
    return neighbour


async def _run(
    attack: Attack, sandbox: Sandbox, targets: dict[str, object], verdict: Verdict
) -> None:
    if attack.asks is not None:
        verdict.breaches += await attack.asks(sandbox, targets)
        return
    if attack.later:
        for code in (f"T = {targets!r}\n{_without_targets(attack.program)}", attack.later):
            result = await sandbox.python(code, timeout_s=WALL_S)
            _add_breaches(result, verdict)
            if code is not attack.later and not result.succeeded and not result.killed_by:
                verdict.untested = f"its first call ended with {result.stderr[-80:]!r}"
            await asyncio.sleep(_BETWEEN_CALLS_S)
        return
    secret = sandbox.http.headers["authorization"].split()[1]
    told = json.dumps(targets | {"token_beginning": secret[:8]})
    result = await sandbox.exec(
        ["python", "-c", attack.source],
        env={"TARGETS": told},
        timeout_s=attack.wall_s or (LONG_WALL_S if attack.goes_on else WALL_S),
    )
    lines = _add_breaches(result, verdict)
    if result.killed_by:
        verdict.notes.append(f"ended by {result.killed_by}")
    if not attack.goes_on and not verdict.breaches and THROUGH not in lines:
        said = result.killed_by or result.stderr[-80:].decode(errors="replace").strip()
        verdict.untested = f"it did not come to its end: {said}"


def _add_breaches(result: ExecResult, verdict: Verdict) -> list[str]:
    lines = result.stdout.decode(errors="replace").splitlines()
    verdict.breaches += [line[7:80] for line in lines if line.startswith("BREACH ")]
    return lines


def _without_targets(text: str) -> str:
    """The prelude and a text, for a place whose environment names no targets."""
    return PRELUDE.replace('T = json.loads(os.environ["TARGETS"])', "") + text


async def _beside(
    text: str, sandbox: Sandbox, targets: Mapping[str, object], verdict: Verdict
) -> None:
    """Run a program that has nothing to do with the attack, and shall not notice it."""
    result = await sandbox.exec(
        ["python", "-c", whole(text)], env={"TARGETS": json.dumps(targets)}, timeout_s=WALL_S
    )
    if THROUGH not in _add_breaches(result, verdict):
        verdict.breaches.append(f"a program beside it ended with {str(result)[:120]}")


async def _next_borrower(attack: Attack, warm: WarmSandbox, verdict: Verdict) -> None:
    """Reset and probe as the pool does; only a sandbox without a difference is lent again."""
    if left := await warm.clean():
        verdict.notes.append(f"not lent again ({', '.join(left)})")
        return
    result = await warm.sandbox.exec(["python", "-c", _without_targets(attack.then)])
    _add_breaches(result, verdict)


async def _look_after(sandbox: Sandbox, verdict: Verdict) -> None:
    """Whether its sandbox still works, and nothing of it runs on."""
    try:
        until = time.monotonic() + _FREES_WITHIN_S
        while (seen := await sandbox.exec(["python", "-c", _LOOK])).stdout:
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.2)
        if seen.stdout:
            verdict.breaches.append(f"it left {seen.stdout[:60]!r}")
        await sandbox.reset()
        if (await sandbox.python("6 * 7")).stdout != b"42\n":
            verdict.notes.append("its own sandbox no longer works")
    except SandboxError as error:
        if isinstance(error, SandboxLost):
            raise
        verdict.notes.append(f"its own sandbox no longer works ({error})")


async def _watch(neighbour: Sandbox, verdict: Verdict) -> None:
    while True:
        started = time.monotonic()
        try:
            answered = await neighbour.exec(["echo", "here"])
        except SandboxLost as lost:
            verdict.breaches.append(f"a neighbour was lost: {lost}")
            return
        if answered.stdout != b"here\n" or time.monotonic() - started > _NEIGHBOUR_WAITS_S:
            took_s = time.monotonic() - started
            verdict.breaches.append(f"a neighbour was kept for {took_s:.1f} s: {answered}")
            return
        await asyncio.sleep(0.2)
