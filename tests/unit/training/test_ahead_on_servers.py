"""Runs that sample ahead of the learner on servers: the double in place of vLLM."""

import re
import shutil
import threading
from contextlib import ExitStack

import pytest

from espalier.records import EngineError, HungError, NullTracker
from espalier.rollout.engines import vllm_pool
from tests.factories.tiny import tiny_policy
from tests.factories.tiny_training import profile_of, publish_warm, tiny_run, write_curriculum
from tests.factories.training import Interrupted, InterruptingTracker
from tests.fakes.vllm_double import running

STEPS, BOUND = 5, 2
LORA = {"lora": {"rank": 2, "target": ("q_proj", "in_proj", "w2")}}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    publish_warm(tiny_policy(), folder / "warm_policy")
    write_curriculum(folder)
    return folder


@pytest.fixture
def servers(written):
    with ExitStack() as stack:
        doubles = [stack.enter_context(running(written / "warm_policy/policy")) for _ in range(2)]
        for double in doubles:
            double.turn_s = 0.02
            double.logprob_of = lambda body, double=double: -0.01 * (1 + version_of(double, body))
        yield doubles


def version_of(double, body):
    """Of the weights that a request is answered with, whatever it was asked for."""
    named = re.search(r"version-(\d+)", str(double.weights)) or re.match(
        r"policy-(\d+)", body["model"]
    )
    return int(named[1]) if named else 0


class Observed:
    """A run, and all trajectories that its learner got."""

    def __init__(self, written, work, servers, **sections):
        vllm = {"urls": [server.url for server in servers], "attempts": 2, "ready_timeout_s": 9}
        vllm |= sections.pop("vllm", {})
        training = {"steps": STEPS, "algorithm": {"filters": []}, "evaluate_every": 2}
        training |= sections.pop("training", {})
        profile = profile_of(
            max_staleness=sections.pop("max_staleness", BOUND),
            rollout={"engine": "vllm", "tool_workers": 8, "vllm": vllm},
            training=training,
            curriculum={"screening_rollouts": 0, "refresh_every": STEPS + 1},
            **sections,
        )
        self.got = []
        self.run = tiny_run(written, work, profile)
        sampler = self.run.loop.parts.sampler
        self.ledger, sample = sampler.ledger, sampler.sample

        def noted(step, *, groups):
            rollouts = sample(step, groups=groups)
            self.got += [(step, trajectory) for trajectory in rollouts.sampled]
            return rollouts

        sampler.sample = noted

    def train(self, tracker=None):
        self.run.loop.run(tracker or NullTracker())
        return self

    @property
    def lost(self):
        return sum(row["lost_episodes"] for row in self.run.loop.progress.history)


def expect_versions(got):
    """Each token says the weights that sampled it, and none is older than the bound."""
    for step, trajectory in got:
        versions = trajectory.token_versions or [trajectory.policy_version] * len(
            trajectory.token_ids
        )
        for on, version, logprob in zip(
            trajectory.action_mask, versions, trajectory.behavior_logprobs, strict=True
        ):
            if on:
                assert logprob == pytest.approx(-0.01 * (1 + version))
                assert 0 <= step - version <= BOUND


def sampling(server):
    return [body for body in server.asked("/v1/completions") if body["top_k"] != 1]


@pytest.mark.parametrize(("count", "exchange"), [(1, "weights"), (2, "weights"), (2, "adapter")])
def test_a_run_ahead_learns_from_tokens_of_known_weights(
    written, servers, tmp_path, count, exchange
):
    policy = LORA if exchange == "adapter" else {}
    observed = Observed(
        written, tmp_path, servers[:count], vllm={"exchange": exchange}, policy=policy
    ).train()
    assert observed.ledger.counts == {"trained": 3 * STEPS}
    assert observed.lost == 0
    expect_versions(observed.got)
    assert max(step - t.policy_version for step, t in observed.got) > 0, "nothing was ahead"
    assert all(sampling(server) for server in servers[:count])
    # whatever is cached is found by the version that computed it
    for server in servers[:count]:
        assert all(weights == server.weights for weights in server.cache.values())
    left = [path.name for path in (tmp_path / "published").iterdir()]
    assert len(left) <= 1 + (BOUND if exchange == "adapter" else 0)


def test_in_turns_one_exchange_serves_all_rollers(written, servers, tmp_path):
    observed = Observed(written, tmp_path, servers[:1], max_staleness=0).train()
    assert {step - t.policy_version for step, t in observed.got} == {0}
    assert not any(trajectory.token_versions for _, trajectory in observed.got)
    exchanged = [
        body for body in servers[0].asked("/collective_rpc") if body["method"] == "reload_weights"
    ]
    assert len(exchanged) <= STEPS + 2, "each version once, and the best weights in the end"


def test_dev_questions_are_asked_of_the_newest_weights(written, servers, tmp_path):
    """Also of a version that the worker would not get."""
    observed = Observed(
        written,
        tmp_path,
        servers[:1],
        training={"evaluate_every": 1, "asynchronous": {"max_staleness": 2, "publish_every": 2}},
    )
    greedy = []
    servers[0].on_request = lambda path: greedy.extend(
        version_of(servers[0], body)
        for body in servers[0].asked("/v1/completions")[-1:]
        if body["temperature"] == 0
    )
    observed.train()
    assert set(greedy) >= set(range(1, STEPS + 1))


@pytest.mark.parametrize("exchange", ["weights", "adapter"])
def test_no_episode_is_lost_with_one_of_two_servers(
    written, servers, tmp_path, exchange, monkeypatch, caplog
):
    monkeypatch.setattr(vllm_pool, "_LOOKS_EVERY_S", 0.05)
    policy = LORA if exchange == "adapter" else {}
    observed = Observed(written, tmp_path, servers, vllm={"exchange": exchange}, policy=policy)
    killed = servers[1]

    class Kills(NullTracker):
        def metrics(self, figures, *, step):
            if step == 2:
                killed.is_dead = True
            if step == 4:
                killed.restart()

    observed.train(Kills())
    assert observed.ledger.counts == {"trained": 3 * STEPS}
    assert observed.lost == 0
    expect_versions(observed.got)
    assert f"{killed.url} is left out (1 servers remain)" in caplog.text
    assert all(sampling(server) for server in servers)


def test_a_lone_server_that_dies_ends_the_run_which_resumes(written, servers, tmp_path):
    dying = Observed(written, tmp_path, servers[:1])

    class Kills(NullTracker):
        def metrics(self, figures, *, step):
            servers[0].is_dead = step == 3

    with pytest.raises(EngineError, match="failed 2 times"):
        dying.train(Kills())
    servers[0].restart()
    resumed = Observed(written, tmp_path, servers[:1]).train()
    expect_whole(resumed)


@pytest.mark.parametrize("version", [0, 2])
def test_a_server_that_hangs_in_an_exchange_is_named(written, servers, tmp_path, version):
    """At the first one, learner and sampler would wait for each other for ever."""
    [server, _], woken = servers, threading.Event()
    limit = {"exchange_timeout_s": 3.0}

    def hang(path):
        if path == "/collective_rpc" and loads(server).endswith(f"version-{version}"):
            woken.wait(60)

    server.on_request = hang
    with pytest.raises(HungError, match=rf"version {version} hangs: POST /collective_rpc"):
        Observed(written, tmp_path, [server], vllm=limit).train()
    woken.set()
    expect_whole(Observed(written, tmp_path, [server], vllm=limit).train())


@pytest.mark.parametrize("version", [0, 2])
def test_a_version_that_is_moved_away_is_named(written, servers, tmp_path, version):
    [server, _], away = servers, tmp_path / "away"

    def move(path):
        directory = tmp_path / "published" / f"version-{version}"
        if path == "/collective_rpc" and loads(server) == str(directory) and not away.exists():
            directory.rename(away)

    server.on_request = move
    with pytest.raises(EngineError, match=rf"FileNotFoundError: .*/version-{version}\b"):
        Observed(written, tmp_path, [server]).train()
    assert away.exists()
    expect_whole(Observed(written, tmp_path, [server]).train())


def loads(server):
    """The directory that the server is told to load by the request that it last got."""
    body = server.seen[-1][1] or {}
    return body.get("kwargs", {}).get("weights_path", "") or str(server.weights)


def test_a_killed_run_resumes_without_a_gap(written, servers, tmp_path):
    killed = Observed(written, tmp_path, servers)
    with pytest.raises(Interrupted):
        killed.train(InterruptingTracker(3))
    left = tmp_path / "published" / "version-99"
    shutil.copytree(written / "warm_policy/policy", left)
    resumed = Observed(written, tmp_path, servers).train()
    expect_whole(resumed)
    assert not left.exists()


def expect_whole(resumed):
    """Each prompt trains once, and those that were open come first."""
    ledger = resumed.ledger
    assert ledger.counts == {"trained": 3 * STEPS}
    assert ledger.open_draws == []
    assert ledger.num_draws == 3 * STEPS
    assert resumed.run.loop.progress.history[-1]["step"] == STEPS
    expect_versions(resumed.got)
