import pytest
from pydantic import ValidationError

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
    ("override", "section", "key", "value"),
    [
        ("training.steps=50", "training", "steps", 50),
        ("curriculum.enabled=false", "curriculum", "enabled", False),
        ("curriculum.pass_rate_band=[0.1, 0.6]", "curriculum", "pass_rate_band", (0.1, 0.6)),
        ("registry.model_name=my-agent", "registry", "model_name", "my-agent"),
        (" evaluation.temperature = 0.5 ", "evaluation", "temperature", 0.5),
    ],
)
def test_an_override_sets_one_value_of_its_type(write, override, section, key, value):
    profile = load_profile(write(""), [override])
    assert getattr(getattr(profile, section), key) == value


def test_an_override_reaches_a_nested_section_and_keeps_its_neighbours(write):
    path = write("[policy.prestage]\nsteps = 9\n")
    prestage = load_profile(path, ["policy.prestage.learning_rate=0.1"]).policy.prestage
    assert (prestage.steps, prestage.learning_rate) == (9, 0.1)


def test_the_last_of_two_overrides_wins(write):
    assert load_profile(write("seed = 1"), ["seed=2", "seed=3"]).seed == 3


@pytest.mark.parametrize("override", ["training.steps", "=5", "  =5"])
def test_an_override_without_key_or_value_is_refused(write, override):
    with pytest.raises(ProfileError, match=r"key=value"):
        load_profile(write(""), [override])


def test_an_override_below_a_plain_value_is_refused(write):
    with pytest.raises(ProfileError, match="seed"):
        load_profile(write("seed = 1"), ["seed.steps=5"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sead = 1", r"sead.*mean seed"),
        ("[trainig]\nsteps = 1", r"trainig.*mean training"),
        ("[training]\nstep = 1", r"training\.step: .*mean training\.steps"),
        ("[policy.prestage]\nstepps = 1", r"mean policy\.prestage\.steps"),
        ("[splits]\nzzz = 1", r"splits\.zzz.*dev_share, heldout"),
        (
            "[training.algorithm]\nentropy = 1",
            r"mean training\.algorithm\.entropy_coefficient",
        ),
        (
            "[training.algorithm.loss]\nclip_hihg = 0.3",
            r"mean training\.algorithm\.loss\.clip_high",
        ),
        (
            '[training.algorithm]\nadvantage = {name = "rloo", normalise = true}',
            r"mean training\.algorithm\.advantage\.normalize",
        ),
        (
            '[training.algorithm]\nfilters = [{name = "zero_variance", acton = "skip"}]',
            r"mean training\.algorithm\.filters\.0\.action",
        ),
        (
            '[training.algorithm]\npreset = "ppo"\ncritic = {lerning_rate = 1}',
            r"mean training\.algorithm\.critic\.learning_rate",
        ),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest_valid_name(write, text, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load_profile(write(text))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('loss = {name = "ppo_clp"}', r"loss: .*mean ppo_clip"),
        ('loss = {name = "zzz"}', "cispo, clip_cov"),
        ('filters = [{action = "skip"}]', r"filters\.0: .*name"),
        (
            "loss = {clip_low = 3}",
            r"training\.algorithm\.loss\.clip_low",
        ),
        ('preset = "dapoo"', "preset.*mean dapo"),
    ],
)
def test_a_fault_inside_a_rule_is_placed_in_the_profile(write, text, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load_profile(write(f"[training.algorithm]\n{text}\n"))


def test_a_preset_is_overridden_from_its_own_table(write):
    path = write('[training.algorithm]\npreset = "gspo"\nloss.clip_high = 1e-3\n')
    algorithm = load_profile(
        path, ["training.algorithm.entropy_coefficient=0.01"]
    ).training.algorithm
    assert (algorithm.loss.name, algorithm.loss.clip_low) == ("gspo", 3e-4)
    assert (algorithm.loss.clip_high, algorithm.entropy_coefficient) == (1e-3, 0.01)


def test_every_fault_of_a_profile_is_listed(write):
    with pytest.raises(ProfileError) as caught:
        load_profile(write("sead = 1\n[training]\nsteps = -1\n"))
    message = str(caught.value)
    assert "2 fault(s)" in message
    assert "sead" in message
    assert "training.steps" in message


def test_a_value_where_a_section_belongs_is_named(write):
    with pytest.raises(ProfileError, match="training: "):
        load_profile(write("training = 5"))


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["curriculum.candidates=7000"], r"curriculum\.candidates=7000"),
        (["curriculum.screening_rollouts=16"], r"training\.group_size=16"),
        (["training.dev_questions=501"], r"training\.dev_questions=501"),
        (["episode.max_turn_tokens=384"], "max_turn_tokens"),
        (["synthesis.trajectories=6001"], r"trajectories=6001"),
        (["synthesis.chain_weights=[1, -1, 0, 0]"], "negative"),
        (
            [
                "synthesis.chain_weights=[0, 0, 0, 0]",
                "synthesis.union_weight=0",
                "synthesis.intersection_weight=0",
            ],
            "all weights",
        ),
        (["splits.heldout_share=0.75"], r"0\.2"),
        (["training.minibatches=3"], r"256 .*\[1, 2, 4, 8"),
        (["reward.format=2"], "format=2.0"),
        (["training.group_size=1"], "group_size"),
        (
            [
                "training.algorithm.preset=vapo",
                "training.algorithm.critic.warmup_steps=50",
                "training.steps=50",
            ],
            r"critic\.warmup_steps=50",
        ),
        (["training.sharded=true"], "sharded"),
        (
            ["training.replay.capacity=8", "training.replay.successes_only=true"],
            "successes_only",
        ),
        (["training.replay.perplexity_window=[1.05, 2]"], "perplexity_window"),
        (
            [
                "training.asynchronous.max_staleness=2",
                "training.asynchronous.publish_every=3",
            ],
            "max_staleness=2",
        ),
        (
            ["training.algorithm.preset=opo", "training.asynchronous.max_staleness=2"],
            "opo",
        ),
        (
            ["training.algorithm.preset=turn_ppo", "training.train_on_observations=true"],
            "turn_ppo",
        ),
        (
            [
                "training.replay.capacity=8",
                "training.algorithm.preset=rft",
                "training.replay.successes_only=true",
                "training.replay.order=priority",
            ],
            "fifo",
        ),
        (["curriculum.pass_rate_band=[0.9, 0.1]"], "pass_rate_band"),
        (
            ["curriculum.draw=predicted", "curriculum.preference=r_zero"],
            "predicted",
        ),
        (["policy.hidden_size=100"], "policy.attention_heads=4"),
        (["policy.model=DIR", "policy.start=champion"], r"policy\.start"),
        (["policy.lora.rank=8", "training.optimizer.kind=muon"], "muon"),
        (
            ["policy.lora.rank=8", "training.sharded=true", "training.processes=2"],
            "training.sharded",
        ),
        (["knowledge.source=folder"], r"knowledge\.path"),
        (["knowledge.path=D"], r"knowledge\.source"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_by_name(write, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load_profile(write(""), overrides)


def test_a_missing_profile_is_named(tmp_path):
    with pytest.raises(ProfileError, match=r"nowhere\.toml"):
        load_profile(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("raw", [b"steps: 5\n", b"name = 'unfinished", b'name = "caf\xe9"'])
def test_a_file_that_is_not_toml_is_named(tmp_path, raw):
    (tmp_path / "profile.toml").write_bytes(raw)
    with pytest.raises(ProfileError, match=r"profile\.toml: not"):
        load_profile(tmp_path / "profile.toml")


def test_a_profile_cannot_be_changed_after_parsing():
    with pytest.raises(ValidationError, match="frozen"):
        Profile().training.steps = 5


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


@pytest.mark.parametrize("change", [{"seed": 1}, {"threads": 1}])
def test_seed_and_threads_change_every_digest(change):
    before, after = Profile(), Profile.model_validate(change)
    assert changed(before, after) == STAGES.keys()


def test_the_name_of_a_run_changes_no_digest():
    before, after = Profile(), Profile(name="other")
    assert not changed(before, after)


def test_a_digest_is_the_same_with_defaults_spelt_out(write):
    spelt = load_profile(write(f"[training]\nsteps = {Profile().training.steps}\n"))
    assert not changed(spelt, Profile())


def test_a_profile_survives_its_json():
    profile = Profile.model_validate({"curriculum": {"pass_rate_band": (0.1, 0.5)}})
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


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


def test_a_folder_is_no_profile(tmp_path):
    with pytest.raises(ProfileError, match=tmp_path.name):
        load_profile(tmp_path)


FOLDER = {"source": "folder", "path": "our/Handbook 2", "questions": "asked.jsonl"}
DATABASE = {
    "source": "sql", "database": "postgresql://host/tickets", "documents_query": "SELECT 1",
    "triples_query": "SELECT 2",
}  # fmt: skip
PROBLEMS = {"name": "python_math", "problems": "data/gsm8k.train.jsonl"}


@pytest.mark.parametrize(
    ("tables", "name"),
    [
        ({}, "espalier-search-agent"),
        ({"name": "night", "knowledge": {"max_cities": 100}}, "espalier-search-agent"),
        ({"knowledge": FOLDER}, "espalier-handbook-2"),
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
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


def test_a_stored_profile_keeps_the_model_name_that_it_says():
    stored = Profile.model_validate({"knowledge": FOLDER}).model_dump(mode="json")
    stored["registry"]["model_name"] = "espalier-search-agent"
    assert Profile.model_validate(stored).model_name == "espalier-search-agent"
