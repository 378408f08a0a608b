from dataclasses import replace

import pytest

from espalier.reporting.formats import duration, memory, visible
from espalier.reporting.transcripts import mask_runs, transcribe
from tests.factories.sample_run import trajectory

EPISODE = trajectory(1, "Lyon | country: France", "Paris")


def test_mask_runs_follow_the_tokens_from_prompt_to_answer():
    runs = [(run.writer, run.tokens) for run in mask_runs(EPISODE)]

    assert runs == [("prompt", 8), ("action", 9), ("observation", 6), ("action", 5)]


def test_a_teacher_demonstration_without_tokens_has_no_strip():
    teacher = replace(EPISODE, token_ids=(), action_mask=(), behavior_logprobs=(), turns=())

    transcript = transcribe(teacher, "Paris")

    assert transcript.strip == ()
    assert transcript.mask_note == ""
    assert [passage.writer for passage in transcript.passages] == [
        "prompt", "action", "observation", "action",
    ]  # fmt: skip


def test_tags_are_set_apart_from_what_they_enclose():
    search = transcribe(EPISODE, "").passages[1]

    assert [(s.inside, s.is_tag) for s in search.spans if s.text.strip()] == [
        ("think", True), ("think", False), ("think", True),
        ("search", True), ("search", False), ("search", True),
    ]  # fmt: skip


def test_a_very_long_message_is_cut_and_says_so():
    long = transcribe(trajectory(1, "x" * 9000, "Paris"), "")

    assert long.passages[2].spans[0].text.endswith("[... 3000 more characters]")


def test_text_after_an_unclosed_tag_belongs_to_it():
    unclosed = transcribe(trajectory(1, "<search> Lyon", "Paris"), "").passages[2]

    assert [(span.inside, span.text) for span in unclosed.spans] == [
        ("search", "<search>"), ("search", " Lyon"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("a\u202eb", r"a\u{202e}b"),
        ("nul\x00", r"nul\u{0}"),
        ("\ud800", r"\u{d800}"),
        ("two\nlines", "two\nlines"),
        ("Koln, Sao Paulo", "Koln, Sao Paulo"),
    ],
)
def test_invisible_characters_become_visible(hostile, shown):
    assert visible(hostile) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.42, "0.4 s"),
        (9.96, "10.0 s"),
        (59.6, "1 min 00 s"),
        (187, "3 min 07 s"),
        (7500, "2 h 05 min"),
        (None, ""),
    ],
)
def test_durations_read_in_words(seconds, shown):
    assert duration(seconds) == shown


def test_memory_reads_in_megabytes_then_gigabytes():
    assert (memory(812.4), memory(2150.0)) == ("812 MB", "2.1 GB")
