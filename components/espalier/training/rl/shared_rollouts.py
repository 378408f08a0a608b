"""Sampling of several processes: every process ends up with all trajectories."""

from __future__ import annotations

import random
from collections.abc import Sequence

from espalier.records import Task
from espalier.records.trajectory import Trajectory
from espalier.rollout.roller import RollsOut
from espalier.training.parallel import Processes
from espalier.training.rl.admission import SamplesGroups, StepRollouts


class SplitRoller:
    """Each process plays every so manieth task on an engine of its own."""

    def __init__(self, own: RollsOut, processes: Processes) -> None:
        self._own = own
        self._processes = processes

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """See `Roller.roll_out`; the draw depends on the number of processes."""
        rank, count = self._processes.rank, self._processes.count
        if count > 1:  # or the first task of each process would be drawn by the same numbers
            seed = random.Random(f"process:{seed}:{rank}").getrandbits(48)
        played = self._own.roll_out(
            tasks[rank::count], samples=samples, temperature=temperature, seed=seed
        )
        by_process = self._processes.gather(played)
        found: list[Trajectory] = []
        for number in range(len(tasks)):
            start = number // count * samples
            found += by_process[number % count][start : start + samples]
        return found


class FirstRoller:
    """The first process plays for all: it alone talks to the server that samples."""

    def __init__(self, own: RollsOut, processes: Processes) -> None:
        self._own = own
        self._processes = processes

    def roll_out(
        self, tasks: Sequence[Task], *, samples: int, temperature: float, seed: int
    ) -> list[Trajectory]:
        """See `Roller.roll_out`."""
        played: list[Trajectory] = []
        if self._processes.is_first:
            played = self._own.roll_out(tasks, samples=samples, temperature=temperature, seed=seed)
        return self._processes.of_first(played)


class FirstSampler:
    """The first process samples for all: it alone has a worker that plays ahead."""

    def __init__(self, own: SamplesGroups | None, processes: Processes) -> None:
        """`own` is None in the other processes."""
        self._own = own
        self._processes = processes

    def sample(self, step: int, *, groups: int) -> StepRollouts:
        """See `SamplesGroups`."""
        own = StepRollouts() if self._own is None else self._own.sample(step, groups=groups)
        return self._processes.of_first(own)

    def close(self) -> None:
        """See `SamplesGroups`."""
        if self._own is not None:
            self._own.close()
