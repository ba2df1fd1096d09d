"""Declaring options: names, parsers and texts stay with the field."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remoting.client.tls import ClientTls
from spark_connector.options import option_table as values
from spark_connector.options.option_table import ConnectionOptions, declared, option, option_name


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


def test_tls_follows_its_options() -> None:
    """Nothing without the option `tls`; with it everything is checked unless that is switched off explicitly."""
    assert ConnectionOptions().client_tls is None
    assert ConnectionOptions(tls=True).client_tls == ClientTls()
    full = ConnectionOptions(
        tls=True, tls_ca_file=Path("ca"), tls_certificate_file=Path("c"), tls_key_file=Path("k"), tls_server_name="n"
    )
    assert full.client_tls == ClientTls(Path("ca"), Path("c"), Path("k"), "n")
    loose = ConnectionOptions(tls=True, tls_insecure_skip_verify=True).client_tls
    assert loose is not None
    assert not loose.verify
