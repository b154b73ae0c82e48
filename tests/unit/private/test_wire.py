import contextlib
import socket
import struct
import threading
import time

import numpy as np
import pytest

from reluctant import errors
from reluctant.private.wire import Channel


@pytest.fixture
def pair():
    listening = socket.create_server(("127.0.0.1", 0))
    one = socket.create_connection(listening.getsockname())
    other, _ = listening.accept()
    ends = Channel(one, 0.3), Channel(other, 0.3)
    yield (*ends, one)
    for end in ends:
        end.close()
    listening.close()


def test_messages_and_arrays_arrive(pair):
    a, b, _ = pair
    a.send({"x": 1}, b"abc")
    assert b.receive(most=3) == ({"x": 1}, b"abc")
    values = np.array([[1, -2], [2**62, -(2**63)]])
    a.send_ring(values)
    assert np.array_equal(b.receive_ring((2, 2)), values)
    assert a.traffic.sent == b.traffic.received
    assert a.traffic.messages == 2


def refused(channel, **options):
    with pytest.raises(errors.PeerError) as raised:
        channel.receive(**options)
    return str(raised.value)


def test_what_is_not_a_message(pair):
    _, b, raw = pair
    raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert "not a message of reluctant private" in refused(b)


def test_more_than_was_expected_is_not_read(pair):
    a, b, _ = pair
    a.send({}, bytes(100))
    assert "announced 2 and 100 bytes, 99 were expected" in refused(b, most=99)


def test_a_huge_header_is_not_read(pair):
    _, b, raw = pair
    raw.sendall(struct.pack("<4sIQ", b"RLC1", 1 << 30, 0))
    assert "announced" in refused(b)


@pytest.mark.parametrize("text", [b"nonsense", b"[1]", b"\xff\xfe"])
def test_a_header_that_is_no_object(pair, text):
    _, b, raw = pair
    raw.sendall(struct.pack("<4sIQ", b"RLC1", len(text), 0) + text)
    assert "the other side sent a message that" in refused(b)


def test_arrays_of_another_size(pair):
    a, b, _ = pair
    a.send_ring(np.zeros(3, np.int64))
    with pytest.raises(errors.PeerError, match="24 bytes where 32 were expected"):
        b.receive_ring((4,))


def test_silence_hanging_up_and_refusal(pair):
    a, b, raw = pair
    assert "has not answered in time" in refused(b)
    a.refuse("because")
    assert refused(b) == "refused: because"
    raw.close()
    assert "hung up" in refused(b)


def test_bytes_that_trickle_do_not_hold_anybody(pair):
    a, b, raw = pair

    def trickle():
        with contextlib.suppress(OSError):
            while True:
                raw.sendall(b"R")
                time.sleep(0.05)

    thread = threading.Thread(target=trickle)
    thread.start()
    began = time.monotonic()
    assert "has not answered in time" in refused(b)
    b.wait_for_end()
    assert time.monotonic() - began < 5
    b.send({"still": "there"})
    assert a.receive() == ({"still": "there"}, b"")
    raw.close()
    thread.join()
