"""The viewer's pages in a real browser, from its real server: what only a browser shows."""

from __future__ import annotations

import asyncio
import concurrent.futures
import csv
import os
import re
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tokenizers import Tokenizer, models

from espalier.config import ServingConfig
from espalier.records import Message, work_dir
from espalier.records.episodes import EPISODES, EpisodePlace, episode_record
from espalier.records.streams import STREAMS_FOLDER
from espalier.wire.listening import listening
from espalier_ui.app import ViewerApp
from espalier_ui.export import write_export
from espalier_ui.server import viewer_server, write_report
from espalier_ui.talk import QuestionAsked, Talks
from tests.factories.sample_run import make_run
from tests.factories.viewed_run import (
    Viewer,
    attempt,
    notice_record,
    step_record,
    write_run,
    write_stream,
)
from tests.unit.ui.test_talk import TALKING, add_checkpoint

PICTURES = "ESPALIER_TEST_PICTURES"
"""Variable with the folder for pictures of the pages."""
DESKTOP, PHONE = {"width": 1300, "height": 900}, {"width": 390, "height": 844}
ATTACK = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
HOSTILE = f"{ATTACK}\u202egnp.exe\u202c\x1b[2J\u200b\x00"
LONG = "A" * 50_000
GROUP = {"source": "train", "step": 2, "group": "2/t0"}
IN_FRAME = '<iframe sandbox="allow-scripts" style="width: 420px; height: 600px"></iframe>'
UNSEEN = re.compile("[\u0000-\u0008\u001b\u200b\u202a-\u202e\u2066-\u2069]")


def write_hostile_run(folder):
    """Three steps, the second of which has a hostile group; its tokens are hostile too."""
    streams = write_run(folder, steps=3)
    messages = (
        Message(role="user", content=HOSTILE),
        Message(role="assistant", thought=HOSTILE, content=LONG),
    )
    hostile = [
        attempt("t0", number, text=HOSTILE, right=number > 5, answer=HOSTILE,
                **({"messages": messages, "tool_results": ()} if number == 5 else {}))
        for number in range(4, 8)
    ]  # fmt: skip
    places = [EpisodePlace(2, number, 9.0) for number in range(4, 8)]
    write_stream(streams, EPISODES, list(map(episode_record, hostile, places)))
    vocabulary = {f"word{number}{HOSTILE if number > 9 else ''}": number for number in range(40)}
    policy = folder / "trained_policy" / "policy"
    add_checkpoint(folder)
    Tokenizer(models.WordLevel(vocabulary, unk_token="word0")).save(str(policy / "tokenizer.json"))
    return folder


def write_failing_run(folder):
    """Three steps with notices, equal attempts, and a task of which only attempts are kept."""
    streams = write_run(folder, steps=1)
    same = [attempt("gone", 0), attempt("gone", 1, right=False), attempt("gone", 0)]
    records = [episode_record(one, EpisodePlace(2, number, 9.0)) for number, one in enumerate(same)]
    records.append(episode_record(same[0], EpisodePlace(3, 0, 9.0)))
    write_stream(streams, EPISODES, records)
    write_stream(streams, "steps", [step_record(2, grad_norm=0.5), step_record(3)])
    shown = {"severity": "warning", "since_step": 1, "attempts": ["2/gone/1"]}
    lines = [notice_record(step, "warning", f"step {step}: 0.{step} nats") for step in (1, 2, 3)]
    found = [notice_record(3, detector=name, message=name, **shown)
             for name in ("cause", "consequence")]  # fmt: skip
    write_stream(streams, "notices", [*lines, *found])


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The viewer of two runs, its address, and its application."""
    folder = tmp_path_factory.mktemp("viewed")
    write_failing_run(folder / "runs" / "failing")
    write_hostile_run(folder / "runs" / "run")
    write_run(folder / "runs" / "other", steps=2)
    write_run(folder / "runs" / "live", steps=2, running=True)
    viewer = Viewer([folder / "runs"], folder)
    bounds = ServingConfig()
    app = ViewerApp(viewer.catalog, viewer.labels, bounds, token=None)
    app.talks = Talks(TALKING)
    question = QuestionAsked(run="run", checkpoint="trained_policy", question="hostile")
    app.talks.ask(viewer.catalog.get("run"), question)
    for run in viewer.catalog.all():
        run.index.follow(patience_s=60)
    server = viewer_server(app, bounds)
    with listening("127.0.0.1", 0) as listener:
        run_server = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        run_server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", app.app(), viewer
        server.should_exit = True
        run_server.join(10)
    app.talks.end()
    viewer.catalog.close()


def aside(call, *args, **named):
    """Call in a thread of its own: Playwright has an event loop in this one."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args, **named).result()


class Pages:
    """A page of the viewer, and what went wrong in it."""

    def __init__(self, browser, address, viewport):
        self.page = browser.new_page(viewport=viewport)
        self.page.set_default_timeout(40_000)
        self._address = address
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, **state):
        """Open a state of the page and wait until its view has all that it asked for."""
        self.page.goto(f"{self._address}/?{urlencode(state)}")
        self.settle()

    def settle(self):
        self.page.locator("main h1").wait_for()
        for waiting in self.page.locator("main [role=status]", has_text="Loading").all():
            waiting.wait_for(state="hidden")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def heading(self, text):
        self.page.locator("main h1", has_text=text).wait_for()

    def picture(self, name):
        """Keep what is seen, where a folder for that was named."""
        if folder := os.environ.get(PICTURES):
            self.page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.fixture
def pages(browser, served):
    made = Pages(browser, served[0], DESKTOP)
    yield made
    made.page.close()


def states(viewer):
    """A state of each view, by its name."""
    found = aside(viewer.get, "runs/run/attempts", **GROUP)["attempts"]
    first, hostile = found[0]["id"], found[5]["id"]
    one = {"view": "attempt", **GROUP}
    of_run = {
        "overview": {}, "figures": {"figures": "all"}, "report": {"view": "report"},
        "step": {"view": "step", "step": 2},
        "group": {"view": "group", **GROUP}, "transcript": one | {"attempt": first},
        "hostile": one | {"attempt": hostile},
        "tokens": one | {"attempt": first, "show": "tokens", "token": 3},
        "mask": one | {"attempt": first, "show": "tokens", "colour": "mask"},
        "times": one | {"attempt": first, "show": "times"},
        "attempts": {"view": "attempts", "source": "trained", "right": "false"},
        "failures": {"view": "failures", "source": "train"},
        "search": {"view": "search", "q": "france"}, "timeline": {"view": "timeline"},
        "compare": {"view": "compare", "sides": "run:warm_start,run:trained,other:trained"},
        "lineage": {"view": "lineage", "task": "t0"}, "lineages": {"view": "lineage"},
        "labels": {"view": "labels"}, "talk": {"view": "talk"},
    }  # fmt: skip
    return {"runs": {}} | {name: {"run": "run", **state} for name, state in of_run.items()}


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_view_opens_and_fits_the_page(browser, served, viewport):
    pages = Pages(browser, served[0], viewport)
    for name, state in states(served[2]).items():
        pages.open(**state)
        pages.picture(f"{name}-{viewport['width']}")
        assert pages.page.locator(".problem").all_inner_texts() == [], name
        assert pages.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], (
            name
        )
        assert pages.said == [], name
    assert {url.split("/?")[0].split("/api")[0].split("/static")[0] for url in pages.asked
            if not url.startswith("data:")} == {served[0]}  # fmt: skip
    pages.page.close()


def test_hostile_attempts_do_nothing(pages, served):
    opened = states(served[2])
    for name in ("step", "group", "hostile", "tokens", "lineage", "search", "talk"):
        state = opened[name] | ({"q": "owned"} if name == "search" else {})
        pages.open(**state)
        assert not pages.page.title().startswith("owned")
        assert pages.page.locator("main :is(script, img, iframe, style)").count() == 0
        assert UNSEEN.search(pages.page.locator("body").inner_text()) is None, name
    pages.open(**opened["hostile"])
    text = pages.page.locator("main").inner_text()
    assert ATTACK in text
    assert "\u27e8U+202E\u27e9gnp.exe\u27e8U+202C\u27e9\u27e8U+001B\u27e9[2J" in text
    assert "A" * 5000 not in text
    pages.page.get_by_role("button", name="Show more").click()
    pages.page.get_by_text("A" * 9000).first.wait_for()
    assert pages.said == []


def test_the_keyboard_alone_leads_to_a_token(pages):
    pages.open()
    pages.press("j", "j", "k")
    first = pages.page.evaluate("document.activeElement.textContent")
    pages.press("Enter")
    pages.heading(first)
    pages.page.get_by_role("img", name="reward").focus()
    pages.press("ArrowRight", "ArrowRight", "Enter")
    pages.heading("Step 2")
    pages.press("Backspace")
    pages.heading(first)
    pages.press("3")
    pages.heading("Step")
    pages.page.locator("main td a[data-row]").first.wait_for()
    pages.press("j", "Enter")
    pages.page.get_by_text("Side by side").wait_for()
    pages.page.locator("article a[data-row]").first.wait_for()
    pages.press("j", "Enter")
    pages.page.get_by_role("heading", name="Why this reward").wait_for()
    pages.page.get_by_role("link", name="tokens", exact=True).press("Enter")
    tokens = pages.page.get_by_role("group", name=re.compile("Tokens"))
    tokens.focus()
    pages.press("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "c")
    pages.page.wait_for_url(re.compile("token=3.*colour=entropy"))
    for crumb in ("Group", "Step", first, "Runs"):
        pages.page.locator("main").focus()
        pages.press("Backspace")
        # the view before may have the same heading until the page is drawn again
        pages.page.locator(".crumbs [aria-current=page]", has_text=crumb).wait_for()
        pages.page.locator("main h1").wait_for()
    pages.press("?")
    pages.page.get_by_role("dialog").wait_for()
    pages.press("Escape", "/")
    assert pages.page.evaluate("document.activeElement.type") == "search"


def test_tokens_that_were_not_sampled_have_no_value(pages, served):
    state = states(served[2])["tokens"]
    pages.open(**state | {"token": 0})
    values = pages.page.locator("dl.facts").first.inner_text()
    assert values.count("none (not sampled)") == 6
    read = pages.page.locator(".tokens span.masked")
    read.nth(6).wait_for()
    assert read.count() == 7
    assert set(read.evaluate_all("all => all.map(one => one.getAttribute('style'))")) == {None}
    pages.page.locator(".tokens span").nth(3).click()
    pages.page.locator("dd", has_text="-0.5").first.wait_for()


def test_the_mask_says_what_it_is_made_of(pages, served):
    for task, what in (("t0", "filled: in the loss;"), ("t1", "filled: sampled by the policy;")):
        row = aside(served[2].get, "runs/run/attempts", source="train", step=1, task=task)
        tokens = {"show": "tokens", "colour": "mask", "token": 0}
        pages.open(run="run", view="attempt", attempt=row["attempts"][0]["id"], **tokens)
        assert what in pages.page.locator(".legend").inner_text()
        pages.page.locator(".tokens .trains").nth(4).wait_for()
        assert pages.page.locator(".tokens .trains").count() == 5
        in_loss = pages.page.locator("dl.facts div", has_text="In the loss").inner_text()
        assert in_loss.split("\n")[-1] == ("no" if task == "t0" else "not kept")


def test_the_cause_of_a_failure_leads_to_its_group(pages):
    pages.open(run="failing")
    norm = pages.page.locator(".curve h3", has_text="grad_norm")
    assert norm.inner_text().split("\n")[-1] == "0.5 in step 2"
    assert "step" not in pages.page.locator(".curve h3", has_text="reward").inner_text()
    notices = pages.page.locator(".notices li")
    notices.nth(2).wait_for()
    cause, consequence, line, *_ = notices.all_inner_texts()
    assert "step 3 since step 1 cause," in cause
    assert "consequence" in consequence
    assert "step 3 since step 1 log, 3 times," in line
    pages.page.locator(".notices").get_by_role("link", name="\u2717 gone #1").first.click()
    assert "gone, play it" in pages.page.locator("aside").inner_text()
    assert "search: succeeded" in pages.page.locator(".two").inner_text()
    pages.page.get_by_role("link", name="Its group").click()
    sides = pages.page.locator(".side article")
    sides.nth(2).wait_for()
    texts = sides.all_inner_texts()
    assert all('search {"query":"lyon' in text and "country: france" in text for text in texts)
    assert ["The same messages as #0." in text for text in texts] == [False, False, True]
    assert "which may be mistaken" in sides.locator(".verdict").first.get_attribute("title")
    assert "left out: 1." in pages.page.locator("main").inner_text()
    pages.page.get_by_role("link", name="Where the task comes from").click()
    pages.heading("what is asked by gone")
    assert pages.said == []


def test_one_reward_of_all_attempts_is_one_value(pages):
    pages.open(run="failing", view="step", step=3)
    bins = pages.page.locator(".histogram .bin a")
    bins.first.wait_for()
    assert bins.all_inner_texts() == ["1"]


def test_a_state_comes_back_from_its_address(pages, served):
    pages.open(run="run", view="attempts", source="train")
    pages.page.get_by_role("link", name="wrong", exact=True).click()
    pages.page.get_by_text("12 attempts").or_(pages.page.get_by_text("14 attempts")).wait_for()
    address, text = pages.page.url, pages.page.locator("caption").inner_text()
    pages.page.reload()
    pages.settle()
    assert pages.page.locator("caption").inner_text() == text
    pages.page.go_back()
    pages.page.wait_for_url(re.compile("source=train$"))
    pages.page.go_forward()
    assert pages.page.url == address


def test_a_replay_shows_an_attempt_as_it_went(pages, served):
    pages.open(**states(served[2])["transcript"] | {"speed": 0.5, "time": 0})
    later = pages.page.locator(".message.later")
    later.first.wait_for()
    pages.page.locator("main").focus()
    pages.press(" ")
    pages.page.get_by_role("button", name="Pause").wait_for()
    pages.page.locator(".message:not(.later)").nth(1).wait_for()
    pages.press(" ")
    pages.page.wait_for_url(re.compile(r"time=0\.\d*[1-9]|time=[1-9]"))
    pages.page.get_by_role("link", name=re.compile("^16")).click()
    pages.page.locator("main").focus()
    pages.press(" ")
    later.first.wait_for(state="detached")
    assert pages.said == []


def test_an_open_page_follows_a_run_that_trains(pages, served):
    pages.open(run="live")
    folder = next(run.path for run in served[2].catalog.all() if run.id == "live")
    streams = work_dir(folder / "trained_policy") / STREAMS_FOLDER
    reward = pages.page.locator(".curve h3", has_text="reward")
    assert "0.2" in reward.inner_text()
    write_stream(streams, "steps", [step_record(3)], is_finished=False)
    pages.page.locator(".curve h3", has_text="0.3").wait_for()
    assert "3 of 9" in pages.page.locator("main").inner_text()


def test_a_label_is_given_by_a_key_and_listed(pages, served):
    state = states(served[2])["transcript"]
    pages.open(**state)
    pages.page.get_by_text("No label.").wait_for()
    pages.press("g")
    pages.page.get_by_text("Labelled good.").wait_for()
    pages.open(run="run", view="labels")
    pages.page.locator("main tbody tr").first.wait_for()
    assert pages.page.locator("main tbody tr").count() == 1
    assert [label["attempt"] for label in aside(served[2].get, "labels")["labels"]] == [
        state["attempt"]
    ]


def test_a_checkpoint_is_asked_and_shows_what_it_did(pages, served):
    pages.open(**states(served[2])["transcript"])
    pages.page.get_by_role("link", name="play it").click()
    pages.heading("Talk")
    assert pages.page.get_by_label("Task").input_value() == "t0"
    pages.page.get_by_role("button", name="Play it").click()
    played = pages.page.get_by_role("region", name=re.compile("Question")).first
    played.get_by_text("Gold").wait_for()
    assert "country: france" in played.inner_text()
    pages.page.get_by_label("Question", exact=True).fill("hostile")
    pages.page.get_by_role("button", name="Ask").click()
    played.get_by_text("U+202E").first.wait_for()
    pages.page.get_by_role("button", name="End the process").click()
    pages.page.get_by_text("No process runs").wait_for()
    assert pages.said == []


def test_an_exported_run_opens_without_a_server(browser, served, tmp_path):
    file = tmp_path / "run.html"
    aside(write_export, file, served[1], "run")
    page = Pages(browser, "file:", DESKTOP)
    page.page.goto(file.as_uri())
    page.heading("run")
    page.page.get_by_role("heading", name="Key figures").wait_for()
    page.press("3")
    page.heading("Step")
    page.page.locator("main td a[data-row]").first.click()
    page.page.get_by_text("Side by side").wait_for()
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == page.said == []
    page.page.close()
    page = Pages(browser, "file:", DESKTOP)
    page.page.set_content(IN_FRAME)  # as Kubeflow's pages show an artifact
    page.page.evaluate(
        "html => { document.querySelector('iframe').srcdoc = html }", file.read_text()
    )
    frame = page.page.frame_locator("iframe")
    frame.get_by_role("link", name="Steps").click()
    frame.locator("main h1", has_text="Step").wait_for()
    assert page.said == []


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """report.html of a run in which every stage has published, with hostile texts."""
    run = make_run(tmp_path_factory.mktemp("reported") / "run")
    aside(write_report, run, run / "report.html")
    return run / "report.html"


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_report_fits_and_its_hostile_texts_do_nothing(browser, report, viewport):
    pages = Pages(browser, "file:", viewport)
    pages.page.goto(report.as_uri())
    pages.page.get_by_role("heading", name="Provenance").wait_for()
    pages.page.locator("summary").evaluate_all("all => all.forEach(one => one.click())")
    pages.picture(f"report-{viewport['width']}")
    assert pages.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    assert pages.page.locator("main :is(script, img, iframe, style)").count() == 0
    text = pages.page.locator("main").inner_text()
    assert UNSEEN.search(text) is None
    assert "<script>alert" in text
    assert "68.4 % (95 %: 65.4 to 71.4, n 1,000)" in text
    assert "GeoNames (https://example.org), CC BY 4.0" in text
    assert pages.page.locator(".report .chart canvas").count() == 3
    assert [url for url in pages.asked if not url.startswith(("file:", "data:"))] == []
    assert pages.said == []
    pages.page.close()


def test_a_table_of_the_report_is_a_csv_file(browser, report):
    pages = Pages(browser, "file:", DESKTOP)
    pages.page.goto(report.as_uri())
    with pages.page.expect_download() as download:
        pages.page.get_by_role("link", name="All questions as CSV").click()
    assert download.value.suggested_filename == "all_questions.csv"
    with open(download.value.path(), newline="") as file:
        head, first, *_ = csv.reader(file)
    assert head == ["measure", "untrained", "warm start", "trained", "trained minus warm start"]
    assert first[0] == "Exact match, greedy"
    assert first[-1] == "'+27.2 (+23.1 to +31.3)", "no spreadsheet takes it for a formula"
    pages.page.close()


def test_axe_finds_nothing_serious_in_any_view(browser, served):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for viewport, theme in ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light")):
        pages = Pages(browser, served[0], viewport)
        pages.page.emulate_media(color_scheme=theme)
        for name, state in states(served[2]).items():
            pages.open(**state)
            found = axe.run(pages.page).response["violations"]
            serious = [
                (one["id"], one["nodes"][0]["html"][:200])
                for one in found
                if one["impact"] in ("serious", "critical")
            ]
            assert serious == [], f"{name}, {theme}"
        pages.page.close()
