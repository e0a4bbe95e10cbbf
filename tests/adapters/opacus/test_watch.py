"""What the log of an Opacus training says, and which trainings are refused, each in a sentence."""

import json
import warnings

import pytest
import torch
from opacus.optimizers import DistributedDPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import overhear as oh
from overhear.adapters import opacus
from overhear.privacy.errors import InputError, InputTypeError
from overhear.privacy.releases.log import read_log
from overhear.privacy.releases.values import read_clip

from .private_training import digits, private, step, trained

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),  # Opacus' own
    pytest.mark.filterwarnings("ignore:transcripts of"),
]

DATA = digits(100)  # 4 batches of 25 an epoch


def watched(folder, **how):
    _, model, optimizer, loader = private(DATA, batch=25, **how)
    return model, optimizer, loader, opacus.watch(optimizer, loader, model=model)


def lines(log):
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def test_a_line_holds_clip_rate_and_noise_of_its_step(tmp_path):
    log = trained(tmp_path / "log", DATA, batch=25, epochs=1, noise=1.5, clip=2.0, keep=())
    header, *rounds = lines(log)
    assert log.path == tmp_path / "log/releases.jsonl"
    assert (header["system"], header["agents"], header["agent"]) == ("opacus", 1, 0)
    assert [one["round"] for one in rounds] == [1, 2, 3, 4]
    for one in rounds:
        (release,) = one["releases"]
        assert (release["to"], release["noise"]) == ("all", 3.0)
        assert release["of"] == [{"owner": 0, "clip": 2.0, "rate": 0.25, "sampler": "poisson"}]


def test_a_folder_holds_several_trainings_and_each_account_names_the_others(tmp_path):
    how = {"batch": 25, "epochs": 1, "noise": 1.5, "keep": ()}
    first = trained(tmp_path / "log", DATA, **how)
    with pytest.warns(UserWarning, match=r"holds another training; the log of this one is .*-2"):
        second = trained(tmp_path / "log", DATA, **how)
    assert second.path == tmp_path / "log/training-2/releases.jsonl"
    for mine, other in ((first, second), (second, first)):
        account = mine.account(delta=1e-5)
        assert account.rounds == 4
        (said,) = [one for one in account.warnings if "another training" in one]
        assert said.startswith(f"{other.path.parent} is of another training")


def test_the_figure_is_that_of_opacus_to_a_hundredth(tmp_path):
    log = trained(tmp_path / "log", digits(1600), batch=128, hidden=4, epochs=8, keep=())
    found = log.account(delta=1e-5)
    assert found["eavesdropper"].epsilon == pytest.approx(5.492, abs=2e-3)
    assert log.engine.get_epsilon(1e-5) == pytest.approx(5.503, abs=2e-3)
    assert str(found["eavesdropper"].status) == "declared"


def test_noise_that_changes_is_logged_step_by_step(tmp_path):
    model, optimizer, loader, system = watched(tmp_path)
    with oh.record(tmp_path / "log", system=system, rounds=4, noise=float) as log:
        for at, (x, y) in enumerate(loader):
            optimizer.noise_multiplier = 1.0 + at
            step(model, optimizer, x, y)
    assert [one["releases"][0]["noise"] for one in lines(log)[1:]] == [1.0, 2.0, 3.0, 4.0]


def test_clip_norms_by_layer_count_as_the_root_of_their_squares(tmp_path):
    model, optimizer, loader, system = watched(
        tmp_path, clip=[0.1, 0.2, 0.2, 0.4], clipping="per_layer"
    )
    assert read_clip(system.settings["clip"]) == pytest.approx(0.5)
    with oh.record(tmp_path / "log", system=system, keep="all") as log:
        for x, y in loader:
            step(model, optimizer, x, y)
    assert lines(log)[1]["releases"][0]["noise"] == pytest.approx(0.5)
    found = log.conformance()
    verdicts = [str(found[name].verdict) for name in ("residuals", "sums", "rows")]
    assert (found.failed, verdicts) == ([], ["passed"] * 3)
    assert lines(log)[0]["clip"]["each"] == [0.1, 0.2, 0.2, 0.4]


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
def test_a_number_that_follows_the_data_is_refused(tmp_path, name):
    """As the median norm of a batch would be."""
    model, optimizer, loader, system = watched(tmp_path)
    before = [of.detach().clone() for of in model.parameters()]
    with oh.record(tmp_path / "log", system=system):
        x, y = next(iter(loader))
        setattr(optimizer, name, 0.371)
        with pytest.raises(
            InputError, match=r"0\.371 of 'gradient' in round 1 is not 1, as record"
        ):
            step(model, optimizer, x, y)
    assert all(map(torch.equal, before, model.parameters()))


def halved(t):
    return 0.5 if t < 3 else 0.25


@pytest.mark.parametrize(
    ("lr", "found"), [(None, "not run"), (halved, "passed"), ([0.5] * 4, "refused")]
)
def test_learning_rates_that_follow_losses_are_not_believed(tmp_path, lr, found):
    """A scheduler that a private loss drives halves the rate before the third step."""

    def after(optimizer):
        losses = []

        def scheduler(loss):
            losses.append(loss)
            optimizer.param_groups[0]["lr"] = 0.5 if len(losses) < 2 else 0.25

        return scheduler

    how = {"batch": 25, "epochs": 1, "rates": lr, "after": after}
    if found == "refused":
        with pytest.raises(InputError, match=r"rate of step 3 is 0\.25, and watch.* declared 0\.5"):
            trained(tmp_path / "log", DATA, **how)
        return
    points = trained(tmp_path / "log", DATA, **how).conformance()["points"]
    assert str(points.verdict) == found
    assert ("lr of step 3 is 0.25, and was 0.5" in points.words) is (lr is None)


def test_batches_that_are_not_poisson_count_at_rate_1_and_it_is_said(tmp_path):
    model, optimizer, loader, system = watched(tmp_path, poisson_sampling=False)
    with pytest.warns(UserWarning, match="every record counts as in each batch, at rate 1"):
        log = oh.record(tmp_path / "log", system=system)
    with log:
        for x, y in loader:
            step(model, optimizer, x, y)
    ((played, releases),) = list(read_log(log.path, partial=True).rounds.items())[:1]
    assert (played.round, releases[0].of[0].rate) == (1, 1.0)
    assert log.account(delta=1e-5).worst.epsilon > 5  # 4 rounds at mu 1, without amplification


def test_a_log_is_gone_on_with_and_says_when_it_was_left(tmp_path):
    first = trained(tmp_path / "log", DATA, batch=25, epochs=1, keep=(), rounds=8)
    assert "round 4 of 8 that were declared" in " ".join(first.account(delta=1e-5).warnings)
    model, optimizer, loader, system = watched(tmp_path)
    with oh.record(tmp_path / "log", system=system, resume=True, rounds=8):
        for x, y in loader:
            step(model, optimizer, x, y)
    found = lines(first)
    assert [one["round"] for one in found if "round" in one] == list(range(1, 9))
    assert {"resumed_after": 4}.items() <= found[5].items()


def test_optimizer_and_loader_are_left_as_they_were(tmp_path):
    model, optimizer, loader, system = watched(tmp_path)
    sampler, before = loader.batch_sampler, dict(vars(optimizer))
    with oh.record(tmp_path / "log", system=system):
        assert loader.batch_sampler is not sampler
        assert len(loader) == 4
    assert loader.batch_sampler is sampler
    assert "_get_iterator" not in vars(loader)
    assert "clip_and_accumulate" not in vars(optimizer)
    assert before.keys() == vars(optimizer).keys()
    x, y = next(iter(loader))
    step(model, optimizer, x, y)  # unwatched, and no line is written
    assert len(lines(oh.record(tmp_path / "log", system=system, resume=True))) == 1


def test_batches_are_told_with_workers_that_fetch_ahead(tmp_path):
    model, optimizer, loader, system = watched(tmp_path, loading={"num_workers": 2})
    log = oh.record(tmp_path / "log", system=system, keep="all")
    with log, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*use of fork.*", category=DeprecationWarning)
        for x, y in loader:
            step(model, optimizer, x, y)
    assert log.conformance()["points"].tests == 4
    assert log.conformance().failed == []


def test_a_step_over_another_loader_is_refused_and_moves_nothing(tmp_path):
    model, optimizer, loader, system = watched(tmp_path)
    before = [of.detach().clone() for of in model.parameters()]
    with oh.record(tmp_path / "log", system=system) as log:
        x, y = next(iter(DataLoader(DATA, batch_size=25)))
        with pytest.raises(InputError, match="without a new batch of the watched loader"):
            step(model, optimizer, x, y)
        next(iter(loader))
        with pytest.raises(InputError, match="gradients of 60 examples"):
            step(model, optimizer, *next(iter(DataLoader(DATA, batch_size=60))))
        for _ in range(3):  # as often as it is tried
            with pytest.raises(InputError, match="without clipping and noise"):
                optimizer.original_optimizer.step()
    assert len(lines(log)) == 1
    assert all(map(torch.equal, before, model.parameters()))


def test_steps_that_are_part_of_a_batch_are_refused(tmp_path):
    model, optimizer, loader, system = watched(tmp_path)
    small = {"data_loader": loader, "max_physical_batch_size": 5, "optimizer": optimizer}
    with oh.record(tmp_path / "log", system=system) as log, BatchMemoryManager(**small) as parts:
        x, y = next(iter(parts))
        with pytest.raises(InputError, match="one of several of a batch"):
            step(model, optimizer, x, y)
    assert len(lines(log)) == 1
    with (
        BatchMemoryManager(**small) as parts,
        pytest.raises(InputError, match="is that of a BatchMemoryManager"),
    ):
        opacus.watch(optimizer, parts)


def test_gradients_that_are_added_up_over_batches_are_refused(tmp_path):
    model, optimizer, loader, system = watched(tmp_path)
    model.allow_grad_accumulation()
    with oh.record(tmp_path / "log", system=system) as log:
        x, y = next(iter(loader))
        for _ in range(2):
            nn.functional.cross_entropy(model(x), y).backward()
        with pytest.raises(InputError, match="gradients of several batches"):
            optimizer.step()
    assert len(lines(log)) == 1


def test_two_batches_in_one_step_are_refused_though_their_rows_fit(tmp_path):
    """Opacus adds up gradients row by row, so the longer batch hides the shorter one."""
    model, optimizer, loader, system = watched(tmp_path)
    with oh.record(tmp_path / "log", system=system) as log:
        (x, y), (u, v) = sorted((next(iter(loader)) for _ in range(2)), key=lambda of: len(of[0]))
        loss = nn.functional.cross_entropy(model(x), y) + nn.functional.cross_entropy(model(u), v)
        loss.backward()
        with pytest.raises(InputError, match="2 batches came since the last step"):
            optimizer.step()
    assert len(lines(log)) == 1


def test_a_batch_that_is_left_out_is_refused_but_for_an_evaluation(tmp_path):
    model, optimizer, loader, system = watched(tmp_path)
    with oh.record(tmp_path / "log", system=system) as log:
        with torch.no_grad():
            for x, _ in loader:
                model(x)
        batches = iter(loader)
        step(model, optimizer, *next(batches))
        next(batches)  # as of `if len(x) == 0: continue`
        with pytest.raises(InputError, match="also with an empty one"):
            step(model, optimizer, *next(batches))
    assert len(lines(log)) == 2


def test_the_rate_is_that_at_which_the_batch_of_the_step_was_drawn(tmp_path):
    model, optimizer, loader, system = watched(tmp_path)
    sampler = loader.batch_sampler
    with oh.record(tmp_path / "log", system=system) as log:
        for at, (x, y) in enumerate(loader):
            step(model, optimizer, x, y)
            sampler.sample_rate = 0.5 + at / 10
    rates = [one["releases"][0]["of"][0]["rate"] for one in lines(log)[1:]]
    assert rates == [0.25, 0.5, 0.6, 0.7]


ADAPTIVE = {
    "clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.1,
    "max_clipbound": 2.0, "min_clipbound": 0.1, "unclipped_num_std": 1.0,
}  # fmt: skip


def test_adaptive_and_ghost_clipping_and_distributed_trainings_are_refused():
    _, _, optimizer, loader = private(DATA, **ADAPTIVE)
    with pytest.raises(InputError, match="adaptive clipping"):
        opacus.watch(optimizer, loader)
    _, _, optimizer, _, loader = private(DATA, grad_sample_mode="ghost")
    with pytest.raises(InputError, match='use grad_sample_mode="hooks"'):
        opacus.watch(optimizer, loader)
    _, _, optimizer, loader = private(DATA)
    optimizer.__class__ = DistributedDPOptimizer
    with pytest.raises(InputError, match="several processes"):
        opacus.watch(optimizer, loader)


class Endless(IterableDataset):
    def __iter__(self):
        yield from DATA


def test_what_is_not_of_opacus_is_refused():
    _, _, optimizer, loader = private(DATA)
    plain = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(InputTypeError, match=r"as\s+PrivacyEngine.make_private returned it"):
        opacus.watch(plain, loader)
    with pytest.raises(InputTypeError, match=r"must be a torch\.utils\.data\.DataLoader"):
        opacus.watch(optimizer, DATA)
    with pytest.raises(InputError, match="draws no batches by number"):
        opacus.watch(optimizer, DataLoader(Endless(), batch_size=2))
    with pytest.raises(InputError, match="rand_on_empty"):
        opacus.watch(*private(DATA, rand_on_empty=True)[2:])


def test_conformance_without_a_model_says_what_to_give(tmp_path):
    _, optimizer, loader, _ = watched(tmp_path)
    with oh.record(tmp_path / "log", system=opacus.watch(optimizer, loader)) as log:
        pass
    with pytest.raises(InputError, match="model is missing"):
        log.conformance()


@pytest.mark.parametrize("rounds", [[3], [3, 4], [1, 2, 4]])
def test_points_are_told_where_rounds_between_were_not_kept(tmp_path, rounds):
    log = trained(tmp_path / "log", DATA, batch=25, epochs=1, keep=rounds)
    points = log.conformance()["points"]
    assert str(points.verdict) != "failed"
    assert log.conformance(rounds=[rounds[0]]).failed == []
