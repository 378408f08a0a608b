import re
from pathlib import Path

import pytest

from espalier.chain import CHAIN, STAGES
from espalier.config import Profile, load_profile
from espalier.records import ProfileError

PRETRAINED = {"prepare_policy", "continue_pretraining"}
USES_DIALECT = {stage.name for stage in CHAIN} - {"ingest", "register"}
PAYS = {"synthesize", "warm_start", "filter_curriculum", "train", "evaluate"}


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "profile.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_a_profile_holds_what_its_file_says_and_defaults_elsewhere(write):
    profile = load_profile(write('name = "mine"\nseed = 4\n[training]\nsteps = 7\n'))
    assert (profile.name, profile.seed, profile.training.steps) == ("mine", 4, 7)
    assert profile.training.group_size == Profile().training.group_size


@pytest.mark.parametrize(
    ("overrides", "section", "key", "value"),
    [
        (["curriculum.enabled=false"], "curriculum", "enabled", False),
        (["curriculum.pass_rate_band=[0.1, 0.6]"], "curriculum", "pass_rate_band", (0.1, 0.6)),
        (["registry.model_name=my-agent"], "registry", "model_name", "my-agent"),
        ([" training.steps = 5 ", "training.steps=6"], "training", "steps", 6),
    ],
)
def test_an_override_sets_one_value_of_its_type(write, overrides, section, key, value):
    profile = load_profile(write(""), overrides)
    assert getattr(getattr(profile, section), key) == value


@pytest.mark.parametrize(
    ("override", "complaint"),
    [("training.steps", "key=value"), ("  =5", "key=value"), ("seed.steps=5", "seed")],
)
def test_an_override_without_key_or_value_is_refused(write, override, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load_profile(write("seed = 1"), [override])


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 20_000, "a = " + "9" * 5_000, "a = " + "{b = " * 20_000]
)
def test_a_file_that_no_parser_can_follow_is_named(write, text):
    with pytest.raises(ProfileError, match=r"profile\.toml: not TOML"):
        load_profile(write(text))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sead = 1", "sead.*mean seed"),
        ("sead = 1\ntraining.steps = -1", r"(?s)2 fault(?=.*sead).*training\.steps"),
        ("training = 5", "training: "),
        ("[policy.prestage]\nstepps = 1", r"mean policy\.prestage\.steps"),
        ("[splits]\nzzz = 1", r"splits\.zzz.*dev_share, heldout"),
        ("[training.algorithm.loss]\nclip_hihg = 0.3", r"mean .*\.loss\.clip_high"),
        (
            '[training.algorithm]\nadvantage = {name = "rloo", normalise = true}',
            r"mean training\.algorithm\.advantage\.normalize",
        ),
        (
            '[training.algorithm]\nfilters = [{name = "zero_variance", acton = "skip"}]',
            r"mean training\.algorithm\.filters\.0\.action",
        ),
        ('training.algorithm.loss = {name = "ppo_clp"}', "loss: .*mean ppo_clip"),
        ('training.algorithm.loss = {name = "zzz"}', "cispo, clip_cov"),
        ('training.algorithm.filters = [{action = "skip"}]', r"filters\.0: .*name"),
        ("training.algorithm.loss = {clip_low = 3}", r"training\.algorithm\.loss\.clip_low"),
        ('training.algorithm.preset = "dapoo"', "preset.*mean dapo"),
    ],
)
def test_a_wrong_name_is_placed_and_answered_with_the_nearest(write, text, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load_profile(write(text))


def test_a_fault_says_whether_an_override_has_it(write):
    path = write("[training]\nsteps = -1\n")
    both = (
        re.escape(f"{path}: 2 fault(s)") + r".*\n  --set warm_start\.stepz: .*\n  training\.steps: "
    )
    with pytest.raises(ProfileError, match=both):
        load_profile(path, ["warm_start.stepz=3"])
    sound = write("")
    with pytest.raises(ProfileError, match=r"toml with --set: 1 .*\n  --set training\.steps: "):
        load_profile(sound, ["training.steps=-1"])


@pytest.mark.parametrize(
    "override", ["nothing.steps=3", "knowledge.path=docs", "environment.name=nope"]
)
def test_a_fault_of_a_section_is_the_overrides(write, override):
    with pytest.raises(ProfileError, match=r"toml with --set: 1 fault\(s\)\n  --set "):
        load_profile(write(""), [override])


def test_an_override_keeps_its_neighbours_in_a_nested_table(write):
    path = write('[training.algorithm]\npreset = "gspo"\nloss.clip_high = 1e-3\n')
    algorithm = load_profile(
        path, ["training.algorithm.entropy_coefficient=0.01"]
    ).training.algorithm
    assert (algorithm.loss.name, algorithm.loss.clip_low) == ("gspo", 3e-4)
    assert (algorithm.loss.clip_high, algorithm.entropy_coefficient) == (1e-3, 0.01)


CRITIC = ["training.algorithm.preset=vapo", "training.algorithm.critic.warmup_steps=50"]
NO_WEIGHTS = ["synthesis.union_weight=0", "synthesis.intersection_weight=0"]
STALE = "training.asynchronous.max_staleness=2"
REPLAY = ["training.replay.capacity=8", "training.replay.successes_only=true"]
FIFO = [*REPLAY, "training.algorithm.preset=rft", "training.replay.order=priority"]
OBSERVATIONS = ["training.algorithm.preset=turn_ppo", "training.train_on_observations=true"]
LORA = "policy.lora.rank=8"
SERVED = ["rollout.engine=vllm", 'rollout.vllm.urls=["http://127.0.0.1:8000"]']


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["curriculum.candidates=7000"], r"curriculum\.candidates=7000"),
        ([*SERVED, "training.rollout_workers=1"], r"rollout_workers=1 sample.*\"lockstep\""),
        (["curriculum.screening_rollouts=16"], r"training\.group_size=16"),
        (["training.dev_questions=501"], r"training\.dev_questions=501"),
        (["episode.max_turn_tokens=384"], "max_turn_tokens"),
        (["synthesis.trajectories=6001"], "trajectories=6001"),
        (["synthesis.chain_weights=[1, -1, 0, 0]"], "negative"),
        (["synthesis.chain_weights=[0, 0, 0, 0]", *NO_WEIGHTS], "all weights"),
        (["splits.heldout_share=0.75"], r"0\.2"),
        (["training.minibatches=3"], r"256 .*\[1, 2, 4, 8"),
        (["reward.format=2"], "format=2.0"),
        (["training.group_size=1"], "group_size"),
        ([*CRITIC, "training.steps=50"], r"critic\.warmup_steps=50"),
        (["training.sharded=true"], "sharded"),
        (REPLAY, "successes_only"),
        (["training.replay.perplexity_window=[1.05, 2]"], "perplexity_window"),
        ([STALE, "training.asynchronous.publish_every=3"], "max_staleness=2"),
        (["training.algorithm.preset=opo", STALE], "opo"),
        (OBSERVATIONS, "turn_ppo"),
        (FIFO, "fifo"),
        (["curriculum.pass_rate_band=[0.9, 0.1]"], "pass_rate_band"),
        (["curriculum.draw=predicted", "curriculum.preference=r_zero"], "predicted"),
        (["policy.hidden_size=100"], r"policy\.attention_heads=4"),
        (["policy.model=DIR", "policy.start=champion"], r"policy\.start"),
        ([LORA, "training.optimizer.kind=muon"], "muon"),
        ([LORA, "training.sharded=true", "training.processes=2"], r"training\.sharded"),
        (["knowledge.source=folder"], r"knowledge\.path"),
        (["knowledge.path=D"], r"knowledge\.source"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(write, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load_profile(write(""), overrides)


@pytest.mark.parametrize("raw", [b"steps: 5\n", b'name = "caf\xe9"', None])
def test_a_file_that_is_no_toml_is_named(tmp_path, raw):
    path = tmp_path / "profile.toml"
    if raw is not None:
        path.write_bytes(raw)
    for unread in (path, tmp_path):  # a folder is none either
        with pytest.raises(ProfileError, match=unread.name):
            load_profile(unread)


def changed(before, after):
    return {stage.name for stage in CHAIN if stage.digest(before) != stage.digest(after)}


@pytest.mark.parametrize(
    ("section", "key", "value", "stages"),
    [
        ("training", "temperature", 0.5, {"filter_curriculum", "train"}),
        ("training", "algorithm", {"preset": "gspo"}, {"train"}),
        ("hardware", "micro_batch_tokens", 4096, {*PRETRAINED, "warm_start", "train"}),
        ("hardware", "precision", "bfloat16", {*PRETRAINED, "warm_start", "train"}),
        ("reward", "format", 0.2, PAYS),
        ("policy", "dialect", "hermes", USES_DIALECT),
    ],
)
def test_a_changed_key_changes_only_its_stages_digests(section, key, value, stages):
    before, after = Profile(), Profile.model_validate({section: {key: value}})
    assert changed(before, after) == stages


def test_seed_and_threads_change_every_digest_and_a_name_none(write):
    before = Profile()
    assert changed(before, Profile(seed=1)) == STAGES.keys()
    assert changed(before, Profile(threads=1)) == STAGES.keys()
    assert not changed(before, Profile(name="other"))
    spelt = load_profile(write(f"[training]\nsteps = {before.training.steps}\n"))
    assert not changed(before, spelt)


def test_a_folder_of_the_users_counts_by_its_content(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("one")
    questions = tmp_path / "q.jsonl"
    questions.write_text("{}")
    knowledge = {"source": "folder", "path": str(folder), "questions": str(questions)}
    profile = Profile.model_validate({"knowledge": knowledge})
    before = STAGES["ingest"].external_inputs(profile)
    (folder / "a.md").write_text("two")
    after = STAGES["ingest"].external_inputs(profile)
    assert before.keys() == {"knowledge.path", "knowledge.questions"}
    assert before["knowledge.path"] != after["knowledge.path"]
    assert before["knowledge.questions"] == after["knowledge.questions"]
    assert STAGES["train"].external_inputs(profile) == {}


FOLDER = {"source": "folder", "path": "our/Handbook 2", "questions": "asked.jsonl"}
DATABASE = {
    "source": "sql", "database": "postgresql://host/tickets", "documents_query": "SELECT 1",
    "triples_query": "SELECT 2",
}  # fmt: skip
PROBLEMS = {"name": "python_math", "problems": "data/gsm8k.train.jsonl"}
SOURCES = {
    "espalier-handbook-2": str(Path("our/Handbook 2").absolute()),
    "espalier-tickets": "postgresql://host/tickets",
    "espalier-gsm8k": str(Path("data/gsm8k.train.jsonl").absolute()),
}


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        ({"name": "night"}, "espalier-search-agent"),
        ({"knowledge": FOLDER, "registry": {"min_gain": 0.1}}, "espalier-handbook-2"),
        ({"knowledge": FOLDER, "registry": {"model_name": "mine"}}, "mine"),
        ({"knowledge": DATABASE}, "espalier-tickets"),
        ({"environment": PROBLEMS}, "espalier-gsm8k"),
        ({"environment": {"name": "python_math"}}, "espalier-python-math"),
    ],
)
def test_a_model_is_named_after_what_it_knows(tables, name):
    profile = Profile.model_validate(tables)
    assert profile.model_name == name
    chosen = "model_name" in tables.get("registry", {})
    assert profile.named_after == (None if chosen else SOURCES.get(name))
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
