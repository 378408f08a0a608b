"""Goals of purchases: written into tasks, and read back from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from espalier.environments.family import make_task
from espalier.records import DataError, Split, Task
from espalier.rewards.webshop import ShopGoal, ShopScore, webshop_score
from espalier_environments.shop.catalogue import Catalogue
from espalier_environments.shop.visit import Purchase


@dataclass(frozen=True, slots=True, kw_only=True)
class WordedGoal:
    """A goal in words, and the product that meets it."""

    instruction: str
    goal: ShopGoal
    asin: str
    chosen: Mapping[str, str]
    """Options of that product that meet the goal: name -> value."""
    kind: str
    """Group in reports."""


class _Goal(BaseModel):
    """A goal in the arguments of a task."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    attributes: tuple[str, ...] = Field(min_length=1)
    options: tuple[str | tuple[str, str], ...] = ()
    price_upper: Annotated[float, Field(gt=0)] | None = None
    title: str | None = None
    query: str = ""
    product_category: str = ""


def goal_task(asked: WordedGoal, *, family: str, split: Split, source: str) -> Task:
    """Return the task of a goal; its gold answer is the purchase that it was made from."""
    gold = {"asin": asked.asin, "options": dict(asked.chosen)}
    return make_task(
        family,
        asked.instruction,
        gold=(json.dumps(gold, ensure_ascii=False),),
        split=split,
        source=source,
        key=f"{asked.asin} {asked.instruction}",
        kind="purchase",
        arguments={"goal": _Goal(**asdict(asked.goal)).model_dump(mode="json")},
        metadata={
            "difficulty": float(2 + len(asked.goal.options)),
            "pattern": asked.kind,
            "extra": {"kind": asked.kind, "entities": [asked.asin]},
        },
    )


def goal_of(task: Task) -> ShopGoal:
    """Return the goal of a task.

    Raises:
        DataError: the task has no valid goal.
    """
    try:
        read = _Goal.model_validate(task.arguments.get("goal"))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(("arguments.goal", *map(str, first["loc"])))
        raise DataError(f"task {task.task_id}: {where}: {first['msg']}") from error
    return ShopGoal(**dict(read))


def gold_purchase(task: Task) -> tuple[str, dict[str, str]]:
    """Return id and chosen options of the product that a goal was made from.

    Raises:
        DataError: the task's gold answer is not a valid purchase.
    """
    read = _read_json(task.verifier.gold[0])
    asin, options = read.get("asin"), read.get("options")
    if not isinstance(asin, str) or not isinstance(options, dict):
        raise DataError(f"task {task.task_id}: its gold answer is not a purchase")
    return asin, {name: str(value) for name, value in options.items()}


# ------------------------------------------------------------------------------ answers


def score_of(purchase: Purchase, goal: ShopGoal) -> ShopScore:
    """Return WebShop's score of a purchase."""
    product = purchase.product
    return webshop_score(
        product.record, goal, price=product.price, options=purchase.options.values()
    )


def written_purchase(purchase: Purchase, score: float) -> str:
    """Return the answer of an episode: the purchase with its score, as at the end of upstream's."""
    bought = {"asin": purchase.product.asin, "options": purchase.options, "score": score}
    return json.dumps(bought, ensure_ascii=False)


def read_purchase(answer: str, catalogue: Catalogue) -> Purchase | None:
    """Return the purchase in an answer; None if the shop has no such product or option.

    A score stated in the answer is ignored.
    """
    read = _read_json(answer)
    asin, options = read.get("asin"), read.get("options", {})
    product = catalogue.get(asin) if isinstance(asin, str) else None
    if product is None or not isinstance(options, dict):
        return None
    if any(value not in product.options.get(name, ()) for name, value in options.items()):
        return None
    return Purchase(product, {name: str(value) for name, value in options.items()})


def written_score(answer: str) -> float:
    """Return the score in an answer that the environment wrote."""
    score = _read_json(answer).get("score")
    return float(score) if isinstance(score, int | float) else 0.0


def _read_json(text: str) -> Mapping[str, JsonValue]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, JsonValue]", read) if isinstance(read, dict) else {}
