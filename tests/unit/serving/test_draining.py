import socket

from espalier.serving.draining import listening


def test_no_answer_waits_until_the_head_before_it_was_acknowledged():
    with (
        listening("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
