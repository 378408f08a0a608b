"""Settings of the procedural family."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from espalier.config import EnvironmentConfig
from espalier.config.data import Section

GENERATORS = (
    "ab", "acre", "advanced_geometry", "aiw", "arc_1d", "arc_agi", "base_conversion",
    "basic_arithmetic", "bf", "binary_alternation", "binary_matrix", "bitwise_arithmetic",
    "boxnet", "caesar_cipher", "calendar_arithmetic", "chain_sum", "circuit_logic", "codeio",
    "coin_flip", "color_cube_rotation", "complex_arithmetic", "count_bits", "count_primes",
    "countdown", "course_schedule", "cryptarithm", "decimal_arithmetic", "decimal_chain_sum",
    "dice", "emoji_mystery", "family_relationships", "figlet_font", "fraction_simplification",
    "futoshiki", "game_of_life", "game_of_life_halting", "gcd", "graph_color", "group_anagrams",
    "gsm_symbolic", "intermediate_integration", "isomorphic_strings", "jugs", "kakurasu",
    "knight_swap", "knights_knaves", "largest_island", "lcm", "leg_counting", "letter_counting",
    "letter_jumble", "list_functions", "mahjong_puzzle", "manipulate_matrix", "maze",
    "mini_sudoku", "modulo_grid", "n_queens", "needle_haystack", "number_filtering",
    "number_format", "number_sequence", "number_sorting", "palindrome_generation",
    "palindrome_partitioning", "path_star", "polynomial_equations", "polynomial_multiplication",
    "pool_matrix", "power_function", "prime_factorization", "products", "propositional_logic",
    "puzzle24", "quantum_lock", "ransom_note", "rearc", "rectangle_count", "rotate_matrix",
    "rotten_oranges", "rubiks_cube", "rush_hour", "self_reference", "sentence_reordering",
    "shortest_path", "simple_equations", "simple_geometry", "simple_integration", "sokoban",
    "spell_backward", "spiral_matrix", "string_insertion", "string_manipulation",
    "string_splitting", "string_synthesis", "sudoku", "survo", "syllogism", "time_intervals",
    "tower_of_hanoi", "tsumego", "word_ladder", "word_sequence_reversal", "word_sorting",
    "zebra_puzzles",
)  # fmt: skip
"""The generators of reasoning-gym 0.1.25, without `composite`, which the setting `generators`
replaces."""


UNFIT = {
    "propositional_logic": "it takes whatever follows from the premises, and (P or Q) follows in "
    "five of six tasks, so that an answer without reading them is paid",
}
"""Generators whose questions no rule can judge fairly, and why: one that asks for more than the
question does would refuse right answers."""


def _known(name: str) -> str:
    if name not in GENERATORS:
        close = difflib.get_close_matches(name, GENERATORS, n=1)
        hint = f"did you mean {close[0]}?" if close else "see the family's page for their names"
        raise ValueError(f"reasoning-gym has no generator named {name!r}; {hint}")
    if name in UNFIT:
        raise ValueError(f"{name} is left out: {UNFIT[name]}; name another generator")
    return name


class GeneratorConfig(Section):
    """A generator, and how hard its questions are."""

    name: Annotated[str, AfterValidator(_known)]
    """Name of the generator in reasoning-gym."""
    weight: float = Field(default=1.0, gt=0)
    """Its share of the tasks, relative to the weights of the others."""
    levels: tuple[dict[str, JsonValue], ...] = ({},)
    """Parameters of the generator at each level, the easiest level first; {} keeps upstream's
    defaults. Levels have equal shares of the tasks, and the number of a level, from 1, is the
    difficulty of its tasks."""
    curriculum: int = Field(default=0, ge=0, le=40)
    """Number of levels of upstream's own curriculum to use instead of `levels`."""

    @field_validator("levels")
    @classmethod
    def _knobs_change_questions(
        cls, levels: tuple[dict[str, JsonValue], ...]
    ) -> tuple[dict[str, JsonValue], ...]:
        if not levels:
            raise ValueError("levels has at least one table of knobs; {} is upstream's defaults")
        if taken := {"seed", "size"} & {knob for level in levels for knob in level}:
            raise ValueError(f"{min(taken)} is not a knob: set environment.seed, and [synthesis]")
        return levels

    @model_validator(mode="after")
    def _levels_are_said_once(self) -> Self:
        if self.curriculum and "levels" in self.model_fields_set:
            raise ValueError(f"{self.name}: set levels or curriculum, not both")
        return self


class ProceduralConfig(EnvironmentConfig):
    """Questions from reasoning-gym's generators."""

    name: str = "procedural"
    generators: tuple[GeneratorConfig, ...] = (GeneratorConfig(name="chain_sum"),)
    """The generators and their shares."""
    seed: int = Field(default=0, ge=0, lt=1000)
    """Seed of the questions; equal for runs that are to be compared."""
    python: Path | None = None
    """Interpreter with reasoning-gym; unset uses that of `espalier environments add procedural`."""

    @field_validator("generators")
    @classmethod
    def _each_generator_once(
        cls, generators: tuple[GeneratorConfig, ...]
    ) -> tuple[GeneratorConfig, ...]:
        names = [one.name for one in generators]
        if not names or len(set(names)) < len(names):
            raise ValueError("generators names at least one, and each once")
        return generators
