"""Settings of customer service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from espalier.config import EndpointConfig, EnvironmentConfig
from espalier.config.data import EachOnce, Section

Domain = Literal["retail", "airline"]
RequestKind = Literal["cancel", "return", "payment", "address", "exchange", "price", "refusal"]


class ScriptedUserConfig(Section):
    """A user who says what the task's script has for what is asked."""

    kind: Literal["scripted"] = "scripted"
    """Chooses it."""
    reminders: int = Field(default=1, ge=0, le=8)
    """How often the user asks whether all is done, before a message that asks nothing ends it."""


class EndpointUserConfig(EndpointConfig):
    """A user who is played by a model; its limits of cost and time are those of any endpoint."""

    kind: Literal["endpoint"]
    """Chooses it."""


UserConfig = Annotated[ScriptedUserConfig | EndpointUserConfig, Field(discriminator="kind")]


class ShopConfig(Section):
    """The shop that is made where `database` is unset."""

    users: int = Field(default=300, ge=20, le=20_000)
    """Users, each with up to `max_orders` orders; a user is in one split."""
    max_orders: int = Field(default=2, ge=1, le=5)
    """Orders of a user."""
    max_items: int = Field(default=2, ge=1, le=5)
    """Items of an order."""
    seed: int = 0
    """Of users, products and orders: the same for every run that compares with another."""
    kinds: EachOnce[RequestKind] = (
        "cancel", "return", "payment", "address", "exchange", "price", "refusal",
    )  # fmt: skip
    """What users ask for."""
    unnamed_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the users who say who they are only when they are asked."""


class CustomerServiceConfig(EnvironmentConfig):
    """Conversations with customers whose requests change a database, as tau-bench has them."""

    name: str = "customer_service"
    domain: Domain = "retail"
    """Whose tools there are."""
    database: Path | None = None
    """Folder of a domain in tau-bench's format: data/*.json, wiki.md, tasks_*.json. Unset makes a
    shop, and tasks of its users."""
    results: Literal["json", "words"] = "json"
    """"words" leaves out the punctuation of JSON, for a policy of a few tokens' memory."""
    user: UserConfig = ScriptedUserConfig()
    shop: ShopConfig = ShopConfig()

    def external_files(self) -> dict[str, Path | None]:
        """See `EnvironmentConfig`."""
        if self.database is None:
            return {}
        found = sorted(self.database.rglob("*.json")) + sorted(self.database.rglob("wiki.md"))
        return {
            f"environment.database/{path.relative_to(self.database).as_posix()}": path
            for path in found
        }

    @model_validator(mode="after")
    def _an_airline_has_a_database(self) -> Self:
        if self.database is None and self.domain != "retail":
            raise ValueError(
                f'environment.domain = "{self.domain}" needs environment.database, a folder in '
                "tau-bench's format; only a retail shop is made here"
            )
        return self
