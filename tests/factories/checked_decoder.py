"""A decoder that is compared with plain transformers at every step."""

import copy
import random

import numpy as np
import torch

from espalier.rollout.engines.pages import PAGE
from tests.factories.causal_models import CASES

ROWS, LONGEST = 7, 3 * PAGE


class Checked:
    """Drives a decoder along fixed texts and compares each of its answers with a plain forward."""

    def __init__(self, name, device="cpu"):
        decoder_class, build = CASES[name]
        model = build()
        numbers = np.random.default_rng(0).integers(20, 250, (ROWS, LONGEST))
        with torch.no_grad():
            self._expected = model(torch.from_numpy(numbers)).logits
        self._texts = numbers
        self.lengths = [0] * ROWS
        self._text_of = list(range(ROWS))
        self._decoder = decoder_class(placed(model, device))
        self.rewinds = self._decoder.rewinds
        self._decoder.begin()

    def advance(self, counts):
        """Append `counts[row]` tokens to each row that is named."""
        rows = sorted(counts, key=lambda row: counts[row])
        parts = [self._next_tokens(row, counts[row]) for row in rows]
        hidden = self._decoder.advance(
            np.array(rows), np.array([counts[row] for row in rows]), np.concatenate(parts)
        )
        for row in rows:
            self.lengths[row] += counts[row]
        last = [self.lengths[row] - 1 for row in rows]
        expected = self._expected[[self._text_of[row] for row in rows], last]
        logits = self._decoder.logits(hidden).cpu()
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)

    def try_out(self, row, right, wrong):
        """Append `right` tokens of the row's text and as many `wrong` ones, and take these back."""
        tokens = [*self._next_tokens(row, right), *([7] * wrong)]
        count = np.array([right + wrong])
        hidden = self._decoder.advance(np.array([row]), count, np.array(tokens), count)
        places = np.arange(self.lengths[row], self.lengths[row] + right)
        logits = self._decoder.logits(hidden[:right]).cpu()
        expected = self._expected[self._text_of[row], places]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        self.lengths[row] += right
        self._decoder.rewind(np.array([row]), np.array([wrong]))

    def walk_back(self):
        """Append tokens, and take some of them back, also whole pages and of a forked context."""
        self.advance({0: 5, 1: PAGE - 3})
        self.fork(1, [2])
        self.try_out(0, right=1, wrong=1)
        self.try_out(1, right=2, wrong=PAGE)
        self.advance({0: 1, 1: 1, 2: 1})
        self.try_out(0, right=4, wrong=2)
        self.advance({0: PAGE, 1: 3})
        self.release(1)
        self.advance({0: 1, 1: 2, 2: 3})

    def fork(self, source, targets):
        self._decoder.fork(source, targets)
        for target in targets:
            self.lengths[target] = self.lengths[source]
            self._text_of[target] = self._text_of[source]

    def release(self, row):
        self._decoder.release(row)
        self.lengths[row] = 0
        self._text_of[row] = row

    def walk(self, steps):
        """Read, sample, fork and leave in an order drawn at random."""
        rng = random.Random(1)
        for _ in range(steps):
            counts = {row: rng.choice((1, 1, 1, 2, 7, PAGE)) for row in rng.sample(range(ROWS), 5)}
            leaving = [row for row in counts if self.lengths[row] + counts[row] > LONGEST]
            for row in leaving:
                self.release(row)
            sources = [row for row in range(ROWS) if self.lengths[row]]
            if leaving and sources:
                self.fork(rng.choice(sources), leaving[:2])
            self.advance({row: counts[row] for row in counts if row not in leaving} or {0: 1})

    def _next_tokens(self, row, count):
        return self._texts[self._text_of[row], self.lengths[row] : self.lengths[row] + count]


def placed(model, device):
    """The model itself on the CPU, else a copy of it on `device`."""
    return model if torch.device(device).type == "cpu" else copy.deepcopy(model).to(device)
