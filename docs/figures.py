"""Tables of measured figures, printed from the JSON files in tests/benchmarks/baselines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

BASELINES = Path(__file__).parents[1] / "tests" / "benchmarks" / "baselines"
NOT_MEASURED = "-"


def laptop_short() -> str:
    """The three seeds of the profile laptop, for the README."""
    return table(
        ("seed", "untrained", "warm start", "imitation alone", "after RL", "gain of RL [95 %]",
         "minutes", "memory"),
        (
            (
                one["seed"], one["untrained"], one["warm_start"], one["imitation_alone"],
                one["trained"], gain(one["gain"], one["ci95"]), one["minutes"],
                f"{one['peak_memory_mib'] / 1024:.1f} GiB",
            )
            for one in baseline("laptop")["seeds"]
        ),
    )  # fmt: skip


def laptop() -> str:
    """The seeds of the profile laptop beside their controls, then by kind of question."""
    seeds = baseline("laptop")["seeds"]
    policies = table(
        ("seed", "closed-book", "warm start", "imitation alone", "after RL", "gain [95 %]",
         "RL minus imitation alone", "grounded", "minutes to the policy, in all", "MiB", "machine",
         "commit"),
        (
            (
                one["seed"], one["closed_book"], one["warm_start"], one["imitation_alone"],
                one["trained"], gain(one["gain"], one["ci95"]),
                gain(one["over_imitation"], one["over_imitation_ci95"]), one["grounded"],
                f"{one['minutes_to_trained']}, {one['minutes']}", f"{one['peak_memory_mib']:,}",
                one["machine"], one.get("commit", baseline("laptop")["commit"]),
            )
            for one in seeds
        ),
    )  # fmt: skip
    groups = list(seeds[0]["by_group"])
    by_group = (
        (one["seed"], *(change(*one["by_group"][group]) for group in groups)) for one in seeds
    )
    return f"{policies}\n\n{table(('seed', *groups), by_group)}"


def laptop_settings() -> str:
    """Settings of RL that were compared on seed 0."""
    return table(
        ("RL learns from", "temperature", "steps", "after RL", "gain [95 %]", "commit"),
        (
            (arm["learns_from"], arm["temperature"], arm["steps"], arm["trained"],
             gain(arm["gain"], arm["ci95"]), arm["commit"])
            for arm in baseline("laptop")["settings"]["arms"]
        ),
    )  # fmt: skip


def tiny() -> str:
    """The profile tiny by seed, with the kinds of questions that RL changes most."""
    learning = baseline("learning")
    sampled = learning["pass_at_1"]
    pass_at_1 = zip(sampled["warm_start"], sampled["trained"], strict=True)
    return table(
        ("seed", "untrained", "warm start", "after RL", "gain [95 %]", "sampled answers",
         "intersections", "unions", "4 hops"),
        (
            (
                one["seed"], one["untrained"], one["warm_start"], one["trained"],
                gain(one["gain"], one["ci95"]), change(*rates),
                change(*one["by_kind"]["intersection"]), change(*one["by_kind"]["union"]),
                change(*one["by_hops"]["4"]),
            )
            for one, rates in zip(learning["seeds"], pass_at_1, strict=True)
        ),
    )  # fmt: skip


def families() -> str:
    """The small policy in other environments, three seeds each."""
    stories = {**baseline("arithmetic"), "profile": "arithmetic"}
    found = [*baseline("families")["families"], {**stories, "commits": [stories["commit"]]}]
    return table(
        ("profile", "warm start", "after RL", "gain [95 %]", "commit"),
        (
            (f"`{one['profile']}`", one["warm_start"], one["trained"],
             gain(one["gain"], one["ci95"]), ", ".join(one["commits"]))
            for one in sorted(found, key=lambda one: -one["gain"])
        ),
    )  # fmt: skip


def families_laptop() -> str:
    """SmolLM2 in other environments, seed by seed."""
    return table(
        ("profile", "seed", "warm start", "after RL", "gain [95 %]", "minutes", "MiB", "commit"),
        (
            (f"`{one['profile']}`", one["seed"], one["warm_start"], one["trained"],
             gain(one["gain"], one["ci95"]), one["minutes"], f"{one['peak_memory_mib']:,}",
             one["commit"])
            for one in baseline("families")["language_model"]
        ),
    )  # fmt: skip


def own_folder() -> str:
    """Folders of a user's own documents."""
    return table(
        ("given", "questions", "seed", "warm start", "after RL", "gain [95 %]", "commit"),
        (
            (one["given"], one["questions"], one["seed"], one["warm_start"], one["trained"],
             gain(one["gain"], one["ci95"]), one["commit"])
            for one in baseline("own_folder")["folders"]
        ),
    )  # fmt: skip


def gpu() -> str:
    """SmolLM2 trained on one GPU, seed by seed."""
    return table(
        ("profile", "matrix products", "seed", "warm start", "after RL", "gain [95 %]", "minutes"),
        (
            (f"`{one['profile']}`", one["precision"], one["seed"], one["warm_start"],
             one["trained"], gain(one["gain"], one["ci95"]), one["minutes"])
            for one in baseline("gpu")["learning"]
        ),
    )  # fmt: skip


def gpu_updates() -> str:
    """Updates of a larger model's shape on one GPU."""
    return table(
        ("tokens", "seconds", "trajectory tokens per second", "MFU", "MiB held", "MiB planned"),
        (
            (f"{one['tokens']:,}", one["seconds"], f"{one['tokens_per_s']:,}", f"{one['mfu']} %",
             f"{one['held_mib']:,}", f"{one['planned_mib']:,}")
            for one in baseline("gpu")["updates"]
        ),
    )  # fmt: skip


def pace_measured() -> str:
    """One machine's rates with slow tools, measured and simulated."""
    return table(
        ("engine", "without tools", "with tools of 0.1 s", "the same, simulated"),
        (
            (one["engine"], one["without_tools"], one["with_tools"], one["simulated"])
            for one in baseline("simulated_pace")["measured"]
        ),
    )


def pace() -> str:
    """How fast samplers and learner go on many GPUs, simulated."""
    return table(
        ("simulated", "GPUs", "of them learn", "most staleness", "seconds of a step",
         "learner waits", "rows unused", "mean staleness", "times as fast"),
        (
            (one["case"], f"{one['gpus']:,}",
             f"{one['learners']:,}" if one["bound"] else "all, in turn", one["bound"],
             one["step_s"], f"{one['learner_waits']} %", f"{one['samplers_idle']} %",
             one["staleness"], one["times"])
            for one in baseline("simulated_pace")["rows"]
        ),
    )  # fmt: skip


def adapters() -> str:
    """An adapter beside all weights, stage by stage and rate by rate."""
    stages = {"warm_start": "imitation", "train": "RL"}
    kinds = {"lora": "adapter", "full": "all weights"}
    return table(
        ("stage", "trained", "rate", "dev EM", "seconds", "peak MiB", "checkpoint MiB",
         "learnt MiB"),
        (
            (
                stages[arm["stage"]], kinds[arm["weights"]], f"{arm['rate']:g}", arm["dev_em"],
                arm["seconds"], f"{arm['peak_mib']:,}", f"{arm['checkpoint_mib']:,}",
                arm["learnt_mib"],
            )
            for arm in baseline("adapters")["arms"]
        ),
    )  # fmt: skip


def speed_update() -> str:
    """Updates on equal trajectories by several trainers."""
    trainers = baseline("speed")["update"]["trainers"]
    ours = trainers[0]["tokens_per_s"]
    return table(
        ("trainer", "trajectory tokens per second", "espalier's, times", "peak MiB",
         "rows at a time"),
        (
            (
                one["name"], f"{one['tokens_per_s']} ({one['low']} to {one['high']})",
                f"{ours / one['tokens_per_s']:.1f}", f"{one['peak_mib']:,}", one["rows"],
            )
            for one in trainers
        ),
    )  # fmt: skip


def speed_rollout() -> str:
    """The same episodes by several engines."""
    return table(
        ("engine", "sampled tokens per second", "with tools of 0.1 s", "peak MiB"),
        (
            (one["name"], *one["tokens_per_s"], f"{one['peak_mib']:,}")
            for one in baseline("speed")["rollout"]["engines"]
        ),
    )


def curriculum() -> str:
    """Rollouts to one level of dev EM, of three ways to spend them."""
    spread = baseline("curriculum")["spread"]
    seeds = spread["fresh_seeds"]
    arms = ("uniform", "dynamic", "single")

    def of_seed(at: int) -> list[Any]:
        cells = [f"{seeds['rollouts'][arm][at]:,}; {seeds['best_dev_em'][arm][at]}" for arm in arms]
        fewer = [seeds[f"fewer_than_{arm}"][at] for arm in ("uniform", "dynamic")]
        return [seeds["seeds"][at], seeds["warm"][at], seeds["level"][at], *cells, *fewer]

    means = [seeds[f"mean_fewer_than_{arm}"] for arm in ("uniform", "dynamic")]
    mean = ["mean", "", "", "", "", "", *(f"{m[0]} [{m[1]}, {m[2]}]" for m in means)]
    return table(
        ("seed", "warm start", "level", *arms, "fewer than uniform", "fewer than dynamic"),
        [*map(of_seed, range(len(seeds["seeds"]))), mean],
    )


def presets() -> str:
    """What each preset gained from one warm start; those that gained nothing, in more steps too."""
    tried = baseline("algorithms")
    longer = {one["preset"]: one for one in tried["longer"]["presets"]}

    def more(preset: str) -> tuple[object, ...]:
        one = longer.get(preset)
        return (gain(one["gain"], one["ci95"]), one["steps"], one["seeds"]) if one else ("", "", "")

    return table(
        ("preset", "gain [95 %]", "seconds of training", "with more steps", "steps", "seeds"),
        (
            (
                f"`{one['preset']}`",
                gain(one["gain"], one["ci95"]),
                one["seconds"],
                *more(one["preset"]),
            )
            for one in tried["presets"]
        ),
    )


def data_value() -> str:
    """Kinds of agent data at equal tokens, against demonstrations alone."""
    return table(
        ("data", "warm start", "difference [95 %]", "after RL", "difference [95 %]",
         "calls of tools that are not offered"),
        (
            (arm["arm"], arm["em_warm_start"], interval(arm["ci95_warm_start"]),
             arm["em_after_rl"], interval(arm["ci95_after_rl"]), f"{arm['calls_not_offered']} %")
            for arm in baseline("data_value")["arms"]
        ),
    )  # fmt: skip


def dialects() -> str:
    """The same questions with two formats of tool calls."""
    found = baseline("dialects")
    return table(
        ("dialect", "seed", "untrained", "warm start", "after RL", "gain [95 %]", "drifted turns"),
        (
            (arm["dialect"], arm.get("seed", "all"), arm["untrained"], arm["warm_start"],
             arm["trained"], gain(arm["gain"], arm["ci95"]),
             f"{arm['token_drift']} of {arm['compared_turns']:,}")
            for arm in (*found["arms"], *found["all_seeds"])
        ),
    )  # fmt: skip


def one_gpu() -> str:
    """The stages of one run on a GPU and on its machine's CPU, in seconds."""
    devices = baseline("one_gpu")["devices"]
    return table(
        ("stage", "H200", "four threads of its CPU"),
        (
            (stage, *(f"{devices[place]['stages'][stage]['seconds']:.1f} s" for place in devices))
            for stage in devices["cuda"]["stages"]
            if stage != "continue_pretraining"  # switched off in this profile
        ),
    )


def house() -> str:
    """Size and shape of the code before and after its halving began, beside other trainers."""
    trees = baseline("house")["trees"]

    def of(*keys: str) -> list[Any]:
        cells = []
        for tree in trees.values():
            found: Any = tree
            for key in keys:
                found = found.get(key) if found else None
            cells.append(f"{found:,}" if isinstance(found, int) else found)
        return cells

    def reach(kind: str) -> list[str]:
        return [
            "; ".join(
                f"{found[kind]:,} ({'.'.join(name.split('.')[-2:])})"
                for name, found in tree["reach"].items()
            )
            for tree in trees.values()
        ]

    rooms = [f"{sum(tree['num_rooms'].values()):,}" for tree in trees.values()]
    docs = [f"{tree['total']['docstring'] + tree['total']['comment']:,}" for tree in trees.values()]
    return table(
        ("", *(f"{name} ({tree['commit']})" for name, tree in trees.items())),
        [
            ("modules", *of("total", "modules")),
            ("rooms", *rooms),
            ("lines", *of("total", "lines")),
            ("code", *of("total", "code")),
            ("docstrings and comments", *docs),
            ("blank", *of("total", "blank")),
            ("reach, lines of code", *reach("code")),
            ("reach, modules", *reach("modules")),
            ("a training process, modules", *of("process", "modules")),
            ("a training process, lines of code", *of("process", "code")),
            ("mean body of a function, lines", *of("mean_body")),
            ("private helpers used once", *of("single_caller_helpers")),
            ("keys of the profile", *of("keys")),
            ("of them in shipped profiles", *of("shipped_keys")),
            ("tests, lines", *of("tests", "lines")),
            ("tests, minutes", *of("tests", "minutes")),
        ],
    )


def house_rooms() -> str:
    """Each room's lines, and what it reaches by its imports."""
    return table(
        ("room", "modules", "lines", "code", "docs", "blank", "reach, modules", "reach, code"),
        (
            (
                f"`{room['package']}` {room['room']}", room["modules"], f"{room['lines']:,}",
                f"{room['code']:,}", f"{room['docstring'] + room['comment']:,}",
                f"{room['blank']:,}", room["reach"]["modules"], f"{room['reach']['code']:,}",
            )
            for room in baseline("house")["trees"]["after"]["rooms"]
        ),
    )  # fmt: skip


def baseline(name: str) -> dict[str, Any]:
    """The figures of one measurement."""
    figures: dict[str, Any] = json.loads((BASELINES / f"{name}.json").read_text("utf-8"))
    return figures


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; a figure that was not measured is a dash."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = (NOT_MEASURED if cell is None else str(cell) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def gain(points: float | None, ci95: Sequence[float] | None) -> str | None:
    """A difference in points with its interval, as "+10.2 [+5.4, +14.8]"."""
    return None if points is None else f"{points:+.1f} {interval(ci95)}"


def interval(ci95: Sequence[float] | None) -> str | None:
    """A 95 % interval in points, as "[+5.4, +14.8]"."""
    return None if ci95 is None else f"[{ci95[0]:+.1f}, {ci95[1]:+.1f}]"


def change(before: float, after: float) -> str:
    """A figure before and after RL."""
    return f"{before} → {after}"
