"""Presets that learn from chosen trajectories: successes to imitate, pairs to compare."""

from __future__ import annotations

from collections.abc import Mapping

from espalier.algorithms.presets.preset import Preset

SELECTIVE: Mapping[str, Preset] = {
    "dpo": Preset(
        "Rafailov et al. 2023, arXiv:2305.18290, on pairs from one's own groups as in Agent Q, "
        "arXiv:2408.07199",
        {"material": {"name": "pairs"}, "loss": {"name": "dpo"}},
    ),
    "rft": Preset(
        "Yuan et al. 2023, arXiv:2308.01825: maximum likelihood of one's own successes",
        {
            "material": {"name": "successes"},
            "loss": {"name": "reinforce"},
            "aggregation": "token_mean",
        },
    ),
}
