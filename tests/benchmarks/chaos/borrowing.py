"""Borrowers: each leaves its own mark wherever it can and looks for anybody else's."""

import asyncio
import contextlib
import json
import re

from espalier.sandbox import SandboxRefused

MARK = re.compile(r"chaos-[0-9]{7}-[0-9a-f]{8}")
_RUN_GRACE_S = 15.0 + 10.0
"""sandboxd's time beyond a program's own, and what a busy machine may add."""
_TRANSFER_S = 60.0 + 10.0
WALL_S = 4.0
"""Of every program, probes included."""
_LOOK = """
import json, os, re
pattern, found = re.compile(rb"chaos-[0-9]{7}-[0-9a-f]{8}"), set()

def look(data):
    found.update(match.decode() for match in pattern.findall(data))

def read(path):
    try:
        with open(path, "rb") as file:
            look(file.read(65536))
    except OSError:
        pass

for folder in ("/workspace", "/tmp", "/var/tmp", "/dev/shm"):
    for path, folders, names in os.walk(folder):
        for name in folders + names:
            look(os.fsencode(name))
        for name in names:
            if os.path.isfile(os.path.join(path, name)):
                read(os.path.join(path, name))
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        read(f"/proc/{pid}/environ")
        read(f"/proc/{pid}/cmdline")
read("/proc/net/unix")
with open("/proc/net/tcp") as file:
    listening = sum(line.split()[3] == "0A" for line in file.readlines()[1:])
times = [
    int(os.stat(folder).st_mtime) for folder in ("/workspace", "/tmp", "/dev/shm")
]
print(json.dumps({"tag": TAG, "found": sorted(found), "listening": listening,
                  "old": sum(time < 1_500_000_000 for time in times)}))
"""
_MARKING = """
import os, socket, time
for folder in ("/workspace", "/tmp", "/var/tmp", "/dev/shm"):
    try:
        os.makedirs(f"{folder}/{MARK}", exist_ok=True)
        open(f"{folder}/{MARK}/file", "w").write(MARK)
        os.utime(folder, (1_000_000_000, 1_000_000_000))
    except OSError:
        pass
if DAEMON and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "3"], {"OWNER": MARK})
    os._exit(0)
if LISTENS:
    server = socket.create_server(("127.0.0.1", 8123))
    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind("\\0" + MARK)
print(TAG)
"""
_LOOKS_AGAIN = 0.5
_MANNERS = {"well": 70, "cancelled": 10, "in a hurry": 7, "raises": 8, "leaves in mid-call": 5}


class OwnError(Exception):
    """A borrower's own, nothing of the sandbox's."""


class Borrower:
    """One claim: a few calls of one who trusts nobody."""

    def __init__(self, world, claim, number, *, is_checking=False):
        self._world, self._claim = world, claim
        self._rng = rng = world.rng
        self.name = f"borrower {number}"
        self.mark = f"chaos-{number:07d}-{rng.getrandbits(32):08x}"
        self.manner = "well"
        if not is_checking:
            self.manner = rng.choices(tuple(_MANNERS), tuple(_MANNERS.values()))[0]
        self._is_checking = is_checking
        self._calls = 0
        self._sandbox = self._proxy = None
        self._written = {}
        self.was_served = False
        self.is_cancelled = False

    async def borrow(self):
        """Claim, use and return a sandbox.

        Raises:
            SandboxError: the claim or a call failed.
            OwnError: as its manner wants.
        """
        world, plan = self._world, self._world.plan
        async with contextlib.AsyncExitStack() as loan:
            with world.ends_within(self.name, plan.claim_timeout_s + 10.0, "claim"):
                self._sandbox = await loan.enter_async_context(self._claim())
            self.was_served = True
            world.served += 1
            self._proxy = world.proxies.get(self._sandbox.name)
            with world.holding(self._sandbox.name, self.name):
                limit_s = self._rng.uniform(0.05, 0.6)
                async with asyncio.timeout(limit_s if self.manner == "in a hurry" else None):
                    await self._use()

    async def _use(self):
        rng = self._rng
        await self._look(at_first=True)
        steps = [self._mark, self._exec, self._session, self._put_and_get, self._snapshot]
        for _ in range(rng.randint(1, 3)):
            step = rng.choice(steps)
            try:
                await step()
            except SandboxRefused as error:  # a sandbox that was told lies about may be busy
                self._world.say(f"{self.name} {step.__name__}: {error!r}"[:200])
        if self.manner == "leaves in mid-call":
            going = asyncio.create_task(self._session("import time; time.sleep(2)"))
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            going.cancel()
            await asyncio.gather(going, return_exceptions=True)
        elif self.manner == "raises":
            raise OwnError
        elif rng.random() < _LOOKS_AGAIN:
            await self._look(at_first=False)

    async def _look(self, *, at_first):
        tag = self._tag()
        code = _LOOK.replace("TAG", repr(tag))
        result, is_forged = await self._ask(self._sandbox.run_python(code), WALL_S + _RUN_GRACE_S)
        if is_forged or not result.succeeded:
            return
        try:
            told = json.loads(result.stdout)
            others = set(told["found"]) - {self.mark}
            if told["tag"] != tag:
                raise ValueError(told["tag"])
        except (ValueError, KeyError, TypeError):
            self._wrong("look", tag, result)
            return
        if others:
            self._break(f"leftover: {self.name} found {sorted(others)} in {self._sandbox.name}")
        if at_first and (told["listening"] or told["old"] or self.mark in told["found"]):
            self._break(f"leftover: {self.name} found {told} in {self._sandbox.name}")

    async def _mark(self):
        tag, rng = self._tag(), self._rng
        code = _MARKING.replace("MARK", repr(self.mark)).replace(f"{{{self.mark!r}}}", self.mark)
        code = code.replace("DAEMON", repr(rng.random() < 0.2))
        code = code.replace("LISTENS", repr(rng.random() < 0.05)).replace("TAG", repr(tag))
        await self._run("run_python", tag, self._sandbox.run_python(code))

    async def _exec(self):
        tag = self._tag()
        rest = tag.removeprefix(self.mark)
        script = f"echo $OWNER{rest}; test -e /tmp/own || echo $OWNER > /tmp/own; cat /tmp/own >&2"
        running = self._sandbox.exec(["sh", "-c", script], env={"OWNER": self.mark})
        await self._run("exec", tag, running)

    async def _session(self, more=""):
        tag = self._tag()
        code = (
            f"owner = globals().get('owner', {self.mark!r}); {more}\nprint(owner)\nprint({tag!r})"
        )
        if not more and self._rng.random() < 0.1:
            code = f"import os, time\nos.fork() or time.sleep(60)\n{code}"
        await self._run("session", tag, self._sandbox.python(code), is_session=True)

    async def _put_and_get(self):
        path = f"deep/{self._rng.randrange(3)}"
        content = f"{self.mark} ".encode() * self._rng.choice((1, 50, 20_000))
        _, is_forged = await self._ask(self._sandbox.put(path, content), _TRANSFER_S)
        self._written[path] = None if is_forged else content
        read, is_forged = await self._ask(self._sandbox.get(path), _TRANSFER_S)
        if not is_forged and read != content:
            self._break(f"another's file: {self.name} read {read[:80]!r} in {self._sandbox.name}")

    async def _snapshot(self):
        await self._ask(self._sandbox.snapshot(), _TRANSFER_S)

    async def _run(self, what, tag, running, *, is_session=False):
        result, is_forged = await self._ask(running, WALL_S + _RUN_GRACE_S)
        if is_forged:
            return
        marks = set(MARK.findall(result.text))
        last = result.stdout.decode(errors="replace").splitlines()[-1:]
        only = is_session or set(result.stdout.decode().split()) <= {tag}
        if marks - {self.mark} or (result.succeeded and last != [tag]) or not only:
            self._wrong(what, tag, result)

    async def _ask(self, asking, within_s):
        """The answer, and whether the proxy forged one meanwhile."""
        forged = 0 if self._proxy is None else self._proxy.forged
        with self._world.ends_within(self.name, within_s, f"{asking.__name__} of {self.manner}"):
            answer = await asking
        is_forged = self._proxy is not None and self._proxy.forged > forged
        if is_forged:
            self._world.causes["forged answers"] += 1
        return answer, is_forged

    def _tag(self):
        self._calls += 1
        return f"{self.mark}/{self._calls}"

    def _wrong(self, what, tag, result):
        self._break(f"another's result: {what} {tag} of {self.name} gave {result}"[:600])

    def _break(self, what):
        self._world.break_rule(what)
