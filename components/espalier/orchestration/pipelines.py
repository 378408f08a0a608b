"""Loading and compiling what `pipelines/` defines."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from espalier.artifacts import ArtifactError
from espalier.steps.pipeline_files import pipelines_dir, profile_names
from espalier.steps.profiles import named_profile

if TYPE_CHECKING:
    from kfp.dsl.base_component import BaseComponent

PIPELINE = "data_to_model"
IMAGE_VARIABLE = "ESPALIER_IMAGE"


def load_pipeline(name: str = PIPELINE) -> BaseComponent:
    """The pipeline function of `pipelines/<name>.py`."""
    path = pipelines_dir() / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"espalier_pipelines.{name}", path)
    assert spec is not None, "the path ends in .py"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def compile_pipeline(out: Path, defaults: Mapping[str, str | int], image: str | None) -> None:
    """Write the pipeline's IR, ready for Kubeflow's upload form.

    Args:
        out: a .yaml file; its folder is made where it is missing.
        defaults: values that the run form starts with, instead of the pipeline's own.
        image: container image of every step. Components read it when they are first imported, so
            it takes effect on the first call in a process.

    Raises:
        ArtifactError: `out` is not YAML by its name, or cannot be written.
    """
    if out.suffix not in (".yaml", ".yml"):
        raise ArtifactError(f"{out}: a compiled pipeline is YAML; name it like pipeline.yaml")
    if image is not None:
        os.environ[IMAGE_VARIABLE] = image
    from kfp.compiler import Compiler

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        Compiler().compile(load_pipeline(), str(out), pipeline_parameters=dict(defaults))
    except OSError as error:
        raise ArtifactError(
            f"{out}: cannot be written ({error.strerror}). Choose another --out"
        ) from error


def form_defaults(profile: str, overrides: Sequence[str]) -> dict[str, str | int]:
    """What the run form starts with, for a profile as the command line names it.

    A profile that the image carries stays a name; a file of the user's own travels as JSON.

    Raises:
        ProfileError: the profile, or one of the overrides, is refused.
    """
    resolved = named_profile(profile, overrides)
    if profile in profile_names():
        return {"profile": profile, "seed": resolved.seed, "overrides": "; ".join(overrides)}
    return {"profile": resolved.model_dump_json(), "seed": resolved.seed, "overrides": ""}
