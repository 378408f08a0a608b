"""The viewer over a run that the chain made: every attempt of it, and its figures."""

import json

import pyarrow.parquet as pq
import pytest

from espalier.config import EnvironmentConfig, Profile
from espalier.environments import Episode, StatefulFamily, family_of, make_task
from espalier.policy.loading import save_policy
from espalier.records import FinalAnswer, open_artifact
from tests.factories.chains import SMALL_CHAIN, chain_run
from tests.factories.sums_run import untaught_policy
from tests.factories.viewed_run import Viewer

NAME = "tests.integration.test_viewer_over_run:Doubles"


class DoublesConfig(EnvironmentConfig):
    name: str = NAME


class Adding(Episode):
    """One sum, which the tool adds."""

    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    def score(self, answer):
        return float(answer == self.task.verifier.gold[0])


class Doubles(StatefulFamily[DoublesConfig]):
    """Sums of equal numbers, without a teacher."""

    name = NAME
    config = DoublesConfig
    instructions = "Add."

    def tools(self):
        return (Adding.add,)

    def episode(self, task):
        return Adding(task)

    def tasks(self, split, count):
        first = {"train": 0, "dev": 1000, "heldout": 2000}[split]
        return [self._task(number, split) for number in range(first, first + count)]

    def _task(self, number, split):
        asked, gold = f"what is {number} + {number}?", (str(2 * number),)
        return make_task(NAME, asked, gold=gold, split=split, source="doubles", key=asked)

    def gold_script(self, task):
        yield FinalAnswer(task.verifier.gold[0])


SMALL = SMALL_CHAIN | {
    "environment": {"name": NAME},
    "training": SMALL_CHAIN["training"] | {"steps": 3},
}


@pytest.mark.slow
def test_a_finished_run_opens_with_all_its_attempts(tmp_path):
    model, run = tmp_path / "model", tmp_path / "runs" / "sums"
    run.parent.mkdir()
    profile = Profile.model_validate(SMALL | {"policy": {"model": str(model)}})
    save_policy(untaught_policy(family_of(profile), "what is 1 + 1 ? 0 2 3 4 5 add"), model)
    chain_run(profile, run)
    (run / "profile.json").write_text(profile.model_dump_json())
    history = pq.read_table(run / "trained_policy" / "history.parquet").to_pylist()
    results = json.loads((run / "evaluation" / "results.json").read_bytes())
    viewer = Viewer([run.parent], tmp_path)
    counts = viewer.get("runs/sums/live")["attempts"]
    assert counts["train"] == history[-1]["rollouts"]
    suite = results["suite"]
    each = suite["n"] + suite["sampled_n"] * suite["samples_per_task"]
    assert {counts[name] for name in ("untrained", "warm_start", "trained")} == {each}
    found = viewer.get("runs/sums/steps", names="reward,pass_rate,dev_em")["series"]
    assert found["reward"] == [row["reward"] for row in history]
    assert found["dev_em"] == [row["dev_em"] for row in history]
    right = viewer.get("runs/sums/attempts", source="trained", right="true", limit=500)["attempts"]
    greedy = [row for row in right if row["sample"] == 0]
    assert len(greedy) / suite["n"] == pytest.approx(results["eval"]["trained"]["em"], abs=1e-6)
    name = viewer.get("runs/sums/attempts", source="train", limit=1)["attempts"][0]["id"]
    tokens = viewer.get(f"runs/sums/attempts/{name}/tokens")
    assert "".join(tokens["text"]).count("what")
    assert all((value is None) != bool(on)
               for value, on in zip(tokens["logprob"], tokens["sampled"], strict=True))  # fmt: skip
    assert viewer.get(f"runs/sums/attempts/{name}")["gold"]
    viewer.catalog.close()
    for artifact in ("trained_policy", "evaluation"):
        open_artifact(run / artifact)
