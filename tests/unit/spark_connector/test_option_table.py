"""Declaring options: names, parsers and texts stay with the field."""

from __future__ import annotations

from dataclasses import dataclass

from spark_connector import values
from spark_connector.option_table import ConnectionOptions, declared, option, option_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Example(ConnectionOptions):
    """Options of a test."""

    token_of_day: str = option(str, "none", "What is said.", secret=True)
    wait_ms: int = option(values.count, 5, "How long.", aliases=("wait",))


def test_names_are_camel_case_and_keep_their_order() -> None:
    assert option_name("long_poll_ms") == "longPollMs"
    assert [name for name, _ in declared(Example)][-2:] == ["tokenOfDay", "waitMs"]
    assert dict(declared(Example))["waitMs"].metadata["aliases"] == ("wait",)


def test_a_secret_is_never_printed_and_signs_only_with_its_key() -> None:
    assert "hidden" not in repr(Example(token_of_day="hidden", access_key="a", secret_key="hidden"))
    assert Example(access_key="a").signer is None
    signer = Example(access_key="a", secret_key="b").signer
    assert signer is not None
    assert signer.secret == "b"
