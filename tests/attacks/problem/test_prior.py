import pytest
import torch

from overhear.attacks.problem.problem import Box, build_box, colour_variation, total_variation


def test_a_constant_picture_has_no_variation():
    flat = torch.full((2, 3, 5, 5), 0.3)
    assert total_variation(flat).tolist() == [0.0, 0.0]
    assert float(total_variation(flat[0], isotropic=True)) == pytest.approx(0, abs=1e-4)


def test_an_edge_varies_by_its_length_either_way():
    picture = torch.zeros(1, 6, 6, dtype=torch.float64)
    picture[:, :, 3:] = 1
    assert float(total_variation(picture)) == 6
    assert float(total_variation(picture, isotropic=True)) == pytest.approx(6, abs=1e-4)


def test_isotropic_variation_is_at_most_anisotropic():
    pictures = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    assert bool((total_variation(pictures, isotropic=True) < total_variation(pictures)).all())


def test_variation_is_differentiable_on_a_constant_picture():
    picture = torch.full((1, 4, 4), 0.5, requires_grad=True)
    total_variation(picture, isotropic=True).backward()
    assert picture.grad is not None
    assert bool(torch.isfinite(picture.grad).all())


def test_pixels_undo_inputs():
    low, high = torch.tensor([-1.0, -2.0, 0.0]), torch.tensor([1.0, 3.0, 0.5])
    box = build_box((low, high), (3, 4, 4), dtype=torch.float64)
    pixels = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(box.pixels(box.inputs(pixels)), pixels)
    assert box.inputs(torch.ones(3, 4, 4))[:, 0, 0].tolist() == [1.0, 3.0, 0.5]


def test_what_has_no_prior_is_refused():
    with pytest.raises(ValueError, match=r"bound of shape \(2,\) must be a scalar"):
        build_box((torch.zeros(2), torch.ones(2)), (3, 4, 4), dtype=torch.float32)
    with pytest.raises(ValueError, match="low < high"):
        Box(low=torch.tensor(0.0), span=torch.tensor(0.0))
    with pytest.raises(ValueError, match="channels, height, width"):
        total_variation(torch.zeros(4, 4))
    with pytest.raises(ValueError, match="channels, height, width"):
        colour_variation(torch.zeros(4, 4))


def test_a_constant_picture_has_no_colour_variation():
    assert float(colour_variation(torch.full((3, 5, 5), 0.3))) == pytest.approx(0, abs=1e-12)


def test_an_edge_of_brightness_has_the_colour_variation_of_its_length():
    for channels in (1, 2, 3):
        picture = torch.zeros(channels, 6, 6, dtype=torch.float64)
        picture[:, :, 3:] = 1
        assert float(colour_variation(picture)) == pytest.approx(6 * channels, rel=2e-3)


def test_an_edge_of_colour_weighs_twice_an_edge_of_brightness_of_its_size():
    colour, grey = torch.zeros(2, 3, 6, 6, dtype=torch.float64)
    colour[0, :, 3:], colour[1, :, 3:] = 0.3, -0.3
    grey[:, :, 3:] = 0.3 * (2 / 3) ** 0.5  # the same squared size
    ratio = float(colour_variation(colour) / colour_variation(grey))
    assert ratio == pytest.approx(2, rel=1e-2)


def test_colour_edges_at_one_place_are_cheaper_than_at_several():
    one, several = torch.zeros(2, 3, 6, 6, dtype=torch.float64)
    one[:, :, 3:] = 1
    for channel in range(3):
        several[channel, :, 2 + channel :] = 1
    assert float(colour_variation(one)) < float(colour_variation(several))
    assert float(total_variation(one)) == float(total_variation(several))


def test_colour_variation_is_differentiable_on_a_constant_picture():
    picture = torch.full((3, 4, 4), 0.5, requires_grad=True)
    colour_variation(picture).backward()
    assert picture.grad is not None
    assert bool(torch.isfinite(picture.grad).all())
