"""A replica's connection as lists of events and actions."""

from __future__ import annotations

import pytest

from broker.replication import frames
from broker.replication.epochs import Epochs, Extent
from broker.replication.follower import (
    AdvanceConfirm,
    Cut,
    Follower,
    LinkPhase,
    Over,
    ReplicaIdentity,
    Reset,
    Send,
    Write,
)
from broker.replication.frames import Ack, Decoder, Greeting, Hello, Ready, Refusal, Transfer, Welcome, prove

LOG = Extent(0, 130, Epochs([(1, 0), (2, 100)]))
NONCE = b"n" * 16


def a_follower(log=LOG, *, epoch=3, confirm=90, secret=None) -> Follower:
    return Follower(
        ReplicaIdentity(broker=2, cluster="c", group="g", secret=secret, access_key="key"),
        log,
        flushed=log.end,
        confirm=confirm,
        epoch=epoch,
        nonce=NONCE,
    )


def said(actions) -> list[frames.Frame]:
    """The frames among the actions."""
    data = b"".join(action.data for action in actions if isinstance(action, Send))
    return list(Decoder(frames.FROM_REPLICA).feed(data))


def welcome(*entries, end, epoch=3, begin=0) -> Welcome:
    return Welcome(epoch, begin, end, entries)


def transfer(position, data=b"x" * 10, *, epoch=3, start=100, confirm=95) -> Transfer:
    return Transfer(epoch, start, position, confirm, 0, 4096, data)


def streaming(follower=None, *, cut=100) -> Follower:
    follower = follower or a_follower()
    follower.receive(Greeting(b"m" * 16))
    follower.receive(welcome((1, 0), (3, 100), end=160))
    follower.cut(cut, cut)
    return follower


def test_from_greeting_to_stream():
    """Hello, truncation to the common point, ready there, an acknowledgement of it; then bytes."""
    follower = a_follower()
    (hello,) = said(follower.receive(Greeting(b"m" * 16)))
    assert isinstance(hello, Hello)
    assert (hello.broker, hello.epoch, hello.begin, hello.end, hello.access_key) == (2, 3, 0, 130, "key")
    assert follower.receive(welcome((1, 0), (3, 100), end=160)) == [Cut(100, 0)]
    assert said(follower.cut(100, 100)) == [Ready(3, 100), Ack(3, 100)]
    sent = transfer(100)
    assert follower.receive(sent) == [Write(sent), AdvanceConfirm(95)]
    assert said(follower.flushed(105)) == [Ack(3, 105)]
    assert follower.flushed(105) == ()
    assert follower.stage is LinkPhase.STREAMING
    assert follower.master_end == 160


def test_it_acknowledges_what_the_store_flushed_not_what_it_truncated():
    """The end after a truncation may not be on the disk yet."""
    follower = a_follower()
    follower.receive(Greeting(b"m" * 16))
    follower.receive(welcome((1, 0), (3, 100), end=160))
    assert said(follower.cut(100, 80)) == [Ready(3, 100), Ack(3, 80)]
    assert said(follower.flushed(100)) == [Ack(3, 100)]


def test_a_heartbeat_is_answered_with_the_flushed_end():
    """So that the master receives something however quiet it is."""
    follower = streaming()
    follower.receive(transfer(100))
    actions = follower.receive(transfer(0, b"", confirm=99))
    assert actions[0] == AdvanceConfirm(99)
    assert said(actions) == [Ack(3, 100)]


def test_a_cut_below_the_confirm_position_is_reported():
    """It never happens in the safe mode, so it must be noticed."""
    follower = a_follower(confirm=120)
    follower.receive(Greeting(b"m" * 16))
    assert follower.receive(welcome((1, 0), (3, 100), end=160)) == [Cut(100, 20)]
    follower = a_follower(confirm=120)
    follower.receive(Greeting(b"m" * 16))
    assert follower.receive(welcome((3, 50), end=160, begin=60)) == [Reset(60, 60)]


def test_after_a_reset_any_epoch_may_come_first():
    """The master's log may have begun long ago."""
    follower = a_follower()
    follower.receive(Greeting(b"m" * 16))
    follower.receive(Welcome(3, 60, 160, [(3, 50)]))
    assert said(follower.cut(60, 60)) == [Ready(3, 60), Ack(3, 60)]
    sent = transfer(60, epoch=3, start=50)
    assert follower.receive(sent) == [Write(sent), AdvanceConfirm(95)]


def test_an_older_master_is_refused():
    """A replica that knows of epoch 4 never acknowledges epoch 3 again, wherever it learned of it."""
    for follower in (a_follower(epoch=4), a_follower(Extent(0, 130, Epochs([(4, 0)])), epoch=1)):
        follower.receive(Greeting(b"m" * 16))
        (over,) = follower.receive(welcome((1, 0), (3, 100), end=160))
        assert isinstance(over, Over)
        assert follower.stage is LinkPhase.OVER
        assert follower.receive(transfer(130)) == ()


def test_a_newer_master_than_known_is_accepted():
    """It can have its epoch only from the controllers."""
    follower = a_follower(epoch=2)
    follower.receive(Greeting(b"m" * 16))
    follower.receive(welcome((1, 0), (3, 100), end=160))
    assert follower.epoch == 3


@pytest.mark.parametrize(
    "sent",
    [transfer(110), transfer(99), transfer(100, epoch=4), transfer(100, epoch=0), Greeting(NONCE)],
)
def test_bytes_that_do_not_fit_end_the_connection(sent):
    """A gap, an overlap, an epoch above the master's or below the last one, a frame out of turn."""
    (over,) = streaming().receive(sent)
    assert isinstance(over, Over)
    assert over.reason == 0


def test_an_invalid_epoch_list_ends_the_connection():
    """Nothing is truncated because of it."""
    follower = a_follower()
    follower.receive(Greeting(b"m" * 16))
    (over,) = follower.receive(welcome((3, 100), (1, 0), end=160))
    assert isinstance(over, Over)


def test_a_refusal_is_passed_on():
    """The shell decides by its reason."""
    assert a_follower().receive(Refusal(frames.OLD_EPOCH, 9, "no")) == [Over(frames.OLD_EPOCH, 9, "no")]


def test_both_sides_prove_that_they_know_the_secret():
    """The hello is signed for the master's nonce; a welcome must be signed for the replica's."""
    follower = a_follower(secret="secret")
    (hello,) = said(follower.receive(Greeting(b"m" * 16)))
    assert hello.proof == prove("secret", b"m" * 16, hello.signed)
    (over,) = follower.receive(welcome((1, 0), (3, 100), end=160))
    assert isinstance(over, Over)
    follower = a_follower(secret="secret")
    follower.receive(Greeting(b"m" * 16))
    stream = frames.encode_welcome(welcome((1, 0), (3, 100), end=160), lambda content: prove("secret", NONCE, content))
    (sound,) = Decoder(frames.FROM_MASTER).feed(stream)
    assert follower.receive(sound) == [Cut(100, 0)]


def test_a_flush_before_the_cut_acknowledges_nothing():
    """What was flushed may be truncated."""
    follower = a_follower()
    follower.receive(Greeting(b"m" * 16))
    assert follower.flushed(130) == ()
