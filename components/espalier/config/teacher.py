"""Profile sections of models that write data: endpoints, the teacher, agent texts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from espalier.config.data import Section
from espalier.config.learning import OptimizerConfig


class ModelRequestConfig(Section):
    """Requests to a model, at a server or in this process."""

    model: str = ""
    """Name of the model at its server; without a server its directory."""
    response_format: Literal["json_schema", "json_object", "text"] = "json_schema"
    """Format that the model is constrained to; answers are checked against the schema anyway."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Sampling temperature; 0 takes the likeliest token."""
    max_tokens: int = Field(default=2048, ge=1)
    """Maximum number of tokens per answer."""
    asks: int = Field(default=3, ge=1)
    """Attempts at a question whose answers do not parse, before it counts as failed."""
    cache: Path | None = None
    """Folder with answers by the digest of their request; unset keeps none."""
    replay_only: bool = False
    """Whether to answer from the cache only; a request that it does not have is an error."""

    @model_validator(mode="after")
    def _a_replay_has_a_source(self) -> Self:
        if self.replay_only and self.cache is None:
            raise ValueError("replay_only=true needs cache = DIR: there is nothing to replay from")
        return self


class VllmBatchConfig(ModelRequestConfig):
    """vLLM in the process of the stage, with batched requests; vLLM has to be installed.

    The cache identifies the model by its directory: put other weights into another one.
    """

    batch_size: int = Field(default=256, ge=1)
    """Most requests that are decoded at the same time."""
    engine: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str]
    )
    """Further settings of vllm.LLM, such as max_model_len = 8192 or tensor_parallel_size = 2."""

    @model_validator(mode="after")
    def _the_model_is_named_once(self) -> Self:
        if "model" in self.engine:
            raise ValueError("vllm.engine.model: name the model as vllm.model")
        return self


class EndpointConfig(ModelRequestConfig):
    """An OpenAI-compatible chat endpoint; prices are per million tokens, in one currency."""

    url: str | tuple[str, ...] = ""
    """Address of the server with the API version, such as https://host/v1; a list of several
    servers of the model, which share the requests. A host name with several addresses, such as a
    headless Service's, stands for as many servers. One that is lost is left out, its requests are
    sent to others, and one that comes is asked. The first address stands for all in the cache."""
    key_file: Path | None = None
    """File with the API key; unset if the server needs none."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds that one answer may take, from the first byte sent to the last one read."""
    attempts: int = Field(default=6, ge=1)
    """Attempts at a request before a broken connection or server error is reported; those at
    servers that are left out do not count."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Longest pause between two attempts, whatever Retry-After says."""
    concurrency: int = Field(default=8, ge=1)
    """Most requests at the same time, at all servers together, as for the limits below."""
    requests_per_minute: int = Field(default=0, ge=0)
    """Rate limit of requests; 0 sets no limit."""
    tokens_per_minute: int = Field(default=0, ge=0)
    """Rate limit of tokens; 0 sets no limit."""
    prompt_price: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens, in a currency of your choice."""
    completion_price: float = Field(default=0.0, ge=0)
    """Price of a million completion tokens, in the same currency."""
    max_cost: float = Field(default=0.0, ge=0)
    """Cost limit, in the same currency: the run stops before a request that could exceed it; 0 sets
    no limit."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses of the servers; empty without any."""
        return tuple(filter(None, (self.url,) if isinstance(self.url, str) else self.url))

    @property
    def name(self) -> str:
        """Addresses and model, for messages."""
        return f"{', '.join(self.urls)} ({self.model})"

    @field_validator("url")
    @classmethod
    def _are_addresses_without_secrets(cls, url: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(url, str):
            return _checked_address(url) if url else ""
        several = tuple(dict.fromkeys(map(_checked_address, url)))
        return several if len(several) > 1 else "".join(several)

    @model_validator(mode="after")
    def _limits_can_be_kept(self) -> Self:
        if self.max_cost and not (self.prompt_price or self.completion_price):
            raise ValueError(
                f"max_cost={self.max_cost} limits nothing without prices; set prompt_price and "
                "completion_price (per million tokens)"
            )
        return self


def _checked_address(url: str) -> str:
    """Return an address without a slash at its end.

    Raises:
        ValueError: it is none, or holds what may be a secret.
    """
    parts = urlsplit(url)
    # checked first, because the next message quotes the address
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(
            "an address must not carry a user, password, query or fragment: addresses are "
            "logged. Put the key into a file and name it as key_file"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an address; write it as https://host/v1")
    return url.rstrip("/")


class TeacherConfig(Section):
    """The teacher, which plans, judges and reasons for the agent texts."""

    kind: Literal["embedded", "endpoint", "vllm"] = "embedded"
    """"embedded" reads the knowledge base; "endpoint" uses the server of [teacher.endpoint]; "vllm"
    runs [teacher.vllm] in the process of the stage, if vLLM is installed."""
    mistake_share: float = Field(default=0.5, ge=0, le=1)
    """Share of wrong plans by the embedded teacher, so that its judge has some to reject; half of a
    model's plans were wrong before judging (AgentFounder, arXiv:2509.13310)."""
    endpoint: EndpointConfig = EndpointConfig()
    vllm: VllmBatchConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    """Model for kind = "vllm". Unset, it is in no digest."""

    @property
    def model(self) -> EndpointConfig | VllmBatchConfig | None:
        """Settings of the teacher's model; None for the embedded teacher."""
        return {"embedded": None, "endpoint": self.endpoint, "vllm": self.vllm}[self.kind]

    @model_validator(mode="after")
    def _an_endpoint_has_an_address(self) -> Self:
        if self.kind == "endpoint" and not (self.endpoint.url and self.endpoint.model):
            raise ValueError(
                'teacher.kind = "endpoint" needs teacher.endpoint.url = "https://host/v1" and '
                "teacher.endpoint.model"
            )
        if (self.kind == "vllm") != bool(self.vllm and self.vllm.model):
            raise ValueError(
                'teacher.kind = "vllm" and teacher.vllm.model = "DIR" need each other; set both or '
                "none"
            )
        return self


class AgentTextsConfig(Section):
    """Numbers of synthesized texts of agent behaviour, by kind; 0 writes none."""

    memories: int = Field(default=0, ge=0)
    """Number of entities whose documents become memories to plan with (FAS planning)."""
    questions_per_memory: int = Field(default=4, ge=1, le=4)
    """Differently styled questions about one memory, each with one plan."""
    reasoning_tasks: int = Field(default=0, ge=0)
    """Number of training tasks that are guessed and then reasoned over (FAS reasoning)."""
    decisions: int = Field(default=0, ge=0)
    """Number of trajectories whose steps become choices with a known outcome (HAS), half of them
    failed attempts where there are enough."""
    alternatives: int = Field(default=2, ge=1, le=7)
    """Further candidate actions at every step of a decision, besides the one taken."""
    negatives: int = Field(default=0, ge=0)
    """Number of demonstrations of calls that must not be made, for the warm start."""

    @property
    def pretraining_texts(self) -> int:
        """Upper bound of the texts that continued pre-training reads."""
        plans = self.memories * self.questions_per_memory
        return plans + self.reasoning_tasks + self.decisions


class ContinuedPretrainingConfig(Section):
    """Next-token training on the agent texts, between base policy and warm start."""

    enabled: bool = False
    """Whether the policy is trained on the agent texts before its warm start."""
    steps: int = Field(default=200, ge=1)
    """Optimizer steps."""
    texts_per_step: int = Field(default=32, ge=1)
    """Texts in a batch."""
    optimizer: OptimizerConfig = OptimizerConfig()
    checkpoint_every: int = Field(default=50, ge=1)
    """Steps between two checkpoints."""
