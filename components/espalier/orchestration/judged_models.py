"""Models that `espalier evaluate` can judge: endpoints, model directories, registered versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urldefrag

from pydantic import ValidationError

from espalier.config import EvaluatedEndpointConfig, Profile
from espalier.config.faults import fault_lines
from espalier.evaluation.contamination import Training
from espalier.evaluation.lineage import policy_files_digest
from espalier.orchestration.lineage import training_of_directory, training_of_version
from espalier.orchestration.promotion import open_registry, run_behind
from espalier.records import EngineError, PolicyError, RegistryError, json_digest
from espalier.registry.model import CHALLENGER, fetch_policy, parsed_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedModel:
    """A model that is ready to be judged."""

    name: str
    digest: str
    training: Training
    facts: Mapping[str, object]
    recovery: str
    endpoint: EvaluatedEndpointConfig | None = None
    key: str = field(default="", repr=False)
    policy_dir: Path | None = None


def judged_model(
    name: str,
    profile: Profile,
    scratch: Path,
    *,
    run: Path | None,
    runs: Path,
    endpoint: Mapping[str, object],
) -> JudgedModel:
    """Find and open the model with a name.

    Args:
        name: an endpoint of the profile, URL#MODEL or URL,URL#MODEL, a model directory, or a
            registered model.
        profile: profile with the endpoints.
        scratch: folder for the download of a registered model.
        run: run whose registry is used; None: the newest run in `runs`.
        runs: folder of the runs.
        endpoint: settings of an endpoint that is given as URL#MODEL.

    Raises:
        EngineError: the endpoint's settings or key are invalid.
        PolicyError: the folder is no model directory.
        RegistryError: no such model.
    """
    if name.startswith(("http://", "https://")):
        return _endpoint(name, _endpoint_at(name, endpoint))
    if name in profile.endpoints:
        return _endpoint(name, profile.endpoints[name])
    if _is_folder(name):
        return _directory(name, Path(name), run, runs)
    return _registered(name, scratch, run, runs)


def _endpoint_at(name: str, settings: Mapping[str, object]) -> EvaluatedEndpointConfig:
    """The endpoint of URL#MODEL; errors do not quote a URL, which may contain a password."""
    url, model = urldefrag(name)
    servers = {"url": url.split(","), "model": model}
    try:
        config = EvaluatedEndpointConfig.model_validate({**servers, **settings})
    except ValidationError as error:
        faults = "; ".join(fault_lines(error, EvaluatedEndpointConfig))
        raise EngineError(f"the endpoint is invalid: {faults}") from None  # the cause has the URL
    if not model:
        raise EngineError(
            f"{url}: the model is missing. Write it as {url}#MODEL, with the server's name of the "
            "model"
        )
    return config


def _endpoint(name: str, config: EvaluatedEndpointConfig) -> JudgedModel:
    key = ""
    if config.key_variable:
        key = os.environ.get(config.key_variable, "").strip()
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise EngineError(
                f"the environment variable {config.key_variable} for the API key is not set, or "
                "contains no key"
            )
    facts: dict[str, object] = {
        "kind": "endpoint",
        "url": config.url,
        "model": config.model,
        "max_tokens": config.max_tokens,
        "prompt_price": config.prompt_price,
        "completion_price": config.completion_price,
    }
    return JudgedModel(
        name=name,
        # finished attempts stay valid where a server is added behind the first
        digest=json_digest([config.urls[0], config.model, config.max_tokens]),
        training=Training.not_known(f"what {config.model} at {config.urls[0]} was trained on"),
        facts=facts,
        recovery=(
            f"a request is sent up to {config.attempts} times with {config.timeout_s:g} s each, "
            f"and after unusable answers up to {config.asks} times; {config.concurrency} attempts "
            "in parallel"
        ),
        endpoint=config,
        key=key,
    )


def _is_folder(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except OSError:  # too long for a path
        return False


def _directory(name: str, path: Path, run: Path | None, runs: Path) -> JudgedModel:
    # checked first, because the digest of an arbitrary folder may take an hour
    if not (path / "config.json").is_file():
        raise PolicyError(
            f"{name}: not a model directory (no config.json). Give one like "
            f"RUN/trained_policy/policy; for a registered model write {name}@challenger"
        )
    digest = policy_files_digest(path)
    try:
        registry = open_registry(run, None, runs).model
    except RegistryError:
        registry = None  # nobody but the folder itself may know the model's training
    return JudgedModel(
        name=name,
        digest=digest,
        training=training_of_directory(path, registry),
        facts={"kind": "policy", "directory": str(path)},
        recovery="",
        policy_dir=path,
    )


def _registered(name: str, scratch: Path, run: Path | None, runs: Path) -> JudgedModel:
    try:
        wanted = parsed_reference(name)
        model_name, reference = wanted.model, wanted.alias or wanted.version
    except RegistryError:
        model_name, reference = name.removeprefix("models:/"), CHALLENGER
    try:
        model = open_registry(run, model_name, runs).model
        version = model.version(reference)
    except RegistryError as error:
        raise RegistryError(
            f"{name}: no endpoint of the profile, no folder, and no registered model: {error}"
        ) from error
    return JudgedModel(
        name=name,
        digest=version.policy_digest,
        training=training_of_version(model, version, run_behind(model)),
        facts={"kind": "policy", "version": version.label},
        recovery="",
        policy_dir=fetch_policy(model, version, scratch / "policy"),
    )
