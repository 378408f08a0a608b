from espalier.wire.listening import listening
from tests.fakes.loopback import answers_at_once


def test_no_answer_waits_until_the_head_before_it_was_acknowledged():
    with listening("127.0.0.1", 0) as listener:
        assert answers_at_once(listener)
