"""One of everything that a run creates, as small as it can be and still show every part."""

from datetime import UTC, datetime

from espalier.cluster.objects.job import stage_job
from espalier.cluster.objects.launched import LaunchOrder
from espalier.cluster.objects.llm_services import LlmModel, llm_inference_service
from espalier.cluster.objects.names import Owner
from espalier.cluster.objects.ray_job import ray_job
from espalier.cluster.objects.serving import served_version
from espalier.cluster.objects.train_job import train_job
from espalier.config import KubernetesConfig, SandboxPodsConfig
from espalier.sandbox.lease import lease_owner, run_lease
from espalier.sandbox.pod import (
    SandboxPodSettings,
    sandbox_claim,
    sandbox_pod,
    sandbox_template,
    sandbox_warm_pool,
)

RUN = "r17"
STEP = ("sh", "-ec", "exec python -m kfp.dsl.executor_main", "--executor_input", "{}")
TRACKING = {"ESPALIER_PARENT_RUN": "0f1e", "MLFLOW_EXPERIMENT_NAME": "espalier"}
POLICY = "s3://espalier-mlflow/1/0f1e/artifacts/models/8e8e8e8e8e8e8e8e/policy"
IMAGE = "registry.example/espalier-train@sha256:" + 64 * "7"

LAPTOP_SIZED = KubernetesConfig()
CLUSTER = KubernetesConfig.model_validate(
    {
        "images": {"train": IMAGE},
        "labels": {"team": "agents"},
        "queue": "espalier",
        "node_selector": {"pool": "batch"},
        "workspace_claim": "espalier-workspace",
        "cache_claim": "espalier-cache",
        "mounted_secrets": ["espalier-rollout"],
        "gpus": {"count": 8, "node_selector": {"pool": "h200"}},
    }
)
NODES = CLUSTER.model_copy(update={"trainer": "rayjob", "nodes": 2})
TRAINER = CLUSTER.model_copy(update={"trainer": "trainjob"})
LAPTOP_TRAINER = LAPTOP_SIZED.model_copy(update={"trainer": "trainjob"})

SANDBOXES = SandboxPodSettings(
    image="registry.example/sandbox-python@sha256:" + 64 * "a",
    namespace="espalier-sandboxes",
    pods=SandboxPodsConfig(),
)
SANDBOXD = {"SANDBOXD_TOKEN_SHA256": 64 * "b", "SANDBOXD_PREIMPORT": "numpy"}
LEASE = lease_owner("r17-sandboxes", "6c8f2b1e-0000-4000-8000-000000000001")
LAUNCHER = Owner("batch/v1", "Job", "r17-train", "6c8f2b1e-0000-4000-8000-000000000002")
PARTIAL = {"queued-version"}
"""A server-side apply of some fields: what a whole object requires is not in it."""

AGENT, SERVED = "espalier-search-agent", {"namespace": "espalier-pipeline"}
NOON = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def job(stage, settings):
    return stage_job(stage, STEP, run_id=RUN, settings=settings, environment=TRACKING)


def order(settings, *, stage="train", command=STEP, run_id=RUN, **changes):
    given = {"owner": LAUNCHER, "environment": {}, **changes}
    return LaunchOrder(stage=stage, command=command, run_id=run_id, settings=settings, **given)


def every_manifest():
    """Manifests by the name of their golden file."""
    return {
        "job-validate": job("validate", LAPTOP_SIZED),
        "job-train-on-gpus": job("train", CLUSTER),
        "ray-job": ray_job(order(NODES, environment=TRACKING)),
        "train-job-on-gpus": train_job(order(TRAINER, environment=TRACKING, processes=8)),
        "queued-version": served_version(
            AGENT, "4", policy_digest="8e" * 32, queue="espalier", **SERVED
        ),
        "llm-inference-service": llm_inference_service(
            LlmModel(AGENT, "4", POLICY, "8e" * 32), queue="espalier", **SERVED
        ),
        "sandbox-pod": sandbox_pod(SANDBOXES, SANDBOXD, name="r17-s0", run_id=RUN, owner=LEASE),
        "sandbox-lease": run_lease(
            RUN, namespace="espalier-sandboxes", holder="r17-train-x2x", now=NOON, labels={}
        ),
        "sandbox-template": sandbox_template(SANDBOXES, SANDBOXD, run_id=RUN, owner=LEASE),
        "sandbox-warm-pool": sandbox_warm_pool(SANDBOXES, run_id=RUN, owner=LEASE, replicas=8),
        "sandbox-claim": sandbox_claim(SANDBOXES, name="r17-c0", run_id=RUN, owner=LEASE, now=NOON),
    }
