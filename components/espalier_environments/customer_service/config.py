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
    """A user who answers each question with what the script of the task holds for it."""

    kind: Literal["scripted"] = "scripted"
    """Selects this kind of user."""
    reminders: int = Field(default=1, ge=0, le=8)
    """How often the user asks whether everything is done; after that, a message without a question
    ends the conversation."""


class EndpointUserConfig(EndpointConfig):
    """A user played by a model; its cost and time limits are those of any endpoint."""

    kind: Literal["endpoint"]
    """Selects this kind of user."""


UserConfig = Annotated[ScriptedUserConfig | EndpointUserConfig, Field(discriminator="kind")]


class ShopConfig(Section):
    """The shop that is generated if `database` is unset."""

    users: int = Field(default=300, ge=20, le=20_000)
    """Number of users, each with up to `max_orders` orders; each user is in one split."""
    max_orders: int = Field(default=2, ge=1, le=5)
    """Most orders of a user."""
    max_items: int = Field(default=2, ge=1, le=5)
    """Most items of an order."""
    seed: int = 0
    """Seed of users, products and orders; equal for runs that are to be compared."""
    kinds: EachOnce[RequestKind] = (
        "cancel", "return", "payment", "address", "exchange", "price", "refusal",
    )  # fmt: skip
    """Kinds of requests that users make."""
    unnamed_share: float = Field(default=0.5, ge=0, le=1)
    """Share of users who identify themselves only when asked."""


class CustomerServiceConfig(EnvironmentConfig):
    """Conversations with customers whose requests change a database, as in tau-bench."""

    name: str = "customer_service"
    domain: Domain = "retail"
    """The domain whose tools the policy has."""
    database: Path | None = None
    """Folder of a domain in tau-bench's format: data/*.json, wiki.md, tasks_*.json. If unset, a
    shop and tasks of its users are generated."""
    results: Literal["json", "words"] = "json"
    """Format of tool results: "words" leaves out the punctuation of JSON, for a policy with a short
    context."""
    user: UserConfig = ScriptedUserConfig()
    shop: ShopConfig = ShopConfig()

    def external_files(self) -> dict[str, Path | None]:
        """Return the files of the database, by the key of the profile that they come from."""
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
