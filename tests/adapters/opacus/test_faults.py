"""A sound training passes every check, and each planted fault is found by its own."""

import pytest
import torch

from .private_training import (
    Noiseless,
    digits,
    last_layer_unclipped,
    noise_times,
    same_noise,
    shuffled,
    trained,
    twice_the_sum,
    unclipped,
)

RECORDS = 500  # 10 batches an epoch


def outcome(folder, fault=None, **how):
    log = trained(folder, digits(RECORDS), fault=fault, **how)
    return log, log.conformance()


@pytest.mark.parametrize("inner", [torch.optim.SGD, torch.optim.Adam])
def test_a_sound_training_is_checked(tmp_path, inner):
    _, found = outcome(tmp_path / "log", inner=inner, lr=0.05)
    assert (str(found.status), found.failed) == ("declared, checked", [])
    run = {one.name for one in found.outcomes if str(one.verdict) == "passed"}
    assert run == {"residuals", "sums", "rows", "sampler", "points", "numbers"}


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        pytest.param(noise_times(0.5), "residuals", id="noise halved"),
        pytest.param(noise_times(0.8), "residuals", id="noise multiplier misdeclared"),
        pytest.param(same_noise, "residuals", id="same noise in each step"),
        pytest.param(unclipped, "sums", id="no clipping"),
        pytest.param(last_layer_unclipped, "sums", id="one layer unclipped"),
        pytest.param(twice_the_sum, "sums", id="twice the sum"),
        pytest.param(shuffled, "sampler", id="shuffled"),
    ],
)
@pytest.mark.slow
def test_a_fault_is_found_by_its_check(tmp_path, fault, check):
    log, found = outcome(tmp_path / "log", fault)
    assert check in found.failed
    assert str(found.status) == "declared"
    # The log says what Opacus says of itself, as if nothing were wrong.
    assert log.account(delta=1e-5)["eavesdropper"].epsilon == pytest.approx(
        log.engine.get_epsilon(1e-5), rel=0.01
    )


def test_a_model_that_moves_without_the_noise_is_found_by_its_points(tmp_path):
    _, found = outcome(tmp_path / "log", inner=Noiseless, epochs=2)
    assert found.failed == ["points"]


@pytest.mark.parametrize("inner", [torch.optim.SGD, torch.optim.Adam])
def test_points_are_told_where_a_layer_is_frozen(tmp_path, inner):
    def fine_tuned(parameters, lr):
        parameters = list(parameters)
        for of in parameters[:2]:
            of.requires_grad_(False)
        return inner(parameters, lr=lr)

    _, found = outcome(tmp_path / "log", inner=fine_tuned, lr=0.05, epochs=1)
    assert (found.failed, str(found["points"].verdict)) == ([], "passed")
