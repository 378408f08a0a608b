"""Epsilon-tool-choice for one tokenizer: which token opens an action, and what it follows."""

from __future__ import annotations

from espalier.artifacts import PolicyError
from espalier.policy.grammar import THOUGHT_TAGS
from espalier.policy.rendering import Rendering
from espalier.rollout.engines.engine import KindChoice


def kind_choice(rendering: Rendering, epsilon: float) -> KindChoice | None:
    """How `rollout.exploration.kind_epsilon` is sampled; None where it is 0.

    Raises:
        PolicyError: the tokenizer writes a tag in several tokens, so that no single draw decides
            the kind of an action.
    """
    if epsilon == 0:
        return None
    ids = {tag: rendering.tag_id(tag) for tag in (THOUGHT_TAGS[1], *rendering.grammar.kind_tags)}
    spelled = [tag for tag, token_id in ids.items() if token_id is None]
    if spelled:
        raise PolicyError(
            f"rollout.exploration.kind_epsilon={epsilon} draws the tag that opens an action, but "
            f"the policy's tokenizer writes {', '.join(spelled)} in several tokens. Set it to 0, "
            "or add the tags to the tokenizer and train their embeddings"
        )
    after_id, *kind_ids = (token_id for token_id in ids.values() if token_id is not None)
    return KindChoice(epsilon=epsilon, after_id=after_id, kind_ids=tuple(kind_ids))
