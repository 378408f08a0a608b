"""Kills and freezes processes of sandboxes at random moments."""

import asyncio
import os
import signal

from tests.benchmarks.chaos import processes

_ROLES = {"bubblewrap": 2, "sandboxd": 4, "spawner": 3, "runner": 4, "job": 4}
_OF_SANDBOXES = 10
"""A plan's pauses are those of a pool of this size; a smaller one is struck less often."""
_THAWED = 0.9
"""Share of the frozen that go on later."""


class Monkey:
    """Strikes until it is told to stop, and counts what it hit and when."""

    def __init__(self, world, backend):
        self._world, self._backend = world, backend
        self._thawing = []

    async def run(self):
        plan = self._world.plan
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(plan.kill_every_s, self._kill))
            group.create_task(self._every(plan.freeze_every_s, self._freeze))

    async def _every(self, pause_s, act):
        loop, rng = asyncio.get_running_loop(), self._world.rng
        while not self._world.is_calm:
            rare = _OF_SANDBOXES / self._world.plan.size
            await asyncio.sleep(rng.expovariate(1.0) * pause_s * rare)
            now_s = loop.time()
            for item in [item for item in self._thawing if item[0] < now_s]:
                self._thawing.remove(item)
                processes.strike(item[1], item[2], signal.SIGCONT)
            if not self._world.is_calm:
                act()

    def _kill(self):
        if (hit := self._hit(signal.SIGKILL)) is not None:
            self._world.count(f"kill {hit[0]}", hit[1])

    def _freeze(self):
        if (hit := self._hit(signal.SIGSTOP)) is not None:
            self._world.count(f"freeze {hit[0]}", hit[1])
            rng = self._world.rng
            if rng.random() < _THAWED:
                due_s = asyncio.get_running_loop().time() + rng.expovariate(1.0)
                self._thawing.append((due_s, *hit[2]))

    def _hit(self, number):
        """Signal a process of a random role in a random sandbox: role, sentence, pid and parent."""
        rng = self._world.rng
        first = processes.first_processes()
        if not first:
            return None
        wanted = processes.ROLES.index(rng.choices(tuple(_ROLES), tuple(_ROLES.values()))[0])
        top = rng.choice(first)
        parent, pid, depth = os.getpid(), top, 0
        while depth < wanted and (below := processes.children(pid)):
            parent, pid, depth = pid, rng.choice(sorted(below)), depth + 1
        if not processes.strike(pid, parent, number):
            return None
        phases = {sandbox.first_process: sandbox.phase for sandbox in self._backend.existing()}
        phase = phases.get(top, "create")
        self._world.counted[f"struck in {phase}"] += 1
        return processes.ROLES[depth], f"pid {pid} of {top} in {phase}", (pid, parent)
