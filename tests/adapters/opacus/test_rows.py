"""What is clipped for a record must be made of it alone: mixing is found, honest batches pass."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, default_collate

import overhear as oh
from overhear.adapters import opacus
from overhear.privacy.errors import InputError

from .private_training import digits, private

# Opacus' own hooks, on inputs that need no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
DATA, PASSED, FAILED, NOT_RUN = digits(60), "passed", "failed", "not run"


def own_loss(out, x, y):
    return nn.functional.cross_entropy(out, y)


def trained(folder, *, data=DATA, collate=None, network=None, loss=own_loss, see=lambda x: x):
    """The log of three steps, or so, of a training with a place for each fault."""
    torch.manual_seed(0)
    model = network or nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    how = {"batch": 20, "network": model, "loading": {"collate_fn": collate}}
    _, model, optimizer, loader = private(data, **how)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="transcripts of")
        system = opacus.watch(optimizer, loader, model=model)
        with oh.record(folder, system=system, keep="all") as log:
            for x, y in loader:
                optimizer.zero_grad()
                seen = see(x)
                loss(model(seen), seen, y).backward()
                optimizer.step()
    return log


def collated(change):
    """A collate_fn that changes the inputs of a batch."""

    def collate(batch):
        x, y = default_collate(batch)
        return change(x), y

    return collate


def half(x):
    return 0.5 * x + 0.5 * x.roll(1, 0)


def by_chance(x):
    share = np.random.beta(1.0, 1.0)  # noqa: NPY002 as libraries do
    return share * x + (1 - share) * x.roll(1, 0)


def cut(x):
    return torch.cat([x[:, :32], x.roll(1, 0)[:, 32:]], dim=1)


def a_little(x):
    return x - 0.01 * x.mean(0)


def two_targets(out, x, y):
    own = nn.functional.cross_entropy(out, y)
    return 0.5 * own + 0.5 * nn.functional.cross_entropy(out, y.roll(1, 0))


def alike(out, x, y):
    return own_loss(out, x, y) + 0.1 * (out - out.roll(1, 0)).square().mean()


class Centred(nn.Module):
    """A layer that looks at the whole batch, and that no validator knows."""

    def forward(self, x):
        return x - x.mean(0)


def test_a_batch_that_is_mixed_in_the_loop_is_found(tmp_path):
    found = trained(tmp_path / "log", see=half).conformance()
    assert (str(found["rows"].verdict), str(found.status)) == (FAILED, "declared")
    assert "rows are not those of their records alone" in found["rows"].words


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"collate": collated(half)}, id="mixup in collate_fn"),
        pytest.param({"collate": collated(by_chance)}, id="mixup by a share that is drawn"),
        pytest.param({"collate": collated(cut)}, id="cutmix"),
        pytest.param({"collate": collated(lambda x: x.roll(1, 0))}, id="another's target"),
        pytest.param({"loss": two_targets}, id="mixup of targets"),
        pytest.param({"loss": alike}, id="a loss over pairs"),
        pytest.param(
            {"network": nn.Sequential(Centred(), nn.Linear(64, 10))}, id="a layer over the batch"
        ),
    ],
)
def test_records_that_are_mixed_are_found(tmp_path, how):
    found = trained(tmp_path / "log", **how).conformance()
    assert (str(found["rows"].verdict), str(found.status)) == (FAILED, "declared")


def test_sound_batches_pass_and_it_is_said_what_would_have_shown(tmp_path):
    found = trained(tmp_path / "log").conformance()
    assert str(found["rows"].verdict) == PASSED
    assert "longer than 0.002 of the clip norm would have shown" in found["rows"].words


def sorted_by_target(batch):
    return default_collate(sorted(batch, key=lambda pair: int(pair[1])))


def padded(batch):
    """To the longest of the batch, which a sound network does not see."""
    longest = max(int((x != 0).nonzero().max()) + 1 for x, _ in batch)
    x = torch.stack([x for x, _ in batch])[:, :longest]
    return x, torch.tensor([int(y) for _, y in batch])


class Lengths(nn.Module):
    """The mean over what is there, or over all that was padded."""

    def __init__(self, *, masked):
        super().__init__()
        self.masked, self.last = masked, nn.Linear(1, 10)

    def forward(self, x):
        count = (x != 0).sum(1, keepdim=True) if self.masked else x.shape[1]
        return self.last(5 * x.sum(1, keepdim=True) / count)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        pytest.param({"collate": sorted_by_target}, PASSED, id="sorted"),
        pytest.param({"collate": padded, "network": Lengths(masked=True)}, PASSED, id="masked"),
        pytest.param({"collate": padded, "network": Lengths(masked=False)}, FAILED, id="padded"),
    ],
)
def test_order_and_padding_show_where_a_row_depends_on_them(tmp_path, how, verdict):
    assert str(trained(tmp_path / "log", **how).conformance()["rows"].verdict) == verdict


class Flipped(TensorDataset):
    """Records of which some are another each time."""

    share = 0.5

    def __getitem__(self, at):
        x, y = super().__getitem__(at)
        return (x.flip(0) if torch.rand(()) < self.share else x), y


class Seldom(Flipped):
    share = 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"data": Flipped(*DATA.tensors)}, id="augmentation"),
        pytest.param({"data": Seldom(*DATA.tensors)}, id="augmentation that is seldom"),
        pytest.param({"network": nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 10))}, id="dropout"),
    ],
)
def test_what_is_another_each_time_is_neither_passed_nor_accused(tmp_path, how):
    found = trained(tmp_path / "log", **how).conformance()
    assert (found.failed, str(found.status)) == ([], "declared")
    for name in ("residuals", "sums", "rows"):
        assert str(found[name].verdict) == NOT_RUN
        assert "is another each time" in found[name].words


class Coarse(nn.Module):
    """Sees its inputs in few bits."""

    coarse = True

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last((x / 3).bfloat16().to(x) if self.coarse else x / 3)


@pytest.mark.slow
def test_what_few_bits_may_make_as_well_is_neither_passed_nor_accused(tmp_path):
    network = Coarse()
    log = trained(tmp_path / "few", network=network)
    network.coarse = False
    little = trained(tmp_path / "mean", collate=collated(a_little))  # sums move by .2 of a norm
    for found in (log.conformance(), little.conformance()):
        assert (str(found["rows"].verdict), found.failed) == (NOT_RUN, [])
        assert "numbers of few bits" in found["rows"].words
        assert str(found.status) == "declared"


def test_data_that_were_changed_are_found(tmp_path):
    data = TensorDataset(DATA.tensors[0].clone(), DATA.tensors[1])
    log = trained(tmp_path / "log", data=data)
    data.tensors[0].mul_(0.5)
    assert "the data are others now" in log.conformance()["rows"].words


@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_before_the_model_is_refused_where_it_may_be_trained(tmp_path, frozen):
    before = nn.Linear(64, 64)
    if frozen:
        before.requires_grad_(False)
        assert trained(tmp_path / "log", see=before).path.exists()
        return
    with pytest.raises(InputError, match="the model's input carries a gradient"):
        trained(tmp_path / "log", see=before)


def test_a_sampler_that_is_replaced_is_refused(tmp_path):
    _, _, optimizer, loader = private(DATA, batch=20)
    own = loader.batch_sampler
    with oh.record(tmp_path / "log", system=opacus.watch(optimizer, loader)):
        object.__setattr__(loader, "batch_sampler", own)
        with pytest.raises(InputError, match="the watched sampler did not draw"):
            next(iter(loader))


@pytest.mark.parametrize("weighted", [False, True])
def test_weights_that_make_private_left_out_are_named(tmp_path, weighted):
    sampler = WeightedRandomSampler([1.0] * 60, 60) if weighted else None
    given = DataLoader(DATA, batch_size=20, sampler=sampler)
    _, _, optimizer, loader = private(DATA, batch=20)
    assert given.dataset is loader.dataset
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        oh.record(tmp_path / "log", system=opacus.watch(optimizer, loader)).close()
    words = [str(one.message) for one in said if "WeightedRandomSampler" in str(one.message)]
    assert len(words) == weighted
