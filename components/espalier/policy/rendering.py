"""Between messages and token ids: the only place where text of an episode is tokenised.

Each piece is encoded once, when it enters the context; what the policy sampled is never encoded
again. The chat template renders the same pieces, which a test compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from espalier.artifacts import PolicyError
from espalier.policy.grammar import Grammar
from espalier.tasks import Message

_TAIL_TOKENS = 16
"""Tokens that are decoded to look for a closing tag that is not one token."""


class Rendering:
    """Encodes prompts, actions and observations for one tokenizer, and knows where actions stop.

    It is the `StopRule` of an engine: `stop_ids` end an action wherever they are sampled, and
    `stop_texts`, empty for a tokenizer that knows the tags, once several tokens spell them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, grammar: Grammar) -> None:
        if tokenizer.chat_template is None:
            raise PolicyError(
                f"{tokenizer.name_or_path}: its tokenizer has no chat template. Set one in "
                "tokenizer_config.json, or use the instruction-tuned model of the same family."
            )
        self.tokenizer = tokenizer
        self.grammar = grammar
        ids = [self.tag_id(tag) for tag in grammar.stop_tags]
        self.knows_tags = None not in ids
        end_id = tokenizer.eos_token_id
        # whatever follows the end of the message is not part of it
        self.stop_ids = frozenset(i for i in (*ids, end_id) if isinstance(i, int))
        self.stop_texts = () if self.knows_tags else grammar.stop_tags
        self.observation_ids = lru_cache(maxsize=65_536)(self._observation_ids)
        self.prompt_ids = lru_cache(maxsize=65_536)(self._prompt_ids)

    def action_ids(self, text: str) -> tuple[int, ...]:
        """Ids of an action that a teacher wrote."""
        return tuple(self._encode(text))

    def text(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` spell, tags included."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def tag_id(self, tag: str) -> int | None:
        """The id of a tag that is one token, or None."""
        piece = self._encode(tag)
        return piece[0] if len(piece) == 1 else None

    def ends_action(self, action_ids: Sequence[int]) -> bool:
        """Whether the last id of a growing action completes a closing tag, or ends the message."""
        if action_ids[-1] in self.stop_ids:
            return True
        if not self.stop_texts:
            return False
        tail = self.text(action_ids[-_TAIL_TOKENS:])
        return any(tag in tail for tag in self.stop_texts)

    def _prompt_ids(self, prompt: tuple[Message, ...]) -> tuple[int, ...]:
        messages = [message.model_dump() for message in prompt]
        if not self.knows_tags:
            messages[-1]["content"] = self.grammar.instructions + messages[-1]["content"]
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return tuple(self._encode(str(text)))

    def _observation_ids(self, observation: str) -> tuple[int, ...]:
        # A document may spell a tag; it must reach the policy as text, never as control.
        defused = observation.replace("<", "(").replace(">", ")")
        return tuple(self._encode(self.grammar.observed(defused)))

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))
