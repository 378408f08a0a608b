"""Whoever poses the tasks of self-play, as the profile names it."""

from __future__ import annotations

from pathlib import Path

from espalier.config import (
    AbsoluteZeroConfig,
    NoSelfPlayConfig,
    Profile,
    PythonMathConfig,
    RZeroConfig,
    WebRLConfig,
)
from espalier.curriculum.self_play.posing import PosesTasks
from espalier.synthesis.absolute_zero.poser import ChainDrafts, Drafts, TriplePoser
from espalier.synthesis.absolute_zero.teacher import TeacherDrafts
from espalier.synthesis.evolution.poser import GraphPoser, failed_patterns, rewarding_patterns
from espalier.synthesis.evolution.proving import Prover
from espalier.synthesis.evolution.teacher import TeacherPoser


def poser_of(profile: Profile, knowledge: Path, accepted: Path) -> PosesTasks:
    """The poser of `profile.self_play`, which is not off.

    Args:
        profile: of the run.
        knowledge: the artifact of triples and documents.
        accepted: the artifact of validated tasks.

    Raises:
        ArtifactError: an artifact is broken.
        DataError: the knowledge has nothing that tasks could be proven by.
    """
    match profile.self_play:
        case WebRLConfig() as config:
            prover = Prover(profile, knowledge, accepted)
            if config.proposer == "teacher":
                return TeacherPoser(prover, profile.teacher.endpoint)
            return GraphPoser(prover, failed_patterns)
        case RZeroConfig():
            return GraphPoser(Prover(profile, knowledge, accepted), rewarding_patterns)
        case AbsoluteZeroConfig() as config:
            assert isinstance(profile.environment, PythonMathConfig), "the profile checks it"
            drafts: Drafts = ChainDrafts(config.asked)
            if config.proposer == "teacher":
                drafts = TeacherDrafts(config.asked, profile.teacher.endpoint)
            return TriplePoser(drafts, profile.environment, profile.kubernetes)
        case NoSelfPlayConfig():
            raise AssertionError("nobody poses tasks where self-play is off")
