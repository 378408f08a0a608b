"""Claims of agent-sandbox in episodes, while its controller does what it may do with them."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from espalier.config import Profile, SandboxPodsConfig
from espalier.environments import ToolEnvironment
from espalier.environments.interpreter import SeparateRuns, SessionRuns
from espalier.records import FinalAnswer
from espalier.records.trajectory import FinishReason
from espalier.rollout.roller import Roller
from espalier.sandbox import SandboxUnavailable
from espalier.sandbox.choice import PoolThread
from espalier.sandbox.pool import PoolSettings, SandboxPool
from espalier_search.search_qa import SearchQA
from espalier_search.search_qa.family import search_tool
from espalier_search.synthesis.search_wording import search_call
from tests.factories import tiny
from tests.factories.records import make_task
from tests.fakes.cluster_stand_in import StandIn
from tests.fakes.scripted_engine import ScriptedEngine
from tests.unit.sandbox.on_stand_in import SETTINGS, use

QUICK = {"low_water": 1, "backoff_s": 0.01, "longest_backoff_s": 0.02}
TWO, ONE = (PoolSettings(size=size, high_water=size, **QUICK) for size in (2, 1))


class Controlled(StandIn):
    """A cluster with agent-sandbox, which counts claims."""

    def __init__(self, **settings):
        super().__init__(has_agent_sandbox=True, **settings)
        self.counted = Counter()

    async def create_pod(self, request):
        self.counted["created"] += 1
        return await super().create_pod(request)

    async def delete_pod(self, request):
        self.counted["deleted"] += 1
        return await super().delete_pod(request)


@asynccontextmanager
async def pool_thread(backend):
    sandboxes = PoolThread(backend, TWO)
    await asyncio.to_thread(sandboxes.__enter__)
    try:
        yield sandboxes
    finally:
        await asyncio.to_thread(sandboxes.__exit__)


@pytest.mark.parametrize("kind", [SessionRuns, SeparateRuns])
def test_an_episode_of_many_turns_has_one_claim(monkeypatch, kind):
    """kubernetes-sigs/agent-sandbox#1548: a claim for each call, with half a minute of waiting."""

    async def work(backend, cluster):
        async with pool_thread(backend) as sandboxes:
            runs = kind(sandboxes, 5.0)
            before = dict(cluster.counted)
            for turn in range(8):
                assert (await runs.run(f"print({turn})")).succeeded
            borrowed = len(sandboxes.pool.metrics.claim_s)
            runs.end()
            return before, dict(cluster.counted), borrowed

    before, after, borrowed = use(monkeypatch, work, Controlled())
    assert after["created"] - before["created"] <= 1, "the pool keeps one ready besides"
    assert after.keys() == {"created"}, "none is deleted between turns"
    assert borrowed == 1 + (1 if kind is SessionRuns else 8)


def test_a_sandbox_is_lent_after_a_program_ran_in_it(monkeypatch):
    """xiaods/k8e#500: Running is the container; its server, and then programs, come later."""

    class Slow(Controlled):
        failures = 2

        async def run(self, request):
            self.hangs = "broken" if self.failures else False
            self.failures -= bool(self.failures)
            return await super().run(request)

    async def work(backend, cluster):
        monkeypatch.setattr("espalier.sandbox.kubernetes._REASON_WITHIN_S", 0.05)
        cluster.unready = 5
        async with SandboxPool(backend, ONE) as pool, pool.claim() as sandbox:
            assert cluster.unready == 0
            assert (await sandbox.exec(["true"])).succeeded, "the borrower's first program"
            return pool.metrics.failures, cluster.counted["deleted"]

    failures, deleted = use(monkeypatch, work, Slow())
    assert (failures, deleted) == ({"lost": 2}, 2), "which failed their probes, and were replaced"


@pytest.mark.parametrize("has_agent_sandbox", [False, True])
@pytest.mark.parametrize("given", ["runc", ""])
def test_a_pod_of_another_runtime_class_is_not_used(monkeypatch, has_agent_sandbox, given):
    """xiaods/k8e#500: a warm pod of another class is given; or a webhook changes it."""

    class Changing(StandIn):
        def change(self, name, status):
            for pod in (*self.pods.values(), *self.pods_of_claims.values()):
                if "runtimeClassName" in pod["spec"]:
                    pod["spec"]["runtimeClassName"] = given
            super().change(name, status)

    async def work(backend, cluster):
        with pytest.raises(SandboxUnavailable, match=rf"RuntimeClass .?{given or 'none'}.*gvisor"):
            await backend.create()
        return cluster.pods, cluster.ran

    stand_in = Changing(has_agent_sandbox=has_agent_sandbox)
    assert use(monkeypatch, work, stand_in) == ({}, []), "deleted, and nothing ran in it"


def test_pools_of_two_classes_are_each_others_never(monkeypatch):
    """Both runs claim from one controller, each from its own pool."""
    cluster, found = StandIn(has_agent_sandbox=True), {}

    for runtime_class in ("gvisor", "kata"):
        pods = SandboxPodsConfig(runtime_class=runtime_class)

        async def work(backend, cluster):
            await backend.create()
            (claim,), made = cluster.pods.values(), cluster.templates
            pool, template = made["sandboxwarmpools"], made["sandboxtemplates"]
            assert claim["spec"]["warmPoolRef"]["name"] == pool["metadata"]["name"]
            assert pool["spec"]["sandboxTemplateRef"]["name"] == template["metadata"]["name"]
            found[pool["metadata"]["name"]] = template["spec"]["podTemplate"]["spec"]

        settings = replace(SETTINGS, pods=pods)
        use(monkeypatch, work, cluster, settings=settings, run_id=f"r-{runtime_class}")
    classes = {name: spec["runtimeClassName"] for name, spec in found.items()}
    assert classes == {"r-gvisor-sandboxes": "gvisor", "r-kata-sandboxes": "kata"}


SEARCH = tiny.LookupSearch(("France | currency: Euro",))
TASK = make_task("t0", "currency of France", gold=("Euro",), hops=1)
DIALECT = tiny.tiny_dialect()
CALLS, ANSWERS = (
    DIALECT.action_ids(action)
    for action in (search_call("currency", "france currency"), FinalAnswer("euro", "answer"))
)
PATIENT = Profile.model_validate({"rollout": {"tool_timeout_s": 240.0}})
"""Calls may take longer than a test waits for an episode."""


def roller(sandboxes, **settings):
    """Plays right episodes, each of whose steps runs a program in the episode's sandbox."""

    class InSandbox(ToolEnvironment):
        def __init__(self, rules):
            super().__init__(rules)
            self.runs = SessionRuns(sandboxes, 120.0)

        async def step(self, action):
            assert (await self.runs.run("print(1)")).succeeded
            return super().step(action)

        def score(self):
            self.runs.end()
            return super().score()

    rules = SearchQA(Profile()).rules((search_tool(SEARCH),))
    return Roller(
        ScriptedEngine(DIALECT, [CALLS, ANSWERS, CALLS, CALLS, ANSWERS]),
        DIALECT,
        replace(tiny.lookup_environments(SEARCH), make=lambda task: InSandbox(rules)),
        PATIENT,
        **settings,
    )


STATUSES = {
    "replaced": {"sandbox": {"name": "newer", "podIPs": ["127.0.0.2"]}},
    "finished": {"conditions": [{"type": "Finished", "status": "True", "reason": "SandboxGone"}]},
}


class Updating(Controlled):
    """Updates every sandbox of an older template while an episode's program runs in one."""

    def __init__(self, how):
        super().__init__()
        self.how, self.is_updating = how, False

    async def run(self, request):
        if self.is_updating and "print(1)" in str(await request.json()):
            self.is_updating = False
            for name in tuple(self.pods):
                if self.how == "deleted":
                    self.remove(name)
                else:
                    self.change(name, STATUSES[self.how])
            await asyncio.Event().wait()
        return await super().run(request)


@pytest.mark.parametrize("how", ["deleted", *STATUSES])
@pytest.mark.parametrize("for_training", [False, True])
def test_a_rolling_update_costs_no_reward(monkeypatch, how, for_training):
    """openkruise/agents#394: claimed sandboxes of an older template are deleted while in use."""
    asked = {"samples": 1, "temperature": 0.0, "seed": 0}

    async def work(backend, cluster):
        async with pool_thread(backend) as sandboxes:
            playing = roller(sandboxes, for_training=for_training)
            (unbroken,) = await asyncio.to_thread(playing.roll_out, [TASK], **asked)
            cluster.is_updating = True
            async with asyncio.timeout(90):  # the controller says so, no call has to time out
                (played,) = await asyncio.to_thread(playing.roll_out, [TASK], **asked)
            return playing, unbroken, played

    playing, unbroken, played = use(monkeypatch, work, Updating(how))
    assert unbroken.reward == {"outcome": 1.0, "format": 0.1}
    assert playing.losses == {FinishReason.SANDBOX_LOST: 1}
    assert (playing.replays, played.is_lost) == (int(not for_training), for_training)
    assert played.reward == ({} if for_training else unbroken.reward), "the loss is no 0"
