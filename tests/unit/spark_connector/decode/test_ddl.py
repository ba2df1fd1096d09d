"""Spark's column lists without a JVM: what is read, and what is refused with a place."""

from __future__ import annotations

import pytest

from spark_connector.decode.ddl import parse_columns


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a int", "struct<a:int>"),
        ("a INT NOT NULL COMMENT 'how, many', B string", "struct<a:int,B:string>"),
        ("`we ``ird`: timestamp_ntz,b:decimal ( 12 , 3 )", "struct<we `ird:timestamp_ntz,b:decimal(12,3)>"),
        ("a array<map<string,struct<x:double,y: date>>>", "struct<a:array<map<string,struct<x:double,y:date>>>>"),
        ("struct<a: byte, b: long>", "struct<a:tinyint,b:bigint>"),
        ("struct string", "struct<struct:string>"),
        ("a dec, b numeric(3)", "struct<a:decimal(10,0),b:decimal(3,0)>"),
    ],
)
def test_what_is_read(text: str, says: str) -> None:
    assert parse_columns(text).simpleString() == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("  ", "names no column"),
        ("a", "ends too early"),
        ("a interval", "character 3: 'interval' is not a type"),
        ("a int b int", "character 7: 'b' was not expected"),
        ("a int, A string", "'A' is there twice"),
        ("a decimal(39,2)", "not possible"),
        ("a decimal(x)", "a number is needed, not 'x'"),
        ("a array<int", "ends too early"),
        ("a map<int>", "',' is needed, not '>'"),
        ("a int; b int", "character 6"),
        (", a int", "a column's name is needed"),
        ("a int,", "ends too early"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "nested deeper"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_columns(text)
