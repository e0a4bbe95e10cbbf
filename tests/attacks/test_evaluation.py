"""What the four rows of an attack say."""

import torch

from overhear.attacks.evaluation import BLIND, Row, conclusion
from overhear.attacks.metrics import Scores
from overhear.attacks.trial import Protection


def test_an_attack_that_fails_undefended_says_nothing_about_the_defence():
    def row(name, mse):
        scores = Scores(mse=(mse,), psnr=(1.0,), ssim=(0.0,), order=(0,))
        return Row(name=name, scores=scores, images=torch.zeros(1, 1, 2, 2), stages=("",))

    def rows(undefended, defended):
        return [
            row(BLIND, 0.1),
            row(Protection.NONE, undefended),
            row(Protection.CLIPPING, undefended),
            row(Protection.DEFENDED, defended),
        ]

    assert "says nothing about the defence" in conclusion(rows(0.2, 0.2))
    assert conclusion(rows(0.001, 0.1)).startswith("No leak shown")
    assert conclusion(rows(0.001, 0.05)).startswith("A leak is shown")


def test_a_gain_within_the_spread_of_the_images_is_no_leak_shown():
    def row(name, mse):
        n = len(mse)
        scores = Scores(mse=mse, psnr=(1.0,) * n, ssim=(0.0,) * n, order=tuple(range(n)))
        return Row(name=name, scores=scores, images=torch.zeros(n, 1, 2, 2), stages=("",) * n)

    def say(defended):
        blind, clean = (0.1, 0.1, 0.1, 0.1), (0.001, 0.001, 0.001, 0.001)
        rows = [row(BLIND, blind), row(Protection.NONE, clean), row(Protection.CLIPPING, clean)]
        return conclusion([*rows, row(Protection.DEFENDED, defended)])

    assert "beyond chance" in say((0.05, 0.13, 0.12, 0.09))
    assert say((0.05, 0.06, 0.05, 0.04)).startswith("A leak is shown")
