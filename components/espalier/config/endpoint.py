"""Models that answer structured requests: an OpenAI-compatible server, or vLLM in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from espalier.config.data import Section


class AskedConfig(Section):
    """What is asked of a model, wherever it runs."""

    model: str = ""
    """The name that a server has for it; without a server its directory."""
    response_format: Literal["json_schema", "json_object", "text"] = "json_schema"
    """What its answers are held to; whatever it writes is checked against the schema."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """Of sampling; 0 takes the likeliest token."""
    max_tokens: int = Field(default=2048, ge=1)
    """Of one answer."""
    asks: int = Field(default=3, ge=1)
    """How often a question is put before an answer that cannot be read counts."""
    cache: Path | None = None
    """Folder of answers by the content of their request; unset keeps none."""
    replay_only: bool = False
    """Nothing is asked: what the cache does not hold is an error."""

    @model_validator(mode="after")
    def _a_replay_has_a_source(self) -> Self:
        if self.replay_only and self.cache is None:
            raise ValueError("replay_only=true needs cache = DIR: there is nothing to replay from")
        return self


class VllmBatchConfig(AskedConfig):
    """vLLM in the process of the stage, asked in batches: for an environment that has vLLM.

    A cache knows the model by its directory: other weights belong into another one.
    """

    batch_size: int = Field(default=256, ge=1)
    """Requests that are decoded side by side at most."""
    engine: dict[str, bool | int | float | str] = Field(
        default_factory=dict[str, bool | int | float | str]
    )
    """Further settings of vllm.LLM, as max_model_len = 8192 or tensor_parallel_size = 2."""

    @model_validator(mode="after")
    def _the_model_is_named_once(self) -> Self:
        if "model" in self.engine:
            raise ValueError("vllm.engine.model: name the model as vllm.model")
        return self


class EndpointConfig(AskedConfig):
    """Any OpenAI-compatible chat endpoint; prices in one currency, a million tokens."""

    url: str = ""
    """Its address with the version, as https://host/v1."""
    key_file: Path | None = None
    """File that holds the API key; unset where the server asks for none."""
    timeout_s: float = Field(default=120.0, gt=0)
    """How long one answer may take from the first byte sent to the last one read."""
    attempts: int = Field(default=6, ge=1)
    """How often a request is sent before a broken connection or a server error counts."""
    max_wait_s: float = Field(default=60.0, gt=0)
    """Longest pause between two attempts, whatever Retry-After says."""
    concurrency: int = Field(default=8, ge=1)
    """Requests that are under way at one time."""
    requests_per_minute: int = Field(default=0, ge=0)
    """0 sets no limit."""
    tokens_per_minute: int = Field(default=0, ge=0)
    """0 sets no limit."""
    prompt_price: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens, in a currency of your choice."""
    completion_price: float = Field(default=0.0, ge=0)
    """Price of a million completion tokens, in the same currency."""
    max_cost: float = Field(default=0.0, ge=0)
    """The run stops before a request that could exceed it; 0 sets no limit."""

    @field_validator("url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ValueError(f"{url!r} is no address; write it as https://host/v1")
        if parts.username or parts.password or parts.query:
            raise ValueError(
                "an address must not carry a user, password or query: addresses are logged. "
                "Put the key into a file and name it as key_file"
            )
        return url.rstrip("/")

    @model_validator(mode="after")
    def _limits_can_be_kept(self) -> Self:
        if self.max_cost and not (self.prompt_price or self.completion_price):
            raise ValueError(
                f"max_cost={self.max_cost} limits nothing without prices; set prompt_price and "
                "completion_price (a million tokens)"
            )
        return self
