"""A training run of seconds as the stage wires it: a warm tiny policy, files, a tool that waits."""

import random
import time

import pyarrow as pa
import pyarrow.parquet as pq

from espalier.config import Profile
from espalier.policy.loading import save_policy
from espalier.records import Provenance, publishing, write_tasks
from espalier.training.checkpoint import CheckpointStore
from espalier.training.parallel import Processes
from espalier.training.rl.wiring import build_run
from tests.factories.tiny import lookup_environments
from tests.factories.training import FACTS, SEARCH, make_task, warm_policy

STEPS = 12
CHECKPOINT_EVERY = 2
TASKS = [make_task(name, number) for name in FACTS for number in range(12)]


class SlowSearch:
    """Takes up to 20 ms for an answer, so that groups end in another order than they began."""

    def observation(self, query):
        time.sleep(random.uniform(0.0, 0.02))
        return SEARCH.observation(query)


def profile_of(*, max_staleness, **sections):
    """Of a run in turns (0) or ahead of the learner."""
    settings = {
        "episode": {"max_turns": 2, "max_tokens": 64, "max_turn_tokens": 14},
        "rollout": {"tool_workers": 64 if max_staleness else 0},
        "curriculum": {"pass_rate_band": [0.01, 0.99], "screening_rollouts": 2, "refresh_every": 4},
        "training": {
            "steps": STEPS,
            "tasks_per_step": 3,
            "group_size": 4,
            "minibatches": 1,
            "evaluate_every": CHECKPOINT_EVERY,
            "dev_questions": 2,
            "stop_after_idle_steps": 0,
            "asynchronous": {"max_staleness": max_staleness},
            "algorithm": {
                "filters": [
                    {"name": "zero_variance", "action": "regenerate", "max_regenerations": 2}
                ]
            },
        },
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return Profile.model_validate(settings)


def publish_warm(policy, artifact):
    """A policy as the warm start leaves it: `policy/` below a manifest."""
    with publishing(artifact, Provenance(producer="warm_start", config_digest="", seed=0)) as draft:
        save_policy(policy, draft.path / "policy")


def write_inputs(folder):
    """Artifact folders as far as training reads them; the policy is warm."""
    publish_warm(warm_policy(folder / "warm"), folder / "warm_policy")
    write_curriculum(folder)


def write_curriculum(folder):
    """The tasks, and the accepted ones, without a policy."""
    (folder / "curriculum").mkdir()
    (folder / "accepted" / "tasks").mkdir(parents=True)
    write_tasks(folder / "curriculum" / "tasks.jsonl", TASKS)
    for split in ("dev", "heldout"):
        write_tasks(folder / "accepted" / "tasks" / f"{split}.jsonl", TASKS[::30])
    rates = [{"task_id": task.task_id, "attempts": 4, "successes": 2} for task in TASKS]
    pq.write_table(pa.Table.from_pylist(rates), folder / "curriculum" / "pass_rates.parquet")


def tiny_run(folder, work, profile, search=None):
    """A run over the files of `write_inputs`, with its checkpoints in `work`."""
    inputs = {name: folder / name for name in ("warm_policy", "curriculum", "accepted")}
    ahead = profile.training.asynchronous.max_staleness > 0

    def environments_over(view):
        slow = search or (SlowSearch() if ahead else SEARCH)
        return lookup_environments(slow if view == "train" else SEARCH, profile)

    store = CheckpointStore(work, "run")
    return build_run(profile, inputs, store, Processes(), environments_over)
