"""Figures of README and docs/results.md are those of the baselines, with commit and command."""

import importlib.util
import json
import re

import pytest

from tests.unit.docs.fences import ROOT

FOLDER = ROOT / "tests" / "benchmarks" / "baselines"
BASELINES = {path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}
README = (ROOT / "README.md").read_text("utf-8")
RESULTS = (ROOT / "docs" / "results.md").read_text("utf-8")
PROSE = " ".join((README + RESULTS).split())
QUICKSTART = (ROOT / "docs" / "index.md").read_text("utf-8")


def interval(low, high, *, width=0):
    return f"[{low:+{width}.1f}, {high:+{width}.1f}]"


def demo_lines(demo):
    low, high = demo["gain"]["ci95"]
    gain, spread = f"{demo['gain']['em']:+.1f}", f"{low:+.1f} to {high:+.1f}"
    em, interval_ = len(gain) + 2, len(spread) + 2  # they are the widest of their columns
    head = "  F1 %  pass@1 %  pass@4 %  tool calls  1 hop %  2 hops %  3 hops %  4 hops %"
    lines = [f"{'policy':<20}{'EM %':>{em}}{'95% interval':>{interval_}}{head}"]
    for one in demo["policies"]:
        low, high = one["ci95"]
        by_hops = enumerate(one["em_by_hops"])
        hops = "".join(f"{share:{9 if n == 0 else 10}.1f}" for n, share in by_hops)
        lines.append(
            f"{one['policy']:<20}{one['em']:>{em}.1f}{f'{low:.1f} to {high:.1f}':>{interval_}}"
            f"{one['f1']:>6.1f}{one['pass_at_1']:>10.1f}{one['pass_at_4']:>10.1f}"
            f"{one['tool_calls']:>12.2f}{hops}"
        )
    lines.append(f"trained - warm start  {gain}  {spread}")
    lines += ["", f"questions   {demo['questions']} held out, suite {demo['suite']}"]
    lines.append(f"cost        {demo['seconds']} s, peak memory {demo['peak_memory_mib']} MiB")
    return lines


def gain_line(arm, key):
    gain = f"{arm['gain']:+.1f} {interval(*arm['ci95'])}"
    name = f"{arm[key]:<8}" if key == "seed" else f"{arm[key]:>4}    "
    return (
        f"{name}{arm['untrained']:>4.1f}{arm['warm_start']:>12.1f}{arm['trained']:>11.1f}    {gain}"
    )


def data_value_line(arm):
    warm, after = (
        f"{arm[f'em_{when}']:.1f}"
        + (f" [{ci[0]:>+5.1f}, {ci[1]:+.1f}]" if (ci := arm[f"ci95_{when}"]) else "")
        for when in ("warm_start", "after_rl")
    )
    calls = f"{arm['calls_not_offered']:>4.1f} %"
    if arm["calls_not_offered_after_rl"] is not None:
        calls += f" ({arm['calls_not_offered_after_rl']} % after RL)"
    return f"{arm['arm']:<17}{warm:<23}{after:<24}{calls}"


def dialect_line(arm):
    return (
        f"{arm['dialect']:<9}{arm.get('seed', 'all'):<6}{arm['untrained']:>6.1f}"
        f"{arm['warm_start']:>12.1f}{arm['trained']:>11.1f}    {arm['gain']:+.1f} "
        f"{interval(*arm['ci95']):<17}{arm['token_drift']} of {arm['compared_turns']:,}"
    )


def simulated_draws(simulated):
    took, told = simulated["rollouts_per_group"], simulated["told"]
    assert f"(GRESO, {took['greso']})" in PROSE
    assert simulated["command"] in PROSE
    assert (
        f"they tell {told['ar3po']} of what a rollout can, uniform draws {told['uniform']} and "
        f"predicted ones {told['predicted']}"
    ) in PROSE
    return (
        f"took {took['uniform']} rollouts where tasks are drawn uniformly and groups regenerated, "
        f"{took['band']} in the band, {took['frontier']} at the frontier and {took['predicted']} "
        "where pass rates are predicted"
    )


def ways_to_draw(drawn):
    took, fewer = drawn["rollouts"], drawn["fewer_over_levels"]
    assert drawn["command"] in PROSE
    assert drawn["commit"] in PROSE
    share = drawn["informative_share"]["uniform"]
    assert (
        f"of uniform draws {100 * share:.0f} % of the rollouts were in groups with variance: a "
        f"perfect and free filter would save {drawn['perfect_filter']:.2f} times"
    ) in PROSE
    return (
        f"took {took['uniform']:,} rollouts to their best dev EM of {drawn['level']}, predicted "
        f"pass rates with screening {took['predicted']:,}, and dynamic sampling over all tasks "
        f"alike {took['dynamic']:,} (as means over all levels, {fewer['predicted']} and "
        f"{fewer['dynamic']} times fewer)"
    )


def predicted_rates(predicted):
    warm, after = predicted["warm_start"], predicted["trained"]
    assert predicted["command"] in PROSE
    return (
        f"pass rates are predicted with {warm['predicted']} nats an answer for {warm['band']} "
        f"after the warm start, and {after['predicted']} for {after['band']} after RL"
    )


def test_the_table_of_dialects_is_its_baseline():
    dialects = BASELINES["dialects"]
    for arm in (*dialects["arms"], *dialects["all_seeds"]):
        assert dialect_line(arm) in RESULTS
        assert arm["ci95"][0] > 0
        assert arm["token_drift"] == 0


def test_the_gain_of_the_smoke_run_is_its_baseline():
    smoke = BASELINES["smoke"]
    said = " ".join(QUICKSTART.split())
    first, *others = smoke["arms"]
    low, high = first["ci95"]
    assert f"Its gain is {first['gain']:.1f} points ({low:.1f} to {high:.1f})" in said
    assert low > 0
    assert [round(arm["gain"]) for arm in others] == [0, 0]


def test_the_table_of_the_demo_is_its_baseline():
    assert "\n".join(demo_lines(BASELINES["demo"])) in README


def test_the_table_of_families_is_its_baseline():
    for one in BASELINES["families"]["families"]:
        low, high = one["ci95"]
        figures = (
            f"{one['warm_start']} {one['trained']} {one['gain']:+.1f} [{low:+.1f}, {high:+.1f}]"
        )
        line = next(line for line in README.splitlines() if line.startswith(f"{one['profile']} "))
        assert " ".join(line.split()).endswith(figures)
        assert abs(sum(one["gain_by_seed"]) / 3 - one["gain"]) < 0.1
        readme = (
            ROOT / "components/espalier/environments" / one["profile"] / "README.md"
        ).read_text()
        assert all(commit in readme for commit in one["commits"])


def test_the_tables_of_learning_are_their_baseline():
    learning = BASELINES["learning"]
    seeds = ["seed  untrained  warm start  trained   gain [95%]"]
    seeds += [gain_line(arm, "seed") for arm in learning["seeds"]]
    assert "\n".join(seeds) in README
    for title, by, group in (
        ("intersections (60)", "by_kind", "intersection"),
        ("unions (40)", "by_kind", "union"),
        ("chains of 4 hops (50)", "by_hops", "4"),
    ):
        found = (arm[by][group] for arm in learning["seeds"])
        said = ", ".join(f"{warm:.1f} -> {trained:.1f}" for warm, trained in found)
        assert f"{title:<22}{said}" in README
    sampled = learning["pass_at_1"]
    pairs = zip(sampled["warm_start"], sampled["trained"], strict=True)
    said = ", ".join(f"{warm:.1f} -> {trained:.1f}" for warm, trained in pairs)
    assert f"{'pass@1 (sampled)':<22}{said}" in README
    kept = learning["names_kept"]
    assert f"{kept['rl_steps']} steps of RL)\n{gain_line({**kept, 'seed': 0}, 'seed')}" in README
    former = learning["former"]
    observed, long_sft = former["tool_output_in_the_loss"], former["three_times_the_sft_steps"]
    assert f"paired {observed['gain']:+.1f} {interval(*observed['ci95'])}" in RESULTS
    assert (
        f"dev EM {long_sft['best_dev_em']} at step {long_sft['best_step']} of {long_sft['steps']}, "
        f"{long_sft['last_dev_em']} at the end"
    ) in RESULTS


def test_the_table_of_data_values_is_its_baseline():
    for arm in BASELINES["data_value"]["arms"]:
        assert " ".join(data_value_line(arm).split()) in PROSE


def test_figures_inside_sentences_are_their_baselines():
    curriculum, algorithms = BASELINES["curriculum"], BASELINES["algorithms"]
    assert "to the same dev EM: {} and {} (two seeds".format(*curriculum["ratios"]) in PROSE
    assert simulated_draws(curriculum["simulated"]) in PROSE
    assert predicted_rates(curriculum["predicted"]) in PROSE
    assert ways_to_draw(curriculum["drawn"]) in PROSE
    assert (
        f"From one warm start of {algorithms['warm_start_em']} EM, {algorithms['steps']} steps of "
        f"{algorithms['tasks_per_step']} tasks with {algorithms['group_size']} trajectories raise "
        f"EM by {algorithms['smallest_gain']} to {algorithms['largest_gain']} points for "
        f"{algorithms['presets_with_a_gain']} of the {algorithms['presets']} presets"
    ) in PROSE
    assert all(f"`{name}`" in PROSE for name in algorithms["without_a_gain"])
    stories = BASELINES["arithmetic"]
    low, high = stories["ci95"]
    assert (
        f"answers {stories['untrained']} % of {stories['questions']} held-out stories untrained, "
        f"{stories['warm_start']} % after the warm start and {stories['trained']} % after GRPO: "
        f"{stories['gain']:+} points (95 % interval {low:+} to {high:+};"
    ) in PROSE
    assert (
        f"commit {stories['commit']}; by seed "
        + ", ".join(f"{seed['warm_start']} to {seed['trained']}" for seed in stories["seeds"])
        in PROSE
    )


def test_figures_of_a_gpu_are_their_baseline():
    one = BASELINES["one_gpu"]
    gpu, cpu = one["devices"]["cuda"], one["devices"]["cpu"]
    em = {
        place: tuple(100 * found["figures"][f"{name}.em"] for name in ("warm_start", "trained"))
        for place, found in one["devices"].items()
    }
    assert (
        "on an H200, went from {:.1f} to {:.1f} % EM with {:.0f} s of `train`, ".format(
            *em["cuda"], gpu["stages"]["train"]["seconds"]
        )
        + "and on four threads of that machine's CPU from {:.1f} to {:.1f} % with {:.0f} s".format(
            *em["cpu"], cpu["stages"]["train"]["seconds"]
        )
    ) in PROSE
    page = (ROOT / "docs" / "own-model.md").read_text("utf-8")
    for stage, row in gpu["stages"].items():
        if stage != "continue_pretraining":  # does nothing there
            seconds = f"{row['seconds']:5.1f}{cpu['stages'][stage]['seconds']:8.1f} s"
            assert f"\n{stage:<17}{seconds}" in page
    assert f"held at most {gpu['stages']['train']['gpu_held_mib']:,} MiB" in page
    for name in ("float32", "bfloat16"):
        assert f"{one['decode'][f'decode.{name}.tokens_per_s']:,.0f}" in page
        assert f"{one['decode'][f'decode.{name}.gpu_lived_mib'] / 1024:.1f} GiB" in page


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


def test_a_figure_that_was_changed_is_noticed():
    demo = json.loads(json.dumps(BASELINES["demo"]))
    demo["policies"][2]["em"] = 64.3
    assert "\n".join(demo_lines(demo)) not in README
