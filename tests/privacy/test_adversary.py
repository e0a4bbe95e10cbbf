"""Adversaries by name."""

import pytest

from overhear.privacy import EAVESDROPPER, Adversary, Sees, coalition, neighbour, parse_adversary


def test_names_come_back():
    for text in ("eavesdropper", "neighbour:1", "coalition:1,9", "final-models", "single-message"):
        assert parse_adversary(text, 10).name == text
    assert parse_adversary("neighbour:3", 10) == neighbour(3)
    assert parse_adversary("coalition:1,9", 10) == coalition({9, 1})
    assert parse_adversary("eavesdropper", 10) is EAVESDROPPER


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("eve", "unknown"),
        ("neighbour:10", "0..9"),
        ("neighbour:1,2", "coalition"),
        ("coalition:one", "by number"),
        ("coalition:1,1", "names agent 1 more than once; name each agent once"),
        ("coalition:2,1,01", "names agent 1 more than once"),
        ("neighbour:1,1", "names agent 1 more than once"),
        ("coalition:", "unknown"),
    ],
)
def test_a_bad_name_is_refused_with_the_reason(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_adversary(text, 10)


def test_an_outsider_has_no_agents():
    with pytest.raises(ValueError, match="outsider"):
        Adversary(name="x", sees=Sees.LINKS, agents=frozenset({1}))
