"""Loads and compiles the pipelines of `pipelines/`."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import ValidationError

from espalier.cluster.objects.pods import WORKSPACE_MOUNT
from espalier.config import (
    ImagesConfig,
    KubernetesConfig,
    ModelReference,
    Profile,
    named_reference,
    open_named_model,
    override_tables,
    parsed_override,
    read_toml_profile,
)
from espalier.records import ArtifactError, ProfileError, write_whole
from espalier.steps.profiles import (
    named_profile,
    pipelines_dir,
    profile_names,
    profile_path,
)

if TYPE_CHECKING:
    from kfp.dsl.base_component import BaseComponent

PIPELINE = "data_to_model"
_LINE_ENDS = ("\n", "\r", "\x85", "\u2028", "\u2029")
"""What ends a line of YAML, so also its comments, into which kfp writes default values."""
_SEED_LIMIT = 1 << 53
"""From here on, doubles cannot represent all integers."""


def load_pipeline(settings: KubernetesConfig | None = None, name: str = PIPELINE) -> BaseComponent:
    """The pipeline of `pipelines/<name>.py`, with `settings` for the pods of its steps."""
    path = pipelines_dir() / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"espalier_pipelines.{name}", path)
    assert spec is not None, "the path ends in .py"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)(settings)


def compile_pipeline(
    out: Path, defaults: Mapping[str, str | int], settings: KubernetesConfig, image: str | None
) -> None:
    """Write the pipeline's IR and its platform settings, ready for Kubeflow's upload form.

    Args:
        out: a .yaml file; its folder is created where it is missing.
        defaults: default values of the run form, instead of the pipeline's own.
        settings: `kubernetes` of the profile, for the pods of all steps. It is compiled in: values
            that the run form changes do not change it.
        image: container image of every step, instead of the profile's two.

    Raises:
        ArtifactError: `out` has no YAML suffix, or cannot be written.
        ProfileError: `image` is not pinned to a fixed content.
    """
    if out.suffix not in (".yaml", ".yml"):
        raise ArtifactError(f"{out}: a compiled pipeline is YAML; name it like pipeline.yaml")
    from kfp.compiler import Compiler

    if image is not None:
        try:
            images = ImagesConfig(cpu=image, train=image)
        except ValidationError as error:
            raise ProfileError(f"--image: {error.errors()[0]['msg']}") from error
        settings = settings.model_copy(update={"images": images})
    pipeline = load_pipeline(settings)
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / out.name
        Compiler().compile(pipeline, str(compiled), pipeline_parameters=dict(defaults))
        write_whole(out, _with_whole_numbers(compiled.read_text(encoding="utf-8")))


def _with_whole_numbers(compiled: str) -> str:
    """Turn defaults of integer parameters into integers: kfp writes every number as a double."""
    comments = "".join(line for line in compiled.splitlines(keepends=True) if line.startswith("#"))
    documents = list(yaml.safe_load_all(compiled))
    for parameter in documents[0]["root"]["inputDefinitions"]["parameters"].values():
        if parameter["parameterType"] == "NUMBER_INTEGER" and "defaultValue" in parameter:
            parameter["defaultValue"] = int(parameter["defaultValue"])
    comments = re.sub(r"(: int \[Default: -?\d+)\.0\]", r"\1]", comments)
    return comments + yaml.safe_dump_all(documents, sort_keys=True)


def form_defaults(profile: str, overrides: Sequence[str]) -> dict[str, str | int]:
    """Default values of the run form for a profile that the command line names.

    A profile in the image stays a name; a user's own file is passed as JSON, with `overrides`
    applied, and so is one whose overrides the form's field could not hold. A named model stands in
    the form where this machine's copy differs from the one that `espalier models add` makes and
    `resolved_profile` names: pods find the model in S3 by its digest (`steps.given_model`).

    Raises:
        ProfileError: the profile or an override is invalid, its model has a path that pods cannot
            have, it samples on servers that could not see its weights, or its seed is a number that
            Kubeflow would round.
    """
    resolved = named_profile(profile, overrides)
    model = resolved.policy.model
    base: dict[str, str] = {}
    if (named := pinned_model(resolved)) is not None:
        # left empty where it can be, so that who chooses another profile gets that one's model
        if named != named.as_added:
            base = {"base_model": str(named)}
    elif model is not None and not model.is_absolute():
        raise ProfileError(
            f"policy.model = {model}: pods look for it in their image or on a volume; give the "
            "absolute path there, like /models/NAME. The step prepare_policy checks that it exists"
        )
    _require_shared_weights(resolved)
    if resolved.seed >= _SEED_LIMIT:
        raise ProfileError(
            f"seed = {resolved.seed}: Kubeflow stores parameters as doubles and would round it; "
            f"choose one below {_SEED_LIMIT}"
        )
    fits_field = not any(mark in text for text in overrides for mark in (";", *_LINE_ENDS))
    if profile in profile_names() and fits_field:
        form = {"profile": profile, "seed": resolved.seed, **base}
        return {**form, "overrides": "; ".join(overrides)} if overrides else form
    tables = read_toml_profile(profile_path(profile))
    override_tables(tables, [parsed_override(text) for text in overrides])
    text = json.dumps(tables, default=str, ensure_ascii=False)
    for mark in _LINE_ENDS:
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return {"profile": text, "seed": resolved.seed, **base}


def _require_shared_weights(profile: Profile) -> None:
    """Refuse servers that could not see what Kubeflow's steps give them."""
    if profile.rollout.engine != "vllm":
        return
    claim, shared = profile.kubernetes.workspace_claim, profile.rollout.vllm.shared_dir
    if claim is None or shared is None or not shared.is_relative_to(WORKSPACE_MOUNT):
        raise ProfileError(
            'rollout.engine = "vllm": the steps of Kubeflow have folders of their own, from which '
            "no server can load weights. Set kubernetes.workspace_claim to the claim that the "
            f'servers have at {WORKSPACE_MOUNT}, and rollout.vllm.shared_dir = "{WORKSPACE_MOUNT}" '
            "(docs/cluster.md, Rollout servers)"
        )


def pinned_model(profile: Profile) -> ModelReference | None:
    """The named model that the run's pods fetch, by its digest; None for a directory.

    Raises:
        PolicyError: this machine's copy is damaged.
    """
    named = named_reference(profile.policy.model)
    if named is None or named.digest:
        return named
    if named.directory.exists():
        return named.pinned(open_named_model(named))
    return named.as_added


def compile_profile(profile: str, overrides: Sequence[str], out: Path) -> dict[str, str | int]:
    """Compile the pipeline for a profile, and return the parameters of its run.

    Args:
        profile: name or path of a profile.
        overrides: `section.key=value` each.
        out: a .yaml file.

    Raises:
        ArtifactError: `out` cannot be written.
        ProfileError: the profile or an override is invalid.
    """
    defaults, resolved = form_defaults(profile, overrides), named_profile(profile, overrides)
    compile_pipeline(out, defaults, resolved.kubernetes, None)
    return defaults
