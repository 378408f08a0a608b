"""Figures of README and docs/results.md are those of the baselines, with commit and command.

The figures are looked for in their order, whatever words and columns stand between them.
"""

import importlib.util
import json
import re

import pytest

from tests.unit.docs.fences import ROOT

FOLDER = ROOT / "tests" / "benchmarks" / "baselines"
BASELINES = {path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}


def words_of(*paths):
    return " ".join(" ".join((ROOT / path).read_text("utf-8").split()) for path in paths)


PROSE = words_of("README.md", "docs/results.md")
QUICKSTART = words_of("docs/index.md")


def told(*figures, text=PROSE, within=40):
    """Whether the figures stand in `text` in this order, each so many characters off at most."""
    whole = (rf"(?<![\d.]){re.escape(str(figure))}(?!\d|\.\d)" for figure in figures)
    return re.search(rf".{{0,{within}}}?".join(whole), text) is not None


def signed(*figures):
    return [f"{figure:+.1f}" for figure in figures]


def gained(arm):
    """Before, after, and the gain with its interval."""
    return arm["warm_start"], arm["trained"], *signed(arm["gain"], *arm["ci95"])


def demo_row(one):
    scores = (one[name] for name in ("em", "ci95", "f1", "pass_at_1", "pass_at_4"))
    em, (low, high), *others = scores
    return one["policy"], em, low, high, *others, f"{one['tool_calls']:.2f}", *one["em_by_hops"]


def test_the_table_of_dialects_is_its_baseline():
    dialects = BASELINES["dialects"]
    for arm in (*dialects["arms"], *dialects["all_seeds"]):
        drift = (arm["token_drift"], f"{arm['compared_turns']:,}")
        name = (arm["dialect"], arm.get("seed", "all"))
        assert told(*name, arm["untrained"], *gained(arm), *drift)
        assert arm["ci95"][0] > 0
        assert arm["token_drift"] == 0


def test_the_gain_of_the_smoke_run_is_its_baseline():
    first, *others = BASELINES["smoke"]["arms"]
    assert told(first["gain"], *first["ci95"], text=QUICKSTART)
    assert first["ci95"][0] > 0
    assert [round(arm["gain"]) for arm in others] == [0, 0]


def test_the_table_of_the_demo_is_its_baseline():
    demo = BASELINES["demo"]
    for one in demo["policies"]:
        assert told(*demo_row(one))
    gain = signed(demo["gain"]["em"], *demo["gain"]["ci95"])
    assert told(*gain, demo["questions"], demo["suite"], demo["seconds"], demo["peak_memory_mib"])


def test_the_table_of_families_is_its_baseline():
    for one in BASELINES["families"]["families"]:
        assert told(one["profile"], *gained(one), within=60)
        assert abs(sum(one["gain_by_seed"]) / 3 - one["gain"]) < 0.1
        readme = words_of(f"components/espalier/environments/{one['profile']}/README.md")
        assert all(commit in readme for commit in one["commits"])


def test_the_tables_of_learning_are_their_baseline():
    learning = BASELINES["learning"]
    for arm in learning["seeds"]:
        assert told(arm["seed"], arm["untrained"], *gained(arm))
    for title, by, group in (
        ("intersections", "by_kind", "intersection"),
        ("unions", "by_kind", "union"),
        ("4 hops", "by_hops", "4"),
    ):
        assert told(title, *(em for arm in learning["seeds"] for em in arm[by][group]))
    sampled = learning["pass_at_1"]
    pairs = zip(sampled["warm_start"], sampled["trained"], strict=True)
    assert told("pass@1", *(em for pair in pairs for em in pair))
    kept = learning["names_kept"]
    assert told(kept["rl_steps"], 0, kept["untrained"], *gained(kept))
    observed = learning["former"]["tool_output_in_the_loss"]
    assert told(*signed(observed["gain"], *observed["ci95"]))
    long_sft = learning["former"]["three_times_the_sft_steps"]
    assert told(*(long_sft[name] for name in ("best_dev_em", "best_step", "steps", "last_dev_em")))


def test_the_table_of_data_values_is_its_baseline():
    for arm in BASELINES["data_value"]["arms"]:
        row = [arm["arm"]]
        for when in ("warm_start", "after_rl"):
            row += [f"{arm[f'em_{when}']:.1f}", *signed(*(arm[f"ci95_{when}"] or ()))]
        row.append(f"{arm['calls_not_offered']:.1f}")
        if arm["calls_not_offered_after_rl"] is not None:
            row.append(arm["calls_not_offered_after_rl"])
        assert told(*row)


def test_figures_of_curricula_are_their_baselines():
    curriculum = BASELINES["curriculum"]
    assert told(*curriculum["ratios"])
    simulated, drawn = curriculum["simulated"], curriculum["drawn"]
    took, tells = simulated["rollouts_per_group"], simulated["told"]
    ways = ("uniform", "band", "frontier", "predicted")
    assert told(*(took[name] for name in ways), within=90)
    assert told("GRESO", took["greso"])
    assert told(*(tells[name] for name in ("ar3po", "uniform", "predicted")))
    predicted = (curriculum["predicted"][policy] for policy in ("warm_start", "trained"))
    assert told(*(nats[way] for nats in predicted for way in ("predicted", "band")))
    took, fewer = drawn["rollouts"], drawn["fewer_over_levels"]
    rollouts = (f"{took['uniform']:,}", drawn["level"])
    rollouts += tuple(f"{took[name]:,}" for name in ("predicted", "dynamic"))
    assert told(*rollouts, fewer["predicted"], fewer["dynamic"], within=90)
    share = f"{100 * drawn['informative_share']['uniform']:.0f}"
    assert told(share, f"{drawn['perfect_filter']:.2f}", within=120)
    assert all(text in PROSE for text in (simulated["command"], drawn["command"], drawn["commit"]))


def test_figures_of_algorithms_and_stories_are_their_baselines():
    algorithms, stories = BASELINES["algorithms"], BASELINES["arithmetic"]
    names = ("warm_start_em", "steps", "tasks_per_step", "group_size", "smallest_gain")
    names += ("largest_gain", "presets_with_a_gain", "presets")
    assert told(*(algorithms[name] for name in names))
    assert all(f"`{name}`" in PROSE for name in algorithms["without_a_gain"])
    before = (stories["untrained"], stories["questions"], stories["warm_start"], stories["trained"])
    seeds = (em for seed in stories["seeds"] for em in (seed["warm_start"], seed["trained"]))
    gain = signed(stories["gain"], *stories["ci95"])
    assert told(*before, *gain, stories["commit"], *seeds, within=120)


def test_figures_of_a_gpu_are_their_baseline():
    one = BASELINES["one_gpu"]
    gpu, cpu = one["devices"]["cuda"], one["devices"]["cpu"]
    for device in (gpu, cpu):
        em = (f"{100 * device['figures'][f'{name}.em']:.1f}" for name in ("warm_start", "trained"))
        assert told(*em, f"{device['stages']['train']['seconds']:.0f}")
    page = words_of("docs/own-model.md")
    for stage, row in gpu["stages"].items():
        if stage != "continue_pretraining":  # does nothing there
            seconds = (f"{each['seconds']:.1f}" for each in (row, cpu["stages"][stage]))
            assert told(stage, *seconds, text=page)
    assert told(f"{gpu['stages']['train']['gpu_held_mib']:,}", text=page)
    for name in ("float32", "bfloat16"):
        rate, gib = (
            one["decode"][f"decode.{name}.{of}"] for of in ("tokens_per_s", "gpu_lived_mib")
        )
        assert told(f"{rate:,.0f}", text=page)
        assert told(f"{gib / 1024:.1f} GiB", text=page)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_has_its_command_and_its_commit(name):
    baseline = BASELINES[name]
    commit = baseline["commit"] or baseline["reported_in"]
    assert re.fullmatch(r"[0-9a-f]{7}", commit)
    program = baseline["command"].split()
    if program[0] == "make":
        assert f"\n{program[1]}: " in (ROOT / "Makefile").read_text("utf-8")
    elif program[:3] == ["espalier", "run", "--profile"]:
        assert (ROOT / "pipelines" / "profiles" / f"{program[3]}.toml").is_file()
    else:
        assert importlib.util.find_spec(program[2])
        assert f"`{baseline['command']}" in PROSE or f"python -m {program[2]}" in PROSE
    if baseline["commit"]:
        assert commit in PROSE + QUICKSTART


@pytest.mark.parametrize("place", range(1, 12))
def test_a_figure_that_was_changed_is_noticed(place):
    row = [*demo_row(BASELINES["demo"]["policies"][2])]
    row[place] = "64.3"
    assert not told(*row)
