"""What an attacker knows of a picture before it sees a gradient: its box and its smoothness.

Everything that is optimised lives on the unit box, where a pixel runs from 0 to 1 whatever the
data set's normalisation is; `Box` translates. Weights of the priors therefore mean the same for
every data set.

Shape letters: R restarts, B records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...privacy.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Box:
    """The range of each input coordinate, in normalised units.

    Attributes:
        low: least value, broadcastable to one record.
        span: greatest less least value, broadcastable to one record.

    >>> box = Box(low=torch.tensor(-1.0), span=torch.tensor(4.0))
    >>> box.inputs(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [-1.0, 1.0, 3.0]
    """

    low: Tensor
    span: Tensor

    def __post_init__(self) -> None:
        if not bool((self.span > 0).all()):
            raise InputError("span must be positive everywhere; bounds are (low, high), low < high")

    def to(self, *, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Box:
        """The same on another device, or in another floating-point type."""
        return Box(low=self.low.to(device, dtype), span=self.span.to(device, dtype))

    def inputs(self, pixels: Tensor) -> Tensor:
        """Normalised inputs of pixels in [0, 1]."""
        return self.low + self.span * pixels

    def pixels(self, inputs: Tensor) -> Tensor:
        """Pixels in [0, 1] of normalised inputs (outside it where the inputs leave the box)."""
        return (inputs - self.low) / self.span


def build_box(
    bounds: tuple[Tensor, Tensor], input_shape: Sequence[int], *, dtype: torch.dtype
) -> Box:
    """The box of one record from bounds per channel.

    Args:
        bounds: (low, high), each a scalar, one value per channel, or one per coordinate.
        input_shape: shape of one record, channels first.

    Returns:
        A box that broadcasts over (..., *input_shape).

    Raises:
        ValueError: a bound has none of these shapes, or low is not below high.

    >>> low, high = torch.tensor([-1.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 2.0])
    >>> tuple(build_box((low, high), (3, 8, 8), dtype=torch.float64).span.shape)
    (3, 1, 1)
    """
    shape = tuple(input_shape)
    low, high = (_spread(torch.as_tensor(bound, dtype=dtype), shape) for bound in bounds)
    return Box(low=low, span=high - low)


def _spread(bound: Tensor, shape: tuple[int, ...]) -> Tensor:
    if bound.numel() == 1:
        return bound.reshape(())
    if tuple(bound.shape) == shape:
        return bound
    if bound.numel() == shape[0]:
        return bound.reshape(-1, *(1 for _ in shape[1:]))
    raise InputError(
        f"bound of shape {tuple(bound.shape)} must be a scalar, ({shape[0]},) or {shape}"
    )


def total_variation(pixels: Tensor, *, isotropic: bool = False) -> Tensor:
    """Sum of the differences of neighbouring pixels of each image.

    Args:
        pixels: (..., channels, height, width).
        isotropic: True for the length of each pixel's gradient vector, False for the sum of the
            absolute horizontal and vertical differences.

    Returns:
        (...,) total variation; summed over channels.

    Raises:
        ValueError: `pixels` has fewer than 3 dimensions.

    >>> step = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> total_variation(step).item()
    2.0
    """
    if pixels.ndim < 3:
        raise InputError(
            f"pixels of shape {tuple(pixels.shape)} must be (..., channels, height, width)"
        )
    down = pixels[..., 1:, :] - pixels[..., :-1, :]
    right = pixels[..., :, 1:] - pixels[..., :, :-1]
    if not isotropic:
        return down.abs().sum(dim=(-3, -2, -1)) + right.abs().sum(dim=(-3, -2, -1))
    # The last row and column have one neighbour; 1e-12 keeps the root differentiable at 0.
    inner = (down[..., :, :-1] ** 2 + right[..., :-1, :] ** 2 + 1e-12).sqrt()
    edge = down[..., :, -1:].abs().sum(dim=(-3, -2, -1)) + right[..., -1:, :].abs().sum(
        dim=(-3, -2, -1)
    )
    return inner.sum(dim=(-3, -2, -1)) + edge


def colour_variation(pixels: Tensor) -> Tensor:
    """Sum over places of the length of the colour's slope, brightness and colour kept apart.

    Edges of photos lie at one place in all channels, and are edges of brightness far more than of
    colour: for three channels the slope is taken in the orthonormal coordinates (r + g + b, r - g,
    r + g - 2 b), the latter two counted doubly. One length for all channels and both directions
    is the vectorial total variation of Bresson and Chan (2008), "Fast Dual Minimization of the
    Vectorial Total Variation Norm".

    Args:
        pixels: (..., channels, height, width).

    Returns:
        (...,) variation, times the root of the number of channels: on a grey picture it is as
        large as the isotropic total variation summed over channels.

    Raises:
        ValueError: `pixels` has fewer than 3 dimensions.

    >>> step = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    >>> round(colour_variation(step).item(), 2)
    2.0
    """
    if pixels.ndim < 3:
        raise InputError(
            f"pixels of shape {tuple(pixels.shape)} must be (..., channels, height, width)"
        )
    channels = pixels.shape[-3]
    if channels == 3:
        turn = torch.tensor(_OPPONENT, dtype=pixels.dtype, device=pixels.device)
        pixels = (turn @ pixels.flatten(-2)).unflatten(-1, pixels.shape[-2:])
    # The last row and column have no neighbour further on: their slope is 0 that way.
    down = torch.nn.functional.pad(pixels[..., 1:, :] - pixels[..., :-1, :], (0, 0, 0, 1))
    right = torch.nn.functional.pad(pixels[..., :, 1:] - pixels[..., :, :-1], (0, 1))
    squares = (down.square() + right.square()).sum(dim=-3)
    # 1e-6 keeps the root differentiable at 0, and a thousandth of the box is no edge.
    lengths = (squares + 1e-6).sqrt() - 1e-3
    return lengths.sum(dim=(-2, -1)) * channels**0.5


_OPPONENT = (
    (3**-0.5, 3**-0.5, 3**-0.5),
    (2 * 2**-0.5, -2 * 2**-0.5, 0.0),
    (2 * 6**-0.5, 2 * 6**-0.5, -4 * 6**-0.5),
)
