"""Names of one's own: which object they find, and what is said where they find none."""

import sys

import pytest

from overhear.privacy.errors import InputError
from overhear.training.own.names import (
    algorithm_named,
    modules_of,
    own_files,
    own_object,
    parsed_name,
)
from overhear.training.own.objects import digest_of, give, given, ran

KEY = "[model] name"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with modules that no other test has; forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owntest_part.py").write_text("VALUE = 3\n")
    (tmp_path / "owntest_mine.py").write_text(
        "from owntest_part import VALUE\n\nclass Nets:\n    small = VALUE\n\n"
        "def build():\n    return VALUE\n\nMOMENTUM = 5\n"
    )
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "owntest_deep.py").write_text("import owntest_part\nDEEP = [1]\n")
    monkeypatch.syspath_prepend("/nowhere")  # the path is put back as it was
    yield tmp_path
    for name in [name for name in sys.modules if "owntest" in name]:
        del sys.modules[name]


def refused(name: str) -> str:
    with pytest.raises(InputError) as told:
        own_object(name, key=KEY)
    said = str(told.value)
    assert said.startswith(f"{KEY}=")
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("owntest_mine:MOMENTUM", 5),
        ("owntest_mine:Nets.small", 3),
        ("owntest_mine.py:MOMENTUM", 5),
        ("./owntest_mine.py:MOMENTUM", 5),
        ("inner/owntest_deep.py:DEEP", [1]),
        ("inner.owntest_deep:DEEP", [1]),
        ("math:pi", pytest.approx(3.14159265)),
    ],
)
def test_a_name_finds_its_object_without_pythonpath(here, name, found):
    assert str(here) not in sys.path
    assert own_object(name, key=KEY) == found


def test_a_module_and_its_file_are_one(here):
    one = own_object("owntest_mine:Nets", key=KEY)
    assert own_object("./owntest_mine.py:Nets", key=KEY) is one


def test_the_working_directory_comes_before_what_is_installed(here):
    (here / "tomli_w.py").write_text("HERE = 1\n")
    held = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("tomli_w")}
    try:
        assert own_object("tomli_w:HERE", key=KEY) == 1
    finally:
        sys.modules.pop("tomli_w", None)
        sys.modules.update(held)


def test_a_folder_without_init_shadows_nothing_installed(here):
    (here / "owntest_uses.py").write_text("import colorsys\nTOP = colorsys.ONE_THIRD\n")
    (here / "colorsys").mkdir()
    sys.modules.pop("colorsys", None)
    assert own_object("owntest_uses:TOP", key=KEY) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import owntest_absent", "imports 'owntest_absent', which is not installed; install it"),
        ("\n1 / 0", "raised ZeroDivisionError: division by zero in line 2 of owntest_bad.py"),
        ("raise SystemExit(0)", "raised SystemExit: 0 in line 1 of owntest_bad.py"),
        ("def f(:", "raised SyntaxError: invalid syntax in line 1 of owntest_bad.py"),
        ("import owntest_worse", "raised KeyError: 'x' in line 3 of owntest_worse.py"),
        ("VALEU = 1", "'owntest_bad' has no 'VALUE'; did you mean 'VALEU'?"),
        ("from math import nothing", "raised ImportError: cannot import name 'nothing'"),
    ],
)
def test_what_a_module_does_wrong_is_told_in_a_sentence(here, source, said):
    (here / "owntest_worse.py").write_text("\n\n{}['x']\n")
    (here / "owntest_bad.py").write_text(source)
    assert said in refused("owntest_bad:VALUE")
    assert "owntest_bad" not in sys.modules or "VALEU" in source


def test_an_absent_module_is_told_with_the_folder_that_was_looked_in(here):
    said = refused("owntest_none:X")
    assert f"no module 'owntest_none' in {here} or installed; run the command in its folder" in said
    assert f"no file inner/none.py in {here}" in refused("inner/none.py:X")


def test_a_name_that_is_loaded_from_elsewhere_is_not_taken_for_the_one_here(here, monkeypatch):
    own_object("owntest_mine:build", key=KEY)
    (here / "inner" / "owntest_mine.py").write_text("build = 1\n")
    monkeypatch.chdir(here / "inner")
    assert "is loaded from" in refused("owntest_mine:build")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py:X",
        "a/../../evil.py:X",
        "/srv/evil.py:X",
        "C:\\evil.py:X",
        "inner\\evil.py:X",
        "evil.sh/x:X",
        "mi ne:X",
        "mine:X\n",
        "mine:X()",
        "mine;import os:X",
        "міne:X",
        "mine:",
        ":X",
        "mine:a..b",
        "class:X",
        "in\x1b[31mner/e.py:X",
        "x" * 400 + ":X",
    ],
)
def test_a_name_of_another_form_is_refused_before_anything_is_looked_up(name):
    with pytest.raises(InputError) as told:
        parsed_name(name, key=KEY)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 400


def test_what_ran_is_digested_from_the_bytes_that_ran(here):
    own_object("owntest_mine:build", key=KEY)
    path = here / "owntest_mine.py"
    before = digest_of(path)
    assert ran()[path] == before
    path.write_text("changed = 1\n")
    assert ran()[path] == before != digest_of(path)


def test_a_compiled_file_beside_a_module_is_not_run(here):
    import importlib.util
    import py_compile

    path, evil = here / "owntest_mine.py", here / "owntest_evil.py"
    evil.write_text(path.read_text().replace("= 5", "= 6"))
    compiled = importlib.util.cache_from_source(str(path))
    py_compile.compile(
        str(evil), cfile=compiled, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    assert own_object("owntest_mine:MOMENTUM", key=KEY) == 5


def test_sources_are_the_module_and_all_that_it_imports(here):
    (here / "owntest_late.py").write_text("LATE = 1\n")
    (here / "owntest_other.py").write_text("OTHER = 1\n")
    (here / "owntest_mine.py").write_text(
        "import importlib\nfrom math import pi\nfrom owntest_part import VALUE\n"
        "importlib.import_module('owntest_late')\nNET = VALUE\n"
    )
    own_object("owntest_other:OTHER", key=KEY)  # of another run
    own_object("owntest_mine:NET", key=KEY)
    found = own_files(modules_of(["owntest_mine:NET"]))
    assert list(found) == ["owntest_late.py", "owntest_mine.py", "owntest_part.py"]


def test_sources_of_a_package_are_its_parents_and_relatives(here):
    package = here / "owntest_pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text("from . import parts\nfrom .more import M\nNET = 1\n")
    (package / "parts.py").write_text("")
    (package / "more.py").write_text("M = 1\n")
    own_object("owntest_pack.nets:NET", key=KEY)
    found = own_files(modules_of(["owntest_pack.nets:NET"]))
    names = ["__init__.py", "more.py", "nets.py", "parts.py"]
    assert list(found) == [f"owntest_pack/{name}" for name in names]


# Algorithms


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dpld", "did you mean dpdl?"),
        ("owntest_alg:step", "is a function; it must be an Algorithm(...)"),
        ("owntest_alg:NUMBER", "is a int; it must be an Algorithm(...)"),
        ("owntest_alg:PLAIN", "must be a frozen dataclass"),
        ("owntest_alg:BARE", "its hyper-parameter 'decay' has no default"),
    ],
)
def test_what_is_no_algorithm_is_refused(here, name, said):
    (here / "owntest_alg.py").write_text(
        "from dataclasses import dataclass\nfrom overhear.training import Algorithm\n"
        "NUMBER = 3\ndef step(state, round): return state\n"
        "@dataclass(frozen=True)\nclass Bare:\n    decay: float\n"
        "PLAIN = Algorithm(name='p', init=step, step=step, settings=dict)\n"
        "BARE = Algorithm(name='b', init=step, step=step, settings=Bare)\n"
    )
    with pytest.raises(InputError, match=r"^(?s:.*)$") as told:
        algorithm_named(name)
    assert said in str(told.value)


# Objects from Python


def test_an_object_is_named_by_its_module_and_the_digest_of_its_file(here):
    build = own_object("owntest_mine:build", key=KEY)
    name = give(build, key=KEY)
    assert name == f"object:owntest_mine.build@{digest_of(here / 'owntest_mine.py')}"
    assert own_object(name, key=KEY) is build
    assert list(own_files(modules_of([name]))) == ["owntest_mine.py", "owntest_part.py"]


def test_an_object_of_another_digest_is_refused(here):
    name = give(own_object("owntest_mine:build", key=KEY), key=KEY)
    other = f"{name.partition('@')[0]}@{'0' * 64}"
    with pytest.raises(InputError, match="is not the object that this run was made with"):
        given(other, key=KEY)
    with pytest.raises(InputError, match="give it again from Python"):
        given(f"object:owntest.never@{'0' * 64}", key=KEY)


def test_a_closure_is_refused_with_the_remedy():
    held = 3
    with pytest.raises(InputError, match=r"no digest could cover .* define it at the top"):
        give(lambda: held, key=KEY)


def test_data_stand_for_themselves_since_the_records_are_held_by_their_salted_digest():
    name = give(([1.0], [0]), key="[data] name")
    assert name == "object:builtins.tuple@records"
    with pytest.raises(InputError, match="no attribute of a module"):
        give(([1.0], [0]), key=KEY)


def test_a_notebook_is_digested_by_the_source_of_what_an_object_uses(here, monkeypatch):
    import linecache
    import types

    def notebook(text: str) -> str:
        module = types.ModuleType("owntest_notebook")
        lines = text.splitlines(keepends=True)
        linecache.cache["<cell>"] = (len(text), None, lines, "<cell>")
        exec(compile(text, "<cell>", "exec"), module.__dict__)  # noqa: S102 - as a notebook does
        monkeypatch.setitem(sys.modules, "owntest_notebook", module)
        return give(module.build, key=KEY)

    text = (
        "SCALE = {}\n\ndef part(x):\n    return x{}\n\ndef build(x):\n    return part(SCALE * x)\n"
    )
    same = notebook(text.format(3, ""))
    assert notebook(text.format(3, "") + "\nOTHER = 4\n") == same
    assert notebook(text.format(4, "")) != same
    assert notebook(text.format(3, " + 1")) != same
