"""Real local sandboxes that the trial can reach: behind a proxy, failing to start, or weakened."""

import asyncio
import time

import httpx2

from espalier.sandbox import SandboxError, SandboxLost, SandboxQuota, SandboxTimeout
from espalier.sandbox.client import SandboxClient, Token
from espalier.sandbox.local import LocalBackend
from espalier.sandbox.starting import PROBE
from tests.benchmarks.chaos.proxy import Proxy

_FAILURES = (SandboxQuota, SandboxTimeout, SandboxLost)


class ChaosSandbox(SandboxClient):
    """A local sandbox, asked at its own address or at a proxy's; knows what it is used for.

    Attributes:
        phase: `create`, `ready`, `reset`, `probe`, `use`, `close` or `closed`.
    """

    only_programs_end_it = True

    def __init__(self, world, real, proxy):
        path = real._process.socket_path if proxy is None else proxy.path
        super().__init__(real.name, real.limits, Token(), f"unix:{path}")
        self.http.headers = httpx2.Headers(real.http.headers)
        self._world, self._real, self.proxy = world, real, proxy
        self.phase, self._probed = "create", None
        self.is_closed = False

    @property
    def first_process(self):
        """The pid of bubblewrap, as this machine has it; None after the end."""
        process = self._real._process._process
        return None if process is None else process.pid

    async def reset(self, snapshot=None):
        self.phase = "reset"
        if self._world.plan.weaken != "reset" or self._probed is None:
            await super().reset(snapshot)

    async def run_python(self, code, **options):
        is_probe = code == PROBE
        self.phase = "probe" if is_probe else "use"
        if is_probe and self._world.plan.weaken == "reset" and self._probed is not None:
            return self._probed
        result = await super().run_python(code, **options)
        if is_probe:
            self._probed, self.phase = result, "ready"
        return result

    async def close(self):
        self.phase = "close"
        self.mark_lost("its owner closed it")
        await self.close_connections()
        if self.proxy is not None:
            await self.proxy.close()
            self._world.proxies.pop(self.name, None)
        if self._world.plan.weaken != "closing" or self._world.rng.random() < 0.5:
            await self._real.close()
        self.phase, self.is_closed = "closed", True


class ChaosBackend:
    """Creates them; counts what is there.

    Attributes:
        alive: created, and not closed.
        starting: creates in progress.
    """

    name = "local"

    def __init__(self, world, limits, folder):
        self._world, self._folder = world, folder
        self._local = LocalBackend(limits=limits, packages=(), preimport=(), start_timeout_s=10.0)
        self.alive, self.starting, self.made, self.most = [], 0, 0, 0

    async def create(self):
        world, rng = self._world, self._world.rng
        if not world.is_calm and rng.random() < world.plan.failing_creates:
            error = rng.choice(_FAILURES)
            world.count("create fails", error.__name__)
            await asyncio.sleep(rng.uniform(0.0, 0.3))
            raise error("chaos: none now")
        self.starting += 1
        try:
            return await self._create()
        except SandboxError as error:
            world.say(f"create ended with {error!r}"[:300])
            raise
        finally:
            self.starting -= 1

    async def _create(self):
        world = self._world
        began_s = time.monotonic()
        real = await self._local.create()
        proxy = None
        if world.rng.random() < world.plan.share_proxied:
            proxy = Proxy(world, self._folder / f"proxy-{self.made}", real._process.socket_path)
            await proxy.open()
            world.proxies[real.name] = proxy
        self.made += 1
        sandbox = ChaosSandbox(world, real, proxy)
        self.alive.append(sandbox)
        took_s = time.monotonic() - began_s
        world.say(f"made {sandbox.name} in {took_s:.2f} s{'' if proxy is None else ', proxied'}")
        return sandbox

    def existing(self):
        """Those that are not closed."""
        self.alive = [sandbox for sandbox in self.alive if not sandbox.is_closed]
        return self.alive

    async def close(self):
        await self._local.close()
