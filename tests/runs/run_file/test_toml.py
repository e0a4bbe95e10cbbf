"""TOML out, and overrides in."""

import enum
import math
import time
import tomllib
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhear.privacy.errors import InputError
from overhear.privacy.formats.toml_text import parse_toml
from overhear.reports.judgement.policy import load_policy
from overhear.runs.run_file.run_file import load_run_file, merge_overrides, write_toml

KEYS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False))
VALUES = st.one_of(SCALARS, st.lists(TEXT), st.lists(st.integers(-(2**60), 2**60)))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
@pytest.mark.slow
def test_what_is_written_reads_back_equal(tables):
    assert tomllib.loads(write_toml(tables)) == tables


def test_an_enum_is_written_as_its_value():
    order = enum.StrEnum("Order", {"A": "mix-then-step"})
    assert write_toml({"t": {"order": order.A}}) == '[t]\norder = "mix-then-step"\n'


def test_a_date_is_refused():
    with pytest.raises(TypeError, match="no place in a run file"):
        write_toml({"t": {"a": {"b": date(2026, 1, 1)}}})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("t.a=1", 1),
        ("t.a = 1.5", 1.5),
        ("t.a=inf", math.inf),
        ("t.a=true", True),
        ("t.a=[1, 2]", [1, 2]),
        ("t.a='x y'", "x y"),
        ("t.a=erdos-renyi", "erdos-renyi"),
        ("t.a=my_models:build", "my_models:build"),
        ("t.a=neighbour:1", "neighbour:1"),
    ],
)
def test_an_override_is_read_as_toml_and_a_bare_word_as_a_string(text, value):
    values: dict[str, Any] = {}
    merge_overrides(values, [text])
    assert values == {"t": {"a": value}}


@pytest.mark.parametrize("text", ["a=1", "t.a", "t.=1", ".a=1", "t.a.b=1"])
def test_an_override_without_table_key_and_value_is_refused(text):
    with pytest.raises(ValueError, match=r"must read table\.key=value"):
        merge_overrides({}, [text])


@pytest.mark.parametrize("text", ["t.a=", "t.a=.1", "t.a=x y", "t.a=1\nb=2", "t.a=[1"])
def test_an_override_that_is_no_single_toml_value_is_refused(text):
    with pytest.raises(ValueError, match="is no TOML value"):
        merge_overrides({}, [text])


def test_an_override_replaces_its_alternative_and_says_so():
    values = {"training": {"batch_size": 8}}
    lost = "[training] batch_size = 8 of the run file holds no longer: sampling_rate takes its"
    assert merge_overrides(values, ["training.sampling_rate=0.1"]) == [f"{lost} place"]
    assert values == {"training": {"sampling_rate": 0.1}}
    assert merge_overrides(values, ["training.sampling_rate=0.2", "model.name=mlp"]) == []


def test_every_target_that_an_override_drops_is_told(tmp_path):
    path, told = tmp_path / "run.toml", list[str]()
    path.write_text(
        '[data]\nname = "digits"\n[model]\nname = "mlp"\n[algorithm]\nname = "dp-dpsgd"\n'
        "[privacy]\ntpr = 0.1\nfpr = 0.01\ndelta = 1e-5\n"
        "[training]\nrounds = 2\nsampling_rate = 0.1\n"
    )
    config = load_run_file(path, ["privacy.noise_multiplier=1"], notice=told.append)
    assert config.privacy.noise_multiplier == 1
    assert [one.partition(" of ")[0] for one in told] == [
        "[privacy] tpr = 0.1",
        "[privacy] fpr = 0.01",
    ]


def test_two_overrides_that_are_alternatives_are_both_kept_for_the_check():
    values: dict[str, Any] = {"training": {}}
    merge_overrides(values, ["training.sampling_rate=0.1", "training.batch_size=8"])
    assert values["training"].keys() == {"sampling_rate", "batch_size"}


@pytest.mark.parametrize(
    "text",
    [
        "{} = 1",
        "[{}]",
        "[[{}]]",
        "x = {{a = 1, {} = 1}}",
        "x = [1, {{{} = 1}}]",
        'x = """a""""\n{} = 1',
        "x = '''a'''''\n{} = 1",
        'x = ["""a"""", {{{} = 1}}]',
        "x = ['''a'''', {{{} = 1}}]",
        'x = "\\"" # "\n{} = 1',
        "{}",
        "{} = '",
    ],
)
@pytest.mark.parametrize("part", ["a", '"a"', "'a'", " a\t", '"."', "1"])
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(text, part, monkeypatch):
    monkeypatch.setattr(tomllib, "loads", None)  # it takes gigabytes
    key = ".".join([part] * (200_000 // (len(part) + 1)))
    with pytest.raises(InputError, match=r"has a key of more than 32 parts in line [12]; write"):
        parse_toml(text.format(key))


def test_a_key_of_32_parts_is_read_and_one_of_33_is_not():
    assert parse_toml(".".join("a" * 32) + " = 1")
    with pytest.raises(InputError, match="more than 32 parts"):
        parse_toml(".".join("a" * 33) + " = 1")


@pytest.mark.parametrize(
    "text",
    [
        'x = "{}"',
        "x = '{}'",
        'x = """\n{}\n"" {}"""',
        "x = '''\n{}\n'' {}'''",
        "# {}",
        'x = "a" # {}',
        "[a] # {}",
        'x = "\\"{}"',
        'x = """\\"""{}"""',
        "x = [\"{}\", '{}']",
        '"{}" = 1',
    ],
)
def test_points_in_strings_and_comments_are_no_parts(text):
    text = text.replace("{}", "." * 1000)
    assert parse_toml(text) == tomllib.loads(text)
    assert parse_toml("x = [" + "1.5, " * 1000 + "]")


@pytest.mark.parametrize("opening", ['"', "'", '"""', "'''", '\\"""', '"""\\', "''' \n", '""" \n'])
def test_what_is_never_closed_is_looked_at_in_bounded_time(opening):
    before = time.process_time()
    with pytest.raises(InputError, match="is not TOML"):
        parse_toml("x = " + opening * (300_001 // len(opening)) + "=")
    assert time.process_time() - before < 10


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000])
def test_an_integer_of_thousands_of_digits_is_a_sentence(number, tmp_path):
    run = tmp_path / "run.toml"
    run.write_text(f"[training]\nrounds = {number}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"run\.toml has .*; give a smaller one"):
        load_run_file(run)
    run.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"override .* has .*; give a smaller one") as told:
        load_run_file(run, [f"training.rounds=[{number}]"])
    assert len(str(told.value)) < 500
    assert "sys." not in str(told.value)
    run.write_text(f"schema = {number}", encoding="utf-8")
    with pytest.raises(InputError, match=r"run\.toml has .*; give a smaller one"):
        load_policy(run)


def test_a_policy_and_a_run_file_with_a_long_key_are_refused(tmp_path):
    path = tmp_path / "long.toml"
    path.write_text(".".join("a" * 100_000) + " = 1\n", encoding="utf-8")
    for load in (load_run_file, load_policy):
        with pytest.raises(InputError, match=r"long\.toml has a key of more than 32 parts"):
            load(path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"override .* has a key of more than 32 parts"):
        load_run_file(path, ["graph.name={" + ".".join("a" * 50_000) + "=1}"])


def test_a_bare_word_of_many_parts_is_a_string():
    values: dict[str, Any] = {}
    merge_overrides(values, ["model.name=" + ".".join("a" * 40) + ":build"])
    assert values["model"]["name"].endswith("a:build")


@pytest.mark.parametrize(
    ("value", "written"),
    [(".01", "0.01"), ("5.", "5.0"), ("-.5", "-0.5"), (".1e-3", "0.1e-3"), ("1.e5", "1.0e5")],
)
def test_a_number_that_begins_or_ends_with_a_point_is_told_in_full(value, written):
    with pytest.raises(InputError, match=f"is no TOML value; write {written}$"):
        merge_overrides({}, [f"t.a={value}"])
    assert isinstance(parse_toml(f"a = {written}")["a"], float)
