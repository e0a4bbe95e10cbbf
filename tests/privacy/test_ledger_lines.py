"""No line of a ledger but its last can be changed, moved or taken away unseen."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overhear.privacy import Ledger, read_ledger
from overhear.privacy.errors import InputError
from overhear.privacy.releases.chained_file import LONGEST_LINE, SCHEMA
from tests.privacy.ledgers import chained

HEADER: dict[str, Any] = {"schema": SCHEMA, "run": "a"}
ROUNDS: list[dict[str, Any]] = [{"round": n, "releases": [{"kind": "model"}]} for n in range(4)]
MARK = {"resumed_after": 1}


def lines_of(*lines: dict[str, Any] | bytes) -> list[bytes]:
    return chained(*lines).splitlines(keepends=True)


def put(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    return path


def test_what_the_writer_writes_is_chained(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, {"run": "a"})
    for one in ROUNDS:
        ledger.append(one["round"], one["releases"])
    ledger.close()
    ledger = Ledger.reopen(path)
    ledger.resume(1)
    ledger.append(2, [{"kind": "model"}])
    ledger.close()
    assert path.read_bytes() == chained(HEADER, *ROUNDS, MARK, ROUNDS[2])
    assert read_ledger(path).numbers == [0, 1, 2, 3, 2]


def _moved(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], lines[3], lines[2], *lines[4:]]


CHANGES: dict[str, Any] = {
    "a middle line removed": lambda lines: [*lines[:2], *lines[3:]],
    "two lines swapped": _moved,
    "a line twice": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "the last line twice": lambda lines: [*lines, lines[-1]],
    "the header twice": lambda lines: [lines[0], *lines],
    "no header": lambda lines: lines[1:],
    "a line of another run": lambda lines: [
        *lines[:3],
        lines_of(HEADER | {"run": "b"}, *ROUNDS)[3],
        *lines[4:],
    ],
    "the last line of another run": lambda lines: [
        *lines[:-1],
        lines_of(HEADER | {"run": "b"}, *ROUNDS)[-1],
    ],
    "the header of another run": lambda lines: [lines_of(HEADER | {"run": "b"})[0], *lines[1:]],
    "lines that end as on Windows": lambda lines: [
        line.removesuffix(b"\n") + b"\r\n" for line in lines
    ],
    "a byte-order mark": lambda lines: [b"\xef\xbb\xbf", *lines],
    "a blank line at the start": lambda lines: [b"\n", *lines],
    "a blank line in the middle": lambda lines: [*lines[:2], b"\n", *lines[2:]],
    "a blank in front of a line": lambda lines: [*lines[:2], b" " + lines[2], *lines[3:]],
    "no byte of text": lambda lines: [*lines[:2], b"\xff\xfe" + lines[2], *lines[3:]],
    "zeros in the middle": lambda lines: [*lines[:2], b"\0" * len(lines[2]), *lines[3:]],
    "a line that would have been cut off": lambda lines: [*lines[:2], lines[2][:9], *lines[3:]],
    "an entry without a digest at the end": lambda lines: [
        *lines,
        b'{"round": 4, "releases": []}\n',
    ],
    "a line too long": lambda lines: [*lines, b" " * (LONGEST_LINE + 1)],
    "nothing": lambda _: [],
    "a header that is cut off": lambda lines: [lines[0][:-1]],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_edited_ledger_is_refused(change, tmp_path):
    whole = lines_of(HEADER, *ROUNDS)
    read_ledger(put(tmp_path, b"".join(whole)))
    with pytest.raises(InputError, match=r"ledger\.jsonl (line \d+ is no entry|does not start)"):
        read_ledger(put(tmp_path, b"".join(change(whole))))


def test_an_entry_behind_a_line_that_was_cut_off_is_refused(tmp_path):
    """Only an entry of going on may stand there, whatever the digests say."""
    for damage, at in ((b'{"rou\n', 3), (b' {"resu\n', 3)):
        path = put(tmp_path, chained(HEADER, ROUNDS[0], damage, ROUNDS[1]))
        with pytest.raises(InputError, match=f"line {at} is no entry: it is cut off"):
            read_ledger(path)


def test_a_number_of_the_header_that_is_not_finite_is_refused(tmp_path):
    for text in ("1e999", "-1e999", "NaN", "Infinity"):
        path = put(tmp_path, entry('{"schema": 2, "noise_multiplier": ' + text + "}", after=b""))
        with pytest.raises(InputError, match="line 1 is no entry"):
            read_ledger(path)


def entry(text: str, *, after: bytes | None = None) -> bytes:
    """A line that is closed by its digest, of an object that no writer writes."""
    from overhear.privacy.releases.chained_file import _END, _KEY, Chain  # the form of a line

    chain = Chain()
    chain.add(chained(HEADER, *ROUNDS) if after is None else after)
    content = text.removesuffix("}").encode()
    return content + _KEY + chain._after(content).encode() + _END


@pytest.mark.parametrize(
    "text",
    [
        '{"round": 4, "releases": [], "round": 5}',
        '{"round": 4, "releases": [{"kind": "a", "kind": "b"}]}',
        '{"round": 4, "releases": [], "note": 1}',
        '{"round": 4}',
        '{"releases": []}',
        '{"round": 4, "releases": [], "resumed_after": 3}',
        '{"resumed_after": 3, "resumed_after": 2}',
        '{"resumed_after": -2}',
        '{"resumed_after": 1.0}',
        '{"round": true, "releases": []}',
        '{"round": -1, "releases": []}',
        '{"round": 4.0, "releases": []}',
        '{"round": 1e999, "releases": []}',
        '{"round": NaN, "releases": []}',
        '{"round": -Infinity, "releases": []}',
        '{"round": "4", "releases": []}',
        '{"round": 4000000000, "releases": []}',
        '{"round": ' + "9" * 5000 + ', "releases": []}',
        '{"round": 4, "releases": {}}',
        '{"round": 4, "releases": ["model"]}',
        '{"round": 4, "releases": [{"kind": 1}]}',
        '{"round": 4, "releases": [{"kind": "model", "more": 1}]}',
        '{"round": 4, "releases": ' + "[" * 100_000 + "}",
        "{}",
        "4}",
    ],
)
def test_a_line_with_a_right_digest_is_held_to_its_form(text, tmp_path):
    whole = chained(HEADER, *ROUNDS)
    assert read_ledger(put(tmp_path, whole + entry('{"round": 4, "releases": []}'))).rounds == 4
    with pytest.raises(InputError, match="line 6 is no entry"):
        read_ledger(put(tmp_path, whole + entry(text)))


@pytest.mark.parametrize("schema", [1, SCHEMA + 1, "3", 3.0, True, None])
def test_another_schema_is_refused_by_name(schema, tmp_path):
    said = f"is of schema {schema}, and this version reads 2 to {SCHEMA}: a"
    with pytest.raises(InputError, match=re.escape(said)):
        read_ledger(put(tmp_path, chained(HEADER | {"schema": schema}, *ROUNDS)))


def test_a_ledger_without_digests_is_refused(tmp_path):
    for first in (b"{}", b'{"schema": 4}', b'{"schema": 1'):
        with pytest.raises(InputError, match="a header that carries its digest; put the ledger b"):
            read_ledger(put(tmp_path, first + b"\n" + chained(*ROUNDS)))


def test_a_ledger_that_is_cut_anywhere_says_less_by_whole_lines_alone(tmp_path):
    whole = chained(HEADER, *ROUNDS, b'{"rou\n', MARK, *ROUNDS[2:])
    ends = {at + 1 for at, byte in enumerate(whole) if byte == ord("\n")}
    header = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        path = put(tmp_path, whole[:length])
        if length < header:
            with pytest.raises(InputError, match="does not start with a header"):
                read_ledger(path)
            continue
        spent = read_ledger(path)
        half_mark = whole[:length].rpartition(b"\n")[2].startswith(b" ")
        before = whole[:length].count(b"\n") - 1
        if length in ends:
            assert spent.torn == (before == 5)
        else:
            assert spent.torn == (not half_mark or before == 5)


def test_a_blank_that_was_torn_does_not_hide_the_line_that_was(tmp_path):
    whole = chained(HEADER, *ROUNDS)
    path = put(tmp_path, whole + b'{"rou\n {"resu\n {')
    assert (read_ledger(path).torn, read_ledger(path).torn_round) == (True, 4)


@pytest.mark.parametrize("releases", [["model"], [{}], [{"kind": 1}], [{"kind": "a", "b": 1}]])
def test_what_no_reader_takes_is_not_written(releases, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", HEADER)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    for round_ in (0, True, -1, 1.0):
        with pytest.raises(InputError, match=r"a release must be|round=.* must be"):
            ledger.append(round_, releases)  # type: ignore[arg-type]
    ledger.append(0, [])
    ledger.close()
    assert (tmp_path / "ledger.jsonl").read_bytes().startswith(before)
    assert read_ledger(tmp_path / "ledger.jsonl").numbers == [0]


def test_a_line_longer_than_a_reader_takes_is_not_written(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", HEADER)
    with pytest.raises(InputError, match="must have at most 1048576"):
        ledger.append(0, [{"kind": "x" * LONGEST_LINE}])
    ledger.append(0, [])
    ledger.close()
    assert read_ledger(tmp_path / "ledger.jsonl").numbers == [0]


SPARSE = """
import resource, sys
from pathlib import Path
from overhear.privacy import read_ledger
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_ledger(Path(sys.argv[1]))
except ValueError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes there")
@pytest.mark.parametrize("at_start", [True, False])
def test_a_line_of_4_gigabytes_takes_little_memory(at_start, tmp_path):
    path = put(tmp_path, b"" if at_start else chained(HEADER, *ROUNDS))
    with path.open("r+b") as file:
        file.truncate(4 << 30)  # a hole: nothing is on the disk
    done = subprocess.run(
        [sys.executable, "-c", SPARSE, str(path)], check=True, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    said, megabytes = done.stdout.splitlines()
    assert "is longer than" in said
    assert int(megabytes) < 100
