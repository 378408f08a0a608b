"""Shops for the tests: the made one, and a small one in WebShop's format."""

import asyncio
import json
from pathlib import Path

from espalier.config import Profile
from espalier.environments import family_of
from espalier.environments.teaching import play_script
from espalier.records import ToolCalls
from espalier_environments.shop.goals import goal_task
from espalier_environments.shop.webshop_files import load_webshop

NOWHERE = Path("no-knowledge")
SHIRT = {
    "asin": "B0AAAAAAA1", "name": "Acme Mens Cotton Shirt, Soft, Machine Wash",
    "category": "fashion", "query": "mens shirts",
    "product_category": "Clothing \u203a Men \u203a Shirts",
    "full_description": "A shirt of soft cotton.",
    "small_description": ["machine wash", "long sleeve"], "pricing": "$19.99",
    "customization_options": {
        "Color": [{"value": "Crimson Red", "image": None}, {"value": "Black/White"}],
        "Size": [{"value": "Small"}, {"value": "Large"}], "Style": None,
    },
    "images": ["http://example.com/a.jpg"],
}  # fmt: skip
LAMP = {
    "asin": "B0AAAAAAA2", "name": "Bright Desk Lamp for Reading", "category": "garden",
    "query": "Desk Lamps ", "product_category": "Home \u203a Lighting \u203a Lamps",
    "full_description": None, "small_description": "easy clean", "pricing": "$10.50 - $20",
    "customization_options": {},
}  # fmt: skip
PRODUCTS = [SHIRT, LAMP, {**LAMP, "name": "twice"}, {**LAMP, "asin": "nan"}]
ATTRIBUTES = {
    "B0AAAAAAA1": {
        "attributes": ["machine wash", "long sleeve"],
        "instruction": "Find me machine wash mens shirts",
        "instruction_attributes": ["machine wash"],
    },
    "B0AAAAAAA2": {
        "attributes": ["easy clean"],
        "instruction": "Find me easy clean desk lamps",
        "instruction_attributes": ["easy clean"],
    },
}
HUMAN = {
    "B0AAAAAAA1": [
        {
            "asin": "B0AAAAAAA1", "instruction_attributes": ["machine wash"],
            "instruction": "i need a red shirt that i can machine wash, size large.",
            "instruction_options": ["red", "large"],
        },
        {"instruction": "anything", "instruction_attributes": [], "instruction_options": []},
    ],
    "B0MISSING1": [{"instruction": "i", "instruction_attributes": ["a"]}],
}  # fmt: skip


def shop_family(max_turns=12, **environment):
    """The family, with small pages."""
    settings = {"name": "shop", "page_size": 3, **environment}
    return family_of(
        Profile.model_validate({"environment": settings, "episode": {"max_turns": max_turns}})
    )


def write_shop(folder, products=PRODUCTS, attributes=ATTRIBUTES, human=None):
    """A folder in WebShop's format."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "items_shuffle_2": products, "items_ins_v2_2": attributes, "items_human_ins": human,
    }  # fmt: skip
    for name, content in contents.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{name}.json").write_text(text)
    return folder


def play(environments, task, *actions):
    """The scored attempt of these actions: texts are clicks, `?words` searches, `buy` buys."""

    def script():
        for action in actions:
            yield action if not isinstance(action, str) else _action(action)

    return asyncio.run(play_script(environments, task, script()))


def _action(word):
    if word == "buy":
        return ToolCalls.one("buy", {})
    if word.startswith("?"):
        return ToolCalls.one("search", {"query": word[1:]})
    return ToolCalls.one("click", {"target": word})


def public_tasks(family, folder):
    """The goals of a folder in WebShop's format, as tasks of each split."""
    shop = load_webshop(folder, max_results=family.settings.max_results)
    return {
        split: [
            goal_task(goal, family=family.name, split=split, source="webshop")
            for goal in shop.goals_of(split, family.profile.splits)
        ]
        for split in ("train", "dev", "heldout")
    }
