"""How small noise may be beside large public numbers, before float rounding swallows it.

Where a float sum of data and public numbers is rounded before its noise came in, the rounding is no
post-processing of a noised value: it is a function of data that no noise of its own hides.

    w = fl(fl(c s + x) + c z),   s a clipped sum, x public, z noise of deviation d / c

Let S_j be the public numbers of coordinate j, added up in absolute value at each rounding that came
before the noise. The roundings move w by e with |e_j| <= u S_j, where u = eps / 2 is half of the
distance of 1 to the next number, whatever the data are. So w is at most |e| / d, as a Gaussian
mechanism, from what is accounted for, c s + x + c z, on either of two neighbouring data; and trade-
off functions of Gaussians compose by adding up:

    mu  <=  mu of the account  +  2 |e| / d  <=  mu of the account  +  eps |S| / d

The norm is over all coordinates: one of 250,000 alone, or millions of small ones. A round stops
where eps |S| / d is above 2^-8, which over rounds adds up as mu itself does.

Data that meet noise before anything else, fl(c s + c z), are different: whatever is rounded then is
a function of a noised value, so that no public number is too large for it.

| symbol | name here   | meaning                                              |
|--------|-------------|------------------------------------------------------|
| d      | deviation   | of each coordinate of the noise                      |
| |S|    | size        | norm of the public numbers, over all coordinates     |
| eps    | eps         | distance from 1 to the next float, 2^-23 in float32  |
"""

from __future__ import annotations

import math

MOST_LOST = 2.0**-8
"""Of mu, that rounding before the noise came in may add in a round."""


def mu_lost(size: float, deviation: float, *, eps: float) -> float:
    """What rounding beside public numbers adds to mu at most: eps |S| / d.

    Args:
        size: |S|.
        deviation: d; 0 of no noise.
        eps: of the float type.

    Examples:
        One weight of 250,000 in float32, and noise of deviation 0.0125: far above 2^-8.

        >>> round(mu_lost(250_000.0, 0.0125, eps=2.0**-23), 3)
        2.384
    """
    if size == 0.0:
        return 0.0
    return eps * size / deviation if deviation > 0 else math.inf
