"""Twelve scripts: documents and rows go in, questions are asked, searched for and answered."""
# ruff: noqa: RUF001 (letters of other scripts are what this is about)

import json

import pytest

from espalier.config import KnowledgeConfig, SearchConfig
from espalier.records import NullTracker, read_tasks
from espalier.records.trajectory import Trajectory
from espalier.rewards.answers import exact_match
from espalier.stages import ingest
from espalier.stages import synthesize as stage
from espalier_search.knowledge.search import SearchTool
from espalier_search.synthesis.own_questions import WordTeacher

from .conftest import PROFILE

# script -> relation, sentence, question, (subject, object) ...
SCRIPTS = {
    "Latin": ("Hauptstadt", "Die Hauptstadt von {} heißt {}.", "Welche Hauptstadt hat {}?",
              "Frankreich Paris Italien Rom Spanien Madrid Polen Warschau"),
    "Cyrillic": ("столица", "{} имеет столица {}.", "Какая столица у {}?",
                 "Франция Париж Италия Рим Испания Мадрид Польша Варшава"),
    "Greek": ("πρωτεύουσα", "{}, πρωτεύουσα {}.", "Ποια πρωτεύουσα έχει η {};",
              "Γαλλία Παρίσι Ιταλία Ρώμη Ισπανία Μαδρίτη Πολωνία Βαρσοβία"),
    "Hebrew": ("בירה", "{}, בירה {}.", "מה בירה {}?",
               "צרפת פריז איטליה רומא ספרד מדריד פולין ורשה"),
    "Arabic": ("عاصمة", "{}، عاصمة {}.", "ما عاصمة {}؟",
               "فرنسا باريس إيطاليا روما إسبانيا مدريد بولندا وارسو"),
    "Devanagari": ("राजधानी", "{} की राजधानी {} है।", "{} की राजधानी क्या है?",
                   "फ़्रांस पेरिस इटली रोम स्पेन मैड्रिड पोलैंड वारसॉ"),
    "Bengali": ("রাজধানী", "{} দেশের রাজধানী {}।", "{} দেশের রাজধানী কী?",
                "ফ্রান্স প্যারিস ইতালি রোম স্পেন মাদ্রিদ পোল্যান্ড ওয়ারশ"),
    "Tamil": ("தலைநகரம்", "{} நாட்டின் தலைநகரம் {}.", "{} நாட்டின் தலைநகரம் எது?",
              "பிரான்சு பாரிஸ் இத்தாலி ரோம் எசுப்பானியா மத்ரித் போலந்து வார்சா"),
    "Thai": ("เมืองหลวง", "เมืองหลวงของ{}คือ{}", "เมืองหลวงของ{}คืออะไร",
             "ฝรั่งเศส ปารีส อิตาลี โรม สเปน มาดริด โปแลนด์ วอร์ซอ"),
    "Han": ("首都", "{}的首都是{}。", "{}的首都是哪里？",
            "法国 巴黎 意大利 罗马 西班牙 马德里 波兰 华沙"),
    "Kana": ("しゅと", "{}のしゅとは{}です。", "{}のしゅとはどこですか。",
             "フランス パリ イタリア ローマ スペイン マドリード ポーランド ワルシャワ"),
    "Hangul": ("수도", "{}의 수도는 {}이다.", "{}의 수도는 어디입니까?",
               "프랑스 파리 이탈리아 로마 스페인 마드리드 폴란드 바르샤바"),
}  # fmt: skip


def _rows():
    """Relation, sentence, question, subject and object of every fact."""
    for relation, sentence, question, names in SCRIPTS.values():
        for pair in zip(names.split()[::2], names.split()[1::2], strict=True):
            yield relation, sentence.format(*pair), question.format(pair[0]), *pair


def _profile(path, given, **settings):
    texts = path / "texts"
    texts.mkdir()
    for number, (_, sentence, _, subject, _) in enumerate(_rows()):
        (texts / f"{number}.md").write_text(f"# {subject}\n\n{sentence}\n", encoding="utf-8")
    rows = [
        {"question": question, "answer": object_}
        if given == "questions"
        else {"subject": subject, "relation": relation, "object": object_}
        for relation, _, question, subject, object_ in _rows()
    ]
    file = path / f"{given}.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    knowledge = KnowledgeConfig(source="folder", path=texts, **{given: file}, **settings)
    return PROFILE.model_copy(update={"knowledge": knowledge})


def _made(profile, path):
    ingest.run(profile, {}, path / "knowledge", NullTracker())
    stage.run(profile, {"knowledge": path / "knowledge"}, path / "synthetic", NullTracker())
    return [
        task
        for split in ("train", "dev", "heldout")
        for task in read_tasks(path / "synthetic" / "tasks" / f"{split}.jsonl")
    ]


@pytest.mark.parametrize("triple_lines", [True, False])
def test_triples_of_twelve_scripts_are_asked_and_answered(tmp_path, triple_lines):
    profile = _profile(tmp_path, "triples", triple_lines=triple_lines)
    tasks = _made(profile, tmp_path)
    search = SearchTool.open(tmp_path / "knowledge", "full", SearchConfig())
    shown = {
        subject: search.observation(f"{subject} {relation}")
        for relation, _, _, subject, _ in _rows()
    }
    for relation, sentence, _, subject, object_ in _rows():
        assert shown[subject].startswith(f"{subject} | "), shown[subject]
        assert (f"{relation}: {object_}" if triple_lines else sentence) in shown[subject]
        (task,) = [task for task in tasks if task.verifier.gold == (object_,)]
        assert subject in task.question
        right = {other for *_, other in _rows() if exact_match(other, task.verifier.gold)}
        assert right == {object_}


def test_pairs_of_twelve_scripts_are_found_and_answered(tmp_path):
    profile = _profile(tmp_path, "questions")
    tasks = {task.question: task for task in _made(profile, tmp_path)}
    assert len(tasks) >= 12 * 4, "no pair is left out"
    search = SearchTool.open(tmp_path / "knowledge", "full", SearchConfig())
    documents = [search.document(f"document:{number}.md") for number in range(48)]
    teacher = WordTeacher(search, documents)
    for _, _, question, subject, object_ in _rows():
        assert search.search(question)[0].title == subject
        found = teacher.demonstrate(tasks[question])
        assert isinstance(found, Trajectory), (question, found)
        assert found.answer == object_
