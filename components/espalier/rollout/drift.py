"""Whether the tokens of episodes are those that the chat template would render them to."""

from __future__ import annotations

from espalier.config import RolloutConfig
from espalier.dialects.dialect import Dialect
from espalier.records import PolicyError
from espalier.rollout.episode import PlayedEpisode


class DriftCount:
    """Compares every `rollout.compare_every`-th episode with the template's whole rendering.

    What was sampled cannot drift, as it is never encoded again; what was read can, where a template
    renders a message differently once others follow it.
    """

    def __init__(self, dialect: Dialect, config: RolloutConfig) -> None:
        self.turns = 0
        """Turns that were compared."""
        self.drifted = 0
        """Of those, turns whose tokens differ."""
        self._dialect = dialect
        self._config = config
        self._episodes = 0

    def compare(self, played: PlayedEpisode) -> None:
        """Take note of a finished episode.

        Raises:
            PolicyError: a turn drifted, and the profile says that this fails the run.
        """
        self._episodes += 1
        every = self._config.compare_every
        if not every or (self._episodes - 1) % every:
            return
        drifted = self._dialect.drifted_turns(played.prompt, played.pieces)
        self.turns += max(1, len(played.pieces))
        self.drifted += drifted
        if drifted and self._config.token_drift == "fail":
            raise PolicyError(
                f"task {played.trajectory.task_id}: {drifted} of {len(played.pieces)} turns have "
                "other tokens than the chat template gives for the whole conversation. The "
                "template renders a message differently once others follow it: mend it, or set "
                'rollout.token_drift = "count" to train on the tokens as they were sampled'
            )
