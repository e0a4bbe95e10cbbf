import json
import stat

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from overhear.attacks.foreign.audit_training import PlantedScores, canaries
from overhear.attacks.foreign.scores_audit import read_scores
from overhear.privacy.errors import InputError

DATA = TensorDataset(
    torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
)
MODEL = nn.Linear(4, 3)


def planted(count=40, **options):
    return canaries(DATA, count, seed=5, **options)


def test_the_length_does_not_depend_on_the_coins():
    many = [canaries(DATA, 40, seed=seed) for seed in range(6)]
    assert {len(one) for one in many} == {100}
    assert {len(DataLoader(one, batch_size=10)) for one in many} == {10}
    assert {len(one.loader(10)) for one in many} == {10}
    assert len({int(one.reveal().sum()) for one in many}) > 1


def test_coins_are_sealed_until_the_canaries_are_scored():
    data = planted()
    with pytest.raises(InputError, match="sealed until"):
        _ = data.included
    assert "sealed" in repr(data)
    scored = data.score(MODEL)
    assert np.array_equal(data.included, scored.included)
    with pytest.raises(ValueError, match="read-only"):
        data.included[0] = True


def test_coins_stay_sealed_where_scoring_fails():
    data = planted()
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module"):
        data.score([lambda x: x])
    with pytest.raises(InputError, match="one number a record"):
        data.score(MODEL, loss=nn.functional.cross_entropy)
    broken = nn.Linear(4, 3)
    nn.init.constant_(broken.weight, torch.nan)
    with pytest.raises(InputError, match="diverged"):
        data.score(broken)
    with pytest.raises(InputError, match="sealed until"):
        _ = data.included


@pytest.mark.parametrize(
    "loader",
    [
        lambda data: DataLoader(data, batch_size=20, shuffle=True),
        lambda data: data.loader(3),
        lambda data: DataLoader(Subset(data, range(len(data))), batch_size=20),
    ],
    ids=["plain", "its own", "subset"],
)
def test_a_loader_gives_the_data_and_the_canaries_that_are_in(loader):
    data = planted()
    got = sorted(tuple(x.tolist()) for batch, _ in loader(data) for x in batch)
    inside = [data.records[j] for j in np.flatnonzero(data.reveal())]
    wanted = sorted(tuple(x.tolist()) for x, _ in [*DATA, *inside])
    assert got == wanted


def test_a_canary_that_is_left_out_is_never_handed_out_alone():
    data = planted()
    assert len(list(data)) < len(data)  # a for loop goes on behind one
    here = []
    for at in data.positions:
        try:
            here.append(data[int(at)] is not None)
        except InputError:
            here.append(False)
    assert here == data.reveal().tolist()
    with pytest.raises(InputError, match="its coin leaves out"):
        data[60 + here.index(False)]
    with pytest.raises(IndexError):
        data[len(data)]


def test_a_batch_of_absent_canaries_alone_is_a_sentence():
    with pytest.raises(InputError, match="nothing but canaries"):
        list(DataLoader(planted(), batch_size=1))


def test_the_sampler_of_opacus_draws_what_is_there_at_its_own_rate():
    from opacus.data_loader import DPDataLoader

    data = planted()
    loader = DPDataLoader.from_data_loader(DataLoader(data, batch_size=2))
    assert loader.sample_rate == pytest.approx(1 / 50)
    drawn = np.mean([sum(len(y) for _, y in loader) for _ in range(20)])
    inside = 60 + int(data.reveal().sum())
    # 1,000 batches, in which each record is with probability 1/50: 5 sigma
    assert drawn == pytest.approx(inside, abs=5 * np.sqrt(inside / 20))


def test_coins_are_written_first_for_the_owner_alone_and_never_over_others(tmp_path):
    path = tmp_path / "coins.json"
    data = canaries(DATA, 40, path=path)
    kept = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept["included"] == "".join(str(int(coin)) for coin in data.reveal())
    with pytest.raises(FileExistsError, match="another file"):
        canaries(DATA, 40, path=path)
    early = tmp_path / "early.json"
    with pytest.raises(InputError, match="at most 60"):
        canaries(DATA, 61, path=early)
    assert early.exists()  # before anything else was looked at


def test_coins_are_of_chance_without_a_seed():
    tossed = [canaries(DATA, 40).reveal().tolist() for _ in range(2)]
    assert tossed[0] != tossed[1]


def test_mislabelled_canaries_have_a_label_that_is_not_their_own():
    own = {tuple(x.tolist()): int(y) for x, y in DATA}
    found = planted(60).records
    assert all(0 <= int(y) < 3 and own[tuple(x.tolist())] != int(y) for x, y in found)


def test_blank_canaries_are_zero_but_for_a_coordinate_and_all_differ():
    found = planted(12, kind="blank").records
    assert all(int((x != 0).sum()) == 1 for x, _ in found)
    assert len({(int(x.argmax()), int(y)) for x, y in found}) == 12


def test_canaries_that_a_model_learned_are_told_from_those_it_never_saw():
    base = TensorDataset(torch.zeros(10, 40), torch.zeros(10, dtype=torch.int64))
    records = [(9.0 * torch.eye(40)[j], torch.tensor(1)) for j in range(40)]
    data = canaries(base, 40, kind="yours", records=records, seed=5)
    torch.manual_seed(0)
    model = nn.Linear(40, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(20):
        for x, y in data.loader(20):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimiser.step()
    scored = data.score(model)
    assert scored.scores[scored.included].min() > scored.scores[~scored.included].max()
    assert model.training  # as it was


def test_scores_are_written_as_the_command_reads_them(tmp_path):
    scored = planted().score(MODEL)
    scored.write(tmp_path / "s.csv")
    read = read_scores(tmp_path / "s.csv")
    assert np.array_equal(read.scores, scored.scores)
    assert np.array_equal(read.included, scored.included)
    with pytest.raises(FileExistsError):
        PlantedScores(scored.scores, scored.included).write(tmp_path / "s.csv")


class Stream(IterableDataset):
    def __iter__(self):
        yield from DATA


@pytest.mark.parametrize(
    ("data", "count", "options", "words"),
    [
        (Stream(), 10, {}, "map-style"),
        ([], 10, {}, "is empty"),
        (DATA, 0, {}, "count=0"),
        (DATA, True, {}, "count=True"),
        (DATA, 10, {"kind": "blurred"}, "mislabelled, blank, gradient, yours"),
        (DATA, 10, {"kind": "yours"}, "none given"),
        (DATA, 10, {"records": [1]}, "leave them out"),
        (DATA, 1, {"kind": "yours", "records": [(torch.zeros(4), 1)]}, "holds .*int.*Tensor"),
        (DATA, 13, {"kind": "blank"}, "at most 12"),
        (DATA, 10, {"seed": -1}, "seed=-1"),
        ([(torch.zeros(2), 0)] * 20, 10, {}, "give labels="),
        ([torch.zeros(2)] * 20, 10, {}, "must be a pair"),
        ([(torch.zeros(2), -1)] * 20, 10, {}, "integer of at least 0"),
        ([(torch.zeros(2), 0.5)] * 20, 10, {}, "all targets that were seen are 0.5"),
        ([("text", 1)] * 20, 10, {"kind": "blank"}, "cannot be blank"),
    ],
)
def test_what_cannot_be_planted_is_refused_in_a_sentence(data, count, options, words):
    with pytest.raises(InputError, match=words):
        canaries(data, count, **options)
