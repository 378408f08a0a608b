"""Profile sections `rollout` and `serving`: how episodes are sampled, how a policy is served."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from espalier.config.data import Section


class VllmConfig(Section):
    """An OpenAI-compatible vLLM server; `rollout/engines/vllm.py` says how to start one."""

    url: str = ""
    """Its address, as http://host:8000; required with rollout.engine = "vllm"."""
    model: str = Field(default="policy", min_length=1)
    """The name that it serves the policy under (--served-model-name)."""
    key_file: Path | None = None
    """File that holds the server's API key; unset where it asks for none."""
    ready_timeout_s: float = Field(default=300.0, gt=0)
    """How long a server that is not up yet is waited for."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """How long one action may take, queueing in the server included."""
    attempts: int = Field(default=5, ge=1)
    """How often a request is sent before a broken connection or a server error counts."""
    exchange_timeout_s: float = Field(default=1800.0, gt=0, exclude_if=lambda it: it == 1800)
    """How long an exchange of weights may take, all its requests together: the server first ends
    what it is writing."""

    @field_validator("url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"{url!r} is no address; write it as http://host:8000")
        if parts.username or parts.password:
            raise ValueError(
                "an address must not carry a user or password: addresses are logged. "
                "Put the key into a file and name it as rollout.vllm.key_file"
            )
        return url.rstrip("/")


class ExplorationConfig(Section):
    """How training samples other than the policy would by itself; evaluation never does so."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Tokens are drawn from the fewest that hold this mass; the trainer scores them likewise."""
    top_k: int = Field(default=0, ge=0)
    """Tokens are drawn from so many of the likeliest; 0 draws from all."""

    kind_epsilon: float = Field(default=0.0, ge=0, lt=1)
    """How often the kind of an action, a tool call or an answer, is drawn and not chosen; log-probs
    are those of the mixture. Needs a tokenizer that writes every tag as one token."""


class RolloutConfig(Section):
    """Which engine samples, and how many episodes it carries side by side."""

    engine: Literal["lockstep", "vllm"] = "lockstep"
    """"lockstep" decodes in this process, on the GPU of `hardware.device` or the CPU; "vllm" asks
    the server of [rollout.vllm]."""
    max_rows: int = Field(default=256, ge=1)
    """Episodes that are played side by side."""
    tool_workers: int = Field(default=0, ge=0)
    """Tool calls that run in threads side by side. 0 makes them in the loop that decodes, without a
    time limit: for tools that answer at once, as the embedded search does, and repeatable."""
    tool_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds a tool call may take, without its wait for a sandbox. Programs that it runs in
    sandboxes are ended after so long together, and the policy reads so; a tool that is slow by
    itself ends its episode as lost."""
    deadline_s: float = Field(default=3600.0, gt=0, exclude_if=lambda it: it == 3600)
    """If no episode gets an answer of a tool or a message of the policy for so long, and the limits
    of a tool call and an agent on top, the run ends with an error that names what they wait for."""
    max_replays: int = Field(default=2, ge=0)
    """How often an episode that was lost from outside (a drained node, a server that hangs) is
    played again where scores are compared: held-out and dev questions, pass rates. Training drops
    it."""
    token_drift: Literal["count", "fail"] = "count"
    """What becomes of a run in which an episode's tokens are not those of the chat template's whole
    rendering: turns are counted, or the run fails."""
    compare_every: int = Field(default=16, ge=0)
    """Every so many episodes one is compared; 1 compares all, 0 none."""
    speculation: Literal["off", "greedy", "all"] = Field(
        default="greedy", exclude_if=lambda it: it == "greedy"
    )
    """Sessions whose actions the "lockstep" engine guesses from what it sampled after the same
    prompt before, to read several tokens at once; the tokens are the same, and their log-probs up
    to rounding. "greedy": those of temperature 0, such as the dev questions, which are asked again
    and again; "all"; or "off"."""
    exploration: ExplorationConfig = ExplorationConfig()
    vllm: VllmConfig = VllmConfig()

    @model_validator(mode="after")
    def _a_server_has_an_address(self) -> Self:
        if self.engine == "vllm" and not self.vllm.url:
            raise ValueError(
                'rollout.engine = "vllm" needs rollout.vllm.url = "http://host:8000"; start one '
                "with `vllm serve` as rollout/engines/vllm.py says"
            )
        return self

    @model_validator(mode="after")
    def _the_engine_can_guess(self) -> Self:
        if self.engine == "vllm" and self.speculation == "all":
            raise ValueError(
                'rollout.speculation = "all" is of rollout.engine = "lockstep"; a server of '
                '"vllm" guesses as it was started to: leave speculation out'
            )
        return self


class ControllerConfig(Section):
    """The controller that lets a Deployment follow `champion`."""

    poll_s: float = Field(default=5.0, gt=0)
    """Seconds between two looks at the alias and the Deployment."""
    max_backoff_s: float = Field(default=60.0, gt=0)
    """Longest pause while the API server or MLflow is away."""
    health_attempts: int = Field(default=5, ge=1)
    """Probes in a row that the new version may leave unanswered, once its pods are ready."""


class EnvironmentServerConfig(Section):
    """Bounds of the server of a family's tasks: `espalier environments serve`."""

    max_sessions: int = Field(default=512, ge=1)
    """Episodes that are played at one time; a client beyond them is told so, and closed."""
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """How long a session may be silent between two messages."""
    step_timeout_s: float = Field(default=60.0, gt=0)
    """How long a reset, a step or a score may take."""


class ServingConfig(Section):
    """Bounds of the OpenAI-compatible endpoint; what is beyond them is refused at once."""

    rows: int = Field(default=64, ge=1)
    """Answers that are written side by side; the others wait, first come first served."""
    max_waiting: int = Field(default=256, ge=0)
    """Answers that may wait; a request that would make more is refused with status 429."""
    max_choices: int = Field(default=16, ge=1)
    """Answers that one request may ask for: its prompts times `n`."""
    max_context: int = Field(default=32_768, ge=2)
    """Tokens of a prompt and its answer, where the policy was built for more."""
    max_body_bytes: int = Field(default=1 << 18, ge=1024)
    """Largest body of a request; a larger one is refused with status 413."""
    max_connections: int = Field(default=1024, ge=1)
    """Open connections, and 16 more for probes. When all are taken, the one that has been silent or
    slow for longest is closed; where all are being answered, a request gets status 503."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """How long the headers of a request may take to arrive, and TLS to be agreed upon."""
    body_timeout_s: float = Field(default=10.0, gt=0)
    """How long the body of a request may take to arrive."""
    idle_timeout_s: float = Field(default=30.0, gt=0)
    """How long a connection may stay open between two requests."""
    write_timeout_s: float = Field(default=30.0, gt=0)
    """How long a client may leave its answer unread; then the connection is dropped."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """How long an answer may take, its wait for a row included."""
    linger_s: float = Field(default=5.0, ge=0)
    """How long requests are still taken after SIGTERM: a cluster sends some until every node has
    heard that the pod is leaving."""
    drain_s: float = Field(default=40.0, gt=0)
    """How long after that answers may be finished."""
    api_keys_file: Path | None = None
    """File of the digests of API keys, as `espalier api-key` writes it; read again when it changes.
    Without it, and without the variable ESPALIER_API_KEYS, everybody who reaches it may ask."""
    guard_health: bool = False
    """Whether `/health` and `/metrics` need a key too. `/healthz` and `/readyz`, which say no more
    than "ok", never do: a kubelet has none."""
    tls_certificate_file: Path | None = None
    """Certificate of the endpoint in PEM, followed by those between it and its authority; without
    one it speaks plain HTTP. A renewed one is taken up while it runs."""
    tls_key_file: Path | None = None
    """Private key of the certificate in PEM, without a passphrase."""
    controller: ControllerConfig = ControllerConfig()
    environments: EnvironmentServerConfig = EnvironmentServerConfig()

    @model_validator(mode="after")
    def _a_request_fits(self) -> Self:
        places = self.rows + self.max_waiting
        if self.max_choices > places:
            raise ValueError(
                f"serving.max_choices={self.max_choices} answers of one request exceed the "
                f"{places} places (rows={self.rows} + max_waiting={self.max_waiting}), so it could "
                "never be taken; lower the one or raise the others"
            )
        return self

    @model_validator(mode="after")
    def _a_certificate_has_its_key(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError(
                "serving.tls_certificate_file and serving.tls_key_file come together: set both for "
                "HTTPS, or neither"
            )
        return self
