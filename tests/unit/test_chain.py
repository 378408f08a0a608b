"""The stages are said once: modules, inputs, digests and the compiled pipeline follow the chain."""

import importlib
import inspect
import shutil

import pytest
import yaml

from espalier.chain import CHAIN, STAGES, expect_of_one_run, provenance
from espalier.config import KubernetesConfig, Profile
from espalier.evaluation.suite import make_suite
from espalier.orchestration.pipelines import compile_pipeline
from espalier.records import (
    ArtifactError,
    NullTracker,
    Provenance,
    content_digest,
    open_artifact,
    publishing,
)
from espalier.stages import register
from tests.factories.compiled_steps import compiled_steps

PARAMETERS = ["profile", "inputs", "output_dir", "tracker"]
OTHER_VALUES = {
    "knowledge": {"max_cities": 77},
    "splits": {"dev_share": 0.11},
    "search": {"top_k": 2},
    "synthesis": {"detour_share": 0.2},
    "agent_texts": {"memories": 9},
    "teacher": {"mistake_share": 0.1},
    "validation": {"max_turns": 5},
    "curation": {"min_words": 2},
    "environment": {"name": "python_math"},
    "policy": {"prestage": {"steps": 7}},
    "episode": {"max_turns": 3},
    "agent": {"command": ["agent"]},
    "reward": {"format": 0.2},
    "reward_model": {"tasks": 50},
    "hardware": {"micro_batch_tokens": 4096},
    "rollout": {"max_rows": 8},
    "continued_pretraining": {"steps": 7},
    "warm_start": {"optimizer": {"weight_decay": 0.5}},
    "curriculum": {"explore_share": 0.5},
    "self_play": {"name": "webrl"},
    "training": {"steps": 7},
    "evaluation": {"temperature": 0.5},
    "endpoints": {"small": {"url": "http://h/v1", "model": "m"}},
    "registry": {"min_gain": 0.1},
    "kubernetes": {"queue": "other"},
    "serving": {"rows": 8},
}


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    out = tmp_path_factory.mktemp("ir") / "pipeline.yaml"
    compile_pipeline(out, {}, KubernetesConfig(), None)
    return next(yaml.safe_load_all(out.read_text()))


@pytest.fixture(scope="module")
def compiled(pipeline):
    return compiled_steps(pipeline)


def step(name):
    return name.replace("_", "-")


@pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)
def test_every_stage_is_a_module_that_can_be_run(stage):
    module = importlib.import_module(f"espalier.stages.{stage.name}")
    parameters = list(inspect.signature(module.run).parameters.values())
    assert [one.name for one in parameters[:4]] == PARAMETERS
    assert all(one.default is not one.empty for one in parameters[4:]), "the chain passes four"


def test_a_stage_reads_only_what_was_published_before_it():
    published = set()
    for stage in CHAIN:
        assert set(stage.inputs) <= published, stage.name
        assert stage.output not in published, f"{stage.name} publishes what is there already"
        published.add(stage.output)


def test_every_section_of_a_stage_is_one_of_the_profile():
    tables = Profile().model_dump(mode="json")
    for stage in CHAIN:
        for name in stage.sections:
            section, _, key = name.partition(".")
            assert section in tables, f"{stage.name}: {name}"
            assert not key or key in tables[section], f"{stage.name}: {name}"


def test_the_pipeline_has_the_chain_and_two_more_steps(compiled):
    around = {"resolve-profile", "require-valid"}
    assert compiled.keys() == {*around, *(step(stage.name) for stage in CHAIN)}


def test_the_pipeline_has_three_parts(compiled):
    parts = [compiled[step(stage.name)].part for stage in CHAIN]
    assert list(dict.fromkeys(parts)) == ["data", "training", "judgement"]


def test_no_stage_after_validation_begins_before_its_check(compiled):
    names = [stage.name for stage in CHAIN]
    for name in names[names.index("validate") + 1 :]:
        assert "require-valid" in compiled[step(name)].after, name
    assert compiled["require-valid"].inputs["verdict"] == ("validate", "verdict")


SHOWN = {"page": "system.HTML", "summary": "system.Markdown"}


@pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)
def test_a_step_shows_one_thing_beside_its_output(compiled, stage):
    outputs = compiled[step(stage.name)].component["outputDefinitions"]
    kinds = {name: one["artifactType"]["schemaTitle"] for name, one in outputs["artifacts"].items()}
    assert kinds.pop(stage.output) == f"system.{stage.output_kind.capitalize()}"
    assert kinds == ({stage.shows: SHOWN[stage.shows]} if stage.shows else {})
    assert ("verdict" in outputs.get("parameters", {})) == stage.judges


@pytest.mark.parametrize("stage", CHAIN, ids=lambda stage: stage.name)
def test_the_pipeline_feeds_a_stage_what_the_chain_feeds_it(compiled, stage):
    producers = {other.output: step(other.name) for other in CHAIN}
    assert compiled[step(stage.name)].inputs == {
        "profile_json": ("resolve-profile", "Output"),
        **{folder: (producers[folder], folder) for folder in stage.inputs},
    }


def test_no_step_or_part_is_taken_from_the_cache(pipeline):
    dags = [pipeline["root"], *pipeline["components"].values()]
    tasks = [task for one in dags for task in one.get("dag", {}).get("tasks", {}).values()]
    assert len(tasks) == len(CHAIN) + 2 + 3
    assert all(task["cachingOptions"] == {} for task in tasks)


def test_every_field_of_the_run_form_is_optional_and_described(pipeline):
    fields = pipeline["root"]["inputDefinitions"]["parameters"]
    defaults = {name: field.get("defaultValue") for name, field in fields.items()}
    assert {name: value for name, value in defaults.items() if value != ""} == {
        "profile": "laptop",
        "seed": 0,
    }
    assert all(field["isOptional"] for field in fields.values())
    assert all(len(field["description"]) > 20 for field in fields.values())


def test_steps_import_the_library_and_install_nothing(pipeline):
    for executor in pipeline["deploymentSpec"]["executors"].values():
        assert "pip install" not in " ".join(executor["container"]["command"])


def test_every_section_has_another_value_in_this_test():
    plain = {"name", "seed", "threads"}
    assert OTHER_VALUES.keys() == Profile.model_fields.keys() - plain


@pytest.mark.parametrize("section", OTHER_VALUES)
def test_a_changed_section_changes_digests_of_its_readers(section):
    before, after = Profile(), Profile.model_validate({section: OTHER_VALUES[section]})
    changed = {stage.name for stage in CHAIN if stage.digest(before) != stage.digest(after)}
    read = {section, *(f"{section}.{key}" for key in OTHER_VALUES[section])}
    reading = {stage.name for stage in CHAIN if read & set(stage.sections)}
    named_after_it = {"register"} if section == "environment" else set()
    assert changed == reading | named_after_it


@pytest.mark.parametrize(
    ("stage", "values"),
    [
        ("synthesize", {"splits": {"heldout_share": 0.5}}),  # a family may deal its tasks itself
        ("synthesize", {"episode": {"max_turns": 3}}),  # demonstrations are played
        ("synthesize", {"episode": {"max_turn_calls": 3}}),
        ("synthesize", {"reward": {"format": 0.2}}),  # and paid
        ("synthesize", {"policy": {"dialect": "hermes"}}),  # agent texts are written in it
        ("validate", {"policy": {"dialect": "hermes"}}),
    ],
)
def test_a_stage_runs_again_for_what_it_reads_indirectly(stage, values):
    other = Profile.model_validate(values)
    assert STAGES[stage].digest(other) != STAGES[stage].digest(Profile())


def test_data_follow_the_dialect_of_a_given_model(tmp_path):
    def written_for(template):
        (tmp_path / "chat_template.jinja").write_text(template)
        profile = Profile.model_validate({"policy": {"model": str(tmp_path)}})
        return [STAGES[name].external_inputs(profile) for name in ("synthesize", "validate")]

    hermes, same = written_for("<tool_call>"), written_for("<tool_call> ")
    assert hermes == same
    assert all(one != other for one, other in zip(hermes, written_for("[ARGS]"), strict=True))


def test_an_edited_family_of_ones_own_runs_again(tmp_path, monkeypatch):
    source = tmp_path / "own_shop.py"
    source.write_text(
        "from tests.unit.environments.prices import Prices\nclass Shop(Prices):\n    rate = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = Profile.model_validate({"environment": {"name": "own_shop:Shop"}})
    before = {stage.name: stage.external_inputs(own) for stage in CHAIN}
    code = register.code_digest(own)
    source.write_text(source.read_text().replace("rate = 1", "rate = 2"))
    after = {stage.name: stage.external_inputs(own) for stage in CHAIN}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == STAGES.keys() - {"register"}
    assert register.code_digest(own) != code
    assert make_suite(own, [], "k").digest != make_suite(Profile(), [], "k").digest
    assert not any(stage.external_inputs(Profile()) for stage in CHAIN)


def test_a_users_file_is_part_of_the_provenance(tmp_path):
    benchmark = tmp_path / "benchmark.jsonl"
    benchmark.write_text("{}\n")
    profile = Profile.model_validate({"curation": {"benchmarks": {"own": str(benchmark)}}})
    with publishing(tmp_path / "knowledge", provenance("ingest", profile, {})) as draft:
        (draft.path / "triples.txt").write_text("a b c\n")
    read = {"knowledge": open_artifact(tmp_path / "knowledge")}
    origin = provenance("validate", profile, read)
    assert origin.producer == "validate"
    assert origin.config_digest == STAGES["validate"].digest(profile)
    assert set(origin.inputs) == {"knowledge", "curation.benchmarks.own"}
    assert origin.inputs["knowledge"] == content_digest(read["knowledge"].files)


def test_the_runner_hands_on_the_digests_that_it_has(tmp_path, monkeypatch):
    """A stage reads the user's files once for their digest, however large they are."""
    source = tmp_path / "benchmark.jsonl"
    source.write_text("{}\n")
    profile = Profile.model_validate({"curation": {"benchmarks": {"own": str(source)}}})
    recorded = []
    monkeypatch.setattr(
        "espalier.stages.validate.run",
        lambda profile, *_, external_digests: recorded.append(
            provenance("validate", profile, {}, external_digests).inputs
        ),
    )
    stage = STAGES["validate"]
    for given in ({"curation.benchmarks.own": "sha256:known"}, None):
        stage.run(profile, {}, tmp_path / "out", NullTracker(), external_digests=given)
    assert recorded == [{"curation.benchmarks.own": "sha256:known"}, stage.external_inputs(profile)]


def test_an_output_is_current_while_settings_and_inputs_hold(tmp_path):
    stage, profile = STAGES["synthesize"], Profile()
    origin = provenance("synthesize", profile, {})
    origin = origin.model_copy(update={"inputs": {"knowledge": "k", "champion": "c"}})
    with publishing(tmp_path / "synthetic", origin) as draft:
        (draft.path / "rows").write_text("rows")
    made = draft.published
    assert stage.is_current(made, profile, {"knowledge": "k"})
    assert not stage.is_current(made, profile, {"knowledge": "other"})
    assert not stage.is_current(made, profile, {"knowledge": "k", "environment.name": "code"})
    assert not stage.is_current(made, Profile(seed=1), {"knowledge": "k"})


def test_what_registers_or_reads_a_database_is_never_reused():
    assert {stage.name for stage in CHAIN if not stage.is_reusable(Profile())} == {"register"}
    database = {
        "source": "sql", "database": "sqlite:///x.db", "documents_query": "select", "questions": "q"
    }  # fmt: skip
    reading = Profile.model_validate({"knowledge": database})
    fixed = {stage.name for stage in CHAIN if not stage.is_reusable(reading)}
    assert fixed == {"ingest", "register"}


def _write_run(folder, changed=""):
    """Every artifact of a run; the content of `changed` is another one."""
    contents = {}
    for stage in CHAIN:
        inputs = {name: contents[name] for name in stage.inputs}
        made = Provenance(producer=stage.name, config_digest="c", seed=0, inputs=inputs)
        with publishing(folder / stage.output, made) as draft:
            (draft.path / "rows").write_text("2" if stage.output == changed else "1")
        contents[stage.output] = draft.published.content


@pytest.mark.parametrize("changed", ["knowledge", "accepted", "warm_policy"])
def test_a_policy_of_former_settings_is_not_the_runs(tmp_path, changed):
    _write_run(tmp_path / "run")
    _write_run(tmp_path / "other", changed)
    expect_of_one_run(tmp_path / "run", "trained_policy", "evaluation")
    shutil.rmtree(tmp_path / "run" / changed)
    shutil.copytree(tmp_path / "other" / changed, tmp_path / "run" / changed)
    expect_of_one_run(tmp_path / "run", changed)
    with pytest.raises(ArtifactError, match=r"trained_policy: .*espalier run --out"):
        expect_of_one_run(tmp_path / "run", "trained_policy")


def test_a_stage_that_has_not_ended_is_named(tmp_path):
    _write_run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "trained_policy")
    with pytest.raises(ArtifactError, match=r"stage train .*espalier run --out"):
        expect_of_one_run(tmp_path / "run", "trained_policy")
