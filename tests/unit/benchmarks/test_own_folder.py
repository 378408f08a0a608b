"""The benchmark of small own folders: its documents, what it counts, what it refuses."""

import argparse
import json

import pytest

from espalier.config import Profile
from tests.benchmarks.arms import Arm, asked
from tests.benchmarks.keeping import commit, keep
from tests.benchmarks.own_folder import SETS, kept_result, profile_of, report
from tests.factories.prose_folder import ProseFolder, write

from .test_families import result


def options_for(out, **changed):
    given = {"out": out, "set": [], "threads": 1, "profile": None}
    given |= {"any_commit": False, "again": False}
    return argparse.Namespace(**{**given, **changed})


def keep_result(options, arm, *, tasks=320, at=None, cpu_s=90.0):
    options.out.mkdir(parents=True, exist_ok=True)
    found = result(100, 150, tasks) | {
        "dev_em": {"warm_start": 0.3, "trained": 0.5},
        "demonstrations": 130,
        "candidates": 200,
        "learnable": 120,
        "rl_steps": 60,
        "zero_variance_share": 0.5,
        "cpu_s": cpu_s,
        "words": {
            "n": 226,
            "training": {"warm_start": 0.5, "trained": 0.6},
            "other": {"warm_start": 0.4, "trained": 0.5},
        },
    }
    origin = {"commit": at or commit()}
    keep(options.out / f"{arm.name}.json", asked(profile_of(arm, options)), [found], origin)


def test_sets_are_a_hundred_documents_that_their_seed_alone_decides(tmp_path):
    folders = {name: ProseFolder(one.seed) for name, one in SETS.items()}
    for folder in folders.values():
        assert len(folder.documents) == 100
        assert len(folder.questions()) == 800
        assert all(
            fact.object.lower() in folder.documents[fact.subject].lower() for fact in folder.facts
        )
    assert folders["pairs"].documents.keys().isdisjoint(folders["triples"].documents.keys())
    write(folders["pairs"], tmp_path / "a")
    write(ProseFolder(SETS["pairs"].seed), tmp_path / "b")
    for path in sorted((tmp_path / "a").rglob("*.*")):
        twin = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.read_bytes() == twin.read_bytes()


def test_a_set_has_pairs_or_triples_and_the_defaults_besides(tmp_path):
    options = options_for(tmp_path)
    pairs = profile_of(Arm("pairs", 4), options)
    triples = profile_of(Arm("triples", 4), options)
    assert (pairs.knowledge.triples, triples.knowledge.questions) == (None, None)
    assert pairs.seed == 4
    assert pairs.warm_start == Profile().warm_start
    assert pairs.training == Profile().training


def test_the_last_line_has_dev_and_held_out_scores(tmp_path, capsys):
    options, arm = options_for(tmp_path), Arm("pairs", 0)
    keep_result(options, arm)
    report([arm], options)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["pairs-0"]
    assert figures["gain"][0] == pytest.approx(50 / 320)
    assert figures["dev_em"]["trained"] == 0.5
    assert (figures["n"], figures["minutes"], figures["cpu_minutes"]) == (320, 2.0, 1.5)


def test_too_few_held_out_questions_are_refused(tmp_path):
    options, arm = options_for(tmp_path), Arm("triples", 0)
    keep_result(options, arm, tasks=200, cpu_s=None)
    with pytest.raises(SystemExit, match="triples-0: fewer than 300"):
        report([arm], options)


def test_an_arm_of_another_commit_is_refused_unless_asked(tmp_path):
    options, arm = options_for(tmp_path), Arm("pairs", 0)
    keep_result(options, arm, at="0123abc")
    with pytest.raises(SystemExit, match="is of commit 0123abc"):
        kept_result(arm, options)
    assert kept_result(arm, options_for(tmp_path, any_commit=True))["commit"] == "0123abc"
