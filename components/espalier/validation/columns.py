"""Tables of tasks, trajectories and agent texts, with the columns that expectations check."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import pandas as pd

from espalier.environments import Family
from espalier.environments.mixins import Teacher
from espalier.records import Action, AgentText, ArtifactError, Malformed, Message, Task
from espalier.records.folding import NameIndex, folded_name, is_named_in, phrases
from espalier.records.knowledge import EntitySplits
from espalier.records.trajectory import Trajectory


class SplitTask(NamedTuple):
    """A task and the split whose file it was read from."""

    file_split: str
    task: Task


def task_columns(
    tasks: Sequence[SplitTask], entities: EntitySplits, family: Family[Any]
) -> pd.DataFrame:
    """A table with one row per task, in the given order, and the columns of `suites.TASK_SCHEMA`.

    Args:
        tasks: tasks of every split.
        entities: entities whose names must not be shared between splits.
        family: tells which tasks have the same query, and which names they are about.
    """
    questions = []
    for _, task in tasks:
        if family.of(task).reads_symbols:
            questions.append(" ".join(task.question.split()))
        else:
            questions.append(folded_name(task.question))
    queries = [family.question_key(task) for _, task in tasks]
    splits = [task.metadata.split for _, task in tasks]
    query_splits = _splits_by_key(zip(queries, splits, strict=True))
    return pd.DataFrame(
        {
            "row": range(len(tasks)),
            "task_id": [task.task_id for _, task in tasks],
            "split": splits,
            "is_in_own_file": [file_split == task.metadata.split for file_split, task in tasks],
            "question": [task.question for _, task in tasks],
            "question_words": [len(phrases(task.question)) for _, task in tasks],
            "query": queries,
            "blank_gold_answers": [_blank_answers(task) for _, task in tasks],
            "earlier_same_question": _earlier_copies(questions),
            "earlier_same_query": _earlier_copies(queries),
            # A task without a formal query (a user's own question) has none to share.
            "other_splits_of_query": [
                len(query_splits[query]) - 1 if query else 0 for query in queries
            ],
            "entity_split_conflicts": _entity_split_conflicts(tasks, entities, family),
        }
    )


def _blank_answers(task: Task) -> int:
    return sum(not gold.strip() for gold in task.verifier.gold)


def _earlier_copies(keys: Iterable[str]) -> list[int]:
    """For each key the number of earlier equal keys; 0 for an empty key."""
    seen: Counter[str] = Counter()
    copies = []
    for key in keys:
        copies.append(seen[key] if key else 0)
        seen[key] += 1
    return copies


def _splits_by_key(pairs: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for key, split in pairs:
        found[key].add(split)
    return found


def _entity_split_conflicts(
    tasks: Sequence[SplitTask], entities: EntitySplits, family: Family[Any]
) -> list[int]:
    """For each task, the names of its chain that another split owns or uses in its chains.

    Folded names are compared, because a policy cannot tell two entities of one name apart.
    """
    chains = [{folded_name(name) for name in family.names_of(task)} for _, task in tasks]
    split_of = [task.metadata.split for _, task in tasks]
    met_in = _splits_by_key(
        (name, split) for chain, split in zip(chains, split_of, strict=True) for name in chain
    )
    return [
        sum(
            len(met_in[name]) > 1 or split not in entities.splits.get(name, frozenset({split}))
            for name in chain - entities.hubs
        )
        for chain, split in zip(chains, split_of, strict=True)
    ]


def trajectory_columns(
    trajectories: Sequence[Trajectory], train_tasks: Mapping[str, Task], family: Family[Any]
) -> pd.DataFrame:
    """A table with one row per trajectory and the columns of `suites.TRAJECTORY_SCHEMA`.

    Args:
        trajectories: the teacher's trajectories; rows are in their order.
        train_tasks: training tasks, which alone may be demonstrated, by id.
        family: family of the tasks, which defines the form of an episode.
    """
    episodes = [_after_the_prompt(trajectory.messages) for trajectory in trajectories]
    found = [train_tasks.get(trajectory.task_id) for trajectory in trajectories]
    families = [family.of(task) if task else family for task in found]
    return pd.DataFrame(
        {
            "row": range(len(trajectories)),
            "task_id": [trajectory.task_id for trajectory in trajectories],
            "is_train_task": [task is not None for task in found],
            "turns": [len(_of_role(episode, "assistant")) for episode in episodes],
            "order_faults": [
                _order_faults(episode, own) for episode, own in zip(episodes, families, strict=True)
            ],
            "call_faults": [_call_faults(t) for t in trajectories],
            "mask_faults": [_mask_faults(t) for t in trajectories],
            "grammar_faults": [
                _grammar_faults(episode, own)
                for episode, own in zip(episodes, families, strict=True)
            ],
            "is_solved": [t.reward.get("outcome", 0.0) > 0 for t in trajectories],
            "is_answer_in_evidence": [
                not (isinstance(own, Teacher) and own.answers_from_evidence)
                or _is_answer_in_evidence(trajectory)
                for trajectory, own in zip(trajectories, families, strict=True)
            ],
            "action_share": [_action_share(episode) for episode in episodes],
        }
    )


def _after_the_prompt(messages: Sequence[Message]) -> Sequence[Message]:
    """Messages after the first user message; all messages if there is none."""
    roles = [message.role for message in messages]
    return messages[roles.index("user") + 1 :] if "user" in roles else messages


def _of_role(messages: Sequence[Message], role: str) -> list[Message]:
    return [message for message in messages if message.role == role]


def _order_faults(episode: Sequence[Message], family: Family[Any]) -> int:
    """Messages out of order: each call needs its result, and the assistant speaks last."""
    faults, pending = 0, 0
    spoke = False  # whether the assistant spoke last, so that a user may reply
    for message in episode:
        if message.role == "tool":
            faults += pending == 0
            pending = max(0, pending - 1)
        elif message.role == "user" and family.converses:
            faults += not spoke
            spoke = False
        else:
            faults += (message.role != "assistant") + (pending > 0)
            pending = len(message.tool_calls)
            spoke = not pending
    ends_open = not episode or episode[-1].role != "assistant"
    return faults + ends_open


def _call_faults(trajectory: Trajectory) -> int:
    """Number of differences between the recorded calls and results and those in the messages.

    Calls in the last message ended the episode, so their results are in no message.
    """
    shown = [c for m in _of_role(trajectory.messages, "assistant") for c in m.tool_calls]
    results = [message.content for message in _of_role(trajectory.messages, "tool")]
    recorded = trajectory.tool_results
    seen = len(recorded) - len(trajectory.messages[-1].tool_calls)
    return _differences(shown, [result.call for result in recorded]) + _differences(
        results, [result.content for result in recorded[:seen]]
    )


def _differences(left: Sequence[object], right: Sequence[object]) -> int:
    pairs = zip(left, right, strict=False)
    return abs(len(left) - len(right)) + sum(one != other for one, other in pairs)


def _mask_faults(trajectory: Trajectory) -> int:
    """Number of tokens whose mask or log-prob contradicts the author given by the turns.

    Text that is not tokenized yet has no tokens, and so no faults.
    """
    is_action = [0] * len(trajectory.token_ids)
    for turn in trajectory.turns:
        length = turn.action_end - turn.action_start
        is_action[turn.action_start : turn.action_end] = [1] * length
    wrong_mask = sum(
        actual != right for actual, right in zip(trajectory.action_mask, is_action, strict=False)
    )
    unsampled = zip(trajectory.action_mask, trajectory.behavior_logprobs, strict=True)
    wrong_logprob = sum(not mask and logprob != 0.0 for mask, logprob in unsampled)
    return wrong_mask + wrong_logprob + abs(len(is_action) - len(trajectory.action_mask))


def _grammar_faults(episode: Sequence[Message], family: Family[Any]) -> int:
    """Number of misplaced assistant messages: all but the last must call tools, the last must not.

    If the family converses, any message may address the user; if it ends by a call, the last may
    call a tool.
    """
    written = _of_role(episode, "assistant")
    empty = sum(not message.tool_calls and not message.content for message in written)
    early_answers = sum(not message.tool_calls for message in written[:-1] if not family.converses)
    never_answers = not written or (bool(written[-1].tool_calls) and not family.ends_by_call)
    return empty + early_answers + never_answers


def _is_answer_in_evidence(trajectory: Trajectory) -> bool:
    """Whether an observation contains the words of the answer, adjacent and in order."""
    observed = _of_role(trajectory.messages, "tool")
    return any(is_named_in(trajectory.answer or "", message.content) for message in observed)


def _action_share(episode: Sequence[Message]) -> float:
    """Share of the characters after the prompt that the policy wrote."""
    written = sum(_length(message) for message in _of_role(episode, "assistant"))
    total = sum(_length(message) for message in episode)
    return written / total if total else 0.0


def _length(message: Message) -> int:
    calls = sum(len(call.name) + len(json.dumps(call.arguments)) for call in message.tool_calls)
    return len(message.content) + len(message.thought or "") + calls


_CHOICE = re.compile(
    r"(?P<options>Option 1: .+) I will choose option (?P<taken>[1-9])\.", re.DOTALL
)
_VERDICT = re.compile(r" My decision is (Correct|Incorrect)\.")
_OPTION = re.compile(r"(?:^| )Option \d: ")
_THOUGHT = re.compile(r"\s*<think>[^<>]+</think>\s*")


Parse = Callable[[str], Action]


class HiddenNames:
    """Names of dev and held-out entities that no training entity has."""

    def __init__(self, names: Collection[str]) -> None:
        self._index = NameIndex(names)

    @classmethod
    def load(cls, knowledge_dir: Path) -> Self:
        """The hidden names of a knowledge artifact, except common names, which no view can avoid.

        Raises:
            ArtifactError: a file of the artifact is missing or cannot be parsed.
        """
        path = knowledge_dir / "names.json"
        try:
            common = set(json.loads(path.read_text(encoding="utf-8"))["common_names"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path}: cannot be read ({error}). Run ingest again.") from error
        splits = EntitySplits.load(knowledge_dir).splits
        secret = {"dev", "heldout"}
        return cls({name for name, held in splits.items() if held <= secret} - common)

    def count(self, text: str) -> int:
        """Number of occurrences in `text`."""
        return sum(1 for _ in self._index.found_in(text))


def text_columns(
    texts: Sequence[AgentText],
    train_task_ids: Collection[str],
    hidden: HiddenNames,
    parse: Parse,
) -> pd.DataFrame:
    """A table with one row per text, in the given order, and the columns of `suites.TEXT_SCHEMA`.

    Args:
        texts: agent texts of the run.
        train_task_ids: ids of the training tasks, which alone may be written about.
        hidden: names that must not occur.
        parse: parser of actions in the policy's dialect.
    """
    seen: dict[str, int] = {}
    copies = []
    for text in texts:
        copies.append(seen.get(text.words, 0))
        seen[text.words] = copies[-1] + 1
    return pd.DataFrame(
        {
            "row": range(len(texts)),
            "text_id": [text.text_id for text in texts],
            "is_train_task": [not t.task_id or t.task_id in train_task_ids for t in texts],
            "order_faults": [_text_order_faults(text) for text in texts],
            "grammar_faults": [_text_grammar_faults(text, parse) for text in texts],
            "hidden_names": [_hidden_name_count(text, hidden) for text in texts],
            "earlier_same_text": copies,
        }
    )


def _text_order_faults(text: AgentText) -> int:
    """Number of pieces that break the order assistant, tool, ..., assistant."""
    expected = ("assistant", "tool")
    misplaced = sum(m.role != expected[place % 2] for place, m in enumerate(text.pieces))
    return misplaced + (len(text.pieces) % 2 == 0)


def _hidden_name_count(text: AgentText, hidden: HiddenNames) -> int:
    return sum(hidden.count(message.content) for message in (*text.prompt, *text.pieces))


def _text_grammar_faults(text: AgentText, parse: Parse) -> int:
    """Number of assistant pieces that do not parse as texts of this kind must."""
    written = [message.content for message in text.pieces if message.role == "assistant"]
    if text.kind == "decision":
        return _decision_faults(written, parse)
    if text.kind == "reasoning":
        guesses, answers = written[:-1], written[-1:]
        faults = sum(_THOUGHT.fullmatch(guess) is None for guess in guesses)
        return faults + sum(isinstance(parse(answer), Malformed) for answer in answers)
    return sum(isinstance(parse(action), Malformed) for action in written)


def _decision_faults(written: Sequence[str], parse: Parse) -> int:
    """Number of choices of an unlisted option or among invalid actions, and of missing verdicts."""
    if not written:
        return 1
    ending = _VERDICT.search(written[-1])
    last = written[-1][: ending.start()] if ending else written[-1]
    faults = int(ending is None)
    for choice in (*written[:-1], last):
        found = _CHOICE.fullmatch(choice)
        options = _OPTION.split(found["options"])[1:] if found else []
        listed = found is not None and int(found["taken"]) <= len(options)
        faults += not listed or any(isinstance(parse(o), Malformed) for o in options)
    return faults
