"""The kinds of fault that a formalization can have, each with the sentence that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Kind(StrEnum):
    """A kind of fault, in the order of reporting."""

    NOT_A_LIST = "not_a_list"
    NO_ENTRY = "no_entry"
    TOO_MANY_ENTRIES = "too_many_entries"
    ENTRY_NOT_A_LIST = "entry_not_a_list"
    ENTRY_NOT_THREE_ITEMS = "entry_not_three_items"
    ITEM_NOT_TEXT = "item_not_text"
    BLANK_RELATION = "blank_relation"
    ENTITY_IN_RELATION = "entity_in_relation"
    UNMARKED_ENTITY = "unmarked_entity"
    NAMELESS_ENTITY = "nameless_entity"
    SEVERAL_ENTITIES = "several_entities"
    BROKEN_SET = "broken_set"
    REPEATED_MEMBER = "repeated_member"
    CONSTANT_CONSTANT_EDGE = "constant_constant_edge"
    CONSTANT_BESIDE_TARGET = "constant_beside_target"
    REPEATED_ENTRY = "repeated_entry"
    ENTRY_ABOUT_ITSELF = "entry_about_itself"
    NO_TARGET = "no_target"
    SEVERAL_TARGETS = "several_targets"
    DISCONNECTED = "disconnected"
    CYCLE = "cycle"
    LEAF_VARIABLE = "leaf_variable"


WHOLE_ROW_KINDS = frozenset(
    {
        Kind.NO_TARGET,
        Kind.SEVERAL_TARGETS,
        Kind.DISCONNECTED,
        Kind.CYCLE,
        Kind.LEAF_VARIABLE,
    }
)
"""Kinds that no single entry has; judged only where every entry can be read."""

MAX_ENTRIES = 200
"""More entries than any question of the public rows holds (45), by far: walks may recurse."""

EXPLANATIONS: Mapping[Kind, str] = {
    Kind.NOT_A_LIST: "the formalization is no list of entries",
    Kind.NO_ENTRY: "the formalization is empty",
    Kind.TOO_MANY_ENTRIES: f"more than {MAX_ENTRIES} entries",
    Kind.ENTRY_NOT_A_LIST: "an entry is no list",
    Kind.ENTRY_NOT_THREE_ITEMS: "an entry is not [X, relation, S]",
    Kind.ITEM_NOT_TEXT: "an item of an entry is no text",
    Kind.BLANK_RELATION: "an entry has no relation",
    Kind.ENTITY_IN_RELATION: "a relation names an entity: the entry joins more than two",
    Kind.UNMARKED_ENTITY: "an entity is neither V@, C@ nor ?",
    Kind.NAMELESS_ENTITY: "nothing stands behind V@ or C@",
    Kind.SEVERAL_ENTITIES: "one item holds several entities",
    Kind.BROKEN_SET: "a set of constants with an open quote or a blank member",
    Kind.REPEATED_MEMBER: "a set names a constant twice",
    Kind.CONSTANT_CONSTANT_EDGE: "redundant: two constants constrain each other",
    Kind.CONSTANT_BESIDE_TARGET: "shortcut: a constant stands beside the target",
    Kind.REPEATED_ENTRY: "an entry stands twice",
    Kind.ENTRY_ABOUT_ITSELF: "an entry relates a variable to itself",
    Kind.NO_TARGET: "nothing is asked for",
    Kind.SEVERAL_TARGETS: "several things are asked for",
    Kind.DISCONNECTED: "an entry has no path to the target",
    Kind.CYCLE: "variables in a cycle: no nested projections",
    Kind.LEAF_VARIABLE: "a branch ends in a variable and not in a constant",
}
