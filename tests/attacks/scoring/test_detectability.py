import math

import pytest
import torch
from torch import Tensor, nn

from overhear.attacks.problem.observation import Observation, observe
from overhear.attacks.scoring.evaluation import LayerSpectrum, detectability, spectral_sentence
from overhear.training.models.parameters import flatten


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(96, 20), nn.ReLU(),
        nn.Linear(20, 10),
    )  # fmt: skip


def _seen(gradient: Tensor, *, noise_std: float) -> Observation:
    return Observation.single(
        gradient=gradient, model=torch.zeros_like(gradient), noise_std=noise_std, clip_norm=1.0,
        records=1,
    )  # fmt: skip


def _noise(count: int, *, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def _spike(strength: float, *, seed: int) -> Tensor:
    """Unit noise of Linear(60, 40) without bias, and a rank-1 gradient of the given size."""
    left = nn.functional.normalize(_noise(40, seed=seed + 1), dim=0)
    right = nn.functional.normalize(_noise(60, seed=seed + 2), dim=0)
    return _noise(2400, seed=seed) + strength * torch.outer(left, right).flatten()


def test_pure_noise_is_detected_no_more_often_than_stated():
    # n = 500 gradients at a stated rate of .001: more than 5 alarms have a probability of 2e-5.
    # Without the margin t, 29 % of these gradients are detected.
    model = _network()
    size = flatten(model).numel()
    alarms = 0
    for seed in range(500):
        seen = _seen(0.3 * _noise(size, seed=seed), noise_std=0.3)
        alarms += any(found.is_detectable for found in detectability(seen, model))
    assert alarms <= 5


def test_the_edge_is_near_what_pure_noise_reaches():
    # Within 1/4 above: an edge that nothing could pass would keep every false alarm away too.
    found = detectability(_seen(_noise(40_000, seed=1), noise_std=1.0), nn.Linear(200, 200, False))
    assert 0.8 < found[0].strength < 1


def test_the_margin_shares_the_false_alarms_among_the_layers():
    model = _network()
    found = detectability(_seen(torch.ones(flatten(model).numel()), noise_std=2.0), model)
    margin = math.sqrt(2 * math.log(3 / 0.001))
    assert [layer.edge for layer in found] == pytest.approx(
        [2 * (math.sqrt(m) + math.sqrt(n) + margin) for m, n in ((6, 9), (20, 97), (10, 21))]
    )


def test_a_spike_above_the_edge_is_detected_as_one_direction():
    # Edge 17.9; n = 20. A spike of 22 shows as (22^2 + 40)^(1/2) (22^2 + 60)^(1/2) / 22 = 24.3.
    for seed in range(20):
        found = detectability(
            _seen(_spike(22.0, seed=seed), noise_std=1.0), nn.Linear(60, 40, False)
        )
        assert len(found[0].above) == 1
        assert found[0].above[0] == pytest.approx(24.3, rel=0.15)


def test_a_spike_below_the_noise_is_not_detected():
    # n = 20. Below (40 x 60)^(1/4) = 7.0 a spike leaves the largest singular value as it is.
    for seed in range(20):
        found = detectability(
            _seen(_spike(6.0, seed=seed), noise_std=1.0), nn.Linear(60, 40, False)
        )
        assert not found[0].is_detectable


def test_without_noise_the_directions_of_a_layer_are_its_records():
    model = _network().double()
    x = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    seen = observe(
        model, flatten(model), inputs=x, targets=torch.arange(4), clip_norm=None, noise_std=0.0,
        generator=torch.Generator(),
    )  # fmt: skip
    found = {layer.layer: layer for layer in detectability(seen, model)}
    assert all(layer.is_detectable for layer in found.values())
    assert (found["3"].edge, found["3"].strength, len(found["3"].above)) == (0.0, math.inf, 4)


def test_a_zero_gradient_is_not_detectable_even_without_noise():
    found = detectability(_seen(torch.zeros(8), noise_std=0.0), nn.Linear(3, 2))
    assert not found[0].is_detectable
    assert spectral_sentence(found).startswith("Nothing to detect")


def test_several_intercepts_show_an_input_that_one_hides():
    # One input, 8 models with other factors on the left: only their rows together stand out.
    x = nn.functional.normalize(_noise(60, seed=100), dim=0)
    lefts = nn.functional.normalize(_noise(8 * 40, seed=101).reshape(8, 40), dim=1)
    noise = _noise(8 * 2400, seed=102).reshape(8, 2400)
    gradient = noise + 10.0 * torch.einsum("ko,i->koi", lefts, x).flatten(1)
    covariance = 0.5 * torch.eye(8, dtype=torch.float64) + 0.5
    root = torch.linalg.cholesky(covariance).float()
    signal, noise = gradient - noise, root @ noise
    together = Observation(
        gradient=signal + noise, points=torch.zeros(8, 1, 2400), covariance=covariance,
        clip_norm=1.0, records=1,
    )  # fmt: skip
    model = nn.Linear(60, 40, False)
    found = detectability(together, model)[0]
    assert found.shape == (320, 60)
    assert len(found.above) == 1
    assert not any(detectability(together.only(k), model)[0].is_detectable for k in range(8))


def test_correlated_noise_of_several_intercepts_raises_no_alarm():
    # n = 100 at a stated rate of .001: one alarm has a probability below 10 %, two below 1 %. Not
    # whitened, the common part of the noise would stand out in each.
    covariance = 0.1 * torch.eye(4, dtype=torch.float64) + 0.9
    root = torch.linalg.cholesky(covariance).float()
    alarms = 0
    for seed in range(100):
        seen = Observation(
            gradient=root @ _noise(4 * 400, seed=seed).reshape(4, 400),
            points=torch.zeros(4, 1, 400), covariance=covariance, clip_norm=1.0, records=1,
        )  # fmt: skip
        alarms += detectability(seen, nn.Linear(20, 20, False))[0].is_detectable
    assert alarms <= 1


def test_layers_that_are_no_matrices_are_left_out():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, groups=1), nn.GroupNorm(2, 4), nn.Flatten())
    found = detectability(_seen(torch.ones(flatten(model).numel()), noise_std=1.0), model)
    assert [(layer.layer, layer.shape) for layer in found] == [("0", (4, 28))]


def test_a_network_without_linear_layers_is_said_to_be_unexamined():
    found = detectability(_seen(torch.ones(8), noise_std=1.0), nn.GroupNorm(2, 4))
    assert found == ()
    assert spectral_sentence(found).startswith("Not examined")


def test_a_tied_weight_is_counted_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert len(detectability(_seen(torch.ones(16), noise_std=1.0), model)) == 1


def test_the_sentence_never_calls_a_quiet_gradient_safe():
    quiet = LayerSpectrum(layer="fc", shape=(10, 65), largest=1.0, edge=1.5, above=())
    assert spectral_sentence([quiet]).endswith("An attack may still succeed.")


def test_the_sentence_names_the_strongest_layer():
    weak = LayerSpectrum(layer="a", shape=(2, 2), largest=2.0, edge=1.5, above=(2.0,))
    strong = LayerSpectrum(layer="b", shape=(2, 2), largest=6.0, edge=2.0, above=(6.0, 3.0))
    assert spectral_sentence([weak, strong]) == (
        "Detectable spectrally in 2 of 2 layers, most in 'b': 2 directions, at 3.00 times the "
        "noise edge."
    )


@pytest.mark.parametrize("rate", [0.0, 1.0, math.nan])
def test_an_impossible_false_positive_rate_is_refused(rate):
    seen = _seen(torch.ones(8), noise_std=1.0)
    with pytest.raises(ValueError, match="must lie strictly between 0 and 1"):
        detectability(seen, nn.Linear(3, 2), false_positive_rate=rate)


def test_a_gradient_of_another_model_is_refused():
    with pytest.raises(ValueError, match="D=8 parameters"):
        detectability(_seen(torch.ones(9), noise_std=1.0), nn.Linear(3, 2))
