"""The five frequent changes, each by a package outside of the tree that a profile names."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
import torch

from espalier.algorithms import Algorithm
from espalier.algorithms.batch import CreditBatch
from espalier.chain import STAGES
from espalier.config import KubernetesConfig, Profile, parse_profile
from espalier.dialects import chosen_dialect, detected_dialect, syntax_of
from espalier.environments import PlainQuestion, family_of
from espalier.environments.funnel import Funnel
from espalier.evaluation.questions import QuestionRow
from espalier.evaluation.results import gain, results_table, summarize
from espalier.records import PolicyError, ProfileError, ToolCalls
from espalier.reporting.comparison import compare
from espalier.reporting.reward_terms import term_points
from espalier.sandbox import Limits
from espalier.sandbox.choice import backend_for
from espalier.stages import register
from espalier.steps.profiles import saved_profile
from espalier.training.rl.reward_functions import TermRewards
from tests.factories.loss_batches import loss_batch
from tests.unit.training.test_reward_functions import two_calls_and_an_answer

SOURCES = {
    "desk.py": '''
from espalier.config import EnvironmentConfig
from espalier.environments import SimpleFamily, make_task
from espalier.records import FinalAnswer, ToolCalls


class Desk(SimpleFamily[EnvironmentConfig]):
    name, config = "desk", EnvironmentConfig

    def tools(self):
        def double(number: int) -> int:
            """Twice a number."""
            return 2 * number
        return (double,)

    def tasks(self, split, count):
        first = {"train": 0, "dev": 100, "heldout": 200}[split]
        return [
            make_task(self.name, f"Twice {n}?", gold=(str(2 * n),), split=split, source="desk",
                      key=str(n), metadata={"extra": {"number": n}})
            for n in range(first, first + min(count, 100))
        ]

    def verify(self, task, answer):
        return float(answer == task.verifier.gold[0])

    def demonstrate(self, task):
        said = yield ToolCalls.one("double", {"number": task.extra["number"]}, "twice")
        yield FinalAnswer(said, "answer")

    def report_groups(self, task):
        return {"parity": ("even", "odd")[task.extra["number"] % 2]}
''',
    "terms.py": """
from espalier.algorithms.shaping import EpisodeTerm, Span


class Frugal(EpisodeTerm):
    name: str
    price: float = 0.01

    def span(self, context):
        return Span(-10 * self.price, 0.0)

    def reward(self, episode, context):
        return -self.price * min(len(episode.calls), 10)
""",
    "rules.py": """
from espalier.algorithms.advantages import Grpo
from espalier.algorithms.batch import PolicyLoss
from espalier.algorithms.aggregation import aggregate
from espalier.algorithms.batch import Credit, CreditRule
from espalier.algorithms.filters import GroupFilter, Selection
from espalier.algorithms.losses import PolicyLossRule
from espalier.algorithms.off_policy import Correction, CorrectionRule


class Alone(CreditRule):
    compares_groups = False
    name: str
    scale: float = 1.0

    def credit(self, batch):
        advantages_BT = batch.spread(self.scale * batch.outcomes_B)
        return Credit(advantages_BT, advantages_BT)


class Scaled(Grpo):
    name: str
    factor: float = 3.0

    def advantages_BT(self, outcomes_B, batch):
        return self.factor * super().advantages_BT(outcomes_B, batch)


class Likelihood(PolicyLossRule):
    has_ratio = False
    name: str

    def loss(self, batch, aggregation):
        loss_BT = -batch.advantages_BT * batch.policy_logprobs_BT
        return PolicyLoss(aggregate(aggregation, loss_BT, batch.loss_mask_BT, batch.totals))


class First(GroupFilter):
    name: str
    count: int = 1

    def select(self, groups):
        return Selection(tuple(range(min(self.count, len(groups)))))


class Everything(CorrectionRule):
    gives_weights = False
    name: str

    def correct(self, batch):
        return Correction(mask_BT=batch.action_mask_BT)


class Half(CreditRule):
    name: str


class Nameless(CreditRule):
    def credit(self, batch): ...
""",
    "boxes.py": """
from espalier.config import OwnSandboxConfig
from espalier.sandbox.local import LocalBackend


class Boxes(OwnSandboxConfig):
    shelf: str = "top"

    def make_backend(self, limits, links):
        return LocalBackend(limits=limits, packages=(), preimport=(), links=links)
""",
    "spelling.py": """
from espalier.dialects.hermes import Hermes


class Shouted(Hermes):
    call_markers = ("<CALL>", "</CALL>")
""",
}
PACKAGE = "own_lab"
TABLES = {
    "environment": {"name": f"{PACKAGE}.desk:Desk"},
    "reward": {"terms": [{"name": f"{PACKAGE}.terms:Frugal", "price": 0.02}]},
    "policy": {"dialect": f"{PACKAGE}.spelling:Shouted"},
    "training": {
        "algorithm": {
            "advantage": {"name": f"{PACKAGE}.rules:Scaled", "factor": 2.0, "std_ddof": 0},
            "loss": {"name": f"{PACKAGE}.rules:Likelihood"},
            "filters": [
                {"name": "zero_variance"},
                {"name": f"{PACKAGE}.rules:First", "count": 2},
            ],
            "off_policy": [{"name": f"{PACKAGE}.rules:Everything"}],
        }
    },
}
"""All of them in one profile."""
MATH = {"name": "python_math", "sandbox": {"backend": f"{PACKAGE}.boxes:Boxes", "shelf": "low"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder on the path of this process, with the package in it."""
    found = tmp_path_factory.mktemp("outside")
    (found / PACKAGE).mkdir()
    (found / PACKAGE / "__init__.py").touch()
    for name, source in SOURCES.items():
        (found / PACKAGE / name).write_text(source)
    sys.path.insert(0, str(found))
    yield found
    sys.path.remove(str(found))
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.fixture
def profile(folder):
    return Profile.model_validate(TABLES)


def algorithm_of(**parts):
    return Algorithm.model_validate({"preset": "grpo", **parts})


def refused(tables):
    with pytest.raises(ProfileError) as fault:
        parse_profile(tables, [], "profile")
    return str(fault.value)


def demonstration(profile, tmp_path):
    family = family_of(profile)
    with family.teacher(tmp_path, Funnel()) as demonstrate:
        return demonstrate(PlainQuestion(family.tasks("train", 4)[3]), "")


def test_an_environment_plays_and_judges(profile, tmp_path):
    attempt = demonstration(profile, tmp_path)
    assert (attempt.answer, attempt.reward["outcome"]) == ("6", 1.0)


def test_a_reward_term_is_paid_under_its_name(profile):
    [paid] = TermRewards.of(profile)([two_calls_and_an_answer()])
    assert paid.reward["Frugal"] == -0.04


def test_a_terms_range_counts_against_the_outcome(folder):
    said = refused({"reward": {"terms": [{"name": f"{PACKAGE}.terms:Frugal", "price": 5}]}})
    assert "Frugal" in said


def test_an_algorithm_of_own_rules_computes(profile):
    algorithm = profile.training.algorithm
    batch = CreditBatch(
        rewards_BT=torch.tensor([[0.0], [1.0]]),
        action_mask_BT=torch.ones(2, 1, dtype=torch.bool),
        groups_B=torch.tensor([0, 0]),
    )
    credit = algorithm.advantage.credit(batch)
    assert credit.advantages_BT.flatten().tolist() == pytest.approx([-2, 2], rel=1e-4)
    assert algorithm.group_filters[1].select([[0.0], [1.0], [0.5]]).kept == (0, 1)
    logprobs_BT, mask_BT = torch.tensor([[-1.0], [-3.0]]), torch.ones(2, 1, dtype=torch.bool)
    losses = loss_batch(
        logprobs_BT, logprobs_BT, credit.advantages_BT, mask_BT, entropy_BT=torch.zeros(2, 1)
    )
    assert algorithm.objective(losses, kl_coefficient=0.0).loss.item() == pytest.approx(2, rel=1e-4)


def test_what_a_rule_says_of_itself_decides_what_fits(folder):
    alone = algorithm_of(advantage={"name": f"{PACKAGE}.rules:Alone"})
    assert not alone.compares_groups
    likelihood = {"name": f"{PACKAGE}.rules:Likelihood"}
    assert not algorithm_of(loss=likelihood).corrects_stale_data
    corrected = algorithm_of(loss=likelihood, off_policy=[{"name": "importance_weights"}])
    assert corrected.corrects_stale_data


def test_a_sandbox_backend_is_made_by_its_section(folder):
    config = Profile.model_validate({"environment": MATH}).environment.sandbox
    assert (config.shelf, config.size) == ("low", 4)
    backend = backend_for(config, KubernetesConfig(), links=("data",))
    assert (backend.limits, backend.links) == (
        Limits(
            memory_bytes=config.memory_mb * 2**20,
            disk_bytes=backend.limits.disk_bytes,
            output_bytes=backend.limits.output_bytes,
            wall_s=60.0,
        ),
        ("data",),
    )


def test_a_dialect_writes_and_reads_its_calls(folder):
    syntax = syntax_of(f"{PACKAGE}.spelling:Shouted")
    written = syntax.write(ToolCalls.one("search", {"query": "lyon"}, "where"), ())
    assert "<CALL>" in written
    assert syntax.parse(written, ()).calls[0].arguments == {"query": "lyon"}
    assert chosen_dialect(syntax.name, None) == syntax.name == f"{PACKAGE}.spelling:Shouted"


def test_a_models_template_imports_no_dialect():
    with pytest.raises(PolicyError, match=r'set policy\.dialect = "nowhere:Dialect"'):
        detected_dialect("{#- dialect: nowhere:Dialect -#}")
    assert "nowhere" not in sys.modules


def test_a_grouping_of_the_family_has_columns_in_reports(profile):
    family = family_of(profile)
    rows = [
        QuestionRow(
            task_id=task.task_id, groups=family.report_groups(task), em=right, f1=float(right),
            answer="", gold="0", tool_calls=1, finish_reason="answered", samples=1,
            samples_right=int(right),
        )
        for right, task in zip([True, True, False, True], family.tasks("dev", 4), strict=True)
    ]  # fmt: skip
    figures = summarize(rows, profile.evaluation, 0)
    changed = gain(rows, rows, profile.evaluation, 0) | {"baseline": "warm_start"}
    results = {
        "eval": {**dict.fromkeys(("untrained", "warm_start", "trained"), figures), "gain": changed},
        "bootstrap": {"confidence": 0.95},
    }
    row = results_table(results)[0]
    assert (row["even %"], row["odd %"]) == ("50.0", "100.0")
    titles = [title for title, _ in compare(results).groups]
    assert "Exact match by parity" in titles


def test_a_term_has_a_column_in_the_report(profile):
    key = profile.reward.terms[0].key
    history = pd.DataFrame({"step": [1, 2], "dev_em": [None, 0.5], f"reward/{key}": [-0.02, -0.04]})
    assert term_points(history)[key].tolist() == pytest.approx([-0.03])


def test_a_saved_profile_gives_the_same_objects(profile):
    math = Profile.model_validate({"environment": MATH})
    for one in (profile, math):
        for text in (one.model_dump_json(), one.model_dump_json(exclude_unset=True)):
            assert Profile.model_validate_json(text) == one
        assert Profile.model_validate(one.model_dump()) == one
    saved = json.loads(profile.model_dump_json())
    assert saved["training"]["algorithm"]["advantage"]["factor"] == 2.0
    saved["training"]["algorithm"]["advantage"]["gone"] = saved["reward"]["terms"][0]["gone"] = 1
    assert saved_profile(json.dumps(saved)) == profile


def test_another_process_reads_the_same_profile(profile, folder):
    script = (
        "import sys; from espalier.config import Profile; from espalier.chain import STAGES;"
        "found = Profile.model_validate_json(sys.stdin.read());"
        "print(STAGES['train'].digest(found), STAGES['train'].external_inputs(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=profile.model_dump_json(),
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    train = STAGES["train"]
    assert done.stdout.strip() == f"{train.digest(profile)} {train.external_inputs(profile)}", (
        done.stderr
    )


def test_changed_code_runs_its_stages_again(profile, folder):
    math = Profile.model_validate({"environment": MATH})
    before = {stage: STAGES[stage].external_inputs(profile) for stage in STAGES}
    registered, played = register.code_digest(profile), STAGES["train"].external_inputs(math)
    path = folder / PACKAGE / "terms.py"
    text = path.read_text()
    path.write_text(text + "# changed\n")
    try:
        after = {stage: STAGES[stage].external_inputs(profile) for stage in STAGES}
        assert register.code_digest(profile) != registered
        assert STAGES["train"].external_inputs(math) != played
    finally:
        path.write_text(text)
    assert set(before["train"]) >= {
        "environment.name",
        "policy.dialect.code",
        "reward.terms.0.code",
        "training.algorithm.advantage.code",
        "training.algorithm.filters.1.code",
        "training.algorithm.loss.code",
        "training.algorithm.off_policy.0.code",
    }
    assert all(before["train"][key] != after["train"][key] for key in before["train"])
    assert "training.algorithm.advantage.code" not in before["evaluate"]
    assert set(played) == {"environment.sandbox.code"}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            {"name": "nowhere.at_all:Rule"},
            "'nowhere.at_all:Rule' cannot be loaded",
        ),
        ({"name": f"{PACKAGE}.rules:Missing"}, "has no attribute 'Missing'"),
        ({"name": f"{PACKAGE}.terms:Frugal"}, "is no class derived from espalier.algorithms.batch"),
        ({"name": f"{PACKAGE}.rules:Half"}, f"{PACKAGE}.rules:Half does not define credit"),
        ({"name": f"{PACKAGE}.rules:Nameless"}, 'write "name: str" into the class'),
        ({"name": f"{PACKAGE}.rules:Alone", "scal": 2}, "advantage.scal: no such key"),
        ({"name": f"{PACKAGE}.rules:Alone", "scale": "x"}, "advantage.scale: Input should be"),
    ],
)
def test_what_cannot_be_used_is_one_clear_message(folder, rule, said):
    found = refused({"training": {"algorithm": {"advantage": rule}}})
    assert "1 fault(s)" in found
    assert f"training.algorithm.advantage{'' if '.sc' in said else ': '}" in found
    assert said in found


def test_an_unknown_dialect_is_answered_with_names():
    assert "did you mean hermes?" in refused({"policy": {"dialect": "herms"}})
    assert "no class derived from" in refused({"policy": {"dialect": "json:JSONDecoder"}})
