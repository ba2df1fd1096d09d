"""Tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config import (
    BadValueError,
    ConfigError,
    Flag,
    Loaded,
    check_rule,
    flatten,
    from_text,
    from_toml,
    load,
    rule_text,
    setting,
    type_name,
)


@dataclass(frozen=True, kw_only=True)
class Store:
    """The place of messages."""

    segment_bytes: int = setting(1024, minimum=64)
    """Size of a segment."""
    mode: str = setting("sync", choices=("sync", "async"))
    """When a message is acknowledged."""
    directory: Path | None = None
    ratio: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server."""

    store: Store = field(default_factory=Store)
    hosts: tuple[str, ...] = ("a",)
    port: int = 1
    port_max: int = 10

    def __post_init__(self) -> None:
        if self.port > self.port_max:
            raise ValueError("port must not be above port_max")


def toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.toml"
    path.write_text(text)
    return path


def test_defaults_alone() -> None:
    loaded = load(Server)
    assert loaded.value == Server()
    assert {str(origin) for origin in loaded.origins.values()} == {"default"}


def test_the_later_source_takes_precedence_and_is_recorded(tmp_path: Path) -> None:
    file = toml(tmp_path, 'hosts = ["b"]\nport = 2\n[store]\nsegment_bytes = 100\nratio = 1\n')
    loaded: Loaded[Server] = load(
        Server,
        file=file,
        environ={"LIGHTMQ_STORE__SEGMENT_BYTES": "200", "LIGHTMQ_USER": "x", "OTHER__X": "1"},
        flags=[Flag("port", "--port", 3), Flag("store.directory", "--data", Path("d"))],
    )
    assert loaded.value == Server(store=Store(segment_bytes=200, ratio=1.0, directory=Path("d")), hosts=("b",), port=3)
    assert {key: str(origin) for key, origin in loaded.origins.items()} == {
        "store.segment_bytes": "environment LIGHTMQ_STORE__SEGMENT_BYTES",
        "store.mode": "default",
        "store.directory": "flag --data",
        "store.ratio": f"file {file}",
        "hosts": f"file {file}",
        "port": "flag --port",
        "port_max": "default",
    }
    assert dict(flatten(loaded.value))["store.directory"] == Path("d")


def test_a_section_leaves_other_processes_alone(tmp_path: Path) -> None:
    file = toml(tmp_path, "[broker]\nport = 2\n[proxy]\nanything = 1\n")
    environ = {"LIGHTMQ_BROKER__PORT_MAX": "5", "LIGHTMQ_PROXY__ANYTHING": "1"}
    loaded = load(Server, section="broker", file=file, environ=environ)
    assert (loaded.value.port, loaded.value.port_max) == (2, 5)
    with pytest.raises(ConfigError, match=r"unknown variable LIGHTMQ_BROKER__PRT; did you mean LIGHTMQ_BROKER__PORT\?"):
        load(Server, section="broker", environ={"LIGHTMQ_BROKER__PRT": "5"})
    with pytest.raises(ConfigError, match=r"broker\.prt"):
        load(Server, section="broker", file=toml(tmp_path, "[broker]\nprt = 2\n"))
    with pytest.raises(ConfigError, match="must be a table"):
        load(Server, section="broker", file=toml(tmp_path, "broker = 2\n"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[store]\nsegment_byte = 1", "unknown key store.segment_byte; did you mean store.segment_bytes?"),
        ("[stoer]\nmode = 'sync'", "unknown section stoer; did you mean store?"),
        ("zzzzz = 1", "unknown key zzzzz; known: hosts, port"),
        ("store = 1", "store is a section"),
        ("[store]\nsegment_bytes = 1", "store.segment_bytes must be at least 64, not 1"),
        ("[store]\nmode = 'later'", "store.mode must be one of sync, async"),
        ("port = 'x'", "port must be a whole number"),
        ("port = 11", "Server: port must not be above port_max"),
        ("port = ", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(Server, file=toml(tmp_path, text))
    assert error in str(raised.value)


def test_a_file_that_cannot_be_read_and_bad_flags(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(Server, file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="--set: unknown key prt; did you mean port"):
        load(Server, flags=[Flag("prt", "--set", "1")])
    with pytest.raises(ConfigError, match="--port: port must be a whole number"):
        load(Server, flags=[Flag("port", "--port", "x")])


def test_a_leaf_in_the_wrong_section_is_still_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean store\.segment_bytes"):
        load(Server, flags=[Flag("segment_bytes", "--set", "1")])


LIST = tuple[str, ...]


@pytest.mark.parametrize(
    ("declared", "raw", "value"),
    [
        (int, 5, 5),
        (float, 5, 5.0),
        (bool, True, True),
        (str, "x", "x"),
        (Path | None, "/srv/x", Path("/srv/x")),
        (LIST, ["a", "b"], ("a", "b")),
    ],
)
def test_toml_values_of_the_right_type_are_taken(declared: object, raw: object, value: object) -> None:
    taken = from_toml(declared, raw)
    assert taken == value
    assert type(taken) is type(value)


@pytest.mark.parametrize(
    ("declared", "raw"),
    [(int, "5"), (int, True), (int, 1.5), (float, "1"), (bool, 1), (str, 1), (Path, ""), (LIST, "a"), (LIST, [1])],
)
def test_toml_values_of_another_type_are_refused(declared: object, raw: object) -> None:
    with pytest.raises(BadValueError, match="must be"):
        from_toml(declared, raw)


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        (int, " 1_000 ", 1000),
        (float, "1.5", 1.5),
        (bool, "Yes", True),
        (bool, "off", False),
        (str, " x ", " x "),
        (Path, "~", Path("~").expanduser()),
        (Path | None, "", None),
        (LIST, "a, b,", ("a", "b")),
    ],
)
def test_text_is_parsed(declared: object, text: str, value: object) -> None:
    assert from_text(declared, text) == value


@pytest.mark.parametrize(("declared", "text"), [(int, "x"), (float, "x"), (float, "nan"), (bool, "maybe"), (Path, " ")])
def test_text_that_does_not_fit_is_refused(declared: object, text: str) -> None:
    with pytest.raises(BadValueError, match="must be"):
        from_text(declared, text)


@given(st.integers())
def test_every_whole_number_survives_text(number: int) -> None:
    assert from_text(int, str(number)) == number


@pytest.mark.parametrize(
    ("rule", "good", "bad", "text"),
    [
        ({"minimum": 1}, 1, 0, "at least 1"),
        ({"maximum": 9}, 9, 10, "at most 9"),
        ({"minimum": 1, "maximum": 9}, 5, 10, "1 to 9"),
        ({"choices": ("a", "b")}, "a", "c", "one of a, b"),
    ],
)
def test_rules(rule: dict[str, Any], good: Any, bad: Any, text: str) -> None:
    check_rule(rule, good)
    check_rule(rule, None)
    with pytest.raises(BadValueError, match="must be"):
        check_rule(rule, bad)
    assert rule_text(rule) == text


def test_names_of_types_for_the_page() -> None:
    assert rule_text({}) == ""
    assert [type_name(kind) for kind in (int, Path | None, LIST, str)] == [
        "int",
        "path, optional",
        "list of strings",
        "string",
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a,b", ("a", "b")),
        ('["a", "b"]', ("a", "b")),
        ("['a:1']", ("a:1",)),
        ("[::1]:9876", ("[::1]:9876",)),
        ("[::1]:1, [::2]:2", ("[::1]:1", "[::2]:2")),
        ("[::1]", ("[::1]",)),
        ("[::1],[fe80::1%eth0]", ("[::1]", "[fe80::1%eth0]")),
        ("x/[a]", ("x/[a]",)),
        ("", ()),
        ("[]", ()),
        (" [ ] ", ()),
    ],
)
def test_a_list_is_written_with_commas_or_as_in_toml(text: str, value: tuple[str, ...]) -> None:
    """A flag takes what the file takes."""
    assert from_text(tuple[str, ...], text) == value


@pytest.mark.parametrize(
    "text", ['["a"', '["a", 1]', '"a","b"', '["a" "b"]', "[a]", "[a, b]", "[10.0.0.1:9876]", "[1]"]
)
def test_half_a_toml_list_is_no_item(text: str) -> None:
    """It is refused instead of becoming one item that nobody can use."""
    with pytest.raises(BadValueError, match=r'list|a,b or \["a", "b"\]'):
        from_text(tuple[str, ...], text)


@dataclass(frozen=True, kw_only=True)
class Dialling:
    """Addresses."""

    controllers: tuple[str, ...] = setting(("a:1",), form="host:port")
    broker: str = setting("", form="host:port")
    members: tuple[str, ...] = setting((), form="name@host:port")


@pytest.mark.parametrize(
    ("key", "text"),
    [("controllers", "a"), ("controllers", "a:1,b:"), ("broker", "a:0"), ("members", "a:1"), ("members", "@a:1")],
)
@pytest.mark.parametrize("source", ["file", "environment", "flag"])
def test_a_form_holds_whatever_brought_the_value(tmp_path: Path, source: str, key: str, text: str) -> None:
    """A malformed address is refused at the start, with the name of its key and what it should be."""
    items = "[" + ", ".join(f'"{one}"' for one in text.split(",")) + "]"
    raw = items if key != "broker" else f'"{text}"'
    with pytest.raises(ConfigError, match=rf"{key} must be .*host:port"):
        load(
            Dialling,
            file=toml(tmp_path, f"{key} = {raw}") if source == "file" else None,
            environ={f"LIGHTMQ_DIALLING__{key.upper()}": text} if source == "environment" else {},
            flags=[Flag(key, "--set", text)] if source == "flag" else [],
            section="dialling" if source == "environment" else "",
        )


def test_values_of_a_form_are_taken() -> None:
    """Empty ones too, where nothing is dialled."""
    flags = [Flag("controllers", "--set", '["h:1", "[::1]:2"]'), Flag("members", "--set", "m@h:1")]
    loaded = load(Dialling, flags=flags).value
    assert loaded == Dialling(controllers=("h:1", "[::1]:2"), members=("m@h:1",))
    assert load(Dialling, flags=[Flag("controllers", "--set", "")]).value.controllers == ()
