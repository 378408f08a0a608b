"""Converts messages to token ids and back: the only place where an episode's text is tokenised.

Every message is encoded once, when it enters the context; sampled tokens are never encoded again.
The chat template frames the messages: the text between two messages of the policy is cut out of a
rendering in which a sentinel stands for each of them. `drifted_turns` compares a finished episode
with the template's rendering of the whole conversation.

Only the template and the dialect's syntax write control tokens. In the text of users, tools and
schemas, and in the names, ids and arguments of calls, they are encoded as ordinary text
(`control_tokens`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import TemplateError

from espalier.dialects import Syntax, detected_dialect, syntax_of
from espalier.dialects.control_tokens import CUT, control_tokens, map_texts
from espalier.dialects.known_texts import KnownTexts
from espalier.dialects.mistral import Mistral
from espalier.dialects.rendering import rendering
from espalier.dialects.syntax import THINK
from espalier.dialects.tags import Tags
from espalier.records import (
    Action,
    FinalAnswer,
    Malformed,
    Message,
    PolicyError,
    ToolCall,
    ToolCalls,
    action_of,
)
from espalier.records.message import ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAIL_TOKENS = 16
"""Number of last tokens that are decoded to find a closing tag of several tokens."""
_SENTINEL = "\ue000"
"""A private-use character that stands for a message of the policy in a rendering."""
_CLOSED_THOUGHT = "\ue001\n</think>\n\n"
"""Another one, which stands for a thought of the policy, and the end of the thought."""
_OPENED_THOUGHT = re.compile(r"<think>\s*\Z")
_CALL_ENDS = ("<|eom_id|>", "<|eom|>")
"""Tokens that end a Llama message which waits for a tool's result; the usual end of turn ends any
other message. A tokenizer names only the latter."""
_CUT_IN_PYTHON = ascii(CUT)[1:-1]
_ESCAPED_CUT = re.compile(rf"(?<!\\)((?:\\\\)*){re.escape(_CUT_IN_PYTHON)}")
"""A cut in a Python literal, whose other backslashes are doubled."""
_MISTRAL_ID = re.compile("[A-Za-z0-9]{9}")
_NO_ID = "0" * 9
_PROBE = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "<think>\nthought\n</think>\n\nb"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
    {"role": "user", "content": "e"},
)


class TurnPieces(NamedTuple):
    """What an episode read after one message of the policy."""

    messages: tuple[Message, ...]
    read_ids: tuple[int, ...]
    """Token ids as they are in the context."""


class _Tools:
    """Tools as a key: equal if they look the same to a policy."""

    def __init__(self, specs: Sequence[ToolSpec]) -> None:
        self.specs = tuple(specs)
        self._key = repr(self.specs)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tools) and self._key == other._key


class Dialect:
    """A syntax with a tokenizer: parses what a policy writes, and encodes what it reads.

    It is the `StopRule` of an engine: `stop_ids` end a message wherever they are sampled, and
    `stop_texts` once several tokens spell them (none if the tags are tokens).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[ToolSpec],
        *,
        name: str = "auto",
        instructions: str = "",
        texts: KnownTexts | None = None,
    ) -> None:
        """Bind a dialect.

        Args:
            tokenizer: the policy's tokenizer; its chat template frames the messages.
            tools: tools that the policy may call.
            name: of a dialect, or module:Class; "auto" is the one that the chat template teaches.
            instructions: the family's instructions, put before the question for a policy that was
                not trained from scratch here.
            texts: cache of recently encoded texts, where several dialects share one.

        Raises:
            PolicyError: the tokenizer has no chat template.
        """
        template = tokenizer.chat_template
        if not template:
            raise PolicyError(
                f"{tokenizer.name_or_path}: its tokenizer has no chat template. Set one in "
                "tokenizer_config.json, or use the instruction-tuned model of the same family."
            )
        self._template = str(template)
        self.tokenizer = tokenizer
        self.tools = tuple(tools)
        chosen = detected_dialect(self._template) if name == "auto" else name
        self.syntax: Syntax = syntax_of(chosen)
        self._instructions = instructions
        marks = {*self.syntax.markers(self.tools), *self.syntax.frames(self.tools)}
        marks |= {*self.syntax.own_marks, *THINK}
        self._controls = control_tokens(tokenizer, marks)
        self._told_tools = tuple(map(self._tool_as_text, self.tools))
        stop_texts = self.syntax.stop_texts(self.tools)
        ids = [self.marker_id(text) for text in stop_texts]
        knows_stops = None not in ids and not self.syntax.stops_inside_tokens
        end_id = tokenizer.eos_token_id
        self.stop_ids = frozenset(i for i in (*ids, end_id) if isinstance(i, int))
        self.stop_texts = () if knows_stops else stop_texts
        self.is_embedded = "{#- dialect:" in self._template or (
            self.syntax.inline_results and knows_stops
        )
        """Whether the policy was trained from scratch here, in this dialect."""
        if not self.syntax.inline_results:
            known: Any = tokenizer  # its own annotations are those of a special token
            added = known.get_added_vocab()
            self.stop_ids |= {self._end_id, *(added[end] for end in _CALL_ENDS if end in added)}
        ends = () if self.syntax.inline_results else [self.text([i]) for i in self.stop_ids]
        self._own_marks = frozenset(marks.difference(ends))
        """Control tokens in the policy's own messages, besides their end."""
        self._texts = texts or KnownTexts()
        self.result_ids = self._texts.remembering(self._result_ids)
        self.prompt_ids = self._texts.remembering(self._prompt_ids)
        self._others = lru_cache(maxsize=256)(self._with_tools)

    def with_tools(self, tools: Sequence[ToolSpec]) -> Dialect:
        """Return the same dialect for other tools; this object if they are its own.

        Raises:
            PolicyError: the tag dialect, whose tags an engine stops at, is bound to its tools.
        """
        if tuple(tools) == self.tools:
            return self
        if isinstance(self.syntax, Tags):
            raise PolicyError(
                "tasks with tools of their own cannot be written in the tag dialect, which has a "
                'tag for each tool of the family. Set policy.dialect = "hermes"'
            )
        return self._others(_Tools(tools))

    def _with_tools(self, tools: _Tools) -> Dialect:
        return Dialect(
            self.tokenizer,
            tools.specs,
            name=self.syntax.name,
            instructions=self._instructions,
            texts=self._texts,
        )

    def action_ids(self, action: ToolCalls | FinalAnswer) -> tuple[int, ...]:
        """Return the ids of an action that a teacher wrote, end of turn included."""
        return self._message_ids(self._written(action))

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of a policy's message that is given as text, end of turn included.

        If the chat template begins the thought, the ids begin after that beginning.
        """
        return self._message_ids(self._controls.as_text(text, but=self._own_marks))

    def _message_ids(self, text: str) -> tuple[int, ...]:
        if self.syntax.inline_results:
            return tuple(self._encode(text))
        opened = self._opened_thought
        if opened and text.startswith(THINK[0]):
            text = text.removeprefix(opened if text.startswith(opened) else THINK[0])
        elif opened:  # a message without a thought closes it at once
            text = f"\n{THINK[1]}\n\n{text}"
        return (*self._encode(text), self._end_id)

    def bare_prompt_ids(self, prompt: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids of a prompt without explanation of actions, up to the policy's text.

        In a dialect without tools it is a question as any user asks it; the instructions come
        before the first message of a user.
        """
        shown = [self._shown(message) for message in prompt]
        if not self.is_embedded:
            first = next((m for m in shown if m["role"] == "user"), shown[-1])
            first["content"] = self._instructions + first["content"]
        return tuple(self._encode(self._generation_prompt(shown)))

    def parse(self, token_ids: Sequence[int]) -> Action:
        """Return the action that the policy's message spells; never raises."""
        return self.parse_text(self.message_text(token_ids))

    def message_text(self, token_ids: Sequence[int]) -> str:
        """Return the text of the policy's message, without its end of turn."""
        written = list(token_ids)
        while written and not self.syntax.inline_results and written[-1] in self.stop_ids:
            written.pop()
        return self.text(written)

    def parse_text(self, text: str) -> Action:
        """Return the action in a message, given as `message_text` returns it; never raises."""
        if self.syntax.inline_results or not self._opened_thought:
            return self.syntax.parse(text, self.tools)
        if not text.lstrip().startswith(THINK[0]):
            text = self._opened_thought + text
        action = self.syntax.parse(text, self.tools)
        if not isinstance(action, Malformed) and action.thought == "":
            return replace(action, thought=None)
        return action

    def conversation_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the ids of an external conversation, up to where the policy is to write.

        An episode is encoded message by message, by `prompt_ids` and `result_ids`; this encodes
        the whole conversation at once, so the ids may differ from those of an episode.

        Args:
            messages: at least one; those of the assistant are written in the dialect.

        Raises:
            PolicyError: the chat template refuses the conversation, or the dialect has no way to
                write a message of the assistant.
        """
        shown = self._spelled_conversation(messages)
        if not self.is_embedded:
            told = "" if self._template_tells_tools else self.syntax.instructions(self._told_tools)
            first = next((one for one in shown if one["role"] == "user"), shown[0])
            first["content"] = self._instructions + told + first["content"]
        goes_on = self.syntax.inline_results and not self.is_embedded
        if not goes_on or shown[-1]["role"] != "assistant":
            return tuple(self._encode(self._generation_prompt(shown)))
        shown[-1]["content"] += _SENTINEL
        return tuple(self._encode(self._rendered(shown, generate=False).partition(_SENTINEL)[0]))

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text that `token_ids` spell, tags included."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def marker_id(self, text: str) -> int | None:
        """Return the id of a text that is one token, or None."""
        piece = self._encode(text)
        return piece[0] if len(piece) == 1 else None

    def ends_action(self, action_ids: Sequence[int]) -> bool:
        """Whether the last id of a growing message ends the policy's turn."""
        if action_ids[-1] in self.stop_ids:
            return True
        if not self.stop_texts:
            return False
        tail = self.text(action_ids[-_TAIL_TOKENS:])
        return any(text in tail for text in self.stop_texts)

    @property
    def kind_markers(self) -> tuple[str, ...]:
        """Texts one of which may follow a thought and tells calls from answers; () if none."""
        return self.syntax.kind_markers(self.tools)

    @property
    def answer_opening(self) -> str:
        """The tag or label before a final answer; "" without one."""
        return self.kind_markers[-1] if self.kind_markers else ""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids that end a policy's message which was cut off, so that the episode can go on."""
        return () if self.syntax.inline_results else (self._end_id,)

    @cached_property
    def rewrites_history(self) -> bool:
        """Whether the template drops thoughts of turns before the last user message (Qwen3 does).

        Incremental rendering keeps them as they were sampled; drift is then checked only from the
        last user message on.
        """
        return "thought" not in self._rendered(list(_PROBE), generate=False)

    def drifted_turns(self, prompt: tuple[Message, ...], turns: Sequence[TurnPieces]) -> int:
        """Return how many turns' read tokens differ from the template's whole rendering.

        Args:
            prompt: first messages of the environment.
            turns: what followed each message of the policy, in order; the prompt's ids are those
                of `prompt_ids`.

        Raises:
            PolicyError: the template refuses the conversation, as Mistral's own do for two messages
                of the policy without a user's between them.
        """
        compared = list(turns)
        if self.rewrites_history:
            users = [
                n for n, turn in enumerate(turns) if any(m.role == "user" for m in turn.messages)
            ]
            compared = compared[: users[-1]] if users else compared
        found = [tuple(self.prompt_ids(prompt)), *(turn.read_ids for turn in compared)]
        observed = [turn.messages for turn in compared]
        # a template that opens a thought may take a message without its end for one without it
        closings = ("", _CLOSED_THOUGHT) if self._opened_thought else ("",)
        differ = min((self._differing(prompt, observed, found, end) for end in closings), key=sum)
        # a prompt that differs is counted with the first turn
        return min(len(turns), sum(differ)) if turns else int(differ[0])

    def _differing(
        self,
        prompt: tuple[Message, ...],
        observed: Sequence[tuple[Message, ...]],
        found: Sequence[tuple[int, ...]],
        thought_end: str,
    ) -> list[bool]:
        try:
            expected = self._whole_pieces(prompt, observed, thought_end)
        except PolicyError as error:
            raise PolicyError(f"{error}, or rollout.compare_every = 0") from error
        return [one != other for one, other in zip(found, expected, strict=True)]

    def _whole_pieces(
        self,
        prompt: tuple[Message, ...],
        observed: Sequence[tuple[Message, ...]],
        thought_end: str,
    ) -> list[tuple[int, ...]]:
        """Return the ids that the policy reads, cut out of one rendering of the conversation.

        Args:
            prompt: first messages of the environment.
            observed: the messages that followed each one of the policy.
            thought_end: what stands for the policy's message behind the thought that the template
                opens; "" if its end does not matter.
        """
        messages = self._prompt_messages(prompt)
        if self.syntax.inline_results and not self.is_embedded:
            read = ["".join(map(self._inline_result, turn)) for turn in observed]
            body = _SENTINEL.join(["", *read, ""])
            messages = [*messages, {"role": "assistant", "content": body}]
        else:
            written = {"role": "assistant", "content": _SENTINEL}
            if not self.syntax.inline_results:
                written["content"] = self._opened_thought + thought_end + _SENTINEL
            for turn in observed:
                messages.append(written)
                messages += [self._shown(message) for message in turn]
            # a last message after the policy's, which no template then treats as the end
            messages.append(written)
            messages.append(self._shown(Message(role="tool", content="")))
        rendered = self._rendered(messages, generate=False).split(_SENTINEL)[: len(observed) + 1]
        pieces = [
            piece.partition(thought_end[0])[0] if thought_end else piece for piece in rendered
        ]
        ids = [self._encode(piece) for piece in pieces]
        if not self.syntax.inline_results:
            # the policy writes the end of its turn itself
            ids = [ids[0], *(piece[1:] for piece in ids[1:])]
        return [tuple(piece) for piece in ids]

    def _prompt_ids(self, prompt: tuple[Message, ...]) -> tuple[int, ...]:
        return tuple(self._encode(self._generation_prompt(self._prompt_messages(prompt))))

    def _generation_prompt(self, messages: list[dict[str, Any]]) -> str:
        """Return the rendering up to where the policy writes.

        With inline results the policy writes its thoughts' tags itself: the template could begin
        only the first thought of a message, and all turns should look alike.
        """
        rendered = self._rendered(messages, generate=True)
        if self.syntax.inline_results:
            return rendered.removesuffix(self._opened_thought)
        return rendered

    def _spelled_conversation(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return messages for the template; with inline results, a run of turns is one message."""
        shown: list[dict[str, Any]] = []
        for message in messages:
            joins = self.syntax.inline_results and not self.is_embedded
            if self.syntax.inline_results and len(message.tool_calls) > 1:
                raise PolicyError(
                    f"a message with {len(message.tool_calls)} calls: dialect "
                    f'"{self.syntax.name}" writes one call a message'
                )
            if message.role == "assistant":
                one = {"role": "assistant", "content": self._written(action_of(message))}
            elif message.role == "tool" and joins:
                one = {"role": "assistant", "content": self._inline_result(message)}
            else:
                one = self._shown(message)
            if joins and one["role"] == "assistant" and shown and shown[-1]["role"] == "assistant":
                shown[-1]["content"] += one["content"]
            else:
                shown.append(one)
        return shown

    def _prompt_messages(self, prompt: tuple[Message, ...]) -> list[dict[str, Any]]:
        messages = [self._shown(message) for message in prompt]
        if not self.is_embedded:
            told = "" if self._template_tells_tools else self.syntax.instructions(self._told_tools)
            messages[-1]["content"] = self._instructions + told + messages[-1]["content"]
        return messages

    def _result_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        """Return the ids of the environment's results, up to where the policy writes again."""
        if self.syntax.inline_results:
            texts = map(self._inline_result, messages)
            return tuple(token_id for text in texts for token_id in self._encode(text))
        framed = [
            {"role": "user", "content": "."},
            {"role": "assistant", "content": _SENTINEL},
            *(self._shown(message) for message in messages),
        ]
        behind = self._rendered(framed, generate=True).rpartition(_SENTINEL)[2]
        return tuple(self._encode(behind)[1:])

    def _inline_result(self, message: Message) -> str:
        return self.syntax.write_result(self._observed(message), self.tools)

    def _observed(self, message: Message) -> str:
        """Return a tool's result as text without control tokens."""
        return self._read(self.syntax.defused(message.content))

    def _read(self, content: str) -> str:
        return self._controls.as_text(_without_sentinel(content))

    def _written(self, action: ToolCalls | FinalAnswer) -> str:
        """Return the message that spells an action; its words spell no control token."""
        escaped = frozenset(self.syntax.escaped)

        def as_text(words: str) -> str:
            return self._controls.as_text(_without_sentinel(words), but=escaped)

        def call_as_text(call: ToolCall) -> ToolCall:
            # dialects with inline results find a call's tool by its name, and write its tag
            name = call.name if self.syntax.inline_results else as_text(call.name)
            arguments = map_texts(call.arguments, as_text)
            return ToolCall(name=name, arguments=arguments, call_id=as_text(call.call_id))

        thought = None if action.thought is None else self._read(action.thought)
        if isinstance(action, FinalAnswer):
            told = replace(action, text=self._read(action.text), thought=thought)
        else:
            told = replace(action, calls=tuple(map(call_as_text, action.calls)), thought=thought)
        spelled = self.syntax.write(told, self.tools)
        if _CUT_IN_PYTHON in spelled:
            spelled = _ESCAPED_CUT.sub(rf"\g<1>{CUT}", spelled)
        # "<|im_end|" is no control token before the syntax writes ">" behind it
        return self._controls.cut(spelled, but=self._own_marks)

    def _tool_as_text(self, tool: ToolSpec) -> ToolSpec:
        """Return a tool for templates and instructions."""
        return replace(
            tool,
            name=self._read(tool.name),
            call_tag=tool.tag,
            description=self._read(tool.description),
            parameters=map_texts(tool.parameters, self._read),
        )

    def _shown(self, message: Message) -> dict[str, Any]:
        """Return a message for the chat template."""
        match message.role:
            case "tool":
                content = self._observed(message)
            case "assistant":
                said = _without_sentinel(message.content)
                content = self._controls.as_text(said, but=self._own_marks)
            case _:
                content = self._read(message.content)
        shown: dict[str, Any] = {"role": message.role, "content": content}
        call_id = self._read(message.call_id)
        if message.role == "tool" and isinstance(self.syntax, Mistral):
            # its templates refuse a call id without nine letters and digits, which policies omit
            call_id = call_id if _MISTRAL_ID.fullmatch(call_id) else _NO_ID
        return shown | ({"tool_call_id": call_id} if call_id else {})

    @cached_property
    def _added_texts(self) -> frozenset[str]:
        """Texts of the tokenizer's added tokens."""
        tokenizer: Any = self.tokenizer  # its own annotations are those of a special token
        return frozenset((*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens))

    @cached_property
    def _template_tells_tools(self) -> bool:
        return "tools" in self._template and not self.syntax.inline_results

    @cached_property
    def _opened_thought(self) -> str:
        """Return what the chat template writes of the policy's thought; "" if nothing."""
        rendered = self._rendered([{"role": "user", "content": "."}], generate=True)
        match = _OPENED_THOUGHT.search(rendered)
        return match[0] if match else ""

    @cached_property
    def _end_id(self) -> int:
        """Return the token that the template puts after a message of the policy."""
        messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": _SENTINEL}]
        behind = self._rendered(messages, generate=False).rpartition(_SENTINEL)[2]
        ids = self._encode(behind)
        if not ids or self.tokenizer.convert_ids_to_tokens(ids[0]) not in self._added_texts:
            raise PolicyError(
                f"{self.tokenizer.name_or_path}: its chat template ends a message of the assistant "
                f"with {behind[:20]!r}, which is no token of its own, so that dialect "
                f'"{self.syntax.name}" cannot tell where it ends. Set policy.dialect = "tags"'
            )
        return ids[0]

    def _rendered(self, messages: list[dict[str, Any]], *, generate: bool) -> str:
        tools: Any = None  # Llama's templates explain calls where the list is empty
        if self._template_tells_tools and self._told_tools:
            tools = [tool.as_function() for tool in self._told_tools]
        try:
            with rendering(self._template):
                return str(
                    self.tokenizer.apply_chat_template(
                        messages, tools=tools, add_generation_prompt=generate, tokenize=False
                    )
                )
        except TemplateError as error:
            raise PolicyError(
                f"{self.tokenizer.name_or_path}: its chat template refuses a conversation with "
                f'tools ({error}). Correct the template, or set policy.dialect = "tags"'
            ) from error

    def _encode(self, text: str) -> list[int]:
        return self._controls.encode(text)


def _without_sentinel(content: str) -> str:
    """Return the content without the sentinel: a rendering is cut only at the policy's messages."""
    return content.replace(_SENTINEL, "\ufffd")
