"""Profile sections of agentic data: who writes it, how much of each kind, and training on it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from espalier.config.data import Section
from espalier.config.endpoint import EndpointConfig, VllmBatchConfig
from espalier.config.learning import OptimizerConfig


class TeacherConfig(Section):
    """Who plans, judges and reasons for the agent texts."""

    kind: Literal["embedded", "endpoint", "vllm"] = "embedded"
    """"embedded" reads the knowledge base; "endpoint" asks the server of [teacher.endpoint]; "vllm"
    runs [teacher.vllm] in the process of the stage, where vLLM is installed."""
    mistake_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the embedded teacher's plans that go wrong, so that its judge has what to refuse;
    half of a model's were wrong before judging (AgentFounder, arXiv:2509.13310)."""
    endpoint: EndpointConfig = EndpointConfig()
    vllm: VllmBatchConfig | None = Field(default=None, exclude_if=lambda it: it is None)
    """Where it is not set it is in no digest."""

    @property
    def model(self) -> EndpointConfig | VllmBatchConfig | None:
        """The model that is asked; None for the embedded teacher."""
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
                'teacher.kind = "vllm" goes with teacher.vllm.model = "DIR", and the one without '
                "the other means nothing; set both or none"
            )
        return self


class AgentTextsConfig(Section):
    """How many texts of agent behaviour are synthesized; 0 of a kind writes none."""

    memories: int = Field(default=0, ge=0)
    """Entities whose documents become memories that plans are made for (FAS planning)."""
    questions_per_memory: int = Field(default=4, ge=1, le=4)
    """Differently styled questions about one memory, each with one plan."""
    reasoning_tasks: int = Field(default=0, ge=0)
    """Training tasks that are guessed and then reasoned over (FAS reasoning)."""
    decisions: int = Field(default=0, ge=0)
    """Trajectories whose steps become choices with a known outcome (HAS)."""
    alternatives: int = Field(default=2, ge=1, le=7)
    """Candidates beside the action that was taken, at every step of a decision."""
    failed_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the decisions that are made from attempts that failed."""
    negatives: int = Field(default=0, ge=0)
    """Demonstrations of calls that must not be made; the warm start trains on them."""

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
