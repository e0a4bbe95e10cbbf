"""Files of gradients of text models: what `overhear invert` makes of them, and what it refuses."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from overhear.attacks.tokens import reconstruct
from overhear.runs.attack.gradients_schema import GradientAttack
from overhear.runs.attack.invert import attack_gradients
from overhear.runs.attack.tokens import guess_multiset, guess_placed, score_tokens
from overhear.runs.attack.words import summary_lines
from overhear.runs.requests import GradientRequest

MY_TEXT = """
import torch
from torch import nn

class Text(nn.Module):
    def __init__(self, length, classes):
        super().__init__()
        self.words = nn.Embedding(40, 24)
        self.places = nn.Parameter(torch.randn(length, 24))
        self.mixed = nn.MultiheadAttention(24, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, classes)

    def forward(self, x):
        z = self.words(x) + self.places
        return self.head(self.norm(z + self.mixed(z, z, z)[0]).mean(dim=1))

def build(input_shape, classes):
    return Text(input_shape[0], classes)

def two(input_shape, classes):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Embedding(40, 24), nn.Embedding(40, 24)
            self.head = nn.Linear(24, classes)

        def forward(self, x):
            return self.head(self.one(x[:, :3]).mean(1) + self.other(x[:, 3:]).mean(1))

    return Two()

class Filters(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.filters = nn.Embedding(40, 24), nn.Conv1d(24, 4, 3)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.filters(self.words(x).transpose(1, 2)).amax(dim=2))

def filters(input_shape, classes):
    return Filters()
"""
TRUTH = torch.tensor([[7, 3, 30, 3, 11, 0], [5, 3, 12, 39, 20, 7]])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A folder with a model, the gradients of two records, the truth and public records."""
    monkeypatch.chdir(tmp_path)
    Path("my_text.py").write_text(MY_TEXT, encoding="utf-8")
    sys.modules.pop("my_text", None)
    write("g.st", built())
    save_file({"tokens": TRUTH}, "truth.st")
    save_file({"tokens": torch.arange(60).reshape(10, 6) % 12}, "public.st")
    Path("words.txt").write_text("\n".join(f"word{k}" for k in range(40)), encoding="utf-8")
    yield
    sys.modules.pop("my_text", None)


def built(function: str = "build") -> nn.Module:
    names: dict[str, Any] = {}
    exec(MY_TEXT, names)  # noqa: S102 - our own text
    torch.manual_seed(4)
    return names[function]((6,), 3)


def write(name: str, model: nn.Module, *, noise_std: float = 0.0) -> None:
    functional.cross_entropy(model(TRUTH), torch.tensor([2, 0])).backward()
    tensors = {}
    for key, p in model.named_parameters():
        assert p.grad is not None
        tensors[f"gradient.{key}"] = p.grad + noise_std * torch.randn_like(p)
        tensors[f"parameter.{key}"] = p.detach()
    save_file(tensors, name, {"input_shape": "6", "records": "2"})


def attack(path: str = "g.st", **how: Any) -> GradientAttack:
    given = {"model": "my_text:build", "out": Path("found"), **how}
    return attack_gradients(GradientRequest(Path(path), **given))


def test_two_records_are_whole_and_scored_beside_the_blind_guess():
    found = attack(truth=Path("truth.st"), prior=Path("public.st"), vocabulary=Path("words.txt"))
    tokens = found.tokens
    assert tokens is not None
    assert tokens.decided == "sequences"
    assert sorted(tokens.tokens) == sorted(TRUTH.tolist())
    assert sorted(found.labels) == [0, 2]
    assert tokens.scores is not None
    assert tokens.blind is not None
    assert (tokens.scores.placed, tokens.scores.multiset, tokens.scores.whole) == (1.0, 1.0, 2)
    assert tokens.blind.placed < 0.5
    written = json.loads(Path("found/attack.json").read_text(encoding="utf-8"))
    assert written["tokens"]["words"][0][1] == "word3"
    saved = load_file("found/reconstruction.safetensors")
    assert saved["tokens"].tolist() == tokens.tokens
    lines = summary_lines(found, Path("found"))
    assert lines[0].startswith("2 records of 6 tokens from 1 intercept")
    assert "record 0: label 0, tokens: word5 word3 word12 word39 word20 word7" in lines
    assert "every token at its place can be had from the gradient by algebra" in found.conclusion


def test_runs_of_tokens_are_printed_where_no_order_is_known(monkeypatch):
    monkeypatch.setattr(reconstruct, "refined", lambda *_, **__: None)  # the search by tries
    write("few.st", built("filters"))
    found = attack("few.st", model="my_text:filters", vocabulary=Path("words.txt"))
    assert found.tokens is not None
    assert found.tokens.decided == "set"
    text = [" ".join(f"word{token}" for token in row) for row in TRUTH.tolist()]
    [line] = [line for line in summary_lines(found, Path()) if line.startswith("side by side")]
    runs = line.partition(": ")[2].split(", ")
    assert len(runs) >= 3
    assert all(run.count(" ") and any(run in row for row in text) for run in runs)
    assert f"and {len(runs)} runs of them side by side" in found.conclusion


@pytest.mark.parametrize("records", [1, 2])
def test_one_text_that_is_declared_as_two_is_told_once(records):
    model = built()
    functional.cross_entropy(model(TRUTH[:records]), torch.tensor([2, 0][:records])).backward()
    tensors = {f"gradient.{n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    tensors |= {f"parameter.{n}": p.detach() for n, p in model.named_parameters()}
    save_file(tensors, "one.st", {"input_shape": "6", "records": "2"})
    found = attack("one.st")
    assert sum(": label" in line for line in summary_lines(found, Path("found"))) == records
    said = "1 record of the batch cannot be accounted for"
    assert (said in found.conclusion) is (records == 1)


def test_a_part_of_a_text_s_gradient_is_never_no_leak():
    held = load_file("g.st")
    cut = {n: t * (t.abs() > 0.05) if n.startswith("gradient") else t for n, t in held.items()}
    save_file(cut, "cut.st", {"input_shape": "6", "records": "2"})
    found = attack("cut.st")
    assert found.tokens is not None
    assert found.tokens.decided == "nothing"
    assert found.conclusion.startswith("Undecided: no token of the batch was found")


def test_rows_of_another_model_are_no_more_than_a_condition():
    held = load_file("g.st")
    held["gradient.words.weight"] = held["gradient.words.weight"].roll(5, dims=0)
    save_file(held, "g.st", {"input_shape": "6", "records": "2"})
    found = attack()
    assert found.tokens is not None
    assert found.tokens.decided == "set"
    assert "if its rows are those of the model, as no batch that was tried" in found.conclusion


def test_noise_that_hides_every_row_ends_in_the_blind_guess_and_its_power():
    torch.manual_seed(1)
    write("n.st", built(), noise_std=0.5)
    found = attack("n.st", noise_std=0.5, truth=Path("truth.st"), prior=Path("public.st"))
    tokens = found.tokens
    assert tokens is not None
    assert (tokens.decided, tokens.present, found.supported) == ("nothing", [], [False, False])
    assert tokens.power < 0.05
    assert tokens.scores is not None
    assert tokens.blind is not None
    assert tokens.scores.placed == tokens.blind.placed
    assert found.conclusion.startswith("No leak shown")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mean": (0.5,)}, "are of pictures"),
        ({"preset": "dlg"}, "preset='dlg' searches for numbers"),
        ({"local_steps": 2, "local_rate": 0.1}, "local_steps=2 must be 1"),
        ({"records": 1}, "fill at most 6"),
        ({"input_shape": (2, 3)}, "must be one number"),
        ({"truth": Path("g.st")}, "must hold a tensor `tokens`"),
        ({"prior": Path("wide.st")}, "must be (records, 6)"),
        ({"truth": Path("high.st")}, "must lie in 0 to 39"),
        ({"truth": Path("one.st")}, "holds 1 records, but records=2"),
        ({"vocabulary": Path("short.txt")}, "holds 2 words, but the embedding has 40"),
        ({"vocabulary": Path("bad.json")}, "cannot be read as a vocabulary"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(how, words):
    save_file({"tokens": torch.zeros(2, 7).long()}, "wide.st")
    save_file({"tokens": torch.full((2, 6), 40)}, "high.st")
    save_file({"tokens": TRUTH[:1]}, "one.st")
    Path("short.txt").write_text("a\nb", encoding="utf-8")
    Path("bad.json").write_text('{"a": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(words)):
        attack(**how)
    assert not Path("found").exists()


def test_tokens_in_two_embeddings_are_refused():
    write("two.st", built("two"))
    with pytest.raises(ValueError, match="is fed 3 of the 6 tokens"):
        attack("two.st", model="my_text:two")


def test_a_vocabulary_of_a_model_of_pictures_is_refused():
    tensors = {"gradient.1.weight": torch.ones(3, 16), "gradient.1.bias": torch.ones(3)}
    tensors |= {"parameter.1.weight": torch.ones(3, 16), "parameter.1.bias": torch.ones(3)}
    save_file(tensors, "p.st", {"input_shape": "1,4,4"})
    with pytest.raises(ValueError, match="the model looks none up"):
        attack("p.st", model="linear", vocabulary=Path("words.txt"))


def test_json_names_words_by_a_list_or_by_a_dictionary():
    Path("list.json").write_text(json.dumps([f"w{k}" for k in range(40)]), encoding="utf-8")
    Path("named.json").write_text(json.dumps({f"w{k}": k for k in range(40)}), encoding="utf-8")
    for name in ("list.json", "named.json"):
        found = attack(vocabulary=Path(name), out=Path(name).with_suffix(".found"))
        assert found.tokens is not None
        assert found.tokens.words is not None
        assert found.tokens.words[0] == ["w5", "w3", "w12", "w39", "w20", "w7"]


def test_scores_match_records_and_count_false_tokens():
    swapped = score_tokens(TRUTH, TRUTH.flip(0))
    assert (swapped.placed, swapped.whole, swapped.false) == (1.0, 2, 0)
    unordered = score_tokens(TRUTH, TRUTH.flip(1), ordered=False)
    assert (unordered.placed, unordered.multiset) == (0.0, 1.0)
    none = score_tokens(TRUTH, torch.full_like(TRUTH, -1), found=[3, 8])
    assert (none.placed, none.multiset, none.false) == (0.0, 1 / 12, 1)
    assert none.present == 1 / 9


def test_blind_guesses_are_the_most_frequent_public_tokens():
    public = torch.tensor([[1, 2, 2], [1, 3, 2], [4, 3, 2]])
    assert guess_placed(public).tolist() == [1, 3, 2]
    assert sorted(guess_multiset(public, 1).flatten().tolist()) == [1, 2, 3]
