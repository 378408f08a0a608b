r"""The tokens that frame a conversation, and an encoding in which no content can spell one.

A content that spells a control token is cut inside of it, before it is written into a chat template
or a dialect's syntax. Where the whole is encoded, each side of a cut is encoded by itself:

    content    "x <|im_end|> y"     ->  "x <" CUT "|im_end|> y"
    rendered   "<|im_start|>user\nx <" CUT "|im_end|> y<|im_end|>\n"
    encoded    <|im_start|>, user, \n, x, " <", "|", "im", "_end", "|>", " y", <|im_end|>, \n

A text without a cut has the ids that the tokenizer itself gives it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT = "\ufdd0"
"""A Unicode noncharacter, which exchanged text never contains; if it does, it is replaced."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_RESERVED = re.compile(r"<.+>|\[[A-Z/_ ]+\]|\uff5c.+\uff5c", re.DOTALL)
"""Form of reserved tokens that the tokenizer does not list as special."""
_HTML = re.compile(
    r"</?(a|b|blockquote|br|caption|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|s|span|strong|sub|sup|"
    r"table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)
"""HTML elements, which some tokenizers (Gemma's) have as tokens and which are ordinary text."""

Value = TypeVar("Value")


class _Normaliser(NamedTuple):
    """A tokenizer's normalisation, and the control tokens that it matches after normalising."""

    normalise: Callable[[str], str] | None
    pattern: re.Pattern[str]


class ControlTokens:
    """The control tokens of a tokenizer, as `control_tokens` collects them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        self._pattern = _one_of(texts)
        self._normalise, self._normalised_pattern = _normaliser(tokenizer, self._pattern)

        self._anchor = ""
        """A control token that is one id and strips no blanks; "" without one."""
        for token_id, token in tokenizer.added_tokens_decoder.items():
            is_plain = token.special and not (token.rstrip or token.lstrip or token.single_word)
            if is_plain and self._encoded(f"{token.content}|")[:1] == [token_id]:
                self._anchor = token.content
                break

    def as_text(self, content: str, *, but: frozenset[str] = frozenset()) -> str:
        """Return the content, cut wherever it spells a control token, except those of `but`."""
        return self.cut(content.replace(CUT, _REPLACEMENT), but=but)

    def cut(self, text: str, *, but: frozenset[str]) -> str:
        """Return a text cut in every control token except those of `but`; its cuts stay."""
        if self._normalise is not None:
            normalised = CUT.join(map(self._normalise, text.split(CUT)))
            kept = but.union(map(self._normalise, but))
            cut = _cut(self._normalised_pattern, normalised, kept)
            if cut != normalised:  # spells a token once it is normalised
                text = cut
        return _cut(self._pattern, text, but)

    def encode(self, text: str) -> list[int]:
        """Return token ids; control tokens are those that were not cut."""
        if CUT not in text:
            return self._encoded(text)
        first, *others = text.split(CUT)
        ids = self._encoded(first)
        for part in others:
            # after another token, so that it gets no leading blank like the beginning of a text
            ids += self._encoded(self._anchor + part)[bool(self._anchor) :]
        return ids

    def _encoded(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def control_tokens(tokenizer: PreTrainedTokenizerBase, marks: Iterable[str] = ()) -> ControlTokens:
    """Return the control tokens of a tokenizer, which only templates and dialects may write.

    These are its special tokens, and those other added tokens that its chat template contains, that
    look reserved (`<|...|>`, `[INST]`), or that are among `marks`, which a dialect writes. Blanks,
    words and HTML elements that are single tokens stay ordinary text.
    """
    return _collected(tokenizer, _added_texts(tokenizer).intersection(marks))


@lru_cache(maxsize=32)
def _added_texts(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    return frozenset(token.content for token in tokenizer.added_tokens_decoder.values())


@lru_cache(maxsize=32)
def _collected(tokenizer: PreTrainedTokenizerBase, marks: frozenset[str]) -> ControlTokens:
    template = str(tokenizer.chat_template or "")
    texts = set(tokenizer.all_special_tokens)
    for token in tokenizer.added_tokens_decoder.values():
        text = token.content
        reserved = text in template or _RESERVED.fullmatch(text.strip())
        if token.special or text in marks or (reserved and not _HTML.fullmatch(text)):
            texts.add(text)
    return ControlTokens(tokenizer, (text for text in texts if text.strip()))


def map_texts(value: Value, change: Callable[[str], str]) -> Value:
    """Return a JSON value with `change` applied to every text in it, keys included."""
    if isinstance(value, str):
        return cast("Value", change(value))
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value).items()
        return cast("Value", {change(key): map_texts(one, change) for key, one in entries})
    if isinstance(value, list | tuple):
        return cast("Value", [map_texts(one, change) for one in cast("Sequence[Any]", value)])
    return value


def _cut(pattern: re.Pattern[str], text: str, but: frozenset[str]) -> str:
    def cut_one(found: re.Match[str]) -> str:
        if found[0] in but:
            return found[0]
        return f"{found[0][0]}{CUT}{found[0][1:]}" if len(found[0]) > 1 else _REPLACEMENT

    while (cut := pattern.sub(cut_one, text)) != text:
        text = cut  # a cut can leave another token whole: "<a>" is "<" and "a>"
    return text


def _normaliser(tokenizer: PreTrainedTokenizerBase, plain: re.Pattern[str]) -> _Normaliser:
    """Return how the tokenizer normalises a text; it matches some tokens only after that."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    normaliser: Any = getattr(backend, "normalizer", None)
    if normaliser is None:
        return _Normaliser(None, _one_of(()))
    found = [
        normaliser.normalize_str(token.content)
        for token in tokenizer.added_tokens_decoder.values()
        if token.normalized and plain.fullmatch(token.content)
    ]
    return _Normaliser(normaliser.normalize_str if found else None, _one_of(found))


def _one_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest of the texts; without texts it never matches.

    It is a tree of prefixes: some tokenizers reserve thousands of tokens with a common beginning,
    and separate alternatives would all be tried at every angle bracket.
    """
    sorted_texts = sorted({text for text in texts if text})
    return re.compile(_branches(sorted_texts, 0) if sorted_texts else r"(?!)")


def _branches(texts: Sequence[str], depth: int) -> str:
    """Return the pattern of the rest after the first `depth` characters, which all texts share."""
    is_whole = len(texts[0]) == depth
    rest = texts[1:] if is_whole else texts
    if not rest:
        return ""
    branches: list[str] = []
    start = 0
    while start < len(rest):
        end = start + 1
        while end < len(rest) and rest[end][depth] == rest[start][depth]:
            end += 1
        branch = rest[start:end]
        if len(branch) == 1:
            branches.append(re.escape(branch[0][depth:]))
        else:
            branches.append(re.escape(branch[0][depth]) + _branches(branch, depth + 1))
        start = end
    if len(branches) == 1 and not is_whole:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if is_whole else ''}"
