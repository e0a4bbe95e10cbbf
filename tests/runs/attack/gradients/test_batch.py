"""What is said about an intercepted batch: metadata, options, and the range of its inputs."""

import re

import pytest
import torch

from overhear.runs.attack.layouts import facts_of
from overhear.runs.requests import BatchRequest

SHAPE = (1, 4, 4)


def test_an_option_wins_over_the_metadata():
    facts, _ = facts_of(
        {"records": "2", "Clip-Norm": "3"}, BatchRequest(records=4, input_shape=SHAPE)
    )
    assert (facts.records, facts.clip_norm) == (4, 3.0)


def test_an_option_of_the_range_wins_over_either_form_of_it():
    facts, _ = facts_of({"mean": "0.5", "std": "0.5"}, BatchRequest(low=(0.0,), input_shape=SHAPE))
    assert (facts.low, facts.high) == ((0.0,), (1.0,))


def test_mean_and_std_per_channel_are_the_range():
    facts, _ = facts_of({"mean": "0.5,0", "std": "0.5", "input_shape": "2,4,4"}, BatchRequest())
    assert (facts.low, facts.high) == ((-1.0, 0.0), (1.0, 2.0))
    pixels = facts.pixels(torch.tensor([1.0, 2.0]).reshape(2, 1, 1).expand(2, 4, 4))
    assert pixels.unique().tolist() == [1.0]


def test_labels_tell_the_number_of_records():
    assert facts_of({"labels": "1, 0,2"}, BatchRequest(input_shape=SHAPE))[0].records == 3


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"records": "0"}, "records=0 must be at least 1"),
        ({"records": "1,2"}, "records='1,2' must be one number"),
        ({"records": "two"}, "records='two' must be whole numbers"),
        ({"noise_std": "-1"}, "noise_std=-1.0 must be at least 0"),
        ({"noise_std": "nan"}, "noise_std=nan must be at least 0 and finite"),
        ({"clip_norm": "0"}, "clip_norm=0.0 must be above 0"),
        ({"clip_batch": "yes"}, "clip_batch='yes' must be true or false"),
        ({"clip_batch": "true"}, "give clip_norm too"),
        ({"labels": "1,2", "records": "3"}, "2 labels for records=3"),
        ({"std": "0"}, "must be positive in every channel"),
        ({"mean": "0", "low": "0"}, "give one pair of the two"),
        ({"mean": "0,0", "std": "1,1,1"}, "mean has 2 values and std 3"),
        ({"low": "0,0"}, "2 values of mean, std or low for 1 channels"),
        ({"low": "1", "high": "1"}, "must be below high"),
        ({"high": "inf"}, "must be finite"),
        ({"input_shape": "4,0"}, "must hold positive sides"),
        ({"input_shape": ""}, "input_shape is not given"),
    ],
)
def test_metadata_out_of_range_are_refused(said, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        facts_of({k: v for k, v in {"input_shape": "1,4,4", **said}.items() if v}, BatchRequest())
