"""The site of the text web: one contract for a site in this process and for one in a sandbox."""

import asyncio
import json
from contextlib import contextmanager

import pytest

from espalier.config import KubernetesConfig, LocalSandboxConfig, SplitsConfig
from espalier.environments import EnvironmentLostError
from espalier.sandbox.choice import sandbox_pool
from espalier_environments.web.browser import Request
from espalier_environments.web.catalogue import made_site
from espalier_environments.web.config import SiteConfig
from espalier_environments.web.hosting import ProcessSite, SandboxSite
from espalier_environments.web.website import Website
from tests.unit.environments.web.playing import plan, played, task_of, web

RECORDS = Website(made_site(SiteConfig(), 0, "train", SplitsConfig())).state()


@pytest.fixture(scope="module")
def sandboxes(local_sandboxes):
    with sandbox_pool(LocalSandboxConfig(packages=(), size=1), KubernetesConfig()) as pool:
        yield pool


@pytest.fixture(params=["process", "sandbox"])
def make(request):
    """Makes sites of one kind."""
    if request.param == "process":
        return ProcessSite
    pool = request.getfixturevalue("sandboxes")
    return lambda records: SandboxSite(records, pool, 10.0)


@contextmanager
def visited(make):
    site = make(RECORDS)
    try:
        yield site, lambda *asked: asyncio.run(site.reply(Request(*asked)))
    finally:
        site.end()


@pytest.mark.contract
def test_pages_and_states_are_those_of_the_website(make):
    website = Website(json.loads(RECORDS))
    hostile = '\'); import os; os._exit(1) #"""\\ \x00 {} é \udcff'
    with visited(make) as (site, ask):
        assert site.state == RECORDS
        for method, url, form in (
            ("GET", "/shop?page=2", {}),
            ("POST", "/forum/1/comment", {"text": hostile}),
            ("GET", "/" + hostile, {}),
            ("POST", "/issues/2/edit", {"assignee": "nobody", "status": "closed"}),
            ("GET", "/issues/2", {}),
        ):
            assert ask(method, url, form) == website.reply(method, url, form)
            assert site.state == website.state()
    assert site.state == website.state()  # when it is over, too


@pytest.mark.contract
def test_a_page_and_state_of_any_size_arrive_whole(make):
    website = Website(json.loads(RECORDS))
    with visited(make) as (site, ask):
        for number in range(40):
            form = {"text": "\U0001f600" * 290 + str(number)}
            asked = ("POST", "/forum/1/comment", form)
            assert ask(*asked) == website.reply(*asked)
        assert site.state == website.state()
    assert len(website.state()) > 2**17, "more than a program may print"


@pytest.mark.contract
def test_each_site_begins_with_its_own_records(make):
    for _ in range(2):
        with visited(make) as (site, ask):
            assert ask("POST", "/forum/1/vote", {}).status == 200
            assert site.state != RECORDS


def test_a_silent_site_is_lost_and_its_sandbox_returned(sandboxes):
    slow = SandboxSite(RECORDS, sandboxes, 1e-6)
    with pytest.raises(EnvironmentLostError, match="does not answer"):
        asyncio.run(slow.reply(Request("GET", "/", {})))
    with visited(lambda records: SandboxSite(records, sandboxes, 10.0)) as (_, ask):
        assert ask("GET", "/", {}).status == 200  # of one sandbox, which is free again


def test_an_episode_is_played_and_scored_in_a_sandbox(local_sandboxes):
    family = web(served="sandbox", sandbox={"packages": [], "size": 1})
    task = task_of(family, "assign")
    attempt = played(family, task, plan(family, task))
    assert attempt.is_right
    assert attempt.messages == played(web(), task, plan(family, task)).messages
