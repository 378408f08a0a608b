"""The register stage: one version for one policy, with what promotion needs to judge it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from espalier.config import KnowledgeConfig, Profile, RegistryConfig
from espalier.records import ArtifactError, NullTracker, RegistryError, open_artifact, read_manifest
from espalier.registry import champion_policy, open_parent_run
from espalier.stages.register import run
from tests.unit.registry.conftest import QUESTIONS, Workbench, write_policy


def test_a_registered_policy_is_the_challenger_with_digests_and_figures(bench):
    bench.register(0.6)
    version = bench.model.version("challenger")
    registered = json.loads((bench.root / "out1" / "registered.json").read_text())
    assert version.gate == "pending"
    assert version.policy_digest == registered["policy_digest"]
    assert {
        "espalier.em": "0.6",
        "espalier.warm_start_em": "0.2",
        "espalier.questions": "200",
        "espalier.code_digest": registered["code_digest"],
        "espalier.suite_digest": "s" * 64,
        "espalier.parent_run": version.run_id,
    }.items() <= version.tags.items()
    assert "espalier.gain_em" not in version.tags
    assert len(version.created) == len("2026-03-04T12:00:00+00:00")
    (found,) = bench.model.client.search_model_versions(f"run_id = '{version.run_id}'")
    assert (found.name, str(found.version)) == (bench.name, version.version)
    assert "60.0 % of 200" in found.description
    copies = list(bench.model_root().rglob(f"*{version.run_id}*/**/model.safetensors"))
    assert len(copies) == 1, "weights are uploaded once"


def test_a_version_names_its_base_and_the_licence(bench):
    origin = {"model": "lab/base", "from": "PyPI base==1", "licence": "Apache-2.0"}
    config = json.dumps({"espalier_origin": origin})
    bench.write_policy = partial(write_policy, config=config)
    bench.register(0.6)
    tags = bench.model.version("challenger").tags
    kept = [tags[f"espalier.base_{key}"] for key in ("model", "origin", "licence")]
    assert kept == list(origin.values())
    description = bench.model.client.get_model_version(bench.name, "1").description
    assert all(value in description for value in origin.values())


def test_two_folders_of_one_name_share_no_model(bench, monkeypatch):
    def about(folder):
        knowledge = KnowledgeConfig(source="folder", path=Path(folder))
        return Profile(knowledge=knowledge, registry=RegistryConfig(min_questions=QUESTIONS))

    def register(profile):
        monkeypatch.setattr(Workbench, "profile", profile)
        return bench.register(0.6)

    ours, theirs = about("/ours/docs"), about("/theirs/docs")
    assert ours.model_name == theirs.model_name == "espalier-docs"
    assert [register(ours), register(ours)] == ["1", "2"]
    with pytest.raises(RegistryError, match=r"/ours/docs.*/theirs/docs.*registry\.model_name"):
        register(theirs)
    with pytest.raises(RegistryError, match="/ours/docs"):
        champion_policy(bench.target.uri, "espalier-docs", bench.root / "base", theirs.named_after)
    joined = RegistryConfig(model_name="espalier-docs", min_questions=QUESTIONS)
    assert register(theirs.model_copy(update={"registry": joined})) == "3"
    assert register(ours) == "4"


def test_run_of_a_version_names_its_data(bench):
    bench.register(0.6)
    inputs = bench.model.client.get_run(bench.model.version("challenger").run_id).inputs
    accepted = read_manifest(bench.root / "run1" / "accepted")
    assert {found.dataset.name: found.dataset.digest for found in inputs.dataset_inputs} == {
        "accepted": accepted.content[:32],
        "knowledge": "4b" * 16,
        "held-out suite": "s" * 32,
    }


def test_stage_killed_before_publishing_finds_its_version_again(bench):
    inputs = bench.inputs(0.6)
    parent = open_parent_run(bench.target, "killed", {})
    contents = []
    for attempt in ("first", "second"):
        with parent.stage("register") as tracker:
            contents.append(run(bench.profile, inputs, bench.root / attempt, tracker).content)
    assert len(bench.model.versions()) == 1
    assert contents[0] == contents[1]


def test_a_second_policy_of_one_run_keeps_the_first_version(bench):
    parent = open_parent_run(bench.target, "retrained in place", {})
    for attempt in ("first", "second"):
        with parent.stage("register") as tracker:
            run(bench.profile, bench.inputs(0.6), bench.root / attempt, tracker)
    one, two = bench.model.version("1"), bench.model.version("2")
    weights = bench.model.fetch(one, "policy/model.safetensors", bench.root)
    assert one.run_id == two.run_id
    assert weights.read_bytes() == b"weights 1" * 100


def test_other_trackers_take_the_server_from_the_environment(bench, monkeypatch):
    parent = open_parent_run(bench.target, "by environment", {})
    for name, value in parent.environment.items():
        monkeypatch.setenv(name, value)
    run(bench.profile, bench.inputs(0.6), bench.root / "out", NullTracker())
    assert open_artifact(bench.root / "out").producer == "register"
    assert bench.model.version("challenger").tags["espalier.parent_run"] == parent.run_id


def test_an_unreachable_server_is_an_error_naming_the_variable(bench):
    with pytest.raises(RegistryError, match="MLFLOW_TRACKING_URI"):
        run(bench.profile, bench.inputs(0.6), bench.root / "out", NullTracker())
    assert not (bench.root / "out").exists()


def test_evaluation_of_another_policy_is_refused(bench):
    inputs = bench.inputs(0.6)
    bench.write_policy(bench.root / "other", "other weights")
    other = inputs | {"trained_policy": bench.root / "other"}
    with pytest.raises(ArtifactError, match="policy"):
        run(bench.profile, other, bench.root / "out", NullTracker())
