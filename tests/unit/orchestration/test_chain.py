import pytest
import yaml

from espalier.chain import CHAIN, STAGES
from espalier.config import KubernetesConfig
from espalier.orchestration.pipelines import compile_pipeline


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    out = tmp_path_factory.mktemp("ir") / "pipeline.yaml"
    compile_pipeline(out, {}, KubernetesConfig(), None)
    return next(yaml.safe_load_all(out.read_text()))


def tasks(compiled):
    return compiled["root"]["dag"]["tasks"]


def test_the_chain_has_every_stage_of_the_profile_in_order():
    assert [link.name for link in CHAIN] == list(STAGES)


def test_a_stage_reads_only_what_was_published_before_it():
    published = set()
    for link in CHAIN:
        assert set(link.inputs.values()) <= published, link.name
        published.add(link.folder)


@pytest.mark.slow
@pytest.mark.parametrize("link", CHAIN, ids=lambda link: link.name)
def test_the_pipeline_feeds_a_stage_what_the_chain_feeds_it(compiled, link):
    producers = {other.folder: other.name.replace("_", "-") for other in CHAIN}
    task = tasks(compiled)[link.name.replace("_", "-")]
    wired = {
        name: source["taskOutputArtifact"]
        for name, source in task["inputs"].get("artifacts", {}).items()
    }
    assert wired == {
        name: {"outputArtifactKey": folder, "producerTask": producers[folder]}
        for name, folder in link.inputs.items()
    }
    outputs = compiled["components"][task["componentRef"]["name"]]["outputDefinitions"]
    assert set(outputs["artifacts"]) == {link.folder, "usage"}


def test_every_step_gets_the_resolved_profile_and_no_step_is_cached(compiled):
    for name, task in tasks(compiled).items():
        assert task["cachingOptions"] == {}, name
        if name != "resolve-profile":
            source = task["inputs"]["parameters"]["profile_json"]["taskOutputParameter"]
            assert source["producerTask"] == "resolve-profile"


def test_every_field_of_the_run_form_has_a_default_and_a_description(compiled):
    fields = compiled["root"]["inputDefinitions"]["parameters"]
    assert {name: field["defaultValue"] for name, field in fields.items()} == {
        "profile": "laptop",
        "seed": 0,
        "overrides": "",
    }
    assert all(len(field["description"]) > 20 for field in fields.values())


def test_steps_import_the_library_and_install_nothing(compiled):
    for executor in compiled["deploymentSpec"]["executors"].values():
        assert "pip install" not in " ".join(executor["container"]["command"])
