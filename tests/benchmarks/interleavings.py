"""Do readers of an artifact in S3 find a whole one, whatever its writers do to each other?

    python -m tests.benchmarks.interleavings --count 1000 --seed 0

Two or three writers, a reader and now and then a collector of garbage run on a server in memory
(tests/fakes/s3_stand_in.py), the product's own code down to the HTTP request. A scheduler lets one
of them send one request at a time, drawn from the seed. Writers are killed at a request, before or
after the server has done it; answers are lost. After every request a reader has to find no artifact
at all or all files of one writer, and an artifact that was there has to stay. At the end one more
publication has to succeed, and a collection a month later has to leave it whole and nothing else.

A line for each interleaving that breaks a rule, with the number that plays it again (--only). The
last line is one JSON object. `--weaken RULE` takes one rule out of the protocol, as a control: some
interleavings have to break then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import urllib3

from espalier.records import (
    Manifest,
    Provenance,
    StorageError,
    open_artifact,
    publishing,
)
from espalier.storage import S3Retries, objects, publication, transfer
from espalier.storage.garbage import DEFAULT_AGE, Collector
from espalier.storage.layout import COLLECTING, object_name
from espalier.storage.objects import Clock
from espalier.storage.requests import S3Requests
from tests.factories.storage import s3_place, settings
from tests.fakes import s3_stand_in
from tests.fakes.s3_stand_in import BUCKET, InMemoryPool, Object, S3StandIn

PREFIX = "runs/r17/knowledge"
MANIFEST = f"{PREFIX}/manifest.json"
LONG_AGO = timedelta(days=30)
PART = 1 << 20
"""Bytes of a part, in the product and in the server; 5 MiB would make every reading slow."""
PATIENT = S3Retries(first_pause_s=0.0, longest_pause_s=0.0, total_s=60.0)
LOST_ANSWERS = 0.03
DEATHS = 0.4
"""Share of the writers that are killed."""
LONGEST_LIFE = 24
"""Requests after which a writer may be killed; most publications have fewer."""


class Killed(BaseException):
    """A writer's end. Nothing of the product catches it."""


class Broken(AssertionError):
    """A reader would have found half an artifact, or none where one had been."""


@dataclass(eq=False)
class Actor:
    """A writer, the reader or the collector: a thread that waits for its turn at every request."""

    name: str
    work: object
    dies_at: int | None = None
    dies_before: bool = True
    requests: int = 0
    is_dead: bool = False
    has_ended: bool = False
    outcome: object = None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


class Scheduler:
    """Lets one actor at a time go on, to its next request."""

    def __init__(self, rng, world):
        self._rng, self._check, self._observe = rng, world.check, world.observe
        # some gaps are found only where one actor sends several requests between two of another
        self._stays = rng.choice([0.0, 0.5, 0.8, 0.95])
        self._parked = threading.Semaphore(0)
        self.actors: list[Actor] = []
        self.lost_answers = 0

    def pool(self, actor, stand_in):
        """What the actor's client sends its requests through."""
        return InMemoryPool(
            stand_in,
            before=lambda _: self.park(actor),
            after=lambda line: self._answered(actor, line),
        )

    def park(self, actor):
        """Wait for the actor's turn; its last request may be the one that it is killed at."""
        if actor.is_dead:
            raise Killed
        self._parked.release()
        actor.turn.acquire()
        actor.requests += 1
        if actor.requests == actor.dies_at and actor.dies_before:
            actor.is_dead = True
            raise Killed

    def _answered(self, actor, line):
        self._observe(actor, line)
        if actor.requests == actor.dies_at:
            actor.is_dead = True
            raise Killed
        if self._rng.random() < LOST_ANSWERS:
            self.lost_answers += 1
            raise urllib3.exceptions.ProtocolError("the answer is lost")

    def run(self, actors):
        """Play until all have ended; returns how many requests were sent."""
        self.actors = actors
        threads = [threading.Thread(target=self._live, args=(actor,)) for actor in actors]
        for thread in threads:
            thread.start()
            self._parked.acquire()
        steps, last = 0, None
        try:
            while waiting := [actor for actor in actors if not actor.has_ended]:
                if last not in waiting or self._rng.random() > self._stays:
                    last = self._rng.choice(waiting)
                last.turn.release()
                self._parked.acquire()
                steps += 1
                self._check()
        finally:
            for actor in actors:  # after a broken rule: nobody goes on
                actor.is_dead = True
                if not actor.has_ended:
                    actor.dies_at, actor.dies_before = actor.requests + 1, True
                    actor.turn.release()
            for thread in threads:
                thread.join()
        return steps

    def _live(self, actor):
        try:
            actor.outcome = actor.work(actor)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is judged)
            actor.outcome = error
        except Killed:
            actor.outcome = None
        actor.has_ended = True
        self._parked.release()


@dataclass(frozen=True)
class Version:
    """An artifact that a writer has in a folder."""

    folder: Path
    manifest: Manifest
    content: bytes

    @classmethod
    def made(cls, folder, files, work):
        provenance = Provenance(producer="train", config_digest=work, seed=0)
        with publishing(folder, provenance) as draft:
            for name, content in files.items():
                (draft.path / name).parent.mkdir(parents=True, exist_ok=True)
                (draft.path / name).write_bytes(content)
        return cls(folder, draft.published, (folder / "manifest.json").read_bytes())


def versions(folder, rng):
    """Four artifacts that share files: of two works, and of the first one twice."""
    large = rng.random() < 0.15
    both = {"rows.jsonl": b"shared", "again/rows.jsonl": b"shared", "empty": b""}
    if large:
        both["weights"] = bytes([rng.randrange(256)]) * (PART + 100)
    first = both | {"deep/er/config": b"one"}
    second = both | {"deep/er/config": b"two", "more": b"of it"}
    return [
        Version.made(folder / "0", first | {"run.json": b"seconds: 1"}, "one"),
        Version.made(folder / "1", first | {"run.json": b"seconds: 2"}, "one"),
        Version.made(folder / "2", second, "two"),
        Version.made(folder / "3", {"rows.jsonl": b"shared", "only": b"here"}, "three"),
    ]


class World:
    """The server, its time, and what a reader would find there now."""

    def __init__(self, known):
        self.now = datetime(2026, 3, 4, 12, tzinfo=UTC)
        self.stand_in = S3StandIn()
        self.stand_in.page = 1000
        self.stand_in.now = lambda: self.now
        self._known = {version.content: version for version in known}
        self._sums: dict[str, str] = {}
        self._was_there = False
        self._manifest, self._seen = None, {}
        self._lost_update = None
        self.is_damaged = False

    def put(self, key, content, age):
        etag = hashlib.md5(content).hexdigest()
        self.stand_in.objects[key] = Object(content, etag, self.now - age)

    def found(self):
        """The artifact that is there, or None.

        Raises:
            Broken: a file is missing or has other bytes, or the manifest is nobody's.
        """
        stored = self.stand_in.objects
        if MANIFEST not in stored:
            return None
        version = self._known.get(stored[MANIFEST].content)
        if version is None:
            raise Broken("a manifest that no writer has")
        for name, digest in version.manifest.files.items():
            names = object_name(digest), name
            keys = [key for each in names if (key := f"{PREFIX}/{each}") in stored]
            if not keys or self._sum(stored[keys[0]]) != digest:
                raise Broken(f"{name} of {version.folder.name} is {'damaged' if keys else 'gone'}")
        return version

    def check(self):
        """The rules that hold after every request.

        Raises:
            Broken: one does not. Of an artifact that was damaged before, nothing is expected.
        """
        if self._lost_update is not None:
            raise Broken(f"{self._lost_update} replaced a manifest that it had not seen")
        if self.is_damaged:
            return
        is_there = self.found() is not None
        if self._was_there and not is_there:
            raise Broken("the artifact that was there is gone")
        self._was_there = is_there

    def observe(self, actor, line):
        """Note which manifest an actor has read, and which it has replaced."""
        method, path = line.split()
        if not path.endswith(f"/{MANIFEST}"):
            return
        stored = self.stand_in.objects.get(MANIFEST)
        content = stored.content if stored else None  # equal bytes are the same manifest
        if method == "GET":
            self._seen[actor] = content
        elif content != self._manifest and self._seen[actor] != self._manifest:
            self._lost_update = actor.name
        self._manifest = content

    def _sum(self, stored):
        if stored.etag not in self._sums:
            self._sums[stored.etag] = hashlib.sha256(stored.content).hexdigest()
        return self._sums[stored.etag]


def set_out(world, rng, known):
    """What is there before the writers begin: nothing, an artifact of either layout, left-overs."""
    begin = rng.choice(["nothing", "present", "as before", "left over", "replaced", "damaged"])
    version = rng.choice(known)
    if begin in ("present", "replaced", "damaged"):
        for name, digest in version.manifest.files.items():
            key = f"{PREFIX}/{object_name(digest)}"
            world.put(key, (version.folder / name).read_bytes(), LONG_AGO)
    if begin == "as before":
        for name in version.manifest.files:
            world.put(f"{PREFIX}/{name}", (version.folder / name).read_bytes(), LONG_AGO)
    if begin in ("left over", "replaced"):
        other = rng.choice(known)
        for name, digest in other.manifest.files.items():
            if rng.random() < 0.7:
                key = f"{PREFIX}/{object_name(digest)}"
                world.put(key, (other.folder / name).read_bytes(), LONG_AGO)
    if begin not in ("nothing", "left over"):
        world.put(MANIFEST, version.content, LONG_AGO)
    return begin


def damage(world, rng):
    """Take an object away, or cut it."""
    keys = [key for key in world.stand_in.objects if "/sha256/" in key]
    key = rng.choice(sorted(keys))
    if rng.random() < 0.5:
        del world.stand_in.objects[key]
    else:
        world.put(key, world.stand_in.objects[key].content[:-1] + b"?", LONG_AGO)


@dataclass
class Played:
    """What came of one interleaving."""

    begin: str
    steps: int
    writers: int
    killed: int
    published: int
    conflicts: int
    read: int
    collectors: int
    lost_answers: int


class Cast:
    """Who acts: each has a client of its own, whose requests wait for their turn."""

    def __init__(self, world, scheduler, folder):
        self._world, self._scheduler, self._folder = world, scheduler, folder

    def writer(self, version):
        return lambda actor: self._place(actor).publish(version.folder)

    def read(self, actor):
        target = self._folder / "read"
        manifest = self._place(actor).fetch(target)
        if open_artifact(target) != manifest:
            raise Broken("a reader got a mixture")
        return manifest

    def collect(self, actor):
        pool = self._scheduler.pool(actor, self._world.stand_in)
        requests = S3Requests(settings(self._world.stand_in, retries=PATIENT), pool)
        collector = Collector(requests, BUCKET, "runs", self._clock(actor), unpublished=True)
        return collector.collect(DEFAULT_AGE, lambda _: None)

    def _place(self, actor):
        pool = self._scheduler.pool(actor, self._world.stand_in)
        clock = self._clock(actor)
        return s3_place(self._world.stand_in, PREFIX, clock=clock, pool=pool, retries=PATIENT)

    def _clock(self, actor):
        def slept(seconds):
            self._scheduler.park(actor)
            later(self._world, seconds)

        return Clock(now=lambda: self._world.now, sleep=slept)


def chosen_actors(cast, rng, known, *, reads):
    """Two or three writers, some of whom die, perhaps a reader, perhaps a collector or two."""
    writers = [
        Actor(f"writer {n}", cast.writer(rng.choice(known))) for n in range(rng.choice([2, 3]))
    ]
    for actor in writers:
        if rng.random() < DEATHS:
            actor.dies_at, actor.dies_before = rng.randint(1, LONGEST_LIFE), rng.random() < 0.5
    readers = [Actor("reader", cast.read)] if reads else []
    collectors = [Actor(f"collector {n}", cast.collect) for n in range(rng.choice([0, 0, 1, 2]))]
    for actor in collectors:
        if rng.random() < DEATHS / 2:
            actor.dies_at = rng.randint(1, LONGEST_LIFE)
    return writers, readers, collectors


def play(number, seed, folder):
    """One interleaving.

    Raises:
        Broken: a rule did not hold.
    """
    rng = random.Random(f"{seed} {number}")
    known = versions(folder, rng)
    world = World(known)
    world.stand_in.page = rng.choice([2, 1000])
    begin = set_out(world, rng, known)
    world.is_damaged = begin == "damaged"
    if world.is_damaged:
        damage(world, rng)
    scheduler = Scheduler(rng, world)
    cast = Cast(world, scheduler, folder)
    writers, readers, collectors = chosen_actors(cast, rng, known, reads=not world.is_damaged)
    steps = scheduler.run([*writers, *readers, *collectors])
    judge(world, writers, [*readers, *collectors])
    finish(world, rng.choice(known), folder)
    outcomes = [actor.outcome for actor in writers]
    return Played(
        begin=begin,
        steps=steps,
        writers=len(writers),
        killed=sum(outcome is None for outcome in outcomes),
        published=sum(isinstance(outcome, Manifest) for outcome in outcomes),
        conflicts=sum(isinstance(outcome, StorageError) for outcome in outcomes),
        read=sum(isinstance(actor.outcome, Manifest) for actor in readers),
        collectors=len(collectors),
        lost_answers=scheduler.lost_answers,
    )


def judge(world, writers, others):
    """Look at how the writers ended, and at what is there.

    Raises:
        Broken: somebody failed for another reason than another one's success or that there is
            nothing yet, or what is there is of no writer that succeeded.
    """
    for actor in others:
        if isinstance(actor.outcome, Exception) and "no manifest.json" not in str(actor.outcome):
            raise Broken(f"the {actor.name} failed: {actor.outcome}")
    outcomes = [actor.outcome for actor in writers]
    for error in outcomes:
        if isinstance(error, Exception) and "published other content" not in str(error):
            raise Broken(f"a writer failed: {error}")
    if None in outcomes:
        return  # who was killed may have been the one that won
    published = [outcome for outcome in outcomes if isinstance(outcome, Manifest)]
    if not published:
        raise Broken("all writers were refused")
    found = world.found()
    if found is None or found.manifest not in published:
        raise Broken("what is there is not of a writer that succeeded")


def finish(world, version, folder):
    """Publish once more with nobody else there, read it, and collect a month later."""
    clock = Clock(now=lambda: world.now, sleep=lambda seconds: later(world, seconds))
    pool = InMemoryPool(world.stand_in)
    place = s3_place(world.stand_in, PREFIX, clock=clock, pool=pool, retries=PATIENT)
    place.publish(version.folder)
    if world.found() != version:
        raise Broken("publishing again did not put this version there")
    later(world, LONG_AGO.total_seconds())
    requests = S3Requests(settings(world.stand_in, retries=PATIENT), pool)
    Collector(requests, BUCKET, "", clock).collect(DEFAULT_AGE, lambda _: None)
    named = {object_name(digest) for digest in version.manifest.files.values()}
    wanted = {f"{PREFIX}/{name}" for name in (*named, "manifest.json")}
    left = world.stand_in.objects.keys() - {f"{PREFIX}/{COLLECTING}"}
    if left != wanted or world.stand_in.buckets[BUCKET].uploads:
        raise Broken(f"the collector left {sorted(left ^ wanted)}")
    if place.fetch(folder / "end") != version.manifest:
        raise Broken("another artifact was fetched at the end")


def later(world, seconds):
    world.now += timedelta(seconds=seconds)


@contextmanager
def small_parts():
    """One transfer at a time in parts of a mebibyte, so that one seed is one interleaving."""
    before = transfer.PART_BYTES, objects.TRANSFERS, s3_stand_in.MIN_PART_BYTES
    transfer.PART_BYTES, objects.TRANSFERS, s3_stand_in.MIN_PART_BYTES = PART, 1, PART
    try:
        yield
    finally:
        transfer.PART_BYTES, objects.TRANSFERS, s3_stand_in.MIN_PART_BYTES = before


WEAKENED = {
    "conditions": (s3_stand_in, "_expect_condition", lambda headers, present: None),
    "sums": (publication.Publication, "_is_whole", lambda self, found, sums: True),
    "youth": (publication, "REUSED_WITHIN", timedelta(days=9999)),
    "marks": (publication, "COLLECTING", "no such object"),
}
"""Rules by name: what they are kept by, and what takes its place where one is not kept."""


@contextmanager
def weakened(rule):
    """Without this rule of the protocol; None keeps all."""
    if rule is None:
        yield
        return
    owner, name, other = WEAKENED[rule]
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


def main():
    """Play interleavings, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one interleaving")
    parser.add_argument("--weaken", choices=sorted(WEAKENED), help="a rule to leave out")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # lost answers are asked for again, which is logged
    numbers = range(options.count) if options.only is None else [options.only]
    total, begins, broken = Counter(), Counter(), 0
    started = time.perf_counter()
    with small_parts(), weakened(options.weaken):
        for number in numbers:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    played = play(number, options.seed, Path(folder))
                except Broken as error:
                    broken += 1
                    print(f"interleaving {number}: {error}", flush=True)
                    continue
            begins[played.begin] += 1
            total.update({k: v for k, v in vars(played).items() if k != "begin"})
    figures = {
        "benchmark": "interleavings",
        "interleavings": len(numbers),
        "seed": options.seed,
        "weakened": options.weaken,
        "broken": broken,
        **total,
        "begins": dict(sorted(begins.items())),
        "seconds": round(time.perf_counter() - started, 1),
    }
    print(json.dumps(figures))
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
