"""A promoted version takes over by its canary, or goes back, while clients ask all the time."""

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager

import httpx2
import pytest
from kubernetes import client

from espalier.cluster.objects.serving import CANARY_DEPLOYMENT, DEPLOYMENT
from espalier.policy.loading import save_policy
from espalier.records import publishing
from espalier.registry import TrackingTarget
from espalier.rewards.answers import normalize_answer
from tests.cluster import objects
from tests.cluster.places import places
from tests.cluster.serving import CONTROLLER, forgotten, forwarded, opened
from tests.cluster.test_serving import MODEL, SERVERS_S, force, note, wait_for
from tests.factories.tiny import damaged, retouched, tiny_policy
from tests.unit.k8s.allowed_verbs import PIPELINE
from tests.unit.registry import conftest as registry

QUESTIONS = "espalier-serving-questions"
PROMPTS = [f"{word} {other}" for word in ("Lyon", "France", "currency", "country") for other in
           ("of", "in", "and", "answer", "lookup")]  # fmt: skip
TOKENS = 12
STEPS = ["steps=[0.5, 1.0]", "min_requests=12", "step_s=3", "questions_at_once=4",
         f"max_tokens={TOKENS}", "timeout_s=120", "latency_slack_s=60",
         "questions=/etc/espalier/questions/questions.jsonl"]  # fmt: skip
SETTINGS = ["serving.controller.poll_s=1", *(f"serving.canary.{step}" for step in STEPS)]


@pytest.fixture
def bench(own_cluster, tmp_path):
    """Registers policies in the cluster's own MLflow: the same but for a hair, or damaged."""
    is_damaged = []

    def write(path, weights):
        policy = retouched(tiny_policy(), int(weights.split()[-1]))
        if is_damaged:
            damaged(policy)
        with publishing(path, registry.provenance("train")) as draft:
            save_policy(policy, draft.path / "policy")

    objects.wake(places(), "espalier-minio", "espalier-mlflow", timeout_s=SERVERS_S)
    with forwarded("espalier-mlflow", 5000) as uri:
        target = TrackingTarget(uri, "tests")
        bench = registry.Workbench(tmp_path, target, MODEL, write_policy=write)
        bench.damage = is_damaged.append
        yield bench


@pytest.fixture
def apps(administrator):
    return client.AppsV1Api(administrator)


@pytest.fixture
def deployment(apps):
    with forgotten(places()):
        yield lambda: apps.read_namespaced_deployment(DEPLOYMENT, PIPELINE)


@pytest.fixture
def controlled(apps, core):
    """Has the controller judge canaries by questions and bounds of this test."""
    path = {"name": CONTROLLER, "namespace": PIPELINE}
    (container,) = apps.read_namespaced_deployment(**path).spec.template.spec.containers

    def start_anew(questions):
        lines = "\n".join(json.dumps(one) for one in questions)
        named = {"metadata": {"name": QUESTIONS}, "data": {"questions.jsonl": lines}}
        core.create_namespaced_config_map(PIPELINE, named)
        settings = [f"--set={setting}" for setting in SETTINGS]
        patch_arguments([*container.args, *settings])

    def patch_arguments(arguments):
        containers = [{"name": container.name, "args": arguments}]
        fields = {"spec": {"template": {"spec": {"containers": containers}}}}
        apps.patch_namespaced_deployment(**path, body=fields)

    yield start_anew
    patch_arguments(container.args)
    core.delete_namespaced_config_map(QUESTIONS, PIPELINE)


class Clients:
    """Ask for the champion all the time, each time by a new connection."""

    def __init__(self, url, key):
        self._url, self._headers = url, {"authorization": f"Bearer {key}"}
        self.answered = Counter()
        self.lost = []
        self.stop = threading.Event()

    def ask(self, prompt):
        asked = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        return httpx2.post(
            f"{self._url}/v1/completions", json=asked, headers=self._headers, timeout=120,
            trust_env=False,
        )  # fmt: skip

    def run(self):
        while not self.stop.wait(0.2):
            try:
                answer = self.ask(PROMPTS[0])
                answer.raise_for_status()
                self.answered[answer.json()["system_fingerprint"]] += 1
            except httpx2.HTTPError as error:
                self.lost.append(repr(error))

    @contextmanager
    def asking(self):
        threads = [threading.Thread(target=self.run) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.stop.set()
            for thread in threads:
                thread.join()


def graded(clients):
    """Questions to which what the version says now is right, as far as it says anything."""
    said = {prompt: clients.ask(prompt).json()["choices"][0]["text"] for prompt in PROMPTS}
    found = [{"prompt": p, "answers": [text]} for p, text in said.items() if normalize_answer(text)]
    assert len(found) >= 12, said
    return found[:12]


def fingerprint(bench, number):
    return f"sha256:{bench.model.version(number).policy_digest[:16]}"


@pytest.mark.slow
def test_a_canary_takes_over_or_goes_back_without_losses(bench, apps, core, deployment, controlled):
    first = bench.register(0.6)
    force(bench, first)
    wait_for(lambda found: note(found, "last-good") == first, deployment)
    address = core.read_namespaced_service(DEPLOYMENT, PIPELINE).spec.cluster_ip
    clients = Clients(f"http://{address}:8000", objects.serving_key(places()))
    controlled(graded(clients))
    second = bench.register(0.6)
    with clients.asking():
        force(bench, second)
        wait_for(lambda found: note(found, "last-good") == second, deployment)
        assert clients.lost == []
        assert clients.answered[fingerprint(bench, first)]
        assert clients.answered[fingerprint(bench, second)]
        bench.damage("the next version")
        third = bench.register(0.6)
        force(bench, third)
        wait_for(lambda found: note(found, "failed") is not None, deployment)
        wait_for(
            lambda canary: canary.spec.replicas == 0,
            lambda: apps.read_namespaced_deployment(CANARY_DEPLOYMENT, PIPELINE),
        )
        with opened(f"deployment/{CONTROLLER}", 8081) as url:
            told = httpx2.get(f"{url}/metrics").text
        before = clients.answered[fingerprint(bench, third)]
        time.sleep(5)
    assert clients.lost == []
    assert before == clients.answered[fingerprint(bench, third)], "it is asked no more"
    assert before, "it had its share"
    tags = bench.model.version(third).tags
    assert tags["espalier.serving"] == "failed"
    assert "exact match" in tags["espalier.serving_reason"]
    assert bench.model.find("champion").version == third
    assert 'espalier_controller_rollouts_total{outcome="went_back"} 1.0' in told
    print(f"answered: {dict(clients.answered)}; score: {tags['espalier.serving_score']}")
