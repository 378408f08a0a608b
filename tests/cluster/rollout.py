"""A training whose episodes vLLM servers of the cluster sample, one of which is deleted meanwhile.

    python -m tests.benchmarks.peers vllm
    ESPALIER_VLLM_PYTHON=PEERS/vllm/bin/python python -m tests.cluster rollout

The servers are those of k8s/overlays/local-rollout, with the CPU build of vLLM. SmolLM2 learns
arithmetic stories, its programs in sandbox pods, with an adapter; every stage is a Job. The servers
start on the base policy that the run itself has put on the shared volume, and get each version's
adapter there. While one of them answers requests of the first step, its pod is deleted; the
Deployment makes another, which gets the weights once it is there. The run then goes on to its
registered version, which is promoted: two steps teach nothing that the gate could see, so where it
refuses, by force and with that reason.

tests/cluster/kubeflow/test_on_servers.py runs the same on Kubeflow.
"""

import json
import os
import secrets
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import httpx2
import pyarrow.parquet as pq

from espalier.chain import CHAIN
from espalier.cluster.objects.pods import WORKSPACE_MOUNT
from espalier.config import named_reference, open_named_model
from espalier.records import EspalierError, open_artifact
from espalier.steps.given_model import push_named_model
from espalier.storage import open_location
from tests.cluster import objects
from tests.cluster.chain import BUCKET, SANDBOXES_IN_PODS, ClusterRun, wake_servers
from tests.cluster.images import ROLLOUT, VLLM_VARIABLE, vllm_environment
from tests.cluster.parts import ctr, kubectl
from tests.cluster.places import REPOSITORY, ClusterError
from tests.cluster.serving import outside
from tests.fakes.vllm_process import counted
from tests.unit.k8s.allowed_verbs import PIPELINE

OVERLAY = REPOSITORY / "k8s" / "overlays" / "local-rollout"
NAME, CLAIM = "espalier-rollout", "espalier-workspace"
SERVERS, STEPS, TASKS, GROUP = 2, 2, 4, 4
MODEL, PROFILE = "smollm2", "arithmetic-smoke"
COUNTERS = {
    "requests": "vllm:request_success_total",
    "tokens": "vllm:generation_tokens_total",
    "running": "vllm:num_requests_running",
}
LEARNING = (
    'policy.dialect="react"',
    "policy.lora={rank=8, alpha=16}",
    "hardware.micro_batch_tokens=1024",
    "episode.max_tokens=448",
    "warm_start.steps=24",
    "warm_start.evaluate_every=24",
    "warm_start.trajectories_per_step=4",
    "warm_start.dev_questions=4",
    "warm_start.renamed_share=0.0",
    "warm_start.optimizer.learning_rate=1e-3",
    "curriculum.enabled=false",
    f"training.steps={STEPS}",
    f"training.tasks_per_step={TASKS}",
    f"training.group_size={GROUP}",
    "training.dev_questions=4",
    "training.optimizer.learning_rate=1.5e-4",
    "synthesis.heldout_tasks=10",
    "training.algorithm.filters=[]",
    "evaluation.samples_per_task=1",
    "evaluation.sampled_questions=1",
)
"""Of the profile arithmetic-smoke: just enough for SmolLM2 to call its tool."""
ON_SERVERS = (
    'rollout.engine="vllm"',
    f'rollout.vllm={{urls=["http://{NAME}.{PIPELINE}.svc:8000"], exchange="adapter", '
    f'key_file="/secrets/{NAME}/api_key", ready_timeout_s=1800.0, attempts=2, '
    f'shared_dir="{WORKSPACE_MOUNT}"}}',
    "rollout.max_rows=16",
    "rollout.tool_workers=4",
    f'kubernetes.workspace_claim="{CLAIM}"',
    f'kubernetes.mounted_secrets=["{NAME}"]',
)
_REASON = f"{STEPS} steps on the cluster of the tests, which no gate can see"
STAGE_S, _READY_S = 3600, 1800
_POLL_S = 4.0
"""Each look starts kubectl twice, which takes a core half a second."""


class Server(NamedTuple):
    """What a server said last."""

    requests: int
    tokens: int
    running: int
    adapters: tuple[str, ...]
    """Of all weights that it was seen with, VERSION-DIGEST."""

    def after(self, known):
        """This, where an earlier answer is known: adapters are unloaded, and counts may be late."""
        return Server(
            max(known.requests, self.requests),
            max(known.tokens, self.tokens),
            self.running,
            tuple(dict.fromkeys((*known.adapters, *self.adapters))),
        )


class Outcome(NamedTuple):
    """What the run came to."""

    servers: dict[str, Server]
    """By the name of the pod."""
    deleted: str
    """The pod that was deleted; empty where training ended before there was a moment for it."""
    said: list[str]
    """Lines of the trainer's log about its servers."""
    steps: list[int]
    lost_episodes: int
    episodes: dict[int, int]
    """Version of the weights that sampled it -> episodes of training."""
    tool_calls: float
    mismatch_kl: float
    draws: dict[str, int]
    """Prompts that were drawn, those of them that are open, and their outcomes, as far as any."""
    version: str
    gate: str

    @property
    def is_well(self):
        """Whether all of it happened, and nothing was lost by it."""
        others = [name for name, one in self.servers.items() if one.requests]
        return (
            self.deleted in others
            and len(others) > 1
            and self.steps == list(range(1, STEPS + 1))
            and not self.lost_episodes
            and sum(self.episodes.values()) == STEPS * TASKS * GROUP
            and set(self.episodes) == set(range(STEPS))
            and self.draws == {"draws": STEPS * TASKS, "trained": STEPS * TASKS}
            and self.tool_calls > 0
        )

    def lines(self):
        """For people."""
        for pod, server in self.servers.items():
            gone = " (deleted)" if pod == self.deleted else ""
            weights = ", ".join(server.adapters) or "none"
            yield (
                f"{pod}{gone}: {server.requests} requests, {server.tokens} tokens, "
                f"versions of the weights: {weights}"
            )
        yield from self.said
        versions = ", ".join(f"{count} by version {one}" for one, count in self.episodes.items())
        yield f"episodes of training: {versions}; lost: {self.lost_episodes}"
        yield f"steps: {self.steps}; prompts: {self.draws}"
        yield f"promoted: version {self.version}; the gate: {self.gate}"


def check():
    """Refuse before anything is started, and say what is missing.

    Raises:
        ClusterError: no vLLM, or no model, on this machine.
    """
    if vllm_environment() is None:
        raise ClusterError(
            f"{VLLM_VARIABLE} is not set: the servers need a vLLM for CPUs, which `python -m "
            "tests.benchmarks.peers vllm` makes; set it to the path that this prints"
        )
    try:
        open_named_model(named_reference(Path(MODEL)))
    except EspalierError as error:
        raise ClusterError(str(error)) from error


def run_on_servers(places, say):
    """The run, from its first stage to its promoted version.

    Args:
        places: of the cluster, which was started with VLLM_VARIABLE.
        say: told what happens, in lines.

    Raises:
        ClusterError: the cluster has no vLLM, a stage failed, or the servers do not start.
    """
    if ROLLOUT not in ctr(places, "images", "list", "--quiet").stdout:
        raise ClusterError(
            f"the cluster was started without {VLLM_VARIABLE}: `python -m tests.cluster down` ends "
            "it, and the same command starts one with it"
        )
    key = install(places)
    run = ClusterRun(places, PROFILE, settings())
    for link in CHAIN:
        if link.name == "train":
            start_servers(places, say)
        job = run.start(link.name)
        if link.name == "train":
            servers, deleted = watch(places, lambda job=job: _has_ended(places, job), key, say)
        run.wait(link.name, job, STAGE_S)
        say(f"{link.name} ended")
        if link.name == "train":
            said = about_servers(_ask(places, "logs", f"job/{job}"))
    stop_servers(places)
    version, gate = promoted(run.settings.model_name)
    return Outcome(servers, deleted, said, *trained(f"{run.uri}/trained_policy"), version, gate)


def settings():
    """Of the run, whose model is put where pods find it."""
    # of its own: a stage that would do the work of an earlier run's fetches that
    seed = f"seed={secrets.randbelow(10**6)}"
    return (seed, *_model(), *SANDBOXES_IN_PODS, *LEARNING, *ON_SERVERS)


def _model():
    """The policy, named by its content, where pods find it."""
    reference = named_reference(Path(MODEL))
    reference = reference.pinned(open_named_model(reference))
    push_named_model(reference, f"s3://{BUCKET}/runs", os.environ)
    return (f'policy.model="{reference}"',)


def install(places):
    """What the overlay adds to `local`, asleep, with the volume of the workspace.

    Returns:
        The servers' key.
    """
    key = secrets.token_urlsafe(32)
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": NAME, "namespace": PIPELINE},
        "stringData": {"api_key": key},
    }
    of_servers = [one for one in objects.rendered(places, OVERLAY) if _is_of_servers(one)]
    for one in of_servers:
        if one["kind"] == "Deployment":
            one["spec"]["replicas"] = 0
    objects.apply(places, [objects.volume(places, CLAIM), secret, *of_servers])
    wake_servers(places)
    return key


def _is_of_servers(one):
    is_policy = one["kind"] == "NetworkPolicy" and "rollout" in one["metadata"]["name"]
    return is_policy or one["metadata"]["name"] in (NAME, CLAIM)


def start_servers(places, say):
    """On the run's own base policy, which prepare_policy left on the shared volume."""
    began = time.monotonic()
    _scale(places, SERVERS)
    _ask(places, "rollout", "status", f"deployment/{NAME}", f"--timeout={_READY_S}s")
    say(f"{SERVERS} servers ready after {time.monotonic() - began:.0f} s")


def stop_servers(places):
    """Leave none."""
    _scale(places, 0)


def watch(places, has_ended, key, say):
    """Ask the servers until training has ended, and delete one that is answering.

    Returns:
        The last answers of each server by its pod, and the pod that was deleted.
    """
    seen, deleted = {}, ""
    while not has_ended():
        now = {name: _asked(address, key) for name, address in _addresses(places).items()}
        for name, server in now.items():
            if server is not None:
                seen[name] = server.after(seen.get(name, server))
        working = [name for name, one in now.items() if one and one.running and one.requests]
        if not deleted and len(working) == SERVERS:
            deleted = working[0]
            _ask(places, "delete", f"pod/{deleted}", "--grace-period=0", "--force", "--wait=false")
            say(f"deleted {deleted} with {now[deleted].running} requests running")
        time.sleep(_POLL_S)
    return seen, deleted


def _asked(address, key):
    """What a server counts and serves; None where it does not answer."""
    headers = {"authorization": f"Bearer {key}"}
    try:
        listed = httpx2.get(f"{address}/v1/models", headers=headers, timeout=10).json()["data"]
    except httpx2.TransportError:
        return None
    figures = {name: int(value) for name, value in counted(address, COUNTERS).items()}
    names = [one["id"].removeprefix("policy-") for one in listed if one["id"] != "policy"]
    return Server(**figures, adapters=tuple(names))


def _addresses(places):
    """Pod -> address of those that run."""
    selector = f"--selector=app.kubernetes.io/name={NAME}"
    pods = json.loads(_ask(places, "get", "pods", selector, "--output=json"))["items"]
    return {
        pod["metadata"]["name"]: f"http://{pod['status']['podIP']}:8000"
        for pod in pods
        if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
    }


def _has_ended(places, job):
    status = json.loads(_ask(places, "get", f"job/{job}", "--output=json"))["status"]
    return bool(status.get("conditions"))


def about_servers(log):
    """Lines of the trainer's log about servers that are lost or come."""
    return [
        line for line in log.splitlines() if "is left out" in line or "is used from now on" in line
    ]


def trained(uri, environment=os.environ):
    """Steps, losses and versions, as training published them; digests are checked on the way."""
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder, "trained_policy")
        open_location(uri, environment).fetch(artifact)
        open_artifact(artifact)
        history = pq.read_table(artifact / "history.parquet").to_pylist()
        summary = json.loads((artifact / "ledger.jsonl").read_text().splitlines()[0])
        draws = {name: count for name, count in summary.items() if name != "digest" and count}
        episodes = _versions(artifact)
    return (
        [row["step"] for row in history],
        int(sum(row["lost_episodes"] for row in history)),
        episodes,
        sum(row["tool_calls"] for row in history) / len(history),
        max(row["mismatch_kl"] or 0.0 for row in history),
        draws,
    )


def _versions(artifact):
    """Version of the weights -> attempts of training that it sampled."""
    paths = sorted(artifact.glob("streams/episodes-*.jsonl"))
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return Counter(json.loads(line)["policy_version"] for line in lines)


def promoted(model):
    """The version that was promoted, and what the gate said."""
    try:
        promotion, gate = json.loads(outside("promote", model, "--json")), "passed"
    except ClusterError as refusal:
        gate = str(refusal)
        promotion = json.loads(outside("promote", model, "--force", _REASON, "--json"))
    return promotion["version"], gate


def _scale(places, replicas):
    _ask(places, "scale", f"deployment/{NAME}", f"--replicas={replicas}")


def _ask(places, *arguments):
    done = kubectl(places, f"--namespace={PIPELINE}", *arguments)
    if done.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-600:]}")
    return done.stdout
