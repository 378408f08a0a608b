"""Loading and compiling what `pipelines/` defines."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from espalier.config import ImagesConfig, KubernetesConfig
from espalier.records import ArtifactError, ProfileError
from espalier.steps.pipeline_files import pipelines_dir, profile_names
from espalier.steps.profiles import named_profile

if TYPE_CHECKING:
    from kfp.dsl.base_component import BaseComponent

PIPELINE = "data_to_model"


def load_pipeline(name: str = PIPELINE) -> BaseComponent:
    """The pipeline function of `pipelines/<name>.py`."""
    path = pipelines_dir() / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"espalier_pipelines.{name}", path)
    assert spec is not None, "the path ends in .py"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def compile_pipeline(
    out: Path, defaults: Mapping[str, str | int], settings: KubernetesConfig, image: str | None
) -> None:
    """Write the pipeline's IR and its platform settings, ready for Kubeflow's upload form.

    Args:
        out: a .yaml file; its folder is made where it is missing.
        defaults: values that the run form starts with, instead of the pipeline's own.
        settings: `kubernetes` of the profile: what the pod of each step gets. It is part of what is
            compiled: a value that the form changes does not change it.
        image: container image of every step, instead of the profile's two.

    Raises:
        ArtifactError: `out` is not YAML by its name, or cannot be written.
        ProfileError: `image` may be another one tomorrow.
    """
    if out.suffix not in (".yaml", ".yml"):
        raise ArtifactError(f"{out}: a compiled pipeline is YAML; name it like pipeline.yaml")
    from kfp.compiler import Compiler

    from espalier.steps.placement import placing

    if image is not None:
        settings = settings.model_copy(update={"images": _images(image)})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with placing(settings):
            pipeline = load_pipeline()
        Compiler().compile(pipeline, str(out), pipeline_parameters=dict(defaults))
    except OSError as error:
        raise ArtifactError(
            f"{out}: cannot be written ({error.strerror}). Choose another --out"
        ) from error


def _images(image: str) -> ImagesConfig:
    try:
        return ImagesConfig(cpu=image, train=image)
    except ValidationError as error:
        raise ProfileError(f"--image: {error.errors()[0]['msg']}") from error


def form_defaults(profile: str, overrides: Sequence[str]) -> dict[str, str | int]:
    """What the run form starts with, for a profile as the command line names it.

    A profile that the image carries stays a name; a file of the user's own travels as JSON.

    Raises:
        ProfileError: the profile, or one of the overrides, is refused, or its model is at a place
            that a pod cannot have.
    """
    resolved = named_profile(profile, overrides)
    model = resolved.policy.model
    if model is not None and not model.is_absolute():
        raise ProfileError(
            f"policy.model = {model}: pods look for it in their image or on a volume; give the "
            "absolute path there, as /models/NAME. Whether it is there is seen by prepare_policy"
        )
    if profile in profile_names():
        return {"profile": profile, "seed": resolved.seed, "overrides": "; ".join(overrides)}
    return {"profile": resolved.model_dump_json(), "seed": resolved.seed, "overrides": ""}


def compile_profile(profile: str, overrides: Sequence[str], out: Path) -> dict[str, str | int]:
    """Compile the pipeline as a profile wants it, and return the parameters of its run.

    Args:
        profile: name or path, see `named_profile`.
        overrides: `section.key=value` each.
        out: see `compile_pipeline`.

    Raises:
        ArtifactError: `out` cannot be written.
        ProfileError: the profile, or one of the overrides, is refused.
    """
    parameters = form_defaults(profile, overrides)
    compile_pipeline(out, parameters, named_profile(profile, overrides).kubernetes, None)
    return parameters
