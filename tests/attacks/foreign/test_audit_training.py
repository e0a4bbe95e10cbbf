import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn
from torch.utils.data import TensorDataset

from overhear.attacks.audit.audited import Verdict
from overhear.attacks.foreign.audit_training import audit_training
from overhear.attacks.foreign.claimed import Claimed
from overhear.interface.train import audit
from overhear.privacy.errors import InputError

GENERATOR = torch.Generator().manual_seed(0)
DATA = TensorDataset(torch.randn(60, 4, generator=GENERATOR), torch.arange(60) % 2)
CLAIM = Claimed(epsilon=1.0, delta=1e-5)


def untrained(dataset):
    torch.manual_seed(0)
    return nn.Linear(4, 2)


class Log:
    """What an adapter would give: scores that tell the coins as surely as `telling` says."""

    ratios = False

    def __init__(self, planted, *, telling, claim=CLAIM, rng=None):
        self.claimed, self.telling, self.planted = claim, telling, planted
        self.rng = rng or np.random.default_rng(0)

    def claim(self, delta):
        return self.claimed

    def scores(self, planted):
        there = {id(record) for record in planted}
        told = np.array([id(record) in there for record in planted.records])
        lies = self.rng.random(planted.count) > self.telling
        return np.where(told ^ lies, 1.0, -1.0) + 1e-3 * self.rng.normal(size=planted.count)


def test_a_model_that_was_not_trained_shows_nothing():
    found = audit_training(untrained, DATA, canaries=60, claim=CLAIM, seed=1)
    assert found.epsilon < 0.5
    assert found.verdict is Verdict.CONSISTENT
    several = audit_training(lambda d: [untrained(d)] * 2, DATA, canaries=60, claim=CLAIM, seed=1)
    assert several.epsilon == found.epsilon


X = np.random.default_rng(0).normal(size=(120, 4))
Y = np.arange(120) % 3
WIDE = np.random.default_rng(1).normal(size=(120, 300))
TENSORS = (torch.tensor(X), torch.tensor(Y))
TREE, TREE_OF_NUMBERS = DecisionTreeClassifier(), DecisionTreeRegressor()


def joined(dataset):
    inputs, targets = zip(*dataset, strict=True)
    return np.stack([np.asarray(x) for x in inputs]), np.array([int(y) for y in targets])


# Each that learns by heart is contradicted; its twin, which learns nothing of a record, is not.
@pytest.mark.parametrize(
    ("train", "sound", "data"),
    [
        (TREE, DummyClassifier(), (X, Y)),
        (TREE, DummyClassifier(), (scipy.sparse.csr_matrix(X), Y)),
        (TREE, DummyClassifier(), (X.reshape(-1, 2, 2), Y == 1)),
        (TREE, DummyClassifier(), TensorDataset(*TENSORS)),
        (make_pipeline(MinMaxScaler(), TREE), DummyClassifier(), TENSORS),
        (RidgeClassifier(alpha=1e-6), RidgeClassifier(alpha=1e12), (WIDE, Y)),  # by decisions
        (TREE_OF_NUMBERS, DummyRegressor(), (X, X[:, 0] + 0.25 * Y)),
        (TREE_OF_NUMBERS, DummyRegressor(), (X, torch.tensor(X[:, 0]))),
        (TREE.fit, lambda x, y: DummyClassifier().fit(x, y), (X, Y)),
        (lambda x, y: TREE.fit(x.numpy(), y), lambda x, _: nn.Linear(4, 3), TENSORS),
        (lambda d: TREE.fit(*joined(d)), lambda _: [nn.Linear(4, 3)], TensorDataset(*TENSORS)),
    ],
)
def test_estimators_and_arrays_come_in_by_one_door(train, sound, data):
    how = {"canaries": 100, "claim": CLAIM, "seed": 2}
    assert audit(train, data, **how).contradicted
    assert not audit(sound, data, **how).contradicted


@pytest.mark.parametrize(
    ("train", "data", "words"),
    [
        (DecisionTreeClassifier, (X, Y), r"is a class; give DecisionTreeClassifier\(\)"),
        (TREE, (X, Y[:5]), r"X of \(120, 4\) and y of \(5,\) must be"),
        (TREE, (X[:, 0], Y), r"X of \(120,\) and y of \(120,\) must be"),
        (TREE, (X, Y.astype(str)), "y holds values of type <U21 and must hold numbers; encode"),
        (TREE, 3, r"data of int must be arrays \(X, y\)"),
        (TREE, (X[:40], X[:40, 0]), "count=100 must be at most 40"),
        (lambda x: None, (X, Y), "train raised TypeError"),
    ],
)
def test_what_is_no_estimator_or_array_is_refused_in_a_sentence(train, data, words):
    with pytest.raises(InputError, match=words):
        audit(train, data, canaries=100)


def test_what_tells_its_coins_contradicts_the_claim_of_its_recorder_in_a_second_look():
    found = audit_training(lambda d: Log(d, telling=1.0), DATA, canaries=60, seed=1)
    assert found.contradicted
    assert found.again is not None
    assert found.again.confidence == 0.999
    assert found.again.canaries == 4 * 60
    assert found.trainings == 5
    assert "contradicted" in found.words()


def test_a_first_look_by_chance_is_cleared():
    many = iter([1.0, 0.5, 0.5, 0.5, 0.5])  # the first run alone tells

    found = audit_training(lambda d: Log(d, telling=next(many)), DATA, canaries=60, seed=1)
    assert found.verdict is Verdict.CLEARED


def test_canaries_are_spread_evenly_over_runs_so_that_all_data_sets_are_as_large():
    sizes = []

    def train(dataset):
        sizes.append(len(dataset))
        return untrained(dataset)

    found = audit_training(train, DATA, canaries=100, per_run=40, claim=CLAIM, seed=1)
    assert sizes == [60 + 34] * 3
    assert found.first.canaries == 102


def test_without_a_claim_the_bound_stands_by_itself():
    found = audit_training(untrained, DATA, canaries=40, seed=1)
    assert found.verdict is Verdict.NOTHING_PROVEN


def test_trainings_that_claim_different_things_are_refused():
    epsilons = iter([1.0, 2.0])

    def train(dataset):
        return Log(dataset, telling=0.5, claim=Claimed(epsilon=next(epsilons), delta=1e-5))

    with pytest.raises(InputError, match=r"different things: epsilon 1 .* then epsilon 2"):
        audit_training(train, DATA, canaries=40, per_run=20)


class Short(Log):
    def scores(self, planted):
        return np.zeros(3)


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        (lambda d: 3, {}, "gave a int, which cannot be scored"),
        (lambda d: [torch.zeros(3)], {}, "gave a list, which cannot be scored"),
        (lambda d: Short(d, telling=1.0), {}, r"scores of shape \(3,\) for 40 canaries"),
        (untrained, {"canaries": 5}, r"must lie in \[20"),
        (untrained, {"per_run": 0}, "per_run=0"),
        (untrained, {"kind": "gradient"}, "train gave a model"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_a_sentence(train, options, words):
    with pytest.raises(InputError, match=words):
        audit_training(train, DATA, **{"canaries": 40, "seed": 0} | options)
