"""The client of one vLLM server: requests with retries, and checked answers.

Errors name the address, the request and the remedy; never a header, which holds the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager
from typing import Literal

import httpx2
import tenacity
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from espalier.config import VllmConfig
from espalier.records import EngineError, ServerAwayError

_LONGEST_BACKOFF_S = 8.0
READY_POLL_S = 0.25
"""Pause before a server that is not there yet is asked again."""
_HEALTH_WITHIN_S = 5.0
_OPENED = "espalier_opened"
"""Entry of a response's `extensions`: whether a connection was opened for it."""
_EXCERPT = 300
"""Most characters of a server's message that an error quotes."""


class _Logprobs(BaseModel):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    """For each position: the sampled token and the requested ones, by `token_id:ID`."""


class _CompletionChoice(BaseModel):
    finish_reason: Literal["stop", "length", "abort"]
    token_ids: list[int]
    logprobs: _Logprobs

    @field_validator("token_ids")
    @classmethod
    def _are_some(cls, token_ids: list[int], info: ValidationInfo) -> list[int]:
        if not token_ids and info.data.get("finish_reason") != "abort":
            raise ValueError("no token was sampled")
        return token_ids


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
    is_of_new_connection: bool = False
    """Whether a connection was opened for it. A server that was restarted has closed the others."""
    policy_version: int = 0
    """Version of the weights that sampled it."""

    @property
    def is_cut(self) -> bool:
        """Whether the server broke it off, as it does for an exchange of weights."""
        return self.choices[0].finish_reason == "abort"

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

    def __init__(
        self, config: VllmConfig, url: str, host: str, *, connections: int, backoff_s: float = 0.5
    ) -> None:
        """Prepare the connections to `url`; each request names `host` as the one it is for."""
        self.config = config
        self.url = url
        self.given_up = ""
        """The request of an exchange of weights that was cancelled before its answer came."""
        self._backoff_s = backoff_s
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers={"Host": host, **_authorization(config)},
            verify=url.startswith("https"),  # reading the CA bundle takes 0.3 s
            timeout=httpx2.Timeout(config.request_timeout_s, pool=None),
            limits=httpx2.Limits(max_connections=connections + 1),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def wait_until_ready(self) -> None:
        """Return once the server is healthy and serves the policy.

        Raises:
            ServerAwayError: it is not ready within `ready_timeout_s`.
            EngineError: it serves another model.
        """
        asking = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(lambda fault: fault is not None),
            stop=tenacity.stop_after_delay(self.config.ready_timeout_s),
            wait=tenacity.wait_fixed(READY_POLL_S),
            retry_error_callback=_last_result,
        )
        if (fault := await asking(self.health_fault)) is not None:
            raise ServerAwayError(
                f"{self.url}: no healthy vLLM server after "
                f"{self.config.ready_timeout_s:g} s ({fault}). Start one, correct "
                "rollout.vllm.urls, or raise rollout.vllm.ready_timeout_s"
            )
        names = list(await self.models())
        if self.config.model not in names:
            raise EngineError(
                f"{self.url} serves {', '.join(names) or 'nothing'}, not "
                f"{self.config.model!r}. Start it with --served-model-name "
                f"{self.config.model}, or set rollout.vllm.model"
            )

    async def models(self) -> dict[str, str]:
        """Name -> directory of each model and adapter that the server serves."""
        rows = (await self.call("GET", "/v1/models")).get("data")
        listed = rows if isinstance(rows, list) else []
        return {str(row.get("id")): str(row.get("root")) for row in listed}

    async def complete(
        self, payload: Mapping[str, object], *, attempts: int | None = None
    ) -> Answer:
        """Request one completion.

        Args:
            payload: the request's body.
            attempts: attempts at it; None means as many as the profile says.

        Raises:
            ServerAwayError: no attempt was answered.
            EngineError: the server refuses it, or answers without token ids or log-probs.
        """
        path = "/v1/completions"
        response = await self.request("POST", path, payload, attempts=attempts)
        try:
            answer = Answer.model_validate(self._json(path, response))
        except ValidationError as error:
            raise EngineError(self._unusable(error)) from error
        choice = answer.choices[0]
        if len(choice.token_ids) != len(choice.logprobs.token_logprobs):
            raise EngineError(
                f"{self.url}: {len(choice.token_ids)} token ids came with "
                f"{len(choice.logprobs.token_logprobs)} log-probs; they must pair up. Is a proxy "
                "between that cuts answers?"
            )
        if answer.model != payload["model"]:
            raise EngineError(
                f"{self.url}: requested {payload['model']!r}, was answered "
                f"by {answer.model!r}; correct rollout.vllm.model"
            )
        answer.is_of_new_connection = response.extensions.get(_OPENED, False)
        return answer

    async def call(
        self, method: str, path: str, payload: Mapping[str, object] | None = None
    ) -> dict[str, object]:
        """Send one request and return the JSON object of the answer.

        Broken connections and server errors are retried with a doubling pause; a request carries
        its seed, so a retry gives the same answer.

        Raises:
            ServerAwayError: still failing after `attempts`, or slower than `request_timeout_s`.
            EngineError: refused, or answered by something else than a JSON object.
        """
        return self._json(path, await self.request(method, path, payload))

    async def request(
        self,
        method: str,
        path: str,
        payload: Mapping[str, object] | None = None,
        *,
        attempts: int | None = None,
    ) -> httpx2.Response:
        """Send one request, again where `call` does, and return any answer below status 500."""
        limit = attempts or self.config.attempts
        repeating = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_transient),
            stop=tenacity.stop_after_attempt(limit),
            wait=tenacity.wait_exponential(multiplier=self._backoff_s, max=_LONGEST_BACKOFF_S),
            reraise=True,
        )
        try:
            return await repeating(self._send, method, path, payload)
        except httpx2.TimeoutException as error:
            raise ServerAwayError(
                f"{self.url}{path}: no answer within "
                f"{self.config.request_timeout_s:g} s ({type(error).__name__}). Lower "
                "rollout.max_rows, or raise rollout.vllm.request_timeout_s"
            ) from error
        except (httpx2.TransportError, _ServerFault) as error:
            said = error if isinstance(error, _ServerFault) else f"{type(error).__name__}: {error}"
            raise ServerAwayError(
                f"{self.url}{path}: failed {limit} times, last with "
                f"{said}. Look into the server's log; raise rollout.vllm.attempts if it only "
                "restarts slowly"
            ) from error

    async def _send(
        self, method: str, path: str, payload: Mapping[str, object] | None
    ) -> httpx2.Response:
        opened = False

        async def trace(event: str, _info: object) -> None:
            nonlocal opened
            opened = opened or event == "connection.connect_tcp.started"

        extensions = {"trace": trace}
        response = await self._http.request(method, path, json=payload, extensions=extensions)
        response.extensions[_OPENED] = opened
        if response.status_code >= 500:
            raise _ServerFault(f"HTTP {response.status_code}: {response.text[:_EXCERPT]}")
        return response

    async def health_fault(self) -> str | None:
        """Why the server is not healthy now; None if it is."""
        try:
            response = await self._http.get("/health", timeout=_HEALTH_WITHIN_S)
        except httpx2.TransportError as error:
            return f"{type(error).__name__}: {error}"
        return None if response.is_success else f"HTTP {response.status_code}"

    def _json(self, path: str, response: httpx2.Response) -> dict[str, object]:
        if response.status_code in (401, 403):
            raise EngineError(
                f"{self.url}{path}: the server refuses the key (HTTP "
                f"{response.status_code}). Put its --api-key into the file rollout.vllm.key_file"
            )
        if not response.is_success:
            raise EngineError(
                f"{self.url}{path}: HTTP {response.status_code}: {response.text[:_EXCERPT]}"
            )
        try:
            body = response.json()
        except ValueError as error:
            raise EngineError(
                f"{self.url}{path}: the answer is not JSON; is this a vLLM server?"
            ) from error
        if not isinstance(body, dict):
            raise EngineError(f"{self.url}{path}: the answer is not a JSON object")
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
        return f"{self.url}/v1/completions: unusable answer ({where}). {cause}"


class OpenRequests:
    """Requests for completions that one server has not answered yet; for one event loop."""

    def __init__(self) -> None:
        self._models: dict[asyncio.Task[Answer | None], str] = {}
        self._may_begin = asyncio.Event()
        self._may_begin.set()

    @property
    def models(self) -> set[str]:
        """Names of the models and adapters that are asked now."""
        return set(self._models.values())

    @property
    def is_held(self) -> bool:
        """Whether new requests wait."""
        return not self._may_begin.is_set()

    async def may_begin(self) -> None:
        """Wait while requests are held."""
        while self.is_held:
            await self._may_begin.wait()

    async def answer(
        self, model: str, asking: Coroutine[object, object, Answer | None]
    ) -> Answer | None:
        """Await the answer to a request of `model`; None if it was withdrawn, or `asking` is."""
        task = asyncio.create_task(asking)
        self._models[task] = model
        try:
            await asyncio.wait([task])
        finally:
            del self._models[task]
            if not task.done():  # this coroutine was cancelled
                task.cancel()
                await asyncio.wait([task])
        return None if task.cancelled() else task.result()

    @contextmanager
    def held(self) -> Generator[None]:
        """Within the block no request begins; those that have begun go on."""
        self._may_begin.clear()
        try:
            yield
        finally:
            self._may_begin.set()

    async def withdraw(self) -> None:
        """Cancel the requests that the server has not answered; they are sent again later."""
        tasks = list(self._models)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


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
