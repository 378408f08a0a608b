"""Rollout workers on the nodes of a real Ray cluster: up to four on this machine, with a CPU each.

The tests follow one another: they take nodes from the cluster, and add some.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from espalier.config import Profile
from espalier.records import HungError, NullTracker
from espalier.training.checkpoint import CheckpointStore
from espalier.training.parallel import Processes, whole_weights
from espalier.training.rl.wiring import build_run
from tests.factories.tiny import lookup_environments
from tests.factories.tiny_training import profile_of, write_inputs
from tests.factories.training import SEARCH, Interrupted, InterruptingTracker
from tests.integration.ray_cluster import add_node, nodes_beside_the_head, ray_cluster
from tests.integration.ray_sampling import EVERYWHERE, noted_environments, pids_of
from tests.integration.waiting import wait_until

STEPS = 3
WITHIN_S = 600


@pytest.fixture(scope="module")
def nodes():
    with ray_cluster(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


class Run:
    """A run, and all trajectories that its learner got."""

    def __init__(
        self, written, folder, *, workers, max_staleness=0, evaluate_every=STEPS, **rollout
    ):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        values = profile_of(max_staleness=max_staleness).model_dump()
        values["training"] |= {
            "steps": STEPS, "rollout_workers": workers, "evaluate_every": evaluate_every,
        }  # fmt: skip
        values["rollout"] |= {"tool_workers": 0} | rollout
        profile = Profile.model_validate(values)
        self.run = build_run(
            profile,
            {name: written / name for name in ("warm_policy", "curriculum", "accepted")},
            CheckpointStore(folder / "work", "run"),
            Processes(),
            lambda _: lookup_environments(SEARCH, profile),
            open_environments=partial(noted_environments, profile, folder),
        )
        self.got = []
        sampler = self.run.loop.parts.sampler
        self.ledger, sample = sampler.ledger, sampler.sample

        def noted(step, *, groups):
            rollouts = sample(step, groups=groups)
            self.got += rollouts.sampled
            return rollouts

        sampler.sample = noted

    def train(self, tracker=None):
        self.run.loop.run(tracker or NullTracker())
        return self

    @property
    def tokens(self):
        return [(t.task_id, t.policy_version, list(t.token_ids)) for t in self.got]

    @property
    def history(self):
        return self.run.loop.progress.history

    @property
    def lost(self):
        return sum(row["lost_episodes"] for row in self.history)


@pytest.fixture(scope="module")
def in_one_process(written, tmp_path_factory):
    return Run(written, tmp_path_factory.mktemp("here"), workers=0).train()


def assert_same(run, expected):
    """Tokens and prompts are equal; figures up to the order of the sums in a batch's products."""
    assert run.tokens == expected.tokens
    assert run.ledger.state() == expected.ledger.state()
    for row, other in zip(run.history, expected.history, strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-5)
    weights = whole_weights(expected.run.policy.model)
    for name, weight in whole_weights(run.run.policy.model).items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-4, atol=1e-5, msg=name)


@contextmanager
def held(folder, where, then):
    """Hold all searches while `then` runs in a thread beside the block."""
    hold = folder / f"hold-{where}"
    hold.touch()

    def released():
        try:
            return then()
        finally:
            hold.unlink()

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(released)
        yield result
        result.result()


def first_of(folder, what):
    wait_until(lambda: pids_of(folder, what), within_s=WITHIN_S)
    return next(iter(pids_of(folder, what)))


def opened(folder, count):
    wait_until(lambda: len(pids_of(folder, "opened")) == count, within_s=WITHIN_S)


def seconds_until_others_play(folder, pid, since_s):
    """From the loss of a worker to the next call of another's tool."""

    def later():
        calls = [path for path in folder.glob("played-*") if not path.name.endswith(f"-{pid}")]
        return [path.stat().st_mtime - since_s for path in calls if path.stat().st_mtime > since_s]

    wait_until(later, within_s=WITHIN_S)
    print(f"{min(later()):.1f} s from the loss to the next call of a tool")
    return min(later())


def test_two_workers_give_the_run_of_one_process(nodes, written, in_one_process, tmp_path):
    with held(tmp_path, EVERYWHERE, lambda: opened(tmp_path, 2)):
        run = Run(written, tmp_path, workers=2).train()
    assert_same(run, in_one_process)
    assert len(pids_of(tmp_path, "played")) == 2
    assert os.getpid() not in pids_of(tmp_path, "played")
    assert run.run.figures["rollout_tokens_per_s"] > 0


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_groups_of_a_killed_worker_begin_again(
    nodes, written, in_one_process, tmp_path, caplog, max_staleness
):
    def kill():
        pid = first_of(tmp_path, "held")
        os.kill(pid, signal.SIGKILL)
        return pid, time.time()

    with held(tmp_path, EVERYWHERE, kill) as killed:
        run = Run(written, tmp_path, workers=2, max_staleness=max_staleness).train()
    assert "is lost (ActorDiedError)" in caplog.text
    assert run.lost == 0
    assert sum(run.ledger.counts.values()) == run.ledger.num_draws
    assert seconds_until_others_play(tmp_path, *killed.result()) < 120
    if max_staleness == 0:
        assert_same(run, in_one_process)


def test_a_worker_that_stops_answering_is_replaced(
    nodes, written, in_one_process, tmp_path, caplog
):
    def stop():
        os.kill(first_of(tmp_path, "held"), signal.SIGSTOP)

    limits = {"deadline_s": 20, "tool_timeout_s": 10}
    with held(tmp_path, EVERYWHERE, stop):
        run = Run(written, tmp_path, workers=2, **limits).train()
    assert "it has not answered for 30 s" in caplog.text
    assert_same(run, in_one_process)


def test_a_tool_that_hangs_is_named_with_its_worker(nodes, written, tmp_path):
    (tmp_path / f"hold-{EVERYWHERE}").touch()
    run = Run(written, tmp_path, workers=1, deadline_s=3, tool_timeout_s=2)
    named = r"rollout worker 1 on node 127\.0\.0\.1: sampling hangs.* task .* has waited .* search"
    with pytest.raises(HungError, match=named):
        run.train()


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 0), (0, 2)])
def test_a_run_resumes_with_other_workers(nodes, written, in_one_process, tmp_path, before, after):
    killed = Run(written, tmp_path, workers=before, evaluate_every=1)
    with pytest.raises(Interrupted):
        killed.train(InterruptingTracker(2))
    resumed = Run(written, tmp_path, workers=after, evaluate_every=1).train()
    assert len(resumed.got) < len(in_one_process.got)
    assert resumed.tokens == in_one_process.tokens[-len(resumed.got) :]
    assert resumed.ledger.state() == in_one_process.ledger.state()


def test_groups_of_a_killed_node_begin_again(nodes, written, in_one_process, tmp_path, caplog):
    other = nodes.list_all_nodes()[-1]
    (where,) = nodes_beside_the_head()

    def kill():
        pid = first_of(tmp_path, "held")
        nodes.remove_node(other, allow_graceful=False)
        return pid, time.time()

    with held(tmp_path, where, kill) as killed:
        run = Run(written, tmp_path, workers=2).train()
    assert "begin again on others" in caplog.text
    assert_same(run, in_one_process)
    assert seconds_until_others_play(tmp_path, *killed.result()) < 120


def test_nodes_that_come_in_the_midst_are_used(nodes, written, in_one_process, tmp_path):
    """Three come to the one that is left; Ray starts nodes in the main thread alone."""
    hold = tmp_path / f"hold-{EVERYWHERE}"
    hold.touch()
    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(lambda: Run(written, tmp_path, workers=4).train())
        try:
            first_of(tmp_path, "held")
            for _ in range(3):
                add_node(nodes)
            opened(tmp_path, 4)
        finally:
            hold.unlink()
        run = trained.result()
    assert_same(run, in_one_process)
    assert len(pids_of(tmp_path, "played")) >= 3
