import socket

from sandboxd.__main__ import listening
from tests.fakes.loopback import answers_at_once


def test_no_answer_waits_until_the_head_before_it_was_acknowledged():
    with listening("127.0.0.1:0") as listener:
        assert answers_at_once(listener)


def test_an_inherited_socket_is_not_passed_to_programs():
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.set_inheritable(True)
        handed = listening(f"fd:{made.fileno()}")
        assert handed.getsockname() == made.getsockname()
        assert not handed.get_inheritable()
        handed.detach()
