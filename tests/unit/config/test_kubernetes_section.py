from decimal import Decimal

import pytest

from espalier.chain import CHAIN
from espalier.config import ImagesConfig, Profile, load_profile
from espalier.config.cluster import amount
from espalier.records import ProfileError

GPUS = ["kubernetes.gpus.count=8"]
RAY = ["kubernetes.trainer=rayjob", "kubernetes.ray.workers=2"]
NODES = [*RAY, "kubernetes.workspace_claim=shared"]


def _loaded(tmp_path, overrides):
    path = tmp_path / "profile.toml"
    path.write_text("", encoding="utf-8")
    return load_profile(path, overrides)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["kubernetes.sandbox_namespace=espalier-pipeline"], "is the pipeline's own"),
        (["kubernetes.pipeline_namespace=Prod"], "is no name in Kubernetes"),
        (["kubernetes.images.cpu=espalier"], "may be another image tomorrow"),
        (["kubernetes.images.cpu=espalier:latest"], "may be another image tomorrow"),
        (["kubernetes.images.train=e@sha256:abc"], "may be another image tomorrow"),
        (['kubernetes.sandboxes.image_pull_secrets=["espalier-s3"]'], "no secret for pulling"),
        (["kubernetes.sandboxes.topology_spread=[{max_skew = 0}]"], "greater than or equal to 1"),
        (
            ['kubernetes.sandboxes.tolerations=[{key = "spot", value = "true"}]'],
            r'needs operator = "Equal"',
        ),
        (["kubernetes.ray.version=2.51.9"], "take 2.52.0 or later"),
        (["kubernetes.gpus.shared_memory=lots"], "is no amount"),
        (["kubernetes.gpus.shared_memory=96Gi"], "leaves nothing beside"),
        (["kubernetes.ray.head.memory_limit=4Gi"], "memory_request=8Gi exceeds memory_limit=4Gi"),
        (["kubernetes.sandboxes.resources.disk_limit=1Gi"], 'or set scratch = "disk"'),
        (["kubernetes.resources.cpu_request=5"], "cpu_request=5 exceeds cpu_limit=4"),
        (['kubernetes.gpus.node_selector={pool = "gpu"}'], r"set kubernetes\.gpus\.count"),
        ([*GPUS, *RAY], "ReadWriteMany"),
        (["kubernetes.ray.workers=2"], r'set kubernetes\.trainer = "rayjob" for them'),
        (["kubernetes.trainer=trainjob", "kubernetes.ray.workers=2"], 'trainer = "trainjob"; set'),
        (["kubernetes.trainer=rayjob"], r"set kubernetes\.ray\.workers to their number"),
        (["kubernetes.trainer=slurm"], "'job', 'trainjob' or 'rayjob'"),
        (
            [*GPUS, "kubernetes.trainer=trainjob", "training.processes=16"],
            r'more nodes \(kubernetes\.trainer = "rayjob"\)',
        ),
        ([*GPUS, "training.processes=9"], r"share kubernetes\.gpus\.count=8"),
        ([*GPUS, *NODES, "training.processes=17"], r"room for 16, one on each of kubernetes\.gpus"),
        ([*GPUS, *NODES, "training.processes=8"], "leave a node without work"),
        ([*NODES, "training.processes=3"], "room for 2, one each without GPUs"),
        ([*NODES], "training.processes=1 leave a node without work"),
        ([*NODES, "training.processes=2", "hardware.device=cuda"], r"gpus\.count=0 compute on"),
        (
            [*GPUS, *NODES, "training.processes=16", "hardware.device=cpu"],
            r"gpus\.count=8 compute on",
        ),
        (["training.processes=2", "hardware.device=cuda:1"], "name its kind alone"),
        (['kubernetes.labels={"espalier.dev/run" = "x"}'], "choose another key"),
        (['kubernetes.labels={team = "a b"}'], "team=a b is no label"),
        (
            ['kubernetes.tolerations=[{key = "spot", value = "true"}]'],
            r'needs operator = "Equal"',
        ),
        (["kubernetes.gpu.count=1"], r"did you mean kubernetes\.gpus\?"),
    ],
)
def test_settings_that_no_cluster_could_follow_are_refused_by_name(tmp_path, overrides, complaint):
    with pytest.raises(ProfileError, match=complaint):
        _loaded(tmp_path, overrides)


def test_a_whole_cluster_is_described_in_a_profile(tmp_path):
    settings = _loaded(
        tmp_path,
        [
            *GPUS,
            *NODES,
            "training.processes=16",
            "kubernetes.queue=espalier",
            'kubernetes.gpus.node_selector={"cloud.example/pool" = "h200"}',
            'kubernetes.tolerations=[{key = "spot", operator = "Equal", value = "true"}]',
            'kubernetes.sandboxes.image_pull_secrets=["espalier-pull", "espalier-pull-eu"]',
            'kubernetes.sandboxes.topology_spread=[{topology_key = "zone", max_skew = 2}]',
            "kubernetes.ray.version=3.0.0",
        ],
    ).kubernetes
    assert settings.sandboxes.image_pull_secrets == ("espalier-pull", "espalier-pull-eu")
    assert settings.sandboxes.topology_spread[0].when_unsatisfiable == "ScheduleAnyway"
    assert settings.ray.workers == 2
    assert settings.gpus.tolerations[0].key == "nvidia.com/gpu"
    assert settings.tolerations[0].value == "true"


def test_images_without_a_digest_are_named_once():
    by_digest = "registry.example/one@sha256:" + 64 * "7"
    assert ImagesConfig(cpu="one:1", train="one:1").by_tag() == ["one:1"]
    assert ImagesConfig(cpu=by_digest, train="two:1").by_tag() == ["two:1"]
    assert ImagesConfig(cpu=by_digest, train=by_digest).by_tag() == []


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
    with pytest.raises(ValueError, match="is no amount"):
        amount(quantity)
