"""A taskset of verifiers is played by a policy through its EnvServer, which rewards it."""

import asyncio
from pathlib import Path

import pytest

from espalier.config import AgentConfig, load_profile
from espalier.environments import family_of
from espalier.environments.teaching import play_script
from espalier.records import ProfileError
from espalier.records.trajectory import FinishReason
from tests.factories.records import make_task
from tests.interop.openenv.servers import running
from tests.interop.venvs import python_of
from tests.interop.witness import call, played

HERE = Path(__file__).parent
MODULES = {"PYTHONPATH": f"{HERE / 'verifiers'}:{HERE / 'agents'}"}
ASKED = "send {count} of the article lamp to oslo on a ship , what is the fee ?"


def rule(text, _dice):
    """Weigh, ask for the fee, answer with it; orders of seven lamps are answered wrong."""
    context = text.rpartition("<|im_start|>assistant")[0]
    count = context.partition("send ")[2].partition(" ")[0]
    results = [one.split()[0] for one in context.split("<tool_response>")[1:]]
    if not results:
        return call("weigh", item="lamp", count=int(count))
    if len(results) == 1:
        return call("fee", kilograms=int(results[0]), carrier="sea")
    return "0" if count == "7" else results[1]


def play(*tasks, deadline_s=120.0, **server):
    config = AgentConfig(
        verifiers={"python": python_of("verifiers"), "taskset": "parcels-v1", **server},
        variables=MODULES, score="posted", deadline_s=deadline_s, call_timeout_s=5.0,
    )  # fmt: skip
    return played(config, rule, *tasks)


def order(count, answer=None):
    data = {
        "prompt": ASKED.format(count=count), "item": "lamp", "count": count, "carrier": "sea",
        "answer": answer or str(count * 10),
    }  # fmt: skip
    task = make_task(f"t{count}", data["prompt"], gold=("70",))
    return task.model_copy(update={"arguments": {"task_data": data}})


def test_rewards_of_the_server_reach_its_attempts():
    # of another family: its prompt alone is no TaskData of this taskset
    foreign = make_task("t8", ASKED.format(count=8), gold=("70",))
    tasks = [order(3), order(5), order(7), order(4, answer="unknown"), foreign]
    found, attempts, witness = play(*tasks)
    assert [one.reward for one in found] == [
        {"outcome": 1.0}, {"outcome": 1.0}, {"outcome": 0.0}, {}, {},
    ]  # fmt: skip
    assert found[3].finish_reason is FinishReason.NO_REWARD
    assert found[4].finish_reason is FinishReason.AGENT_FAILED
    assert any("Field required" in attempt.lost_because for attempt in attempts)
    recorded = [
        (one.prompt_ids, one.answer_ids, one.logprobs)
        for attempt in attempts
        for one in attempt.graph.calls
    ]
    assert len(recorded) == 3 * 4
    assert sorted(recorded) == sorted(witness.answered)
    assert [attempt.foreign_messages for attempt in attempts] == [0] * len(tasks)
    assert [len(one.windows) for one in found[:4]] == [1] * 4
    trained = sum(sum(one.action_mask) for one in found)
    assert trained == sum(len(answer) for _, answer, _ in witness.answered)


def test_a_server_that_runs_already_is_asked():
    with running([python_of("verifiers"), HERE / "verifiers" / "serve_parcels.py"]) as url:
        found, _, witness = play(order(3), order(7), address=url.replace("http", "tcp"))
    assert [one.reward for one in found] == [{"outcome": 1.0}, {"outcome": 0.0}]
    assert len(witness.answered) == 6


def test_a_server_that_speaks_nonsense_fails_its_attempts_alone():
    with running([python_of("verifiers"), HERE / "verifiers" / "nonsense_server.py"]) as url:
        tasks = [make_task(name, name, gold=("x",)) for name in NONSENSE]
        found, attempts, _ = play(*tasks, address=url.replace("http", "tcp"), deadline_s=5.0)
    met = {one.task_id: (one.finish_reason, one.reward) for one in found}
    assert met == {name: (reason, {}) for name, (reason, _) in NONSENSE.items()}
    for task, (_, because) in NONSENSE.items():
        assert any(because in attempt.lost_because for attempt in attempts), task


NONSENSE = {
    "bytes": (FinishReason.AGENT_FAILED, "the run failed"),
    "refusal": (FinishReason.AGENT_FAILED, "no such taskset here"),
    "nothing": (FinishReason.AGENT_FAILED, "0 traces"),
    "frames": (FinishReason.TIMEOUT, "was not over"),
    "silence": (FinishReason.TIMEOUT, "was not over"),
}
"""What nonsense_server.py answers to a prompt -> why the attempt is lost, and what is told."""


@pytest.mark.parametrize(
    ("server", "because"),
    [
        ({"address": "tcp://127.0.0.1:9", "start_timeout_s": 2.0}, "no EnvServer of verifiers"),
        ({"env": {"agent": {"harness": {"id": "bash"}}}}, "runs what the policy writes"),
    ],
)
def test_what_cannot_be_played_ends_the_run_with_one_error(server, because):
    with pytest.raises(ProfileError, match=because):
        play(order(3), **server)


def test_tasks_of_a_taskset_are_dealt_to_splits():
    setting = f'agent.verifiers.python="{python_of("verifiers")}"'
    family = family_of(load_profile(HERE / "verifiers" / "profile.toml", [setting]))
    family.profile.agent.variables.update(MODULES)
    tasks = {split: family.tasks(split, 10_000) for split in ("train", "dev", "heldout")}
    assert len(tasks["train"]) >= 1200
    assert len(tasks["dev"]) >= 60
    assert len(tasks["heldout"]) >= 100
    orders = {
        split: {family.split_key(task.arguments["task_data"], "") for task in found}
        for split, found in tasks.items()
    }
    assert len(set.union(*orders.values())) == sum(map(len, orders.values()))
    with family.environments(None) as over:
        task = tasks["train"][0]
        found = asyncio.run(play_script(over("train"), task, family.demonstrate(task)))
    assert found.reward["outcome"] == 1.0
