"""A review of printed tables: what it finds in the four papers' tables, and in honest ones not."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from overhear.commands.cli import main
from overhear.reports.reproduced.printed_table import read_tables
from overhear.reports.reproduced.review import review, stored_blind_scores
from overhear.reports.sweep.table import sweep_table, table_text
from tests.benchmark_scripts import benchmark
from tests.real_data import data_root, root_with
from tests.reports.sweep.test_table import FOUR, sweep_of


def written(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(line.strip() for line in text.strip().splitlines()), "utf-8")
    return path


def found(*paths: Path, **options) -> list[str]:
    return [one.kind for one in review(paths, **options) if one.is_finding]


def paper(*names: str) -> list[Path]:
    """Tables of the papers, which lie beside the folder of data."""
    paths = [data_root().parent / "papers" / f"{name}.csv" for name in names]
    if not all(path.is_file() for path in paths):
        pytest.skip(f"no {', '.join(names)} beside {data_root()}")
    return paths


# The papers' tables.


@pytest.mark.data
def test_six_rows_on_cifar10_are_the_same_on_two_graphs():
    copies = [one.figures for one in review(paper("dpdl_table_2")) if one.is_finding]
    assert all(of["rows"] == [{"graph": "bipartite"}, {"graph": "full"}] for of in copies)
    assert [(of["of"]["algorithm"], of["of"]["epsilon_level_inferred"]) for of in copies] == [
        (name, level) for level in "123" for name in ("DP-DPSGD", "MUFFLIATO")
    ]
    assert {of["of"]["heterogeneity_inferred"] for of in copies} == {"low"}


@pytest.mark.data
def test_two_rows_of_the_ring_are_rows_of_another_table():
    copies = [o.figures for o in review(paper("dpdl_table_1", "dpdl_table_5")) if o.is_finding]
    assert [(of["of"]["algorithm"], of["of"]["epsilon_level_inferred"]) for of in copies] == [
        ("DP-DPSGD", "2"), ("MUFFLIATO", "3"),
    ]  # fmt: skip
    assert {tuple(row["graph"] for row in of["rows"]) for of in copies} == {("bipartite", "ring")}
    assert copies[0]["figures"] == ["87.6 ± 1.4", "88.8 ± 1.4", "87.8 ± 1.9"]
    assert found(*paper("dpdl_table_1")) == found(*paper("dpdl_table_5")) == []


@pytest.mark.data
def test_one_constant_of_sgda_is_another_in_one_of_four_tables():
    remarks = review(paper(*(f"dpmixsgd_table_2{at}" for at in "abcd")))
    [odd] = [one for one in remarks if one.is_finding]
    assert odd.figures["of"] == "SGDA"
    assert odd.figures["values"] == ["0.6648", "0.6644"]
    steady = [one.figures["of"] for one in remarks if one.kind == "the same at all levels"]
    assert steady == ["SGDA", "DM-HSGD", "SGDA", "DM-HSGD"]
    orders = [one.figures for one in remarks if one.kind == "order"]
    assert [of["cells"] for of in orders] == [12] * 4
    assert sum(of["first"].get("DPMixSGD", 0) for of in orders) == 5
    assert orders[3]["first"]["SGDA and DM-HSGD"] == 4


@pytest.mark.data
def test_no_attack_of_the_paper_reaches_a_black_picture_and_two_have_scores_of_noise():
    remarks = review(paper("dpdl_table_3"))
    below = {o.figures["of"]: o.figures for o in remarks if o.kind == "below a blind guess"}
    assert all("black picture" in of["below"] for of in below.values())
    noise = {of: said["random_start"] for of, said in below.items()}
    assert noise == {"ND-CG": False, "ND-MM": False, "DPDL-CG": True, "DPDL-MM": True}
    [pixels] = [one for one in remarks if one.kind == "data range"]
    assert pixels.words.endswith("1.95 to 2.08, median 2.01: pixels in [-1, 1].")
    [cell] = [one for one in remarks if one.kind == "MSE and PSNR"]  # 4.78 dB at range 2
    assert "MSE 1.33 and PSNR 4.55" in cell.words


@pytest.mark.data
def test_dpdl_is_first_in_all_cells_of_its_tables():
    remarks = review(paper(*(f"dpdl_table_{at}" for at in (1, 2, 5, 6))))
    orders = [one.figures for one in remarks if one.kind == "order"]
    assert [(of["cells"], of["first"]) for of in orders] == [
        (cells, {"DPDL": cells}) for cells in (36, 36, 18, 18)
    ]
    assert sum(one.kind == "rows that are the same" for one in remarks) == 8


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("data", "wanted"), [("mnist", "MNIST/raw"), ("cifar10", "cifar-10-batches-py/data_batch_1")]
)
def test_stored_scores_of_guesses_are_those_of_the_pictures(data, wanted):
    for name, scores in benchmark("blind_scores").scores_of(data, str(root_with(wanted))).items():
        wide = "2" if data == "mnist" else "standardised"
        stored = stored_blind_scores()[data]["1" if name == "ordinary" else wide]
        assert stored.keys() == scores.keys()
        for guess, three in scores.items():
            assert stored[guess] == pytest.approx(three, abs=0.006), (data, name, guess)


# Whatever is found, a false twin has, and an honest one has not.

_ROW = "graph,epsilon,agents,algorithm,accuracy,spread\n"


def honest(draw: np.random.Generator, *, spread: float = 1.0, digits: int = 1, runs: int = 20):
    """60 rows over three sizes; the graph makes no difference, and runs are independent."""
    true = draw.normal(60, 8, (2, 3, 5, 3))
    lines = []
    for h, e, a, graph, k in itertools.product(
        range(2), range(3), range(5), ("bipartite", "full"), range(3)
    ):
        x = draw.normal(true[h, e, a, k], spread, runs)
        figures = f"{x.mean():.{digits}f},{x.std(ddof=1):.{digits}f}"
        lines.append(f"{h},{e},{graph},{10 * (k + 1)},A{a},{figures}")
    return ["heterogeneity,epsilon,graph,agents,algorithm,accuracy_percent,spread", *lines]


def without_spreads(lines: list[str]) -> list[str]:
    return [line.rpartition(",")[0] for line in lines]


def copied(lines: list[str], rows: int) -> list[str]:
    """Some rows of one graph put in the place of those of the other."""
    made = list(lines)
    for row in range(rows):
        for k in range(1, 4):
            at = 6 * row + k
            settings = lines[at + 3].split(",")[:5]
            made[at + 3] = ",".join([*settings, *lines[at].split(",")[5:]])
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "digits", "of"),
    [(1.0, 1, list), (0.1, 1, list), (1.0, 1, without_spreads), (0.3, 1, without_spreads)],
)
def test_honest_tables_have_no_copies(tmp_path, spread, digits, of):
    """At most 1 in 100 is asked for; 5 or more of 100 then have probability .3 %."""
    draw = np.random.default_rng(1)
    tables = ("\n".join(of(honest(draw, spread=spread, digits=digits))) for _ in range(100))
    wrong = sum(bool(found(written(tmp_path, text))) for text in tables)
    assert wrong <= 4


@pytest.mark.parametrize(("rows", "of"), [(1, list), (10, without_spreads)])
def test_rows_that_were_copied_are_found(tmp_path, rows, of):
    lines = honest(np.random.default_rng(2))
    assert found(written(tmp_path, "\n".join(of(lines)))) == []
    false = written(tmp_path, "\n".join(of(copied(lines, rows))))
    assert found(false) == ["rows that are the same"] * rows


def test_few_digits_explain_rows_that_are_the_same(tmp_path):
    """Means of runs that hardly differ are printed the same, with nobody copying."""
    remarks = review([written(tmp_path, "\n".join(honest(np.random.default_rng(3), spread=0.1)))])
    same = [one for one in remarks if one.kind == "rows that are the same"]
    assert len(same) >= 10
    assert not any(one.is_finding for one in same)


def test_spreads_have_digits_of_their_own(tmp_path):
    """Means to .01 with spreads to .1: of 20 honest tables about two had a finding."""
    draw, own = np.random.default_rng(4), re.compile(r"(\d\.\d)\d$")

    def rounded(lines: list[str]) -> Path:
        return written(tmp_path, "\n".join(own.sub(r"\1", line) for line in lines))

    sound = [honest(draw, spread=0.1, digits=2) for _ in range(20)]
    assert [found(rounded(lines)) for lines in sound] == [[]] * 20
    assert found(rounded(copied(honest(draw, digits=2), 1))) == _SAME


def test_a_single_cell_that_is_the_same_is_no_finding(tmp_path):
    text = _ROW + "ring,1,10,A,50.1,1.2\nfull,1,10,A,50.1,1.2\nring,1,10,B,50.4,1.3"
    assert found(written(tmp_path, text)) == []


def test_what_noise_does_not_enter_may_be_constant_in_it_and_another_may_not_repeat_it(tmp_path):
    draw = np.random.default_rng(1)

    def table(*figures: str) -> str:
        lines = ["epsilon,data,algorithm,auroc"]
        for epsilon, at in itertools.product("124", range(3)):
            lines.append(f"{epsilon},{at},SGDA,{figures[at]}")
            lines.append(f"{epsilon},{at},DP-SGDA,{draw.uniform(0.5, 0.9):.4f}")
        return "\n".join(lines)

    text = table("0.7719", "0.6957", "0.6648")
    remarks = review([written(tmp_path, text)])
    assert [one.figures["of"] for one in remarks if one.kind == "the same at all levels"] == [
        "SGDA"
    ]
    assert not any(one.is_finding for one in remarks)
    again = written(tmp_path, table("0.7719", "0.6957", "0.6648"), "again.csv")
    kinds = {one.kind for one in review([tmp_path / "t.csv", again])}
    assert kinds == {"the same at all levels", "rows that are the same", "order", "compared"}
    assert found(tmp_path / "t.csv", again) == []
    slip = written(tmp_path, table("0.7719", "0.6957", "0.6644"), "slip.csv")
    assert found(tmp_path / "t.csv", slip) == ["one figure differs"]


_THREE, _OTHER = "83.5 ± 1.3,79.0 ± 1.1,69.7 ± 1.4", "81.9 ± 1.2,74.4 ± 1.5,66.0 ± 1.3"
_AGENTS = f"agents,algorithm,acc,f1,recall\n10,A,{_THREE}\n20,A,{_OTHER}"
_SPARSE = "sparsity,algorithm,acc,f1,recall\n0.5,A,{}\n0.1,A,82.2 ± 1.2,75.1 ± 1.5,66.3 ± 1.3"
_BOTH = "agents,sparsity,algorithm,acc,f1,recall\n10,{},A,{}\n{},0.5,A,{}"
_WHISPER = "algorithm,data,epsilon,delta\n{},{},40,1e-5"
_BASE = "epsilon,algorithm,acc,f1,recall\n1,SGD,{0}\n2,SGD,{0}"
_STEADY = "graph,epsilon,name,acc,f1,auc\n{0},1,SGD,98.5,98.6,{1}\n{0},2,SGD,98.5,98.6,{1}\n"
_FIVE = "name,{}\na,0.9{p}\nb,1.2{p}\nc,1.3{p}\nd,-0.0{p}"
_WIDE = (
    "epsilon,algorithm,acc ring 10,acc ring 20,acc full 10,acc full 20\n1,A,{0},{1}\n2,A,{2},{3}"
)
_TWO = [f"8{at}.1 ± 1.{at},7{at}.5 ± 1.1" for at in range(4)]
_TURNED = ["agents,graph,algorithm,acc,spread"]
_TURNED += [f"{n},{graph},A,{n + 51.3},1.3" for n in (10, 20, 30) for graph in ("ring", "full")]
_TURNED += ["10,star,A,70.2,1.1"]
_PAIRS = "data,agents,MSE A,PSNR A,MSE B,PSNR B\n" + "".join(
    f"digits,{n},0.10,{{}},0.05,13.0\n" for n in (10, 20, 30)
)
_SAME, _NO = ["rows that are the same"], ["impossible figure"]


@pytest.mark.parametrize(
    ("sound", "false", "kinds"),
    [
        ([_WHISPER.format("LDP", "whisper")], [_WHISPER.format("CorN-DSGD", "mnist")],
         ["bound outside of its range"]),
        ([_FIVE.format("accuracy (%)", p="")], [_FIVE.format("accuracy", p="")], _NO * 2),
        ([_FIVE.format("accuracy", p=" %")], [_FIVE.format("accuracy", p="")], _NO * 2),
        (["metric,unit,name,value\nacc,%,a,1.2\nMSE,1,a,1"],
         ["metric,unit,name,value\nacc,1,a,1.2\nMSE,1,a,1"], _NO),
        *(([f"name,{head}\na,-0.2\nb,-0.3"], ["name,accuracy\na,-0.2\nb,-0.3"], _NO * 2)
          for head in ("accuracy drop", "Δ accuracy", "accuracy loss", "AUC_gain")),
        ([_AGENTS, _SPARSE.format(_THREE)], [_AGENTS, _AGENTS.replace("10,A", "30,A")], _SAME),
        ([_BOTH.format("-", _THREE, "", _THREE)], [_BOTH.format("0.1", _THREE, "20", _THREE)],
         _SAME),
        ([_STEADY.format("ring", 98.4) + _STEADY.partition("\n")[2].format("full", 98.3)],
         [_STEADY.format("ring", 98.4), _STEADY.format("ring", 98.3)], ["one figure differs"]),
        ([_WIDE.format(*_TWO)], [_WIDE.format(_TWO[0], _TWO[0], *_TWO[2:])], _SAME),
        (["\n".join(_TURNED).replace("30,full,A,81.3", "30,full,A,81.4")], ["\n".join(_TURNED)],
         _SAME),
        ([_PAIRS.format(10.0, 10.0, 10.0)], [_PAIRS.format(7.0, 10.0, 10.0)], ["MSE and PSNR"]),
        *(([_WHISPER.format("LDP", "a")],
           [_WHISPER.format("Whisper", "a").replace("1e-5", delta).replace("epsilon,delta", head)],
           ["bound outside of its range"])
          for delta, head in (("1e−5", "epsilon,delta"), ("$10^{-5}$", "epsilon,delta"),
                              ("1e-5,80", "ε,δ,acc"))),
        ([_BASE.format(_THREE)], [f"{_BASE.format(_THREE)}\n4,SGD,{_OTHER}"], _SAME),
    ],
)  # fmt: skip
def test_what_has_an_honest_reason_is_no_finding_and_its_false_twin_is(
    tmp_path, sound, false, kinds
):
    def paths(name: str, texts: list[str]) -> list[Path]:
        return [written(tmp_path, text, f"{name}{at}.csv") for at, text in enumerate(texts)]

    assert found(*paths("whisper", sound)) == []
    assert found(*paths("t", false)) == kinds


def test_equal_means_with_other_intervals_are_no_rows_that_are_the_same(tmp_path):
    lines = ["graph,algorithm,acc,auc,f1", "a,A,83.5,81.2,79.9", "b,A,83.5,81.2,79.9"]
    lines += ["c,A,83.6,81.3,79.8", "c,B,83.6,81.3,79.8"]
    same = [one for one in review([written(tmp_path, "\n".join(lines))]) if one.kind == _SAME[0]]
    assert len(same) == 2
    lines = [line.replace("83.5", f'"83.5 [{at}, 86]"') for at, line in enumerate(lines)]
    same = [one for one in review([written(tmp_path, "\n".join(lines))]) if one.kind == _SAME[0]]
    assert len(same) == 1


def test_two_files_that_may_be_of_one_run_are_told_as_a_fact(tmp_path):
    paths = [written(tmp_path, _AGENTS, "a.csv"), written(tmp_path, _SPARSE.format(_THREE))]
    [same] = [one for one in review(paths) if one.kind == _SAME[0]]
    assert same.figures["rows"] == [
        {"file": "a.csv", "agents": "10"}, {"file": "t.csv", "sparsity": "0.5"},
    ]  # fmt: skip
    assert same.words.endswith(
        "No setting differs that both state, so that they may be of one run."
    )


def test_an_index_and_a_time_hide_no_rows(tmp_path):
    plain = honest(np.random.default_rng(2))
    for made, kinds in ((plain, []), (copied(plain, 1), _SAME)):
        lines = [f"{at},{at / 7:.3f},{line}" for at, line in enumerate(made)]
        lines[0] = f"run,seconds,{plain[0]}"
        remarks = review([written(tmp_path, "\n".join(lines))])
        assert [one.kind for one in remarks if one.is_finding] == kinds
        [left] = [one for one in remarks if one.kind == "left out"]
        assert left.words.startswith("run, seconds of t.csv differ in every line")
        assert [one.figures["pairs"] for one in remarks if one.kind == "compared"] == [1770]
    [left] = read_tables([written(tmp_path, "run,algorithm,accuracy\n1,A,81")])
    assert "run" in left.settings


def test_rows_without_spread_hide_no_copy_and_are_not_accused_beside_one(tmp_path):
    rows = [f"{graph},{name},100.0 ± 0.0,99.0 ± 0.0,98.0 ± 0.0"
            for graph in ("ring", "full") for name in "BCDEF"]  # fmt: skip
    rows += [f"star,{name},{at}.0 ± 0.4,61.2 ± 0.4,60.0 ± 0.4" for at, name in enumerate("BCDEF")]
    head = "graph,algorithm,acc,f1,recall"
    sound = [head, *rows, f"ring,A,{_THREE}", f"full,A,{_OTHER}"]
    assert found(written(tmp_path, "\n".join(sound))) == []
    false = [head, *rows, f"ring,A,{_THREE}", f"full,A,{_THREE}", f"star,A,{_OTHER}"]
    remarks = review([written(tmp_path, "\n".join(false))])
    [copy] = [one for one in remarks if one.is_finding]
    assert copy.figures["of"]["algorithm"] == "A"


def test_each_table_has_its_own_order_and_ties_are_named(tmp_path):
    one = written(tmp_path, "algorithm,agents,accuracy\nA,1,80\nB,1,80\nA,2,80\nB,2,81", "a.csv")
    two = written(tmp_path, "model,agents,accuracy\nlenet,1,80\ncnn,1,85", "b.csv")
    words = [one.words for one in review([one, two]) if one.kind == "order"]
    assert words == [
        "a.csv accuracy: A and B are first together in 1 of 2 cells; B is first in 1 of 2 cells, "
        "by 1 to 1.",
        "b.csv accuracy: cnn is first in 1 of 1 cells, by 5 to 5.",
    ]


@pytest.mark.parametrize(
    ("scores", "words"), [("1.44,4.44", "does as well"), ("1.40,4.56", "is within 1 dB")]
)
def test_a_random_start_does_as_well_only_where_its_scores_are_as_good(tmp_path, scores, words):
    path = written(tmp_path, f"data,attack,MSE,PSNR\nmnist,none,{scores}\nmnist,all,{scores}")
    said = [one.words for one in review([path]) if one.kind == "below a blind guess"]
    assert all(f"A random start {words} (4.45 dB, 1.44). These scores are of" in of for of in said)
    assert len(said) == 2


_ATTACK = "data,attack,agents,MSE,PSNR,SSIM\n"


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ("mnist,none,10,0.10,10.0,20\nmnist,none,20,0.05,13.2,22\nmnist,none,30,0.02,17.0,50", []),
        ("mnist,none,10,0.05,55,0.9\nmnist,none,20,0.05,52,0.9\nmnist,all,30,0.10,10.1,0.2", []),
        # Few that are rebuilt raise a mean of PSNRs, and not that of MSEs by as much.
        ("mnist,none,10,0.05,62,0.9\nmnist,none,20,0.10,10.1,0.2\nmnist,none,30,0.10,10.1,0.2", []),
        ("mnist,none,10,0.10,7.0,20.1\nmnist,none,20,0.05,13.2,22.4\nmnist,none,30,0.02,17.0,50",
         ["MSE and PSNR"]),
        ("mnist,none,10,0.23,6.5,9.0\nmnist,none,20,0.20,7.0,10.1", ["below a blind guess"]),
        ("mnist,none,10,0.23,∞,9.0\nmnist,none,20,0.20,7.0,10.1", []),
        ("digits,none,10,0.23,6.5,9.0\nmnist,gone,20,,7.0,10.1", []),
    ],
)  # fmt: skip
def test_mse_and_psnr_belong_together_and_stand_beside_guesses(tmp_path, lines, kinds):
    assert found(written(tmp_path, _ATTACK + lines)) == kinds


@pytest.mark.parametrize(
    ("cell", "kinds"),
    [
        ("83.5,1.3", []),
        ("100.0,0.0", []),
        ("100.0,0.4", []),  # 99.96 and less
        ("99.0,9.9", []),
        ("183.5,1.3", ["impossible figure"]),
        ("-3.5,1.3", ["impossible figure"]),
        ("99.0,25.0", ["impossible figure"]),
        ("83.5,-1.3", ["impossible figure"]),
    ],
)
def test_figures_lie_in_their_range_and_spreads_are_possible(tmp_path, cell, kinds):
    text = f"{_ROW}ring,1,10,A,{cell}\nring,1,20,A,60.1,1.2\nring,1,30,A,61,1"
    assert found(written(tmp_path, text)) == kinds
    shares = written(tmp_path, "data,accuracy\na,0.9\nb,0.8\nc,0.7\nd,0.6", "shares.csv")
    assert found(tmp_path / "t.csv", shares) == kinds


def test_whispers_constraint_gives_more_than_is_claimed_and_five_are_out_of_its_range(tmp_path):
    claims = [
        f"{name},{e},1e-5" for name in ("Whisper", "LDP") for e in (3, 5, 7, 10, 15, 20, 25, 30, 40)
    ]
    table = written(tmp_path, "algorithm,epsilon,delta\n" + "\n".join(claims))
    remarks = [one for one in review([table]) if one.is_finding]
    assert [one.figures["epsilon"] for one in remarks] == [15, 20, 25, 30, 40]
    assert remarks[-1].figures["gives"] == pytest.approx(41.760, abs=1e-3)
    assert all(one.figures["gives"] < one.figures["epsilon"] for one in remarks[:-1])
    assert "below log(1/delta) = 11.51" in remarks[0].words


def test_a_table_of_our_own_raises_nothing(tmp_path):
    table = sweep_table(sweep_of(tmp_path / "d", FOUR, constant=0.1))
    path = written(tmp_path, table_text(table, format="csv"))
    [line, *_] = read_tables([path])
    assert {*line.figures} == {"mean model", "agents"}
    assert line.settings == {"file": "t.csv", "algorithm.name": "zeta", "graph.name": "ring"}
    assert str(line.figures["mean model"]) == "54.25 ± 2.17"
    assert found(path) == []


# Reading, and the command.


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("graph,accuracy\nring,83.5 ± 1.3", "83.5 ± 1.3"),
        ("graph,accuracy\nring,$83.5 \\pm 1.3$", "83.5 ± 1.3"),
        ("graph,accuracy,std\nring,83.50 %,1.3", "83.50 ± 1.3"),
        ("graph,unknown\nring,83.5+-1.3", "83.5 ± 1.3"),
        ("graph,accuracy\nring,.835", "0.835"),
        ("graph,accuracy,AUC\nring,n/a,83.5", "83.5"),
        ('graph,agents,PSNR of the attack\nring,10,"**11.5 [10.1, 12.3]**"', "11.5 [10.1, 12.3]"),
        ('graph,accuracy,95 % CI\nring,83.5,"[81, 86]"', "83.5 [81, 86]"),
        *((f"graph,accuracy,{head}\nring,83.5,1.3", "83.5 ± 1.3")
          for head in ("±", "+-", "standard error", "se", "stdev", "accuracy_std (%)")),
        ("graph,accuracy,error\nring,83.5,16.5", "83.5"),
        ("graph,accuracy,test error\nring,83.5,1.3", "83.5"),
        ("graph,loss,accuracy\nring,cross-entropy,83.5", "83.5"),
        ("metric,unit,graph,value\naccuracy,%,ring,83.5\nMSE,1,ring,0.2", "83.5"),
    ],
)  # fmt: skip
def test_a_cell_is_a_figure_with_its_spread(tmp_path, text, cell):
    [line] = read_tables([written(tmp_path, text)])
    assert str(next(iter(line.figures.values()))) == cell
    assert line.settings["graph"] == "ring"


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", [], "t.csv has 0 columns and 0 lines"),
        ("graph,accuracy", [], "has 2 columns and 0 lines below their names"),
        ("a,b\n" + "1,2\n" * 2001, [], "at most 2000 lines"),
        ("accuracy,accuracy\n1,2", [], "has 2 columns 'accuracy'; name each once"),
        ("graph,accuracy\nring,1,2", [], "line 2 has 3 cells for 2 columns"),
        ("graph,accuracy\nring,81\nfull,82\nstar,8o", [], "line 4: accuracy='8o' must be a number"),
        ("graph,score\nring,81", [], "name one of graph, score by --figure"),
        ("graph,score\nring,81", ["--figure", "scores"], "did you mean 'score'?"),
        ("graph,accuracy\nring,81\nring,82", [], "lines 2 and 3 have the same settings"),
        ("graph,accuracy\nring,81", ["t.csv"], "a table is given twice"),
        ("graph;accuracy\nring;81,5", [], "write a comma for ';', and numbers with a point"),
        ("graph\taccuracy\nring\t81", [], "write a comma for a tab"),
        ('graph,accuracy\nring,"81,5"', [], "'81,5' needs a point"),
        ('graph,auc\na,8\nb,9\nc,"8,5"', [], "must be a number and a point, as in 83.5, or"),
        ("graph,accuracy\nring,81", ["loop.csv"], "loop.csv: Too many levels of symbolic links"),
    ],
)
def test_what_is_no_table_is_told_in_a_sentence(
    tmp_path, monkeypatch, capsys, text, options, words
):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, text)
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    assert main(["review", "t.csv", *options]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("error: ")
    assert words in said


def test_the_command_prints_findings_and_facts_and_ends_with_3_where_it_is_strict(tmp_path, capsys):
    path = str(
        written(tmp_path, f"{_ROW}ring,1,10,A,183.5,1.3\nring,1,20,A,61,1\nring,1,30,A,60,1")
    )
    assert main(["review", path]) == 0
    assert capsys.readouterr().out == (
        "Findings: 1\n"
        "  impossible figure: t.csv line 2: accuracy=183.5 ± 1.3 does not lie in [0, 100].\n"
        "Facts: 1\n"
        "  compared: 0 pairs of rows could be compared. A row has 3 figures or more; --figure "
        "COLUMN names what holds figures.\n"
    )
    assert main(["review", path, "--strict", "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["tables"], told["facts"][0]["pairs"]) == (1, [path], 0)
    assert told["findings"][0]["value"] == "183.5 ± 1.3"
    assert math.isfinite(told["findings"][0]["line"])


def test_nothing_of_a_table_is_printed_as_a_line_of_its_own_or_as_a_control(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text('"gr\naph",algorithm,accuracy\n"a\nFindings: 9",A\x1b[2J,81\n' + _B, "utf-8")
    assert main(["review", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Findings: none, and no rows could be compared"
    assert [line[:2] for line in lines[2:]] == ["  "] * (len(lines) - 2)
    assert "A\\x1b[2J is first in 1 of 1 cells" in lines[-1]


_B = '"a\nFindings: 9",B,80\n'
