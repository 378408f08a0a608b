"""A plan: the resources of a profile by stage, compared with limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from espalier.config import Profile
from espalier.planning.disk import Disk, disk_of
from espalier.planning.durations import accelerator_hours, accelerators, stage_seconds
from espalier.planning.figures import Calibration, Measured, calibrated
from espalier.planning.machine import Machine
from espalier.planning.memory import Placement, StageMemory, server_mib, stage_memory
from espalier.planning.prices import PriceTable
from espalier.planning.sizes import PolicySize, policy_size
from espalier.planning.work import StageWork, work_of

_LIBRARIES = "libraries and data"
_SHORTER = ("training.steps", "evaluation.samples_per_task", "policy.prestage.steps")
_LOWERED_BY: Mapping[str, tuple[str, ...]] = {
    "memory": (
        "hardware.micro_batch_tokens",
        "rollout.max_rows",
        "hardware.activation_checkpointing",
    ),
    "accelerator memory": (
        "hardware.micro_batch_tokens",
        "hardware.activation_checkpointing",
        "training.sharded",
    ),
    "server memory": ("rollout.max_rows",),
    "disk": ("synthesis.train_tasks",),
    "hours": _SHORTER,
    "money": _SHORTER,
}
"""Limited resource -> keys of the profile that it depends on most."""
_FREE_SHARE = 0.95
"""Share of the machine's memory that a run may use: the kernel and other programs need some."""


class Limits(NamedTuple):
    """Limits of a plan; None sets no limit."""

    memory_mib: float | None = None
    accelerator_mib: float | None = None
    disk_mib: float | None = None
    hours: float | None = None
    money: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOrder:
    """Input of a plan."""

    profile: Profile
    machine: Machine
    limits: Limits
    """Limits by the user, which replace the machine's own."""
    measured: Measured = field(default_factory=dict[str, float])
    """Figures from a probe; empty without one."""
    prices: PriceTable | None = None


class Needs(NamedTuple):
    """Resources that a profile needs."""

    calibration: Calibration
    size: PolicySize
    work: dict[str, StageWork]
    memory: dict[str, StageMemory]
    """Stage -> memory, in the order of the chain."""
    server: dict[str, float]
    """Parts of a vLLM server, MiB; empty if the engine is in the process."""
    seconds: dict[str, float]
    disk: Disk
    accelerators: int
    accelerator_hours: float
    cost: float | None

    @property
    def hours(self) -> float:
        """Expected hours of the whole run."""
        return sum(self.seconds.values()) / 3600

    @property
    def peak_stage(self) -> str:
        """Stage with the highest memory on the host."""
        return max(self.memory, key=lambda stage: self.memory[stage].host_mib)

    @property
    def peak_mib(self) -> float:
        """Peak of the run's resident memory."""
        return self.memory[self.peak_stage].host_mib

    @property
    def accelerator_mib(self) -> float:
        """Peak memory of one accelerator."""
        return max(one.accelerator_mib for one in self.memory.values())

    @property
    def server_mib(self) -> float:
        """Memory of the vLLM server."""
        return sum(self.server.values())


class Fault(NamedTuple):
    """An exceeded limit."""

    what: str
    """Resource: memory, accelerator memory, server memory, disk, hours or money."""
    needs: float
    limit: float

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the profile that lower the need."""
        return _LOWERED_BY[self.what]


class Plan(NamedTuple):
    """Needs of a profile, and the limits that they exceed."""

    order: PlanOrder
    needs: Needs
    limits: Limits
    faults: list[Fault]


def make_plan(order: PlanOrder) -> Plan:
    """Plan a profile, and compare its needs with the limits.

    Raises:
        PolicyError: the given model's size cannot be read.
    """
    machine, given = order.machine, order.limits
    limits = Limits(
        memory_mib=given.memory_mib or _usable(machine.memory_mib),
        accelerator_mib=given.accelerator_mib or machine.accelerator_mib,
        disk_mib=given.disk_mib or machine.disk_mib,
        hours=given.hours,
        money=given.money,
    )
    needs = _needs(order)
    compared = {
        "memory": (needs.peak_mib, limits.memory_mib),
        "accelerator memory": (needs.accelerator_mib, limits.accelerator_mib),
        "server memory": (needs.server_mib, limits.accelerator_mib),
        "disk": (needs.disk.peak, limits.disk_mib),
        "hours": (needs.hours, limits.hours),
        "money": (needs.cost or 0.0, limits.money),
    }
    faults = [
        Fault(what, needed, limit)
        for what, (needed, limit) in compared.items()
        if limit is not None and needed > limit
    ]
    return Plan(order, needs, limits, faults)


def _usable(memory_mib: float | None) -> float | None:
    return None if memory_mib is None else _FREE_SHARE * memory_mib


def _needs(order: PlanOrder) -> Needs:
    profile, size = order.profile, policy_size(order.profile.policy)
    calibration = calibrated(profile, size.parameters, order.measured)
    figures = calibration.figures
    work = work_of(profile, figures)
    present = order.limits.accelerator_mib or order.machine.accelerator_mib
    count = accelerators(profile, here=present is not None)
    place = _placement(profile, has_accelerator=count > 0)
    seconds = stage_seconds(profile, figures, work)
    data = StageMemory(host={_LIBRARIES: figures.data_mib}, accelerator={})
    memory = {
        stage: stage_memory(work[stage], profile, size, figures, place) if stage in work else data
        for stage in seconds
        if stage != "register"
    }
    hours = sum(seconds.values()) / 3600
    gpu_hours = accelerator_hours(seconds, count)
    peak_mib = max(one.host_mib for one in memory.values())
    cost = None
    if order.prices is not None:
        training = profile.training
        cores = profile.threads * (training.processes + training.rollout_workers)
        cost = order.prices.cost(hours=hours, gpu_hours=gpu_hours, cores=cores, memory_mib=peak_mib)
    return Needs(
        calibration=calibration,
        size=size,
        work=work,
        memory=memory,
        server=server_mib(profile, size),
        seconds=seconds,
        disk=disk_of(profile, size, figures),
        accelerators=count,
        accelerator_hours=gpu_hours,
        cost=cost,
    )


def _placement(profile: Profile, *, has_accelerator: bool) -> Placement:
    config = profile.hardware
    on_accelerator = has_accelerator and not config.device.startswith("cpu")
    half = config.precision == "bfloat16" or (config.precision == "auto" and on_accelerator)
    return Placement(accelerator=on_accelerator, half_precision=half)
