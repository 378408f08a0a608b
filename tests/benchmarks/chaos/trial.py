"""A trial: pools that are opened, used by many, closed in the middle of it, and looked after."""

import asyncio
import gc
import glob
import os
import random
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from espalier.sandbox import Limits, SandboxError
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.pool import PoolSettings, SandboxPool
from sandboxd.kernel import adopt_orphans
from tests.benchmarks.chaos import processes
from tests.benchmarks.chaos.backend import ChaosBackend
from tests.benchmarks.chaos.borrowing import WALL_S, Borrower, OwnError
from tests.benchmarks.chaos.monkey import Monkey
from tests.benchmarks.chaos.world import World

_RECOVERS_WITHIN_S = 60.0
_BATCH, _BATCHES_IN_A_ROW = 8, 2
"""Claims at once, and how often all have to succeed before a pool counts as recovered."""
_ENDS_WITHIN_S = 40.0
"""Borrowers and closing of a pool, once it is closed."""
_SETTLES_WITHIN_S = 10.0
_MOST_GROWTH_BYTES = 96 * 2**20
"""Of this process, from the end of the first two pools to the end of the last."""
_LOOK_S = 0.05
_STARTS_S = 120.0
"""Besides three times the planned time: what a busy machine may need for the first sandboxes."""
_ANYIO = "Exception in callback Future.set_result(None)"
"""anyio 4 waits for a socket by a future; if the wait is cancelled in the moment data arrives,
asyncio reports that the future was done already. Nothing is lost by it."""
_LIMITS = Limits(
    memory_bytes=128 * 2**20,
    cpu_s=4.0,
    processes=32,
    disk_bytes=16 * 2**20,
    output_bytes=256 * 1024,
    wall_s=WALL_S,
)


class Trial:
    """All pools of a plan, one after the other.

    Args:
        say: called with a line when a pool was closed.
    """

    def __init__(self, plan, say=print):
        self.world = World(plan, random.Random(plan.seed))
        self.recovery_s = []
        self.most_existing = 0
        self.growth_bytes = 0
        self.made = 0
        self._say = say
        self._numbers = iter(range(10**7))
        self._settled_bytes = 0

    def run(self):
        """Play the plan until its end or the first violation."""
        adopt_orphans()  # whatever loses its parent is seen below this process
        plan, world = self.world.plan, self.world
        with _own_folder() as folder:
            number, until_s = 0, world.began_s + plan.seconds
            while not world.violations and (number < plan.pools or world.claims < plan.claims):
                left_s = until_s - time.monotonic()
                if left_s < -2 * plan.seconds - _STARTS_S:
                    world.break_rule(f"throughput: {world.claims} claims in 3 times the time")
                    break
                share_s = max(left_s, 1.0) / max(plan.pools - number, 1)
                self._live(number, max(share_s, 1.0), folder)
                number += 1
            if world.violations:
                self._end_all()

    def _live(self, number, seconds, folder):
        world = self.world
        world.is_calm = False
        with self._nothing_is_left(folder):
            life = _Life(self, ChaosBackend(world, _LIMITS, folder), number, seconds)
            with asyncio.Runner() as runner:
                runner.get_loop().set_exception_handler(self._unhandled)
                runner.run(life.run())
            self.made += life.backend.made
            del life
        if number == 1:
            self._settled_bytes = processes.resident_bytes()
        elif number > 1:
            self.growth_bytes = processes.resident_bytes() - self._settled_bytes
            if self.growth_bytes > _MOST_GROWTH_BYTES:
                world.break_rule(f"memory: grown by {self.growth_bytes / 2**20:.0f} MiB")
        elapsed_s = time.monotonic() - world.began_s
        self._say(
            f"pool {number:3d}: {elapsed_s:6.0f} s, {world.claims} claims, {world.served} served, "
            f"{sum(world.counted.values())} events, {len(world.violations)} violations"
        )

    def _unhandled(self, _, context):
        if _ANYIO in str(context.get("message")):
            self.world.counted["cancelled while anyio was told of data"] += 1
            return
        self.world.break_rule(f"unhandled: {context.get('message')}: {context.get('exception')!r}")

    @contextmanager
    def _nothing_is_left(self, folder):
        """After the block there is no process, folder, descriptor, thread or group more."""
        before = processes.num_descriptors(), threading.active_count()
        yield
        until_s = time.monotonic() + _SETTLES_WITHIN_S
        while (left := self._left(before, folder)) and time.monotonic() < until_s:
            gc.collect()
            time.sleep(_LOOK_S)
        gc.collect()
        for what in left:
            self.world.break_rule(f"left behind: {what}")

    def _left(self, before, folder):
        descriptors, threads = before
        living = processes.living()
        left = [f"process {pid}: {command}" for pid, command in living.items()]
        left += [f"folder {path}" for path in folder.iterdir()]
        left += [f"group {path}" for path in _groups()]
        if processes.num_descriptors() > descriptors:
            left.append(f"descriptors, of {descriptors}: {processes.descriptors()}")
        if threading.active_count() > threads:
            left.append(f"threads: {[thread.name for thread in threading.enumerate()]}")
        return left

    def _end_all(self):
        """After a violation: leave this machine as it was."""
        for pid in processes.first_processes():
            processes.strike(pid, os.getpid(), 9)
        time.sleep(1.0)
        processes.living()


class SharingPool(SandboxPool):
    """Lends a sandbox to two at once, as a control."""

    def _offer(self, warm):
        if len(self._waiting) > 1:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(warm)
        super()._offer(warm)


class _Life:
    """One pool, from its opening to its end."""

    def __init__(self, trial, backend, number, seconds):
        self._trial, self._world = trial, trial.world
        self.backend, self._number, self._seconds = backend, number, seconds
        plan = self._world.plan
        self._settings = PoolSettings(
            size=plan.size,
            low_water=plan.size // 3,
            high_water=plan.size,
            max_uses=40,
            max_starting=3,
            claim_timeout_s=plan.claim_timeout_s,
            backoff_s=0.1,
            longest_backoff_s=1.0,
        )
        self._borrowers = set()
        self._is_over = self._is_closing = False
        self._most = plan.size

    async def run(self):
        if self._number % 2 and self._world.plan.weaken != "sharing":
            await self._on_a_thread()
        else:
            await self._on_this_loop()

    async def _on_this_loop(self):
        kind = SharingPool if self._world.plan.weaken == "sharing" else SandboxPool
        pool = kind(self.backend, self._settings)

        async def here(work):
            return await work

        async with self._closing(), pool:
            await self._use(pool, pool.claim, here)
        self._check_metrics(pool)

    async def _on_a_thread(self):
        thread = PoolThread(self.backend, self._settings)

        async def handle():
            asyncio.get_running_loop().set_exception_handler(self._trial._unhandled)

        try:
            await asyncio.to_thread(thread.__enter__)
        except SandboxError as error:
            self._world.count("opening fails", repr(error)[:200])
            return
        await thread.run(handle())
        async with self._closing():
            try:
                await self._use(thread.pool, thread.claim, thread.run)
            finally:
                await asyncio.to_thread(thread.__exit__)
        self._check_metrics(thread.pool)

    def _closing(self):
        return _Ending(self._world, self._borrowers, self)

    async def _use(self, pool, claim, on_its_loop):
        world, plan = self._world, self._world.plan
        world.is_calm = False
        watching = asyncio.create_task(self._watch(pool))
        monkey = asyncio.create_task(Monkey(world, self.backend).run())
        workers = [
            asyncio.create_task(self._borrow_again(claim, on_its_loop))
            for _ in range(plan.borrowers)
        ]
        self._borrowers.update(workers)
        self._watching = watching
        until_s = time.monotonic() + self._seconds
        wanted = plan.claims * (self._number + 1) / plan.pools
        while time.monotonic() < until_s or world.claims < wanted:
            if world.violations or time.monotonic() > until_s + 2 * self._seconds + _STARTS_S:
                break
            await asyncio.sleep(_LOOK_S)
        if self._number % 4 < 2 and not world.violations:
            await self._recover(claim, on_its_loop)
        world.is_calm = True
        if monkey.done():
            await monkey  # a fault of the harness
        monkey.cancel()
        self._is_closing = True

    async def _watch(self, pool):
        world = self._world
        while True:
            world.check_due()
            existing = len(self.backend.existing()) + self.backend.starting
            self._trial.most_existing = max(self._trial.most_existing, existing, pool.num_existing)
            if max(existing, pool.num_existing) > self._most:
                world.break_rule(f"size: {existing} exist, {pool.num_existing} by its own count")
            await asyncio.sleep(_LOOK_S)

    async def _recover(self, claim, on_its_loop):
        """Chaos ends, and borrowers go on: how long until claims succeed one after the other."""
        world = self._world
        world.is_calm = True
        began_s, in_a_row, recovered_s = time.monotonic(), 0, 0.0
        while in_a_row < _BATCHES_IN_A_ROW and not world.violations:
            if time.monotonic() - began_s > _RECOVERS_WITHIN_S:
                world.break_rule(
                    f"recovery: not {_BATCHES_IN_A_ROW} times {_BATCH} claims succeeded in 60 s"
                )
                return
            batch = [
                Borrower(world, claim, next(self._trial._numbers), is_checking=True)
                for _ in range(_BATCH)
            ]
            ended = await asyncio.gather(*(self._borrow(each, on_its_loop) for each in batch))
            in_a_row = in_a_row + 1 if all(ended) else 0
            if in_a_row == 1:
                recovered_s = time.monotonic() - began_s
        if not world.violations:
            self._trial.recovery_s.append(recovered_s)

    async def _borrow_again(self, claim, on_its_loop):
        world, plan = self._world, self._world.plan
        rate = 1.15 * plan.claims / plan.seconds
        while not self._is_over and not world.violations:
            if world.claims > rate * (time.monotonic() - world.began_s):
                await asyncio.sleep(_LOOK_S)
                continue
            borrower = Borrower(world, claim, next(self._trial._numbers))
            await self._borrow(borrower, on_its_loop)

    async def _borrow(self, borrower, on_its_loop):
        """One claim, however it ends; whether it ended as it should without any chaos."""
        world = self._world
        is_open = not self._is_closing
        world.claims += is_open
        if not is_open:
            await asyncio.sleep(_LOOK_S)
        began_s = time.monotonic()
        task = asyncio.create_task(on_its_loop(borrower.borrow()))
        if borrower.manner == "cancelled":
            delay_s = world.rng.expovariate(1.0) * 0.15
            asyncio.get_running_loop().call_later(delay_s, self._cancel, task, borrower)
        cause = await self._cause(task, borrower)
        world.causes[cause] += 1
        if is_open:
            world.claim_s.append(time.monotonic() - began_s)
        return cause == "served"

    async def _cause(self, task, borrower):
        """How a claim ended; a violation, if not as it may."""
        world = self._world
        try:
            await task
        except SandboxError as error:
            when = "used" if borrower.was_served else "claimed"
            return "of a closed pool" if self._is_closing else f"{when}: {type(error).__name__}"
        except OwnError:
            return "its own error"
        except TimeoutError:
            if borrower.manner != "in a hurry":
                world.break_rule(f"{borrower.name} got a TimeoutError that is not its own")
            return "its own timeout"
        except asyncio.CancelledError:
            if not borrower.is_cancelled:
                world.break_rule(f"{borrower.name} was cancelled by nobody")
            return "cancelled"
        except Exception as error:  # noqa: BLE001 (whatever it is, it is a finding)
            world.break_rule(f"{borrower.name} got {error!r}")
            return "unexpected"
        return "served"

    def _cancel(self, task, borrower):
        if not task.done():
            borrower.is_cancelled = True
            task.cancel()

    def _check_metrics(self, pool):
        metrics, world = pool.metrics, self._world
        if self.backend.existing() and world.plan.weaken is None:
            world.break_rule(f"left behind: {[s.name for s in self.backend.existing()]}")
        if pool.num_existing:
            world.break_rule(f"metrics: a closed pool counts {pool.num_existing} sandboxes")
        if metrics.created > self.backend.made:
            world.break_rule(f"metrics: {metrics.created} created, {self.backend.made} made")
        if metrics.created != metrics.closed:
            world.break_rule(f"metrics: {metrics.created} created, {metrics.closed} closed")


class _Ending:
    """After its block, which closes the pool, all borrowers have to end."""

    def __init__(self, world, borrowers, life):
        self._world, self._borrowers, self._life = world, borrowers, life

    async def __aenter__(self):
        self._began_s = None

    async def __aexit__(self, *_):
        self._life._is_over = True  # until here they tried to borrow of the closed pool
        if self._borrowers:
            within_s = 0.0 if self._world.violations else _ENDS_WITHIN_S
            _, late = await asyncio.wait(self._borrowers, timeout=within_s)
            for task in late:
                self._world.break_rule(f"hanging after the pool was closed: {task}"[:600])
                task.cancel()
            for task in self._borrowers - late:
                if not task.cancelled() and task.exception() is not None:
                    self._world.break_rule(f"harness: {task.exception()!r}")
        self._life._watching.cancel()


@contextmanager
def _own_folder():
    """A folder for everything temporary, so that what is left is seen."""
    folder, before = Path(tempfile.mkdtemp(prefix="chaos-")), tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def _groups():
    own = f"espalier-sandbox-{os.getpid()}-*"
    return [path for depth in range(5) for path in glob.glob(f"/sys/fs/cgroup/{'*/' * depth}{own}")]
