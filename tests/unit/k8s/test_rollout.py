"""The servers of `local-rollout`, and the run of tests/cluster that samples from them."""

import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from espalier.cluster.objects.pods import WORKSPACE_MOUNT
from espalier.steps.profiles import named_profile
from tests.cluster import images, rollout
from tests.fakes import vllm_process
from tests.unit.k8s.rendering import LOCAL_ROLLOUT, named, needs_kubectl, rendered

NAME = "espalier-rollout"
PLACES = {"--model", "--served-model-name", "--host", "--port", "--max-model-len", "-m"}
"""Options of a server that are its own, or are compared by another test."""


@pytest.fixture(scope="module")
def profile():
    return named_profile("arithmetic-smoke", (*rollout.LEARNING, *rollout.ON_SERVERS))


@pytest.fixture(scope="module")
def pod():
    return named(rendered(LOCAL_ROLLOUT), "Deployment", NAME)["spec"]["template"]["spec"]


def _options(words):
    """Option -> value, whether it is written --option=value or as two words."""
    options, words = {}, list(words)
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        following = words[number + 1] if number + 1 < len(words) else "-"
        if name.startswith("-"):
            options[name] = value or ("" if following.startswith("-") else following)
    return options


@needs_kubectl
def test_the_servers_options_are_those_that_were_tested(pod):
    """Those of the processes that tests/integration and the benchmarks start on a CPU."""
    (container,) = pod["containers"]
    tested = vllm_process.arguments(Path("policy"), 8000, max_tokens=1024)
    wanted = {k: v for k, v in _options(tested).items() if k not in PLACES}
    wanted.pop("--disable-uvicorn-access-log")
    given = _options(container["args"])
    assert {name: given.get(name) for name in wanted} == wanted
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert variables["VLLM_SERVER_DEV_MODE"] == "1"


@needs_kubectl
def test_the_runs_policy_fits_the_servers(profile, pod):
    given = _options(pod["containers"][0]["args"])
    assert profile.rollout.vllm.exchange == "adapter"
    assert profile.policy.lora.rank <= int(given["--max-lora-rank"])
    assert profile.episode.max_tokens < int(given["--max-model-len"])
    assert profile.rollout.vllm.model == given["--served-model-name"]


@needs_kubectl
def test_the_run_finds_servers_key_and_workspace(profile, pod):
    (container,) = pod["containers"]
    service = named(rendered(LOCAL_ROLLOUT), "Service", NAME)
    (url,) = profile.rollout.vllm.urls
    assert urlsplit(url).hostname == f"{NAME}.{service['metadata']['namespace']}.svc"
    assert urlsplit(url).port == service["spec"]["ports"][0]["port"]
    assert service["spec"]["clusterIP"] == "None", "every pod has an address of its own"
    asked = [one["valueFrom"] for one in container["env"] if one["name"] == "VLLM_API_KEY"]
    secret = asked[0]["secretKeyRef"]
    assert secret["name"] in profile.kubernetes.mounted_secrets
    assert str(profile.rollout.vllm.key_file) == f"/secrets/{secret['name']}/{secret['key']}"
    claims = {v["name"]: v.get("persistentVolumeClaim", {}) for v in pod["volumes"]}
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert claims[mounted[WORKSPACE_MOUNT]]["claimName"] == profile.kubernetes.workspace_claim


@needs_kubectl
def test_the_cluster_of_the_tests_has_the_servers_image(pod):
    (container,) = pod["containers"]
    assert container["image"] == images.ROLLOUT
    assert shlex.join(container["command"]) == "vllm serve"
