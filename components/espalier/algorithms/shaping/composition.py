"""Whether a reward's terms may stand beside its outcome: checked before any episode is played."""

from __future__ import annotations

from collections.abc import Mapping

from espalier.algorithms.shaping.term import Span, TermContext

_ROUNDING = 1e-9


def require_outcome_dominates(terms: Mapping[str, Span], context: TermContext) -> None:
    """Check that the outcome makes up at least half of the reward's whole range.

    A policy that can gain more from something else than from right answers learns something else.

    Args:
        terms: ranges of all terms beside the outcome, by name.
        context: gives the outcome's range.

    Raises:
        ValueError: the outcome is smaller; the message names each term and its range. Or a range
            ends below its start, as that of a negative price does.
    """
    for name, span in terms.items():
        if span.width < 0:
            raise ValueError(
                f"reward: the range of {name} is {span.low:.3g} to {span.high:.3g}; its low end "
                "is above its high end: is one of its keys negative?"
            )
    others = sum(span.width for span in terms.values())
    if others <= context.outcome_width + _ROUNDING:
        return
    named = ", ".join(f"{name} {span.width:.3g}" for name, span in terms.items())
    raise ValueError(
        f"reward: the outcome can change the total by {context.outcome_width:.3g}, the other terms "
        f"by {others:.3g} ({named}); a policy would gain more by those than by its answers. "
        "Lower them or their caps, leave one out, or raise reward.outcome"
    )
