"""Settings of the shop."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from espalier.config import EnvironmentConfig
from espalier.config.data import Section


class MadeCatalogueConfig(Section):
    """The catalogue that is generated if `catalogue` is unset."""

    products: int = Field(default=800, ge=100, le=20_000)
    """Number of products; each appears in the goals of one split only."""
    seed: int = 0
    """Seed of the products; equal for runs that are to be compared."""
    hidden_share: float = Field(default=0.25, ge=0, le=1)
    """Share of goals with an attribute that no list of results shows."""
    max_options: int = Field(default=2, ge=0, le=2)
    """Most options that a goal asks for."""


class ShopConfig(EnvironmentConfig):
    """Buying what an instruction asks for, as in WebShop."""

    name: str = "shop"
    catalogue: Path | None = None
    """Folder with WebShop's files: items_shuffle*.json, items_ins_v2*.json and, for instructions
    written by people, items_human_ins*.json. If unset, a catalogue and goals in it are
    generated."""
    page_size: int = Field(default=10, ge=1, le=50)
    """Products on a page of results; WebShop's is 10."""
    max_results: int = Field(default=50, ge=1, le=500)
    """Most products that a search finds; WebShop's limit is 50."""
    score_reward: float = Field(default=0.4, ge=0, le=10)
    """Weight of the score as a reward term, beside the outcome, which is 1 for a score of 1."""
    made: MadeCatalogueConfig = MadeCatalogueConfig()

    def external_files(self) -> dict[str, Path | None]:
        """Return WebShop's files, by the key of the profile that names them."""
        if self.catalogue is None:
            return {}
        return {
            f"environment.catalogue/{path.name}": path
            for path in sorted(self.catalogue.glob("items_*.json"))
        }
