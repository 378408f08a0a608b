"""Reading a model directory of somebody else: no code of it runs, and a fault of it names it.

transformers runs a directory's own Python files (`auto_map`) after a prompt on the terminal, which
`yes |` answers, and unpickles weights. Here a directory is data: weights are safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open

from espalier.records import PolicyError

AS_DATA: Final[dict[str, bool]] = {"local_files_only": True, "trust_remote_code": False}
"""Arguments of every `from_pretrained`: no network, and no prompt whether to run code."""
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@contextmanager
def reading(directory: Path, what: str) -> Generator[None]:
    """Within the block, an error of a library that reads the directory is a `PolicyError`.

    transformers and tokenizers raise any class of error for a file that is not what they expect.

    Args:
        directory: the directory that is read.
        what: what it is read as, for the message.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, PolicyError | MemoryError):
            why = str(error) or type(error).__name__
            if "trust_remote_code" in str(error):
                why = (
                    "its class is Python code in the directory (auto_map), which is never run "
                    "here; take a model whose class transformers has"
                )
            if broken := _broken_file(directory):
                raise PolicyError(
                    f"{directory / broken}; cannot be loaded as {what}. Copy the model again "
                    f"({why[:200]})"
                ) from error
            raise PolicyError(f"{directory}: cannot be loaded as {what}: {why}") from error
        raise


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def _broken_file(directory: Path) -> str:
    """Return the name and fault of the first damaged or missing file; "" if there is none."""
    for path in sorted(directory.glob("*.json")):
        try:
            json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return f"{path.name}: no JSON, so the file is damaged"
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, "np"):
                pass
        except SafetensorError:
            return f"{path.name}: no whole safetensors file"
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        return f"{_TOKENIZERS[0]}: not there, and the model has no other tokenizer"
    return ""


def require_config(directory: Path) -> None:
    """Check that a directory's config.json is a JSON object.

    Raises:
        PolicyError: it is something else.
    """
    with reading(directory, "a causal LM"):
        config = json.loads((directory / "config.json").read_bytes())
        if not isinstance(config, dict):
            raise ValueError("config.json is no JSON object")


def weight_files(directory: Path) -> list[Path]:
    """Return the files of a directory's weights, which are safetensors.

    Raises:
        PolicyError: there are none but pickles, or the index is damaged or names files that are not
            there.
    """
    whole, index = directory / "model.safetensors", directory / _INDEX
    if whole.is_file():
        return [whole]
    if index.is_file():
        return _indexed(index)
    pickles = sorted(path.name for form in _PICKLES for path in directory.glob(form))
    if pickles:
        raise PolicyError(
            f"{directory}: its weights are pickles ({', '.join(pickles[:3])}), which may run code "
            "when they are read, and are not. Convert them with save_pretrained, which writes "
            "model.safetensors"
        )
    raise PolicyError(f"{directory}: has no weights: model.safetensors is expected")


class _Index(BaseModel):
    """The index of weights that are split over several files."""

    weight_map: dict[str, str] = Field(min_length=1)
    """File by tensor."""
    metadata: dict[str, Any] | None = None


def _indexed(path: Path) -> list[Path]:
    try:
        index = _Index.model_validate_json(path.read_bytes())
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise _damaged(path, f"{where} {fault['msg']}".strip()[:200]) from error
    shards = sorted(set(index.weight_map.values()))
    for shard in shards:
        if Path(shard).name != shard:
            raise _damaged(path, f"{shard[:100]!r} is no name of a file beside it")
    files = [path.parent / shard for shard in shards]
    if absent := [file.name for file in files if not file.is_file()]:
        raise PolicyError(
            f"{path}: {len(absent)} of {len(shards)} weight files are missing ({absent[0][:100]} "
            "first). Copy or download the directory again"
        )
    if index.metadata is None:
        raise _damaged(path, "it has no metadata")
    return files


def _damaged(path: Path, why: str) -> PolicyError:
    return PolicyError(f"{path}: no index of weights ({why}). Copy the model again")
