"""Measured figures: each has its command and commit, and pages print them from one file."""

import importlib.util
import re

import pytest

from docs import build, figures
from tests.unit.docs.fences import ROOT

BASELINES = {path.stem: figures.baseline(path.stem) for path in figures.BASELINES.glob("*.json")}
PAGES = (build.FRONT, "docs/results.md", "docs/index.md", "CONTRIBUTING.md")
PROSE = " ".join(word for page in PAGES for word in (ROOT / page).read_text("utf-8").split())


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_has_its_command_and_its_commit(name):
    baseline = BASELINES[name]
    assert re.fullmatch(r"[0-9a-f]{7,8}", baseline["commit"] or baseline["reported_in"])
    program = baseline["command"].split()
    if program[:3] == ["espalier", "run", "--profile"]:
        assert (ROOT / "pipelines" / "profiles" / f"{program[3]}.toml").is_file()
    elif program[0] == "make":
        assert f"\n{program[1]}: " in (ROOT / "Makefile").read_text("utf-8")
    else:
        assert importlib.util.find_spec(program[2])
        assert f"python -m {program[2]}" in PROSE
    if baseline["commit"]:
        assert baseline["commit"] in PROSE


def test_a_gain_agrees_with_the_figures_around_it():
    rows = [*BASELINES["laptop"]["seeds"], *BASELINES["learning"]["seeds"]]
    rows += [*BASELINES["own_folder"]["folders"], *BASELINES["families"]["families"]]
    for row in rows:
        assert row["gain"] == pytest.approx(row["trained"] - row["warm_start"], abs=0.11)
        assert row["ci95"][0] <= row["gain"] <= row["ci95"][1]


def test_families_name_the_commit_of_their_figures():
    for one in BASELINES["families"]["families"]:
        (page,) = (ROOT / "components").glob(f"espalier_*/{one['profile']}/README.md")
        assert all(commit in page.read_text("utf-8") for commit in one["commits"])
