from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtime.config import ConfigError, Flag, flatten, load, setting, toml_text
from tools.configuration_reference import render


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One way."""

    filter: str
    """What goes."""
    qos: int = setting(1, choices=(0, 1, 2))


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer to connect to."""

    name: str
    port: int = setting(1883, minimum=1)
    ca_file: Path | None = None
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        if self.name == "self":
            raise ValueError("a peer is not named self")


@dataclass(frozen=True, kw_only=True)
class Whole:
    """All."""

    peers: tuple[Peer, ...] = ()
    """Who else."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """The root."""

    bridge: Whole = field(default_factory=Whole)


def loaded(tmp_path: Path, text: str) -> Root:
    file = tmp_path / "x.toml"
    file.write_text(text)
    return load(Root, file=file).value


def test_tables_in_lists_in_tables_in_lists(tmp_path: Path) -> None:
    text = '[[bridge.peers]]\nname = "a"\nca_file = "x.pem"\n[[bridge.peers.rules]]\nfilter = "#"\nqos = 2\n'
    expected = Peer(name="a", ca_file=Path("x.pem"), rules=(Rule(filter="#", qos=2),))
    root = loaded(tmp_path, text + '[[bridge.peers]]\nname = "b"\nport = 7\n')
    assert root.bridge.peers == (expected, Peer(name="b", port=7))
    assert dict(flatten(root)) == {"bridge.peers": root.bridge.peers}
    assert loaded(tmp_path, "").bridge.peers == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bridge.peers = 1", "bridge.peers must be a list of tables, not 1"),
        ("bridge.peers = [1]", "bridge.peers must be a list of tables"),
        ('bridge.peers = [{name = "a"}, {port = 1}]', "bridge.peers[1].name is missing"),
        ('bridge.peers = [{name = "a", prt = 1}]', "bridge.peers[0] is not understood: unknown key prt; did you mean"),
        ('bridge.peers = [{name = "a", port = "x"}]', "bridge.peers[0].port must be a whole number"),
        ('bridge.peers = [{name = "a", port = 0}]', "bridge.peers[0].port must be at least 1"),
        ('bridge.peers = [{name = "self"}]', "bridge.peers[0] cannot be used: a peer is not named self"),
        (
            'bridge.peers = [{name = "a", rules = [{filter = "a"}, {filter = "b", qos = 3}]}]',
            "bridge.peers[0].rules[1].qos must be one of 0, 1, 2",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, text)
    assert error in str(raised.value)


def test_a_list_in_one_line() -> None:
    line = '[{name = "a", rules = [{filter = "x/#"}]}]'
    expected = (Peer(name="a", rules=(Rule(filter="x/#"),)),)
    assert load(Root, flags=[Flag("bridge.peers", "--set", line)]).value.bridge.peers == expected
    assert load(Root, environ={"LIGHTMQ_BRIDGE__PEERS": line}).value.bridge.peers == expected
    assert load(Root, environ={"LIGHTMQ_BRIDGE__PEERS": " "}).value.bridge.peers == ()
    with pytest.raises(ConfigError, match="is a list of tables as TOML writes it"):
        load(Root, environ={"LIGHTMQ_BRIDGE__PEERS": "a"})


def test_how_it_is_written() -> None:
    page = render([("bridge", Whole)])
    assert "| `peers` | list of tables | `[]` |  | Who else. |" in page
    assert "## `[[bridge.peers]]`\n\nA peer to connect to.\n" in page
    assert "## `[[bridge.peers.rules]]`" in page
    assert "| `filter` | string | `(required)` |  | What goes. |" in page
    assert toml_text((Peer(name="a"),)) == '[{name = "a", port = 1883, rules = []}]'
