"""Loading and compiling what `pipelines/` defines."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError

from espalier.config import (
    ImagesConfig,
    KubernetesConfig,
    ModelReference,
    named_reference,
    open_named_model,
    override_tables,
    parsed_override,
    read_toml_profile,
)
from espalier.records import ArtifactError, ProfileError
from espalier.steps.profiles import (
    named_profile,
    pipelines_dir,
    profile_names,
    profile_path,
)

if TYPE_CHECKING:
    from kfp.dsl.base_component import BaseComponent

PIPELINE = "data_to_model"
_SEED_LIMIT = 1 << 53
"""From here on a double cannot tell whole numbers apart."""


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
        out.write_text(_with_whole_numbers(out.read_text(encoding="utf-8")), encoding="utf-8")
    except OSError as error:
        raise ArtifactError(
            f"{out}: cannot be written ({error.strerror}). Choose another --out"
        ) from error


def _with_whole_numbers(compiled: str) -> str:
    """Defaults of integer parameters as integers: kfp keeps every number as a double, as 0.0."""
    comments = "".join(line for line in compiled.splitlines(keepends=True) if line.startswith("#"))
    documents = list(yaml.safe_load_all(compiled))
    for parameter in documents[0]["root"]["inputDefinitions"]["parameters"].values():
        if parameter["parameterType"] == "NUMBER_INTEGER" and "defaultValue" in parameter:
            parameter["defaultValue"] = int(parameter["defaultValue"])
    comments = re.sub(r"(: int \[Default: -?\d+)\.0\]", r"\1]", comments)
    return comments + yaml.safe_dump_all(documents, sort_keys=True)


def _images(image: str) -> ImagesConfig:
    try:
        return ImagesConfig(cpu=image, train=image)
    except ValidationError as error:
        raise ProfileError(f"--image: {error.errors()[0]['msg']}") from error


def form_defaults(profile: str, overrides: Sequence[str]) -> dict[str, str | int]:
    """What the run form starts with, for a profile as the command line names it.

    A profile that the image carries stays a name; a file of the user's own travels as JSON, as it
    is written and with `overrides`. A named model gets the digest of what this machine has, or
    else of what `espalier models add` makes: by it pods find the model in S3
    (`espalier.steps.given_model`).

    Raises:
        ProfileError: the profile, or one of the overrides, is refused, its model is at a place
            that a pod cannot have, or its seed is a number that Kubeflow would round.
    """
    resolved = named_profile(profile, overrides)
    model = resolved.policy.model
    base: dict[str, str] = {}
    if (named := named_reference(model)) is not None:
        base = {"base_model": str(_pinned(named))}
    elif model is not None and not model.is_absolute():
        raise ProfileError(
            f"policy.model = {model}: pods look for it in their image or on a volume; give the "
            "absolute path there, as /models/NAME. Whether it is there is seen by prepare_policy"
        )
    if resolved.seed >= _SEED_LIMIT:
        raise ProfileError(
            f"seed = {resolved.seed}: Kubeflow keeps parameters as doubles and would round it; "
            f"take one below {_SEED_LIMIT}"
        )
    if profile in profile_names():
        form = {"profile": profile, "seed": resolved.seed, **base}
        return {**form, "overrides": "; ".join(overrides)} if overrides else form
    tables = read_toml_profile(profile_path(profile))
    override_tables(tables, [parsed_override(text) for text in overrides])
    text = json.dumps(tables, default=str, ensure_ascii=False)
    return {"profile": text, "seed": resolved.seed, **base}


def _pinned(named: ModelReference) -> ModelReference:
    if named.digest:
        return named
    if named.directory.exists():
        return named.pinned(open_named_model(named))
    return ModelReference(named.model, named.model.content)


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
    defaults, resolved = form_defaults(profile, overrides), named_profile(profile, overrides)
    compile_pipeline(out, defaults, resolved.kubernetes, None)
    return defaults
