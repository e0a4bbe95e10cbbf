import math

import pytest
import torch
from torch import Tensor

from overhear.attacks.scoring.reconstruction_bound import prior_hit_rate, rebuilt_threshold


def _clusters(count: int) -> Tensor:
    """Images around 4 centres, .5 of them around the first; MSE .01 to the centre, .02 between."""
    generator = torch.Generator().manual_seed(5)
    centres = 0.3 + 0.4 * (torch.rand(4, 1, 10, 10, generator=generator) > 0.5).double()
    of = torch.randint(6, (count,), generator=generator).sub(2).clamp_min(0)
    signs = torch.randint(2, (count, 1, 10, 10), generator=generator).mul(2).sub(1)
    return centres[of] + 0.1 * signs


def test_a_guess_between_the_public_images_is_found():
    # At a threshold of .0105 no image rebuilds another, but the first centre does all of its half.
    images = _clusters(2000)
    found = prior_hit_rate(images, images.mean(dim=0), threshold=0.0105)
    assert 0.5 <= found < 0.6


def test_the_blind_guess_is_tried():
    # Pairs of opposite images: far from each other, all equally near to grey.
    signs = torch.randint(2, (400, 1, 10, 10), generator=torch.Generator().manual_seed(0))
    images = 0.5 + 0.2 * signs.mul(2).sub(1).double()
    assert prior_hit_rate(images, torch.full((1, 10, 10), 0.5), threshold=0.0401) == 1.0


def test_a_public_image_that_is_often_the_truth_is_tried():
    # A third of all images are one image; threshold 0, so that nothing but the image itself counts.
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(900, 1, 4, 4, generator=generator, dtype=torch.float64)
    images[torch.randperm(900, generator=generator)[:300]] = 0.25
    found = prior_hit_rate(images, images.mean(dim=0), threshold=0.0)
    assert 0.33 < found < 0.45


def test_the_hit_rate_falls_with_the_number_of_public_images_but_never_to_zero():
    images = torch.rand(2000, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    rates = [
        prior_hit_rate(images[:count], images.mean(dim=0), threshold=1e-6)
        for count in (20, 200, 2000)
    ]
    assert 1 > rates[0] > rates[1] > rates[2] > 0


def test_the_hit_rate_limit_holds_for_all_guesses_together():
    # Nothing is ever right: 1 - (.001 / guesses)^(1 / judges), for 150 judges and 5 x 51 guesses.
    images = torch.rand(200, 1, 4, 4, generator=torch.Generator().manual_seed(2))
    found = prior_hit_rate(images, images.mean(dim=0), threshold=1e-6)
    assert found == pytest.approx(1 - (0.001 / 255) ** (1 / 150), rel=1e-6)


def test_the_threshold_is_a_share_of_the_blind_guesss_error():
    images = torch.stack([torch.zeros(1, 4, 4), torch.ones(1, 4, 4)])
    assert rebuilt_threshold(images, torch.full((1, 4, 4), 0.5), share=0.5) == 0.125


def test_what_gives_no_rate_of_guesses_is_refused():
    with pytest.raises(ValueError, match="undo the normalisation"):
        rebuilt_threshold(torch.full((2, 1, 4, 4), -1.0), torch.zeros(1, 4, 4))
    with pytest.raises(ValueError, match="the blind guess's shape"):
        prior_hit_rate(torch.zeros(8, 1, 4, 4), torch.zeros(4, 4), threshold=0.1)
    with pytest.raises(ValueError, match="the blind guess itself counts"):
        rebuilt_threshold(torch.zeros(2, 1, 4, 4), torch.zeros(1, 4, 4), share=1.0)


@pytest.mark.parametrize(
    "changes", [{"guesses": 0}, {"threshold": -1.0}, {"threshold": math.nan}, {"confidence": 1.0}]
)
def test_an_impossible_search_for_guesses_is_refused(changes):
    with pytest.raises(ValueError, match="must be at least 4"):
        prior_hit_rate(
            torch.zeros(8, 1, 4, 4), torch.zeros(1, 4, 4), **({"threshold": 0.1} | changes)
        )
