"""The `train` step where training is a RayJob: its pod launches, watches, and publishes nothing.

Inputs and output travel by their URIs: the driver on Ray's nodes fetches and publishes by itself.
The pipeline's root therefore has to be in S3 (s3://...), where those nodes reach it.
"""

from kfp import dsl

from espalier.steps.image import IMAGE


@dsl.container_component
def train_on_ray(
    profile_json: str,
    knowledge: dsl.Input[dsl.Dataset],
    accepted: dsl.Input[dsl.Dataset],
    curriculum: dsl.Input[dsl.Dataset],
    warm_policy: dsl.Input[dsl.Model],
    trained_policy: dsl.Output[dsl.Model],
) -> dsl.ContainerSpec:
    """Train the policy by reinforcement learning, on nodes that Ray joins.

    Args:
        profile_json: the resolved profile.
        knowledge: triples, documents and indexes, from `ingest`.
        accepted: tasks and trajectories that passed, from `validate`.
        curriculum: learnable tasks, from `filter_curriculum`.
        warm_policy: model directory, from `warm_start`.
        trained_policy: model directory.
    """
    return dsl.ContainerSpec(
        image=IMAGE,
        command=["espalier", "step", "train"],
        args=[
            "--profile", profile_json,
            # what the step notes about itself must not lie inside of the artifact
            "--run", dsl.ConcatPlaceholder([trained_policy.uri, "-run"]),
            "--input", dsl.ConcatPlaceholder(["knowledge=", knowledge.uri]),
            "--input", dsl.ConcatPlaceholder(["accepted=", accepted.uri]),
            "--input", dsl.ConcatPlaceholder(["curriculum=", curriculum.uri]),
            "--input", dsl.ConcatPlaceholder(["warm_policy=", warm_policy.uri]),
            "--output", trained_policy.uri,
        ],
    )  # fmt: skip
