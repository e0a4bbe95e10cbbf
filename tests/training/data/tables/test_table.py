"""Tables of declared columns: what becomes of a cell, and what is refused."""

import csv
import io
import random
import re
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from overhear.privacy.errors import InputError
from overhear.training.data import table
from overhear.training.data import table_rows as parquet_rows
from overhear.training.data.columns import declared
from overhear.training.data.store import MappedStore
from overhear.training.data.table import read_table, table_dataset
from overhear.training.data.table_rows import header_of, undeclared

COLUMNS = {"age": [0, 120], "sex": ["f", "m"], "ill": ["no", "yes"]}
GOOD = "age,sex,ill\n60,f,no\n30, m ,yes\n,x,no\n90,,yes\n"


def _declared(columns=COLUMNS, *, target: str = "ill", outputs: int = 0, clamp: bool = False):
    return declared(columns, target=target, outputs=outputs, clamp=clamp)


def _read(path: Path, text: str | bytes, **how):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    separator = how.pop("separator", ",")
    return read_table(path, _declared(**how), form="csv", separator=separator)


def test_cells_become_numbers_by_what_is_declared(tmp_path):
    found = _read(tmp_path / "a.csv", GOOD).take(torch.arange(4))
    assert found.targets.tolist() == [0, 1, 0, 1]
    assert found.inputs.tolist() == [
        [0.5, 1, 0, 0, 0],
        [0.25, 0, 1, 0, 0],
        [0.5, 0, 0, 1, 0],  # missing: the middle; an undeclared category: other
        [0.75, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n"),
        '"age","sex","ill"\n"60","f","no"\n30,m,"yes"\n,x,no\n90,,yes\n\n',
        'note,age,sex,ill\n"a, b\nc",60,f,no\n"say ""x""",30,m,yes\n,,x,no\n,90,,yes\n',
    ],
    ids=["mark", "crlf", "quotes", "other columns"],
)
def test_texts_that_mean_the_same_read_the_same(tmp_path, text):
    one, other = _read(tmp_path / "a.csv", text), _read(tmp_path / "b.csv", GOOD)
    assert torch.equal(one.take(torch.arange(4)).inputs, other.take(torch.arange(4)).inputs)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty; its first line must name the columns"),
        ("\n", "is empty"),
        ("age,sex,ill\n", "has a line of names and no rows"),
        ("age,ill\n1,no\n", "has no column 'sex'"),
        ("Age,sex,ill\n1,f,no\n", "has no column 'age'; did you mean 'Age'?"),
        ("60,f,no\n1,m,no\n", "if these are no names, put a line of names first"),
        ("age,sex,age,ill\n1,f,1,no\n", "has 2 columns 'age'; name each once"),
        ("age;sex;ill\n1;f;no\n", 'set separator = ";"'),
        ("age\tsex\till\n1\tf\tno\n", r'set separator = "\\t"'),
        ("age,sex,ill\n130,f,no\n", r"line 2, column 'age': '130' lies outside \[0, 120\]"),
        ("age,sex,ill\n1,f,no\n-1,f,no\n", r"line 3, column 'age': '-1' lies outside"),
        ("age,sex,ill\nnan,f,no\n", "'nan' is no finite number; leave the cell empty"),
        ("age,sex,ill\ninf,f,no\n", "'inf' is no finite number"),
        ("age,sex,ill\n1e999,f,no\n", "'1e999' is no finite number"),
        ("age,sex,ill\n1_0,f,no\n", "'1_0' is no finite number"),
        ("age,sex,ill\nold,f,no\n", "'old' is no finite number"),
        ('age,sex,ill\n"1,5",f,no\n', "write numbers with a decimal point"),
        ("age,sex,ill\n1,f,perhaps\n", "'perhaps' is none of the labels 'no', 'yes'"),
        ("age,sex,ill\n1,f,\n", "line 2, column 'ill': is empty; a record without a target"),
        ("age,sex,ill\n1,f\n", "line 2 has 2 cells, and there are 3 columns"),
        ("age,sex,ill\n1,f,no,9\n", "line 2 has 4 cells"),
        ('age,sex,ill\n1,"f,no\n', "line 2: unexpected end of data"),
        ('age,sex,ill\n1,"f"x,no\n', "line 2: ',' expected after '\"'"),
        ("age,sex,ill\n1,é,no\n".encode("latin1"), "is not UTF-8 after line"),
        ("age,sex,ill\n1,f,no\n".encode("utf-16"), "it looks like UTF-16"),
        ("age,sex,ill\n" + "9" * (1 << 21), "line 2 is longer than 1048576 characters"),
        ("9" * (1 << 21), "line 1 is longer than 1048576 characters"),
        ("age,sex,ill\n1," + "f" * 200_000 + ",no\n", "field larger than field limit"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path, text, why):
    with pytest.raises(InputError, match=why):
        _read(tmp_path / "a.csv", text)


def test_a_line_without_an_end_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("wb") as file:
        file.truncate(10 << 30)  # 10 GB of one line, none of which is on the disk
    with pytest.raises(InputError, match="line 1 is longer than"):
        header_of(path, form="csv", separator=",")


def test_a_missing_table_is_named():
    with pytest.raises(FileNotFoundError, match="no csv file at"):
        read_table(Path("nothing.csv"), _declared(), form="csv")


def test_outside_values_are_clamped_where_that_is_asked(tmp_path):
    store = _read(tmp_path / "a.csv", "age,sex,ill\n130,f,no\n-4,m,yes\n", clamp=True)
    assert store.take(torch.arange(2)).inputs[:, 0].tolist() == [1, 0]


def test_a_semicolon_separates_where_that_is_said(tmp_path):
    store = _read(tmp_path / "a.csv", GOOD.replace(",", ";"), separator=";")
    assert store.size == 4


@pytest.mark.parametrize(
    ("columns", "how", "why"),
    [
        ({"a": []}, {}, r"columns.a=\[\] must be a range"),
        ({"a": [1]}, {}, "must be a range, such as"),
        ({"a": [1, 1]}, {}, "must be a range from a smaller number to a larger"),
        ({"a": [2, 1]}, {}, "from a smaller number"),
        ({"a": [0, float("nan")]}, {}, "must be a range, such as"),
        ({"a": [0, float("inf")]}, {}, "must be a range, such as"),
        ({"a": [0, 1, 2]}, {}, "must be a range, such as"),
        ({"a": ["x", 1]}, {}, "must be a range, such as"),
        ({"a": [True, False]}, {}, "must be a range, such as"),
        ({"a": ["x", "x "]}, {}, "must name each category once"),
        ({"a": ["x", ""]}, {}, "none of them empty"),
        ({"a b": [1]}, {}, 'columns."a b"='),
        ({"ill": ["no", "yes"]}, {}, "declares nothing but the target 'ill'"),
        ({"a": [0, 1], "ill": ["no"]}, {}, "declares one label"),
        ({"a": [0, 1], "ill": [0, 1]}, {}, "set outputs = 1 to predict a number"),
        ({"a": [0, 1], "ill": ["no", "yes"]}, {"outputs": 1}, "leave one of them out"),
        ({"a": [0, 1]}, {"outputs": 2}, "outputs=2 must be 1"),
    ],
)
def test_a_declaration_that_says_nothing_is_refused(columns, how, why):
    with pytest.raises(InputError, match=why):
        _declared(columns, **how)


@pytest.mark.parametrize(
    ("cell", "outputs", "why"),
    [
        ("yes", 0, "'yes' is no finite number"),
        ("-1", 0, "'-1' is no label"),
        ("0.5", 0, r"declare columns.ill as a list of the labels, or set outputs = 1"),
        ("1e39", 1, "too large for float32"),
    ],
)
def test_a_target_that_is_not_declared_is_a_label_or_a_number(tmp_path, cell, outputs, why):
    with pytest.raises(InputError, match=why):
        _read(
            tmp_path / "a.csv", f"age,ill\n1,{cell}\n", columns={"age": [0, 120]}, outputs=outputs
        )


def test_a_number_to_predict_is_kept_or_scaled(tmp_path):
    text = "age,cost\n" + "".join(f"{i},{2.5 * i}\n" for i in range(10))
    plain = {"age": [0, 120]}
    kept = _read(tmp_path / "a.csv", text, columns=plain, target="cost", outputs=1)
    assert kept.targets.tolist() == [2.5 * i for i in range(10)]
    scaled = _read(
        tmp_path / "a.csv", text, columns=plain | {"cost": [0, 25]}, target="cost", outputs=1
    )
    assert scaled.targets.tolist() == pytest.approx([0.1 * i for i in range(10)])


def test_without_a_declaration_a_skeleton_names_the_columns_and_their_kinds_and_no_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "age,sex,seen,cost,none,ill\n60,f,2021-03-04,NA,,no\n30,m,2021-03-05 10:00,7,,yes\n"
        ",x,,8,,no\n"
    )
    words = str(undeclared(path, form="csv", separator=",", target="ill"))
    pasted = words.partition("each column: ")[2]
    assert pasted.endswith("# put public ranges and categories in their places")
    columns = tomllib.loads(pasted)["columns"]
    assert columns == {
        "age": [0, 1],
        "sex": ["..."],
        "seen": ["date", "2000-01-01", "2029-12-31"],
        "cost": [0, 1],
        "none": [0, 1],
        "ill": ["..."],
    }
    assert not {"60", "30", "2021", "NA", "yes"} & set(re.findall(r"\w+", words))
    # Pasted as it stands it is refused, and filled in it is read.
    with pytest.raises(InputError, match=r"put its public categories in place of '\.\.\.'"):
        _declared(columns)
    columns |= {"age": [0, 120], "cost": [0, 9], "sex": ["f"], "ill": ["no", "yes"]}
    found = declared(columns, target="ill", outputs=0, clamp=False, missing={"cost": ["NA"]})
    assert read_table(path, found, form="csv").size == 3


def test_cells_of_no_declared_category_are_counted_column_by_column(tmp_path):
    path, others = tmp_path / "a.csv", Counter[str]()
    path.write_text("age,sex,ill\n60,f,no\n30,x,yes\n,y,no\n90,,yes\n")
    for cache, count in ((None, 2), (tmp_path / "c", 2), (tmp_path / "c", 0)):
        others.clear()
        read_table(path, _declared(), form="csv", cache=cache, others=others)
        assert others["sex"] == count  # nothing of one that was converted before


@pytest.mark.parametrize(
    ("cell", "number"),
    [("2020-01-01", 0.0), ("2020-12-31", 1.0), ("2020-07-01T12:00", 182.5 / 365), ("", 0.5)],
)
def test_a_date_is_a_number_between_the_first_day_and_the_last(tmp_path, cell, number):
    columns = {"seen": ["date", "2020-01-01", "2020-12-31"]}
    found = _read(tmp_path / "a.csv", f"seen,ill\n{cell},1\n", columns=columns)
    assert found.take(torch.arange(1)).inputs.item() == pytest.approx(number)
    (column,) = table.columns_of(_declared(columns))
    assert column.text([number]) == (cell or "2020-07-01")[:10]


@pytest.mark.parametrize(
    ("columns", "cell", "why"),
    [
        (["date", "2020-01-01", "2020-12-31"], "2021-01-01", r"outside \[2020-01-01, 2020-12-31\]"),
        (["date", "2020-01-01", "2020-12-31"], "31.12.2020", "is no date such as 2020-12-31"),
        (["date", "2020-01-01", "2020-12-31"], "20200101", "is no date such as 2020-12-31"),
        (["date", "2020-12-31", "2020-01-01"], "", "must be days, such as"),
        (["date", "today", "2020-01-01"], "", "must be days, such as"),
    ],
)
def test_a_date_that_is_none_or_outside_is_refused(tmp_path, columns, cell, why):
    with pytest.raises(InputError, match=why):
        _read(tmp_path / "a.csv", f"seen,ill\n{cell},1\n", columns={"seen": columns})


def test_what_is_declared_as_missing_is_read_as_an_empty_cell(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age,sex,ill\nNA,NA,no\n-1,f,yes\n")

    def read(missing):
        found = declared(COLUMNS, target="ill", outputs=0, clamp=False, missing=missing)
        return read_table(path, found, form="csv").take(torch.arange(2)).inputs.tolist()

    assert read(["NA", -1]) == [[0.5, 0, 0, 0, 1], [0.5, 1, 0, 0, 0]]
    of_target = declared(
        {"age": [-1, 9]}, target="ill", outputs=0, clamp=False, missing=["no", "NA"]
    )
    with pytest.raises(InputError, match="is empty; a record without a target"):
        read_table(path, of_target, form="csv")
    assert read({"age": ["NA", -1]})[0] == [0.5, 0, 0, 1, 0]  # of sex it is another category
    with pytest.raises(InputError, match=r"'NA' is no finite number; .*or name it in missing"):
        read({"sex": ["NA"]})
    with pytest.raises(InputError, match="'f', which missing names, too"):
        read(["f"])
    with pytest.raises(InputError, match="missing names 'x', which columns does not declare"):
        read({"x": ["NA"]})


def test_a_converted_table_has_the_same_records_and_is_converted_once(tmp_path, monkeypatch):
    draw = random.Random(0)
    out = io.StringIO()
    rows = csv.writer(out)
    rows.writerow(["age", "sex", "ill"])
    for _ in range(9000):  # more than two blocks
        rows.writerow([draw.choice(["", draw.uniform(0, 120)]), draw.choice("fmx"), "no"])
    rows.writerow([1, "f", "yes"])
    path = tmp_path / "a.csv"
    path.write_text(out.getvalue())
    small = read_table(path, _declared(), form="csv")
    mapped = read_table(path, _declared(), form="csv", cache=tmp_path / "c")
    assert isinstance(mapped, MappedStore)
    at = torch.tensor([0, 9000, 4097, 4096, 17])
    for one, other in zip(small.take(at), mapped.take(at), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(small.targets, mapped.targets)
    files = sorted((tmp_path / "c").iterdir())
    assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"] * 2
    monkeypatch.setattr(table, "_convert", lambda *_: pytest.fail("converted again"))
    read_table(path, _declared(), form="csv", cache=tmp_path / "c")


def test_another_declaration_or_table_is_converted_anew(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(GOOD)
    read_table(path, _declared(), form="csv", cache=tmp_path)
    read_table(path, _declared(COLUMNS | {"age": [0, 100]}), form="csv", cache=tmp_path)
    path.write_text(GOOD + "1,f,no\n")
    found = read_table(path, _declared(), form="csv", cache=tmp_path)
    assert found.size == 5
    assert len(list(tmp_path.glob("*-targets.npy"))) == 3


def test_a_bad_cell_leaves_no_half_of_a_conversion(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(GOOD + "1000,f,no\n")
    with pytest.raises(InputError, match="line 6, column 'age': '1000' lies outside"):
        read_table(path, _declared(), form="csv", cache=tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_declared_labels_give_the_number_of_classes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age,sex,ill\n" + "60,f,no\n" * 10)
    data = table_dataset([read_table(path, _declared(), form="csv")], _declared(), name=path.name)
    assert (data.classes, data.notes, len(data.targets)) == (2, (), 8)


def test_parquet_reads_as_csv_does(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra table")
    from pyarrow import parquet

    columns = {
        "age": [60, 30.0, None, 90],
        "sex": ["f", "m", "x", None],
        "ill": ["no", "yes", "no", "yes"],
        "name": ["not", "declared", "at", "all"],
    }
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    found = read_table(path, _declared(), form="parquet").take(torch.arange(4))
    assert torch.equal(found.inputs, _read(tmp_path / "a.csv", GOOD).take(torch.arange(4)).inputs)
    assert found.targets.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"age": [1.0], "sex": ["f"]}, "has no column 'ill'"),
        ({"age": [float("nan")], "sex": ["f"], "ill": ["no"]}, "row 1, column 'age': nan is no"),
        ({"age": [500], "sex": ["f"], "ill": ["no"]}, "row 1, column 'age': 500 lies outside"),
        ({"age": [[1]], "sex": ["f"], "ill": ["no"]}, "column 'age' holds list"),
    ],
)
def test_parquet_is_refused_in_sentences(tmp_path, columns, why):
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra table")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(InputError, match=why):
        read_table(path, _declared(), form="parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1 no parquet PAR1", np.zeros(9).tobytes()])
def test_what_is_no_parquet_file_is_refused(tmp_path, content):
    pytest.importorskip("pyarrow", reason="needs the extra table")
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no parquet file"):
        read_table(path, _declared(), form="parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    def absent(name: str):
        raise ImportError(name)

    monkeypatch.setattr(parquet_rows.importlib, "import_module", absent)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r'pip install "pyarrow>=[\d.]+"; or write .* as csv'):
        read_table(path, _declared(), form="parquet")
