from decimal import Decimal

import pytest

from espalier.chain import CHAIN
from espalier.config import ImagesConfig, Profile
from espalier.config.cluster import amount
from espalier.records import ProfileError

GPUS = ["kubernetes.gpus.count=8"]
RAY = ["kubernetes.trainer=rayjob", "kubernetes.nodes=2"]
SHARED = "kubernetes.workspace_claim=shared"
NODES = [*RAY, SHARED]
TRAIN_JOB = ["kubernetes.trainer=trainjob", "kubernetes.nodes=2", SHARED]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["kubernetes.sandbox_namespace=espalier-pipeline"], "sandbox_namespace"),
        (["kubernetes.pipeline_namespace=Prod"], "Prod"),
        (["kubernetes.images.cpu=espalier:latest"], "espalier:latest"),
        (["kubernetes.images.train=e@sha256:abc"], "e@sha256:abc"),
        (['kubernetes.sandboxes.image_pull_secrets=["espalier-s3"]'], "espalier-s3"),
        (["kubernetes.sandboxes.topology_spread=[{max_skew = 0}]"], "max_skew"),
        (["kubernetes.ray.version=2.51.9"], "2.52.0"),
        (["kubernetes.gpus.shared_memory=lots"], "lots"),
        (["kubernetes.gpus.shared_memory=96Gi"], "shared_memory"),
        (["kubernetes.ray.head.memory_limit=4Gi"], "memory_limit=4Gi"),
        (["kubernetes.sandboxes.resources.disk_limit=1Gi"], "scratch"),
        (["kubernetes.resources.cpu_request=5"], "cpu_request=5"),
        (['kubernetes.gpus.node_selector={pool = "gpu"}'], r"kubernetes\.gpus\.count"),
        ([*GPUS, *RAY], "ReadWriteMany"),
        (["kubernetes.nodes=2"], r"kubernetes\.trainer"),
        (["kubernetes.trainer=rayjob"], "ReadWriteMany"),
        ([*TRAIN_JOB[:2], "training.processes=2"], "ReadWriteMany"),
        ([*TRAIN_JOB, "training.processes=3"], r"kubernetes\.nodes=2"),
        ([*GPUS, "kubernetes.trainer=trainjob", "training.processes=16"], r"kubernetes\.nodes"),
        ([*GPUS, *TRAIN_JOB, "training.processes=18"], "of 2 nodes"),
        (
            [*TRAIN_JOB, "training.processes=2", "training.rollout_workers=2"],
            "Ray cluster",
        ),
        ([*GPUS, "training.processes=9"], r"kubernetes\.gpus\.count=8"),
        ([*GPUS, *NODES, "training.processes=17"], "room for 16"),
        ([*GPUS, *NODES, "training.processes=8"], "processes=8"),
        ([*NODES, "training.processes=3"], "room for 2"),
        ([*NODES, "training.rollout_workers=2"], "rollout_workers=2 are too many"),
        ([*NODES, "training.processes=2", "hardware.device=cuda"], r"gpus\.count=0"),
        ([*GPUS, *NODES, "training.processes=16", "hardware.device=cpu"], r"gpus\.count=8"),
        (["training.processes=2", "hardware.device=cuda:1"], "cuda:1"),
        (['kubernetes.labels={"espalier.dev/run" = "x"}'], "espalier.dev/run"),
        (['kubernetes.labels={team = "a b"}'], "team=a b"),
        (['kubernetes.tolerations=[{key = "spot", value = "true"}]'], "operator"),
    ],
)
def test_settings_that_no_cluster_could_follow_are_refused_by_name(load, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        load(*overrides)


def test_a_whole_cluster_is_described_in_a_profile(load):
    settings = load(
        *(*GPUS, *NODES, "training.processes=16", "kubernetes.ray.version=3.0.0"),
        'kubernetes.gpus.node_selector={"cloud.example/pool" = "h200"}',
        'kubernetes.tolerations=[{key = "spot", operator = "Equal", value = "true"}]',
        'kubernetes.sandboxes.image_pull_secrets=["espalier-pull", "espalier-pull-eu"]',
        'kubernetes.sandboxes.topology_spread=[{topology_key = "zone", max_skew = 2}]',
    ).kubernetes
    assert settings.sandboxes.image_pull_secrets == ("espalier-pull", "espalier-pull-eu")
    assert settings.sandboxes.topology_spread[0].topology_key == "zone"
    assert settings.tolerations[0].value == "true"


def test_rollout_workers_take_places_of_a_ray_job(load):
    assert load(*NODES, "training.rollout_workers=1").training.rollout_workers == 1


def test_nodes_of_a_train_job_share_the_processes(load):
    assert load(*GPUS, *TRAIN_JOB, "training.processes=16").kubernetes.nodes == 2


def test_images_without_a_digest_are_named_once():
    by_digest = "registry.example/one@sha256:" + 64 * "7"
    assert ImagesConfig(cpu="one:1", train="one:1").by_tag() == ["one:1"]
    assert ImagesConfig(cpu=by_digest, train="two:1").by_tag() == ["two:1"]


def test_where_a_run_lives_enters_no_digest():
    elsewhere = {"queue": "other", "gpus": {"count": 4}, "images": {"cpu": "mine:1"}}
    before, after = Profile(), Profile.model_validate({"kubernetes": elsewhere})
    assert all(stage.digest(before) == stage.digest(after) for stage in CHAIN)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("250m", "0.25"), ("2", "2"), ("1.5", "1.5"), ("1Gi", "1073741824"), ("3G", "3000000000")],
)
def test_amounts_are_read_as_kubernetes_does(quantity, expected):
    assert amount(quantity) == Decimal(expected)


@pytest.mark.parametrize("quantity", ["", "-1", "1 Gi", "1gb", "Gi", "1e3", "1Gi\n"])
def test_what_is_no_amount_is_refused(quantity):
    with pytest.raises(ValueError, match="quantity"):
        amount(quantity)
