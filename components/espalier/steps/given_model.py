"""The model that a run starts from: checks it, and fetches a champion or, in a pod, a named model.

A run on this machine reads named models from its own cache. Pods have no persistent cache, so they
fetch a named model from S3, from ARTIFACTS/models/NAME-DIGEST, where `espalier models push` puts
it; ARTIFACTS is the variable ESPALIER_ARTIFACTS.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from espalier.config import (
    NAMED_MODELS,
    ModelReference,
    Profile,
    named_reference,
    open_named_model,
)
from espalier.dialects import foreign_format
from espalier.policy.reading import weight_files
from espalier.records import Message, PolicyError, RegistryError
from espalier.records.message import ToolSpec
from espalier.steps.kept import ARTIFACTS_VARIABLE
from espalier.storage import joined, open_location

_TRAINED_BYTES = 16
"""Bytes per parameter in training, in float32: weight, gradient, and two moments of AdamW.
Activations, the kept best weights and the frozen model of a KL term are not included."""
_GIB = 2**30
MODELS = "models"
"""Folder of named models below the address of artifacts."""
_PROBED_TOOL = ToolSpec(
    name="search",
    description="Search for a text.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}},
)
"""Shown to a chat template to see whether it renders tools."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class MemoryBudget(NamedTuple):
    """Memory of the machine, or of the device that trains, in bytes."""

    name: str
    total: int
    free: int


def check_given_model(profile: Profile, say: Callable[[str], None]) -> None:
    """Check the model of `policy.model`, if it is set, before any stage runs.

    Reads config, tokenizer and headers of the weights, and renders a prompt with a tool, in about a
    second. Whether every tensor fits the config is only checked when the weights are loaded.

    Args:
        profile: profile of a run on this machine; that of a submitted run has a path in the image.
        say: takes a warning where training may run out of memory, or the model's own call format
            is none of the dialects.

    Raises:
        PolicyError: a named model that was not added, no such directory, a name on the Hub, no
            causal language model, a tokenizer without a chat template, missing weights, or a model
            that is too large to be trained in the memory.
    """
    model = profile.policy.directory
    if model is None:
        return
    if (named := named_reference(profile.policy.model)) is not None:
        open_named_model(named)
    elif not model.is_dir():
        raise PolicyError(missing_model(model))
    from espalier.policy.loading import load_tokenizer  # it imports torch

    tokenizer = load_tokenizer(model)
    template = tokenizer.chat_template
    if not template:
        raise PolicyError(
            f"policy.model = {model}: its tokenizer has no chat template. Set one in "
            "tokenizer_config.json, or use the instruction-tuned model of the same family."
        )
    _require_causal_lm(model)
    family = foreign_format(str(template))
    if family is not None and profile.policy.dialect == "auto":
        fault = (
            f"the call format of {family} is not supported"
            if family
            else "its chat template writes calls in a form that is not read here"
        )
        say(
            f"warning: policy.model = {model}: {fault}; "
            f'"{profile.policy.model_dialect}" is taught instead, which the model has not seen. '
            "Give it more demonstrations and warm-start steps, or name a dialect of your own as "
            "policy.dialect = module:Class"
        )
    from espalier.dialects.dialect import Dialect  # it imports transformers

    dialect = Dialect(tokenizer, (_PROBED_TOOL,), name=profile.policy.dialect)
    dialect.prompt_ids((Message(role="user", content="?"),))
    parameters, memory = stored_parameters(model), _training_memory(profile)
    if memory:
        processes = profile.training.processes if profile.training.sharded else 1
        if warning := memory_fault(model, parameters, memory, processes=processes):
            say(f"warning: {warning}")


def memory_fault(
    model: Path, parameters: int, memory: MemoryBudget, *, processes: int
) -> str | None:
    """The warning for a model that may not fit into memory; None if it fits.

    A model that needs more than the total memory is an error: the kernel would kill the run after
    hours, without a message. One that needs more than the free memory may still fit later.

    Args:
        model: directory of the model.
        parameters: number of parameters of the whole model.
        memory: memory of the machine or device that trains it.
        processes: number of processes that share weights and optimizer state.

    Raises:
        PolicyError: it needs more than the total memory.
    """
    need = _TRAINED_BYTES * parameters // processes
    if need <= memory.free:
        return None
    warning = (
        f"policy.model = {model}: training its {parameters / 1e9:.2f} billion parameters takes at "
        f"least {need / _GIB:.1f} GiB (weights, gradients and two moments, in float32), and "
        f"{memory.name} has {memory.total / _GIB:.1f} GiB, {memory.free / _GIB:.1f} GiB of them "
        "free. Choose a smaller model"
    )
    if need > memory.total:
        raise PolicyError(
            f"{warning}, a machine with more, or split it with training.sharded = true and more "
            "training.processes."
        )
    return f"{warning} or free memory, if the run is killed."


def missing_model(model: Path) -> str:
    """The error message for a `policy.model` that is not on this machine."""
    if (named := named_reference(model)) is not None:
        return named.missing
    name = str(model)
    if not model.is_absolute() and _HUB_NAME.fullmatch(name):
        local = Path("models") / model.name
        return (
            f"policy.model = {name}: no such directory. If it is a name on the Hugging Face Hub: "
            "runs read only local directories. Download it once, `hf download "
            f"{name} --local-dir {local}`, and set policy.model = {local}"
        )
    return (
        f"policy.model = {name}: no such directory; give a Hugging Face model directory, or a name "
        f"of `espalier models list` ({', '.join(NAMED_MODELS)})"
    )


def _require_causal_lm(model: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = json.loads((model / "config.json").read_bytes()).get("model_type")  # known to be valid
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise PolicyError(
            f"policy.model = {model}: config.json has model_type = {kind!r}, which is no causal "
            "language model in the installed transformers. Use another model, or a newer release."
        )


def stored_parameters(model: Path) -> int:
    """Number of parameters in the headers of the safetensors files.

    Raises:
        PolicyError: there are none, or a file is missing or cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    files = weight_files(model)
    count = 0
    for path in files:
        try:
            with safe_open(path, framework="np") as weights:
                names = weights.keys()
                count += sum(math.prod(weights.get_slice(name).get_shape()) for name in names)
        except (OSError, SafetensorError) as error:
            raise PolicyError(
                f"policy.model = {model}: {path.name} cannot be read ({error}). Copy or download "
                "it again."
            ) from error
    return count


def _training_memory(profile: Profile) -> MemoryBudget | None:
    import torch

    from espalier.policy.hardware import Hardware

    device = Hardware.from_config(profile.hardware).device
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return MemoryBudget(f"the GPU {torch.cuda.get_device_name(device)}", total, free)
    return machine_memory()


def machine_memory(root: Path = Path("/")) -> MemoryBudget | None:
    """Memory of this machine, or of its container (cgroup v2); None outside of Linux."""
    meminfo = root / "proc/meminfo"
    if not meminfo.is_file():
        return None
    table = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    total, free = (1024 * int(table[key].split()[0]) for key in ("MemTotal", "MemAvailable"))
    limit, used = root / "sys/fs/cgroup/memory.max", root / "sys/fs/cgroup/memory.current"
    if limit.is_file() and (text := limit.read_text().strip()) != "max":
        allowed = int(text)
        free = min(free, max(0, allowed - int(used.read_text())))
        total = min(total, allowed)
    return MemoryBudget("this machine", total, free)


CHAMPION_FOLDER = "champion"


def with_starting_policy(profile: Profile, folder: Path) -> Profile:
    """Replace `start = "champion"` by the champion's directory as `policy.model`.

    The champion is fetched once: a resumed run continues with the champion that it started with,
    even if another version has been promoted since.

    Args:
        profile: the run's profile.
        folder: parent of the new folder `champion` with its files.

    Raises:
        RegistryError: the model has no champion, its files differ from the registered ones, or
            MLFLOW_TRACKING_URI is not set.
    """
    if profile.policy.start != "champion":
        return profile
    destination = (folder / CHAMPION_FOLDER).resolve()
    if not destination.exists():
        from espalier.registry.model import champion_policy

        tracking_uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not tracking_uri:
            raise RegistryError(
                'policy.start = "champion" needs the registry: set MLFLOW_TRACKING_URI'
            )
        champion_policy(tracking_uri, profile.model_name, destination, profile.named_after)
    policy = profile.policy.model_copy(update={"start": "base", "model": destination})
    return profile.model_copy(update={"policy": policy})


def push_named_model(
    reference: ModelReference, address: str, environment: Mapping[str, str]
) -> str:
    """Copy a named model from this machine to S3 for pods, unless S3 has it already.

    Args:
        reference: name and digest of the model.
        address: s3://bucket/prefix, the value of ESPALIER_ARTIFACTS in pods.
        environment: S3 endpoint and credentials.

    Returns:
        The URI of the copy.

    Raises:
        PolicyError: the model is not on this machine.
        StorageError: S3 refuses or is unreachable.
    """
    manifest = open_named_model(reference)
    place = open_location(joined(address, MODELS, reference.folder_name), environment)
    found = place.manifest()
    if found is None or found.content != manifest.content or place.lost_files(found):
        place.publish(reference.directory)
    return place.uri


def bring_named_model(
    profile: Profile, environment: Mapping[str, str], say: Callable[[str], None]
) -> None:
    """Fetch the named model of `profile` from S3 to this pod, unless the pod has it already.

    Args:
        profile: the run's profile.
        environment: address of artifacts, S3 endpoint and credentials.
        say: takes a line for a model that is fetched.

    Raises:
        PolicyError: the model is not in S3, or ESPALIER_ARTIFACTS is not set.
        StorageError: S3 refuses or is unreachable.
    """
    reference = named_reference(profile.policy.model)
    if reference is None or reference.directory.exists():
        return
    artifacts, name = environment.get(ARTIFACTS_VARIABLE), reference.model.name
    if not (artifacts and reference.digest):
        raise PolicyError(reference.missing)
    place = open_location(joined(artifacts, MODELS, reference.folder_name), environment)
    if place.manifest() is None:
        raise PolicyError(
            f"policy.model = {reference}: not in {place.uri}, from which pods fetch it. Put it "
            "there once, from a machine that has it: `espalier models push "
            f"{name} --to {artifacts}`"
        )
    say(f"fetches {place.uri}")
    place.fetch(reference.directory)
    open_named_model(reference)
