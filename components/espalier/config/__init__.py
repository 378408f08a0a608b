"""The profile of a run: one TOML file, every choice in it."""

from espalier.config.agent_texts import (
    AgentTextsConfig,
    ContinuedPretrainingConfig,
    TeacherConfig,
)
from espalier.config.cluster import (
    GpuConfig,
    ImagesConfig,
    KubernetesConfig,
    PodResources,
    RayConfig,
    SandboxPodsConfig,
    Toleration,
)
from espalier.config.curation import CurationConfig
from espalier.config.data import (
    ExpansionConfig,
    SearchConfig,
    SplitsConfig,
    SynthesisConfig,
    ValidationConfig,
)
from espalier.config.endpoint import EndpointConfig, VllmBatchConfig
from espalier.config.environment import EnvironmentConfig, family_class, family_names
from espalier.config.hardware import HardwareConfig
from espalier.config.inference import ExplorationConfig, RolloutConfig, VllmConfig
from espalier.config.knowledge import ExtractionConfig, KnowledgeConfig, RelationConfig
from espalier.config.kubeflow import KubeflowConfig
from espalier.config.learning import (
    CurriculumConfig,
    EpisodeConfig,
    EvaluationConfig,
    OptimizerConfig,
    PolicyConfig,
    PrestageConfig,
    RegistryConfig,
    RewardConfig,
    WarmStartConfig,
)
from espalier.config.profile import (
    Profile,
    load_profile,
    override_tables,
    parse_profile,
    parsed_override,
    read_saved_profile,
    read_toml_profile,
)
from espalier.config.sandbox import (
    KubernetesSandboxConfig,
    LocalSandboxConfig,
    PodmanSandboxConfig,
    SandboxConfig,
)
from espalier.config.self_play import (
    AbsoluteZeroConfig,
    NoSelfPlayConfig,
    PosingConfig,
    RZeroConfig,
    SelfPlayConfig,
    WebRLConfig,
)
from espalier.config.serving import ControllerConfig, ServingConfig
from espalier.config.training import (
    AsynchronousConfig,
    ReplayConfig,
    TemperatureSchedule,
    TrainingConfig,
)

__all__ = [
    "AbsoluteZeroConfig",
    "AgentTextsConfig",
    "AsynchronousConfig",
    "ContinuedPretrainingConfig",
    "ControllerConfig",
    "CurationConfig",
    "CurriculumConfig",
    "EndpointConfig",
    "EnvironmentConfig",
    "EpisodeConfig",
    "EvaluationConfig",
    "ExpansionConfig",
    "ExplorationConfig",
    "ExtractionConfig",
    "GpuConfig",
    "HardwareConfig",
    "ImagesConfig",
    "KnowledgeConfig",
    "KubeflowConfig",
    "KubernetesConfig",
    "KubernetesSandboxConfig",
    "LocalSandboxConfig",
    "NoSelfPlayConfig",
    "OptimizerConfig",
    "PodResources",
    "PodmanSandboxConfig",
    "PolicyConfig",
    "PosingConfig",
    "PrestageConfig",
    "Profile",
    "RZeroConfig",
    "RayConfig",
    "RegistryConfig",
    "RelationConfig",
    "ReplayConfig",
    "RewardConfig",
    "RolloutConfig",
    "SandboxConfig",
    "SandboxPodsConfig",
    "SearchConfig",
    "SelfPlayConfig",
    "ServingConfig",
    "SplitsConfig",
    "SynthesisConfig",
    "TeacherConfig",
    "TemperatureSchedule",
    "Toleration",
    "TrainingConfig",
    "ValidationConfig",
    "VllmBatchConfig",
    "VllmConfig",
    "WarmStartConfig",
    "WebRLConfig",
    "family_class",
    "family_names",
    "load_profile",
    "override_tables",
    "parse_profile",
    "parsed_override",
    "read_saved_profile",
    "read_toml_profile",
]
