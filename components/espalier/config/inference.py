"""Profile sections `rollout` and `serving`: how episodes are sampled, how a policy is served."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from espalier.config.data import Section


class VllmConfig(Section):
    """vLLM servers that share the requests; `rollout/engines/vllm.py` says how to start one."""

    urls: tuple[str, ...] = ()
    """Addresses of the servers, such as ["http://host:8000"]; required with rollout.engine =
    "vllm". A host name with several addresses, such as a headless Service's, stands for as many
    servers. One that is lost is left out, and one that comes gets the weights and is asked."""
    exchange: Literal["weights", "adapter"] = Field(
        default="weights", exclude_if=lambda it: it == "weights"
    )
    """What the servers get after an update: all weights, or the adapter of policy.lora, for servers
    that were started on its base model with --enable-lora. Running turns go on with new weights
    where they are; with an adapter they end on the old one, and the next turn has the new one."""
    model: str = Field(default="policy", min_length=1)
    """Name under which it serves the policy (--served-model-name)."""
    key_file: Path | None = None
    """File with the server's API key; unset if it needs none."""
    ready_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds to wait for a server that is still starting."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that one action may take, including the server's queue."""
    attempts: int = Field(default=5, ge=1)
    """Attempts at a request before a broken connection or server error is reported."""
    exchange_timeout_s: float = Field(default=1800.0, gt=0, exclude_if=lambda it: it == 1800)
    """Seconds that all requests of an exchange of weights may take together."""
    shared_dir: Path | None = Field(default=None, exclude_if=lambda it: it is None)
    """Folder that the servers see under the same path, for what they load; unset where they see the
    run's own folders. Stages on Kubernetes have kubernetes.workspace_claim at /workspace. The step
    prepare_policy leaves the base policy in its folder base; one run at a time uses it."""

    @field_validator("urls", mode="before")
    @classmethod
    def _one_address_may_stand_alone(cls, urls: object) -> object:
        return (urls,) if isinstance(urls, str) and urls else urls or ()

    @field_validator("urls")
    @classmethod
    def _are_addresses_without_secrets(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r} is not an address; write it as http://host:8000")
            if parts.username or parts.password:
                raise ValueError(
                    "an address must not carry a user or password: addresses are logged. "
                    "Put the key into a file and name it as rollout.vllm.key_file"
                )
        return tuple(dict.fromkeys(url.rstrip("/") for url in urls))


class ExplorationConfig(Section):
    """Changes to the sampling distribution of training; evaluation never uses them."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: tokens are drawn from the smallest set with this probability mass, and the
    trainer scores them under the same distribution."""
    top_k: int = Field(default=0, ge=0)
    """Tokens are drawn from this many of the likeliest; 0 draws from all."""

    kind_epsilon: float = Field(default=0.0, ge=0, lt=1)
    """Probability of drawing the kind of an action (tool call or answer) uniformly instead of from
    the policy; log-probs are those of the mixture. Needs a tokenizer with one token per tag."""


class RolloutConfig(Section):
    """Engine that samples episodes, and limits of their tools."""

    engine: Literal["lockstep", "vllm"] = "lockstep"
    """"lockstep" decodes in this process, on the GPU of `hardware.device` or the CPU; "vllm" uses
    the server of [rollout.vllm]."""
    max_rows: int = Field(default=256, ge=1)
    """Most episodes that are played at the same time."""
    tool_workers: int = Field(default=0, ge=0)
    """Number of threads for tool calls. 0 makes calls in the decoding loop, without a time limit
    and in a repeatable order, for tools that answer at once, such as the embedded search."""
    tool_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that a tool call may take, not counting its wait for a sandbox. Its programs in
    sandboxes are ended when they have taken this long together, which the policy reads as an
    observation. A call that is slow outside a sandbox loses the episode."""
    deadline_s: float = Field(default=3600.0, gt=0, exclude_if=lambda it: it == 3600)
    """Seconds without any tool result or message of the policy, beyond the limits of a tool call
    and an agent, after which the run ends with an error that names what it waits for."""
    max_replays: int = Field(default=2, ge=0)
    """Further attempts at an episode lost to infrastructure (a drained node, a server that hangs),
    where scores are compared: held-out and dev questions, pass rates. Training drops it."""
    token_drift: Literal["count", "fail"] = "count"
    """Treatment of turns whose tokens differ from the chat template's rendering of the whole
    conversation: count them, or fail the run."""
    compare_every: int = Field(default=16, ge=0)
    """One in this many episodes is compared with that rendering; 1 compares all, 0 none."""
    speculation: Literal["off", "greedy", "all"] = Field(
        default="greedy", exclude_if=lambda it: it == "greedy"
    )
    """Sessions for which the "lockstep" engine drafts actions from earlier samples after the same
    prompt, to verify several tokens in one forward pass. Tokens stay the same, log-probs up to
    rounding. "greedy": sessions of temperature 0, such as dev questions, which come up again and
    again; "all"; or "off"."""
    exploration: ExplorationConfig = ExplorationConfig()
    vllm: VllmConfig = VllmConfig()

    @model_validator(mode="after")
    def _a_server_has_an_address(self) -> Self:
        if self.engine == "vllm" and not self.vllm.urls:
            raise ValueError(
                'rollout.engine = "vllm" needs rollout.vllm.urls = ["http://host:8000"]; start one '
                "with `vllm serve` as rollout/engines/vllm.py says"
            )
        return self

    @model_validator(mode="after")
    def _the_engine_can_guess(self) -> Self:
        if self.engine == "vllm" and self.speculation == "all":
            raise ValueError(
                'rollout.speculation = "all" is for rollout.engine = "lockstep"; a "vllm" server '
                "speculates as its own options say: leave speculation out"
            )
        return self


class ControllerConfig(Section):
    """Controller that makes a Deployment follow `@champion`."""

    poll_s: float = Field(default=5.0, gt=0)
    """Seconds between two checks of the alias and the Deployment."""
    max_backoff_s: float = Field(default=60.0, gt=0)
    """Longest pause while the API server or MLflow is away."""
    health_attempts: int = Field(default=5, ge=1)
    """Consecutive health probes that a new version may fail once its pods are ready."""


class EnvironmentServerConfig(Section):
    """Limits of `espalier environments serve`, the server of a family's tasks."""

    max_sessions: int = Field(default=512, ge=1)
    """Most episodes at the same time; further clients get an error, and are closed."""
    idle_timeout_s: float = Field(default=600.0, gt=0)
    """Seconds that a session may be silent between two messages."""
    step_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that a reset, a step or a score may take."""


class ServingConfig(Section):
    """Limits of the OpenAI-compatible endpoint; requests beyond them are refused at once."""

    rows: int = Field(default=64, ge=1)
    """Answers that are generated at the same time; others wait in order of arrival."""
    max_waiting: int = Field(default=256, ge=0)
    """Most waiting answers; a request that would exceed it is refused with status 429."""
    max_choices: int = Field(default=16, ge=1)
    """Most answers of one request: its prompts times `n`."""
    max_context: int = Field(default=32_768, ge=2)
    """Most tokens of a prompt and its answer, if the policy's own limit is not lower."""
    max_body_bytes: int = Field(default=1 << 18, ge=1024)
    """Largest body of a request; a larger one is refused with status 413."""
    max_connections: int = Field(default=1024, ge=1)
    """Most open connections, besides 16 for probes. When all are taken, the one that has been idle
    or slow for longest is closed; if all are being answered, a request gets status 503."""
    head_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds for the TLS handshake and the headers of a request."""
    body_timeout_s: float = Field(default=10.0, gt=0)
    """Seconds for the body of a request."""
    idle_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a connection may stay open between two requests."""
    write_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds that a client may leave its answer unread before the connection is dropped."""
    request_timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that an answer may take, including its wait for a row."""
    linger_s: float = Field(default=5.0, ge=0)
    """Seconds after SIGTERM in which requests are still accepted: a cluster sends some until every
    node knows that the pod is leaving."""
    drain_s: float = Field(default=40.0, gt=0)
    """Seconds after that in which answers may be finished."""
    api_keys_file: Path | None = None
    """File with the digests of API keys, written by `espalier api-key`, read again when it changes.
    Without it and the variable ESPALIER_API_KEYS, the endpoint is open to everybody."""
    guard_health: bool = False
    """Whether `/health` and `/metrics` need a key too. `/healthz` and `/readyz`, which only answer
    "ok", never do, since a kubelet has no key."""
    tls_certificate_file: Path | None = None
    """Certificate chain of the endpoint in PEM, its own certificate first; without one it speaks
    plain HTTP. A renewed certificate is loaded while it runs."""
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
                f"{places} places (rows={self.rows} + max_waiting={self.max_waiting}), so that it "
                "could never be accepted; lower the first or raise the others"
            )
        return self

    @model_validator(mode="after")
    def _a_certificate_has_its_key(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise ValueError(
                "serving.tls_certificate_file and serving.tls_key_file belong together: set both "
                "for HTTPS, or neither"
            )
        return self
