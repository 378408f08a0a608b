import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.rollout.engines.pages import PAGE, PageTable, pages_for

SLOTS = 5
ACTIONS = st.one_of(
    st.tuples(
        st.just("extend"), st.sets(st.integers(0, SLOTS - 1), min_size=1), st.integers(1, 70)
    ),
    st.tuples(st.just("fork"), st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1)),
    st.tuples(st.just("release"), st.integers(0, SLOTS - 1), st.just(0)),
    st.tuples(st.just("compact"), st.just(0), st.just(0)),
)


class Written:
    """What the pages of a table hold, next to what they should hold."""

    def __init__(self):
        self.table = PageTable()
        self.pages = {}
        self.expected = [[] for _ in range(SLOTS)]
        self._next = 0

    def extend(self, slots, count):
        slots_R = np.array(sorted(slots))
        self.table.extend(slots_R, np.full(len(slots_R), count))
        for slot in slots_R.tolist():
            for _ in range(count):
                self._next += 1
                place = len(self.expected[slot])
                page = int(self.table.pages_SO[slot, place // PAGE])
                self.pages.setdefault(page, {})[place % PAGE] = self._next
                self.expected[slot].append(self._next)

    def fork(self, source, target):
        if self.expected[source] and not self.expected[target]:
            self._copy(self.table.fork(source, [target]))
            self.expected[target] = list(self.expected[source])

    def release(self, slot, _):
        self.table.release(slot)
        self.expected[slot] = []

    def compact(self, *_):
        self._copy(self.table.compact())

    def read(self, slot):
        places = range(len(self.expected[slot]))
        return [
            self.pages[int(self.table.pages_SO[slot, place // PAGE])][place % PAGE]
            for place in places
        ]

    def used(self):
        held = [(slot, int(pages_for(len(tokens)))) for slot, tokens in enumerate(self.expected)]
        return {
            page
            for slot, pages in held
            if pages
            for page in self.table.pages_SO[slot, :pages].tolist()
        }

    def _copy(self, copies):
        if copies is not None:
            content = [dict(self.pages[page]) for page in copies.sources.tolist()]
            self.pages.update(zip(copies.targets.tolist(), content, strict=True))


@settings(deadline=None)
@given(st.lists(ACTIONS, max_size=40))
def test_every_slot_finds_what_it_wrote_whatever_the_others_do(actions):
    written = Written()
    for name, first, second in actions:
        getattr(written, name)(first, second)
        for slot in range(SLOTS):
            assert written.read(slot) == written.expected[slot]
    assert written.table.live == len(written.used())


def test_pages_that_were_given_back_are_used_before_new_ones():
    table = PageTable()
    table.extend(np.array([0, 1]), np.array([3 * PAGE, PAGE]))
    table.release(0)
    table.extend(np.array([2]), np.array([3 * PAGE]))
    assert table.extent == 4


def test_a_shared_prefix_is_held_until_its_last_slot_leaves():
    table = PageTable()
    table.extend(np.array([0]), np.array([3 * PAGE + 5]))
    copies = table.fork(0, [1, 2])
    assert len(copies.targets) == 2
    assert table.live == 3 + 3
    table.release(0)
    table.release(1)
    assert table.live == 4
    table.release(2)
    assert table.live == 0


def test_compaction_leaves_no_gap():
    table = PageTable()
    table.extend(np.arange(8), np.full(8, 2 * PAGE))
    for slot in (0, 2, 4, 6):
        table.release(slot)
    table.compact()
    assert table.extent == table.live == 8


def test_a_single_gap_is_left_for_the_next_row():
    table = PageTable()
    table.extend(np.arange(16), np.full(16, PAGE))
    table.release(3)
    assert table.compact() is None
