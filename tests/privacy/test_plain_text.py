"""Text from elsewhere on a line of a terminal, in XML and in Markdown."""

from __future__ import annotations

import pytest

from overhear.privacy.plain_text import markdown_text, plain

HOSTILE = "a\x00\x1b[31m\n\r\u202e\ud800\ufffe\u2028b"


def test_plain_text_is_one_line_without_control_characters() -> None:
    shown = plain(HOSTILE)
    assert shown == r"a\x00\x1b[31m\n\r\u202e\ud800\ufffe\u2028b"
    assert shown.isascii()
    assert shown.isprintable()


def test_ordinary_text_is_kept() -> None:
    assert plain("ε ≤ 8 – “ré” 数") == "ε ≤ 8 – “ré” 数"


def test_long_text_is_cut_and_says_so() -> None:
    assert plain("x" * 400) == "x" * 297 + "..."
    assert plain("x" * 400, most=None) == "x" * 400


@pytest.mark.parametrize("sign", list("\\`*_[]{}<>|~!#"))
def test_a_sign_of_markdown_is_escaped(sign: str) -> None:
    assert markdown_text(f"a{sign}b") == f"a\\{sign}b"


def test_markdown_cannot_be_broken_out_of_a_cell() -> None:
    assert "\n" not in markdown_text("a\n\n# b")
