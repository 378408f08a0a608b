"""Epsilon-tool-choice for one tokenizer: which token opens an action, and what it follows."""

from __future__ import annotations

from espalier.dialects.dialect import Dialect
from espalier.dialects.syntax import THINK
from espalier.records import PolicyError
from espalier.rollout.engines.engine import KindChoice


def kind_choice(dialect: Dialect, epsilon: float) -> KindChoice | None:
    """How `rollout.exploration.kind_epsilon` is sampled; None where it is 0.

    Raises:
        PolicyError: no single token of the dialect decides the kind of an action.
    """
    if epsilon == 0:
        return None
    if not dialect.kind_markers:
        raise PolicyError(
            f"rollout.exploration.kind_epsilon={epsilon} draws the tag that opens an action, and "
            f'the dialect "{dialect.syntax.name}" has none. Set it to 0'
        )
    ids = {tag: dialect.marker_id(tag) for tag in (THINK[1], *dialect.kind_markers)}
    spelled = [tag for tag, token_id in ids.items() if token_id is None]
    if spelled:
        raise PolicyError(
            f"rollout.exploration.kind_epsilon={epsilon} draws the tag that opens an action, but "
            f"the policy's tokenizer writes {', '.join(spelled)} in several tokens. Set it to 0, "
            "or add the tags to the tokenizer and train their embeddings"
        )
    after_id, *kind_ids = (token_id for token_id in ids.values() if token_id is not None)
    return KindChoice(epsilon=epsilon, after_id=after_id, kind_ids=tuple(kind_ids))
