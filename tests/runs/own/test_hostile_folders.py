"""Folders that somebody wrote to make a reader run something: a sentence, and nothing runs."""

import hashlib
import json

import pytest

from overhear.runs.folder.folder import write_sums

EVIL = 'open("ran", "w").close()\n'
NAMES = [
    "os:system", "subprocess:run", "../evil.py:X", "{folder}/evil.py:X", "run/sources/evil.py:X",
    "run.sources.evil:X", "evil:X", "mi\\u0000ne:X", "mine\\u202e:X", "own mine:X",
    "object:own_mine.MOMENTUM@" + "0" * 64, "object:", ":", "::", "own_mine:__builtins__.exec",
]  # fmt: skip


@pytest.fixture
def written(place):
    """A way to write the names and the sources of the folder."""

    def write(name: str, table: str = "algorithm", files: dict[str, str] | None = None) -> None:
        for at in (place / "evil.py", place.parent / "evil.py", place / "run/sources/evil.py"):
            at.write_text(EVIL)
        run = place / "run" / "run.toml"
        text, old = run.read_text(), {"algorithm": "own_mine.py:MOMENTUM", "model": "own_mine:net"}
        run.write_text(text.replace(old[table], name.format(folder=place)))
        if files is not None:
            held = {"schema": 1, "files": files, "installed": {}}
            (place / "run" / "sources.json").write_text(json.dumps(held))
        write_sums(place / "run")  # who writes a folder writes its sums

    return write


@pytest.mark.some_quick(4)
@pytest.mark.parametrize("table", ["algorithm", "model"])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_runs_nothing(place, overhear, written, name, table):
    written(name, table)
    code, said = overhear("report", "run")
    assert code == 2, said
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert not (place / "ran").exists()


@pytest.mark.parametrize(
    "path", ["../evil.py", "/etc/passwd", "a/../../evil.py", "evil\x1b.py", "", ".", "a//b.py"]
)
def test_sources_outside_of_the_folder_are_refused_even_if_trusted(place, overhear, written, path):
    written("own_mine.py:MOMENTUM", files={path: "0" * 64})
    code, said = overhear("report", "run", "--trust-code")
    assert (code, "no path of a file below the working directory" in said) == (2, True), said
    assert said.strip().isprintable()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"schema": 2, "files": {}}', '{"schema": 1, "files": {"a.py": "x"}}']
)
def test_sources_that_are_none_are_refused(place, overhear, text):
    (place / "run" / "sources.json").write_text(text)
    write_sums(place / "run")
    code, said = overhear("report", "run")
    assert (code, "sources.json cannot be read" in said) == (2, True), said


def test_a_folder_without_sources_is_refused_even_if_trusted(place, overhear):
    (place / "run" / "sources.json").unlink()
    write_sums(place / "run")
    code, said = overhear("report", "run", "--trust-code")
    assert (code, "has no sources.json" in said) == (2, True), said


def test_links_in_the_sources_lead_nowhere(place, overhear):
    copy = place / "run" / "sources" / "own_mine.py"
    copy.unlink()
    copy.symlink_to(place / "own_mine.py")
    code, said = overhear("report", "run", "--trust-code")
    assert (code, "own_mine.py is a link that leads out of run" in said) == (2, True), said
    copy.unlink()
    copy.symlink_to("../run.toml")
    code, said = overhear("report", "run", "--trust-code")
    assert (code, "is not the file that SHA256SUMS names" in said) == (2, True), said


def test_a_pin_of_one_file_does_not_let_another_run(place, overhear):
    (place / "evil.py").write_text(EVIL)
    run = place / "run" / "run.toml"
    run.write_text(run.read_text().replace("own_mine:net", "evil:X"))
    write_sums(place / "run")
    pins = {n: hashlib.sha256((place / n).read_bytes()).hexdigest() for n in ("own_mine.py",)}
    listed = ", ".join(f'"{name}" = "{value}"' for name, value in pins.items())
    (place / "policy.toml").write_text(
        'schema = 1\n[[limits]]\nadversary = "eavesdropper"\nepsilon = 50\ndelta = 1e-5\n'
        f"[code]\nallow = {{{listed}}}\n"
    )
    code, said = overhear("check", "run", "--policy", "policy.toml")
    assert (code, "names evil.py, which is not in its sources.json" in said) == (2, True), said
    assert not (place / "ran").exists()


def test_a_policy_pins_digests_and_nothing_else(place, overhear):
    (place / "policy.toml").write_text(
        'schema = 1\n[[limits]]\nadversary = "eavesdropper"\nepsilon = 50\ndelta = 1e-5\n'
        '[code]\nallow = {"own_mine.py" = "yes"}\n'
    )
    code, said = overhear("check", "run", "--policy", "policy.toml")
    assert (code, "each of 64 digits" in said) == (2, True), said
