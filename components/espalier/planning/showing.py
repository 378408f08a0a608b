"""A plan as a text for a terminal, and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from espalier.config import Profile
from espalier.orchestration.results import aligned
from espalier.planning.durations import is_simulated
from espalier.planning.plan import Needs, Plan
from espalier.planning.work import StageWork
from espalier.reporting.formats import duration

_IN_WORDS: Mapping[str, Sequence[str]] = {
    "how long episodes are": ("demonstration_tokens", "episode_tokens", "action_tokens"),
    "what episodes have in common": ("preamble_share", "common_share"),
    "how many groups are drawn anew": ("rollouts_per_place",),
    "how many groups are learned from": ("learned_share",),
    "time by the token": (
        "prestage_token_s", "sft_token_s", "update_token_s", "rollout_token_s", "judged_token_s",
    ),
    "time beside it": (
        "ingest_s", "synthesis_task_s", "validation_s", "tokenizer_s", "scoring_s",
    ),
    "time of registering": ("register_s",),
    "memory of libraries and data": ("data_mib", "policy_mib"),
    "what the allocator keeps": ("unfragmented_mib",),
}  # fmt: skip
"""Description of figures -> their names, which `--json` prints."""


def plan_text(plan: Plan) -> str:
    """Text of a plan, for a terminal."""
    profile, needs = plan.order.profile, plan.needs
    parts = [
        f"plan of profile {profile.name}: {needs.size.parameters / 1e6:,.2f} M parameters, "
        f"{profile.threads} threads",
        *_estimated_line(plan),
        "",
        aligned(list(_stage_rows(needs))),
        "",
        aligned(list(_part_rows(needs))),
        "",
        *_totals(plan),
        "",
        *_verdict(plan),
    ]
    return "\n".join(parts)


def _estimated_line(plan: Plan) -> Iterator[str]:
    assumed = set(plan.needs.calibration.assumed)
    if named := [what for what, figures in _IN_WORDS.items() if assumed & set(figures)]:
        remedy = "" if plan.order.measured else "; --probe measures most of it in about a minute"
        yield f"estimated, not measured: {', '.join(named)}{remedy}"
    profile, urls = plan.order.profile, plan.order.profile.rollout.vllm.urls
    if is_simulated(profile):
        workers = profile.training.rollout_workers
        samplers = f"{workers} rollout workers" if workers else f"{len(urls)} vLLM servers"
        yield (
            f"simulated: how {samplers} and the learner wait for each other"
            + ("" if workers else "; the GPUs of the servers are not counted")
        )


def _stage_rows(needs: Needs) -> Iterator[dict[str, str]]:
    for stage, seconds in needs.seconds.items():
        memory = needs.memory.get(stage)
        work = needs.work.get(stage, StageWork())
        yield {
            "stage": stage,
            "time": duration(seconds),
            "trained tokens": _count(work.trained_tokens),
            "written tokens": _count(work.rollout_tokens + work.judged_tokens),
            "memory MiB": _count(memory.host_mib) if memory else "",
        }
    yield {
        "stage": "all",
        "time": duration(sum(needs.seconds.values())),
        "trained tokens": _count(sum(one.trained_tokens for one in needs.work.values())),
        "written tokens": _count(
            sum(one.rollout_tokens + one.judged_tokens for one in needs.work.values())
        ),
        "memory MiB": _count(needs.peak_mib),
    }


def _part_rows(needs: Needs) -> Iterator[dict[str, str]]:
    stage = needs.peak_stage
    title = f"memory in {stage}"
    for name, amount in needs.memory[stage].host.items():
        yield {title: name, "MiB": _count(amount)}
    widest = max(needs.memory.values(), key=lambda one: one.accelerator_mib)
    for name, amount in widest.accelerator.items():
        yield {title: f"accelerator: {name}", "MiB": _count(amount)}
    for name, amount in needs.server.items():
        yield {title: f"vLLM server: {name}", "MiB": _count(amount)}


def _totals(plan: Plan) -> Iterator[str]:
    needs = plan.needs
    yield f"disk   {_count(needs.disk.kept)} MiB, {_count(needs.disk.working)} more while it runs"
    count = needs.accelerators
    yield (
        f"GPU    {needs.accelerator_hours:.2f} hours, {count} at a time" if count else "GPU    none"
    )
    prices = plan.order.prices
    if needs.cost is not None and prices is not None:
        yield f"money  {needs.cost:.2f} {prices.currency}{_unpriced(plan.order.profile)}"
    else:
        yield "money  not counted: give a price table with --prices"


def _unpriced(profile: Profile) -> str:
    """Suffix that names servers without a price."""
    used = {
        "the teacher": profile.teacher.kind == "endpoint",
        "the judges": profile.reward.judges is not None,
        "the vLLM server": profile.rollout.engine == "vllm",
    }
    names = [name for name, is_used in used.items() if is_used]
    return f", without {' and '.join(names)}" if names else ""


def _verdict(plan: Plan) -> Iterator[str]:
    needs, limits, machine = plan.needs, plan.limits, plan.order.machine
    if not plan.faults:
        yield "fits: " + ", ".join(
            f"{what} {_count(needed)} of {_count(limit)} MiB"
            for what, needed, limit in (
                ("memory", needs.peak_mib, limits.memory_mib),
                ("accelerator memory", needs.accelerator_mib, limits.accelerator_mib),
                ("disk", needs.disk.peak, limits.disk_mib),
            )
            if limit is not None
        )
    for fault in plan.faults:
        unit = _unit(fault.what, plan)
        what = "time" if fault.what == "hours" else fault.what
        yield f"does not fit: {what} {_shown(fault.needs)} of {_shown(fault.limit)} {unit}"
        yield f"  it depends most on {', '.join(fault.keys)}, and on the size of the policy"
    by_token = {"rollout_token_s", "update_token_s"}
    is_elsewhere = machine.accelerator_mib is None
    if needs.accelerators and (is_elsewhere or by_token & set(needs.calibration.assumed)):
        yield "warning: times are those of a CPU, not of the accelerator; run --probe where it is"
    threads = plan.order.profile.threads
    if threads > machine.cores:
        yield f"warning: threads={threads}, and this machine has {machine.cores} cores"


def _unit(what: str, plan: Plan) -> str:
    if what == "money":
        return plan.order.prices.currency if plan.order.prices else ""
    return "hours" if what == "hours" else "MiB"


def _shown(amount: float) -> str:
    return _count(amount) if amount >= 100 else f"{amount:.3g}"


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 0.5 else "0"


def plan_json(plan: Plan) -> dict[str, Any]:
    """JSON of a plan, for scripts: seconds, MiB, hours; always with the same keys."""
    needs, profile = plan.needs, plan.order.profile
    return {
        "profile": profile.name,
        "policy": asdict(needs.size),
        "calibration": {
            "figures": asdict(needs.calibration.figures),
            "sources": dict(needs.calibration.sources),
        },
        "stages": {
            stage: {
                "seconds": round(seconds, 3),
                "trained_tokens": round(needs.work.get(stage, StageWork()).trained_tokens),
                "rollout_tokens": round(needs.work.get(stage, StageWork()).rollout_tokens),
                "judged_tokens": round(needs.work.get(stage, StageWork()).judged_tokens),
                "memory_mib": _rounded(needs.memory[stage].host) if stage in needs.memory else {},
                "accelerator_mib": (
                    _rounded(needs.memory[stage].accelerator) if stage in needs.memory else {}
                ),
            }
            for stage, seconds in needs.seconds.items()
        },
        "server_mib": _rounded(needs.server),
        "seconds": round(3600 * needs.hours, 3),
        "peak_mib": round(needs.peak_mib, 1),
        "peak_stage": needs.peak_stage,
        "disk_mib": {"kept": round(needs.disk.kept, 1), "working": round(needs.disk.working, 1)},
        "accelerators": needs.accelerators,
        "accelerator_hours": round(needs.accelerator_hours, 4),
        "cost": None if needs.cost is None else round(needs.cost, 4),
        "currency": plan.order.prices.currency if plan.order.prices else None,
        "limits": plan.limits._asdict(),
        "faults": [
            {
                "what": fault.what,
                "needs": round(fault.needs, 3),
                "limit": fault.limit,
                "keys": list(fault.keys),
            }
            for fault in plan.faults
        ],
    }


def _rounded(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in parts.items()}
