import json

import pytest

from espalier.config import PolicyConfig, Profile
from espalier.orchestration.pipelines import form_defaults
from espalier.policy.loading import save_policy
from espalier.records import PolicyError, ProfileError
from espalier.steps.given_model import MemoryBudget, check_given_model, machine_memory, memory_fault
from tests.factories.tiny import tiny_policy

GIB = 2**30


@pytest.fixture
def model(tmp_path):
    directory = tmp_path / "model"
    save_policy(tiny_policy(), directory)
    return directory


def check(model):
    said = []
    check_given_model(Profile(policy=PolicyConfig(model=model)), said.append)
    return said


def test_a_sound_model_is_passed_without_a_word(model):
    assert check(model) == []


def test_a_name_on_the_hub_is_told_how_to_get(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError) as refused:
        check("Qwen/Qwen3-0.6B")
    assert "`hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B`" in str(refused.value)


def test_a_path_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PolicyError, match="absent: no such directory; give a Hugging Face"):
        check(tmp_path / "absent")


def test_a_tokenizer_without_chat_template_is_refused(model):
    (model / "chat_template.jinja").unlink()
    with pytest.raises(PolicyError, match="has no chat template"):
        check(model)


def test_a_model_that_generates_no_text_is_refused(model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "vit"}))
    with pytest.raises(PolicyError, match="model_type = 'vit', which is no causal"):
        check(model)


def test_a_shard_that_was_not_copied_is_named(model):
    (model / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(PolicyError, match=r"2 of 2 weight files are missing \(model-1-of-2"):
        check(model)


def test_weights_that_were_cut_short_are_refused(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(PolicyError, match=r"model\.safetensors cannot be read"):
        check(model)


@pytest.mark.parametrize(
    ("free_gib", "processes", "said"),
    [(20, 1, None), (10, 1, "at least 14.9 GiB"), (10, 2, None)],
)
def test_what_may_not_fit_is_a_warning(tmp_path, free_gib, processes, said):
    memory = MemoryBudget("this machine", 24 * GIB, free_gib * GIB)
    fault = memory_fault(tmp_path, 10**9, memory, processes=processes)
    assert (said in fault) if said else (fault is None)


def test_what_can_never_fit_is_refused(tmp_path):
    with pytest.raises(PolicyError, match=r"119\.2 GiB .*this machine has 24\.0 GiB"):
        memory_fault(tmp_path, 8 * 10**9, MemoryBudget("this machine", 24 * GIB, GIB), processes=1)


def test_a_container_has_the_memory_that_it_may_use(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemAvailable: 4096 kB\n")
    assert machine_memory(tmp_path) == ("this machine", 8 << 20, 4 << 20)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text(f"{4 << 20}\n")
    (group / "memory.current").write_text(f"{1 << 20}\n")
    assert machine_memory(tmp_path) == ("this machine", 4 << 20, 3 << 20)


def test_a_cluster_run_names_a_path_in_its_pods():
    with pytest.raises(ProfileError, match="give the absolute path there"):
        form_defaults("laptop", ["policy.model=models/own"])
    assert form_defaults("laptop", ["policy.model=/models/own"])["profile"] == "laptop"
