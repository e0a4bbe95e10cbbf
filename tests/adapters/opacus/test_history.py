"""Logs of finished trainings, from the accountant's history alone."""

import pytest
from opacus.accountants import PRVAccountant

from overhear.adapters.opacus import from_history
from overhear.privacy.errors import InputError, InputTypeError


def test_the_figure_is_that_of_opacus_prv(tmp_path):
    accountant = PRVAccountant()
    for noise in (1.0, 1.5):
        for _ in range(40):
            accountant.step(noise_multiplier=noise, sample_rate=0.05)
    log = from_history(accountant.history, tmp_path, poisson_sampling=True, clip=0.3)
    found = log.account(delta=1e-5)["eavesdropper"]
    # Opacus adds the error of its grid, .01, to the estimate.
    assert found.epsilon == pytest.approx(accountant.get_epsilon(1e-5), abs=0.02)
    assert str(found.status) == "declared"


def test_without_poisson_sampling_a_history_counts_at_rate_1(tmp_path):
    history = [(4.0, 0.01, 16)]
    known = from_history(history, tmp_path / "a", poisson_sampling=True).account(delta=1e-5)
    shuffled = from_history(history, tmp_path / "b", poisson_sampling=False).account(delta=1e-5)
    assert shuffled.worst.epsilon == pytest.approx(4.38, abs=0.01)  # sixteen rounds at 4: mu 1
    assert known.worst.epsilon < 0.2


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], "holds no step"),
        ([(1.0, 0.1)], "must be \\(noise multiplier, sampling rate, steps\\)"),
        ([(-1.0, 0.1, 5)], "must be at least 0"),
        ([(1.0, 1.5, 5)], "must lie in \\[0, 1\\]"),
        ([(1.0, 0.1, 2.5)], "must be an integer"),
        ([(1.0, 0.1, 10**7)], "must be an integer"),
    ],
)
def test_a_history_that_cannot_be_is_refused_and_writes_nothing(tmp_path, history, message):
    with pytest.raises(InputError, match=message):
        from_history(history, tmp_path, poisson_sampling=True)
    assert not list(tmp_path.iterdir())


def test_how_batches_were_drawn_must_be_said(tmp_path):
    with pytest.raises(InputTypeError, match="must be True or False"):
        from_history([(1.0, 0.1, 5)], tmp_path, poisson_sampling=None)
    from_history([(1.0, 0.1, 5)], tmp_path, poisson_sampling=True)
    with pytest.raises(FileExistsError, match=r"never overwritten: name another folder"):
        from_history([(1.0, 0.1, 5)], tmp_path, poisson_sampling=True)
