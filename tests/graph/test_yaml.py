"""YAML: source locations, the scalars of YAML 1.2, what is refused, and text that reads back as the same data."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.errors import GraphError
from flowrl.graph.yaml_text import item_of, parse_value, parse_yaml, plain_scalar
from flowrl.graph.yaml_writer import flow_text, scalar_text


def plain(text):
    return parse_yaml(text, "f.yaml").plain()


def refused(text):
    with pytest.raises(GraphError) as caught:
        parse_yaml(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1e3", 1000),
        ("-2E+05", -200000),
        ("1.0e3", 1000.0),
        ("1e-3", 0.001),
        ("1e19", 1e19),
        (".5", 0.5),
        ("+1.", 1.0),
        ("20_000", 20000),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("-0", 0),
        ("1_", "1_"),
        ("yes", "yes"),
        ("on", "on"),
        ("True", True),
        ("null", None),
        ("~", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("2020-01-01", "2020-01-01"),
        ("1:30", "1:30"),
        ("1.2.3", "1.2.3"),
        ("'3'", "3"),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("١٢", "١٢"),  # digits, but not YAML's
    ],
)
def test_a_plain_word_means_what_yaml_1_2_says_and_1e3_is_whole(text, value):
    found = plain(f"k: {text}")["k"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_number():
    assert math.isnan(plain_scalar(".NaN"))


def test_every_value_has_the_location_of_its_key_and_of_itself():
    tree = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n", "f.yaml")
    assert str(tree.fields["b"].entry_location) == "f.yaml:2:1"
    assert str(tree.fields["b"].location) == "f.yaml:3:3"
    inner = tree.fields["b"].items[1].fields["c"]
    assert (str(inner.key_location), str(inner.location)) == ("f.yaml:4:6", "f.yaml:4:9")


def test_an_alias_has_the_value_of_its_anchor_and_its_own_location():
    tree = parse_yaml("a: &x [1]\nb: *x\n", "f.yaml")
    assert tree.plain() == {"a": [1], "b": [1]}
    assert str(tree.fields["b"].location) == "f.yaml:2:4"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "f.yaml: is empty; a graph has at least 'nodes'; 'flowrl new DIR' makes one"),
        ("# nothing", "f.yaml: is empty; a graph has at least 'nodes'; 'flowrl new DIR' makes one"),
        ("a: 1\na: 2", "f.yaml:2:1: the key 'a' is written twice; first at f.yaml:1:1"),
        ("[a]: 1", "f.yaml:1:1: a key must be a word; put it in quotes if it is meant as text"),
        (
            "<<: {a: 1}",
            "f.yaml:1:1: merge keys ('<<') are not part of the format; use 'extends' or 'params'",
        ),
        (
            "a: !!python/object:os.system x",
            "f.yaml:1:4: has the tag 'tag:yaml.org,2002:python/object:os.system'; graphs are "
            "plain data; leave the tag out",
        ),
        (
            "!!str a: 1",
            "f.yaml:1:1: has the tag 'tag:yaml.org,2002:str'; graphs are plain data; leave the "
            "tag out",
        ),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: a second document begins; a graph is one document"),
        ("a: *x", "f.yaml:1:4: there is no finished anchor '&x' before this"),
        ("a: &x [*x]", "f.yaml:1:8: there is no finished anchor '&x' before this"),
        (
            "a: [1\n",
            "f.yaml:2:1: is not YAML: did not find expected ',' or ']'; while parsing a flow "
            "sequence from line 1",
        ),
        ("a: 'b", "f.yaml:1:6: is not YAML: found unexpected end of stream"),
        ("\ta: 1", "f.yaml:1:1: a tab begins this line; tabs cannot indent; use spaces"),
        ("a:\n  \tb: 1", "f.yaml:2:3: a tab begins this line; tabs cannot indent; use spaces"),
        ("a: 1\n\tb: 1", "f.yaml:2:1: a tab begins this line; tabs cannot indent; use spaces"),
        ("a: @b", "f.yaml:1:4: a text cannot begin with '@'; put it in quotes"),
        (
            "a: b: c",
            "f.yaml:1:5: a ':' is not expected here; indent the line as those beside it, or put a "
            "text with ': ' in quotes",
        ),
        (
            "a: \x07",
            "f.yaml: is not YAML: unacceptable character #x0007: control characters are not allowed",
        ),
        (b"a: \xff", "f.yaml: is not UTF-8 text (byte 3); save it as UTF-8"),
        (
            "a: 9223372036854775808",
            "f.yaml:1:4: the number 9223372036854775808 does not fit into 64 bits",
        ),
        ("a: " + "9" * 5000, f"f.yaml:1:4: the number {'9' * 27}… does not fit into 64 bits"),
        ("a: 0x" + "f" * 5000, f"f.yaml:1:4: the number 0x{'f' * 25}… does not fit into 64 bits"),
        ("a: " + "[" * 60 + "]" * 60, "f.yaml:1:54: is nested more than 50 deep"),
    ],
)
def test_invalid_yaml_is_reported_with_its_location(text, expected):
    assert refused(text) == expected


def test_a_bomb_of_anchors_is_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert refused("\n".join(lines)).endswith(
        "the file has more than 500000 values (aliases counted in full)"
    )


def test_anchors_cannot_nest_without_end():
    lines = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 80))]
    assert refused("\n".join(lines)).endswith("is nested more than 50 deep")


def test_a_file_that_is_too_large_is_refused():
    assert refused(b" " * (8 << 20) + b"a") == "f.yaml: is 8388609 bytes; a graph may have 8388608"


def test_the_value_of_a_set_is_yaml_located_at_its_argument():
    item = parse_value("{a: [1]}", "--set x={a: [1]}")
    assert item.plain() == {"a": [1]}
    assert {str(i.location) for i in (item, item.fields["a"])} == {"--set x={a: [1]}"}
    assert parse_value("", "--set x=").plain() == ""


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    words,
    st.sampled_from(
        ["a -> b", "a, b -> c", "toys:X", "- a", "a: b", "#", "<<", "...", "---", "&a"]
    ),
)
values = st.recursive(
    scalars,
    lambda v: st.lists(v, max_size=4) | st.dictionaries(words, v, max_size=4),
    max_leaves=12,
)


def same(a, b):
    """Equal in value and type, NaN included."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@given(values)
def test_flow_text_reads_back_as_the_same_data(value):
    assert same(plain(f"k: {flow_text(value)}\n")["k"], value)


@given(words, scalars)
def test_scalar_text_reads_back_as_the_same_data(key, value):
    found = plain(f"{scalar_text(key)}: {scalar_text(value)}  # why\n")
    assert list(found) == [key]
    assert same(found[key], value)


@given(values)
def test_plain_data_becomes_a_tree_and_back(value):
    assert same(item_of(value, parse_value("x", "w").location).plain(), value)
