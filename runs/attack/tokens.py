"""The attack on gradients of a model of tokens: what is given beside the file, and what comes out.

Shape letters: B records, L positions, N public records, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ...attacks.tokens.certificate import TokenReconstruction
from ...attacks.tokens.reconstruct import check_tokens, reconstruct_tokens
from ...privacy.errors import InputError, Progress
from ...privacy.files import read_bounded
from ...privacy.formats.codec import parse_json
from .gradients_schema import BlindTokens, ScoredTokens, TokensFound
from .model import Posed
from .prior_records import read_tensors

# How many tokens of a batch were rebuilt, beside a guess that does not look at the gradient.


def score_tokens(
    truth: Tensor, tokens: Tensor, *, found: Collection[int] = (), ordered: bool = True
) -> ScoredTokens:
    """Hold what was rebuilt against the true batch.

    Args:
        truth: (B, L) true tokens.
        tokens: (B, L) rebuilt ones, -1 where one is not known.
        found: tokens that are known to be in the batch, beside those.
        ordered: whether the rebuilt tokens stand at places; else none is right at its place.
    """
    equal = (truth[:, None] == tokens[None]).sum(dim=2)  # (B, B)
    rows, columns = linear_sum_assignment(-equal.numpy())
    best = equal[rows, columns]
    known = Counter(tokens[tokens >= 0].tolist())
    for token in found:
        known[token] = max(known[token], 1)
    true = Counter(truth.flatten().tolist())
    size = truth.numel()
    return ScoredTokens(
        placed=float(best.sum()) / size if ordered else 0.0,
        multiset=sum((known & true).values()) / size,
        whole=int((best == truth.shape[1]).sum()) if ordered else 0,
        present=len(set(known) & set(true)) / len(true),
        false=len(set(known) - set(true)),
    )


def guess_placed(public: Tensor) -> Tensor:
    """(L,) the most frequent token of public records (N, L) at each position."""
    return torch.mode(public, dim=0).values


def guess_multiset(public: Tensor, records: int) -> Tensor:
    """(B, L) tokens in the proportions of public records (N, L), in no order.

    >>> guess_multiset(torch.tensor([[1, 1, 1, 4], [1, 1, 4, 7]]), 1).tolist()
    [[1, 1, 1, 4]]
    """
    tokens, counts = public.unique(return_counts=True)
    size = records * public.shape[1]
    exact = counts.double() * size / public.numel()
    number = exact.floor().long()
    rest = (exact - number).argsort(descending=True, stable=True)[: size - int(number.sum())]
    number[rest] += 1
    return tokens.repeat_interleave(number).reshape(records, -1)


_PICTURES = "mean, std, low and high are of pictures"
_LONGEST = 64 * 2**20  # bytes of a vocabulary


def check_token_facts(posed: Posed, *, preset: str) -> None:
    """Refuse what is said of pictures, or asked of a search.

    Raises:
        ValueError: A range of pixels, several local steps, or a preset that searches for numbers.
    """
    facts = posed.facts
    if facts.low != (0.0,) or facts.high != (1.0,):
        raise InputError(f"{_PICTURES}, and the model looks tokens up; leave them out")
    if facts.local_steps > 1:
        raise InputError(
            f"local_steps={facts.local_steps} must be 1 where the model looks tokens up: they are "
            "rebuilt from the gradient at one point"
        )
    if preset != "matched":
        raise InputError(
            f"preset={preset!r} searches for numbers, and the model looks tokens up, which are "
            "rebuilt by algebra; use preset 'matched'"
        )


def read_records(path: Path, posed: Posed) -> Tensor:
    """(N, L) tokens of a safetensors file, under the name `tokens` or `inputs`.

    Raises:
        ValueError: There is no such tensor, or it holds no tokens of the model.
    """
    assert posed.table is not None  # noqa: S101 # the caller looked
    tensors = read_tensors(path).tensors
    name = next((kind for kind in ("tokens", "inputs") if kind in tensors), None)
    if name is None:
        raise InputError(f"{path} must hold a tensor `tokens` of whole numbers, one row a record")
    held = tensors[name]
    held = held[None] if held.ndim == 1 else held
    check_tokens(
        held, vocabulary=posed.table.vocabulary, length=posed.facts.input_shape[0],
        name=f"{path}: {name!r}",
    )  # fmt: skip
    return held.long()


def read_vocabulary(path: Path, posed: Posed) -> list[str]:
    """The word of each token: a text file of one word a line, or JSON, a list or {word: token}.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is too long, is no text, or has another number of words.
    """
    assert posed.table is not None  # noqa: S101 # the caller looked
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; give a text file of one word a line, or JSON")
    try:
        text = read_bounded(path, _LONGEST).decode("utf-8")
        words = _of_json(parse_json(text)) if path.suffix == ".json" else text.splitlines()
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a vocabulary; give a text file of one word a line, or JSON "
            f"of a list of words or of {{word: token}}, of at most {_LONGEST} bytes"
        ) from error
    if len(words) != posed.table.vocabulary:
        raise InputError(
            f"{path} holds {len(words)} words, but the embedding has {posed.table.vocabulary} "
            "rows; give one word for each"
        )
    return words


def _of_json(held: object) -> list[str]:
    if isinstance(held, dict):
        named = sorted((int(token), str(word)) for word, token in held.items())
        if [token for token, _ in named] != list(range(len(named))):
            raise ValueError
        return [word for _, word in named]
    if isinstance(held, list):
        return [str(word) for word in held]
    raise TypeError


def rebuild(
    posed: Posed, *, seed: int, public: Tensor | None, progress: Progress | None
) -> TokenReconstruction:
    """What the gradient says of the batch."""
    labels = posed.facts.labels
    return reconstruct_tokens(
        posed.observation,
        posed.model,
        length=posed.facts.input_shape[0],
        classes=posed.classes,
        generator=torch.Generator().manual_seed(seed),
        labels=None if labels is None else torch.tensor(labels),
        public=public,
        progress=progress,
    )


def describe_tokens(
    found: TokenReconstruction,
    posed: Posed,
    *,
    truth: Tensor | None,
    public: Tensor | None,
    words: Sequence[str] | None,
) -> TokensFound:
    """What was found, as it is written."""
    assert posed.table is not None  # noqa: S101 # the caller looked
    certificate = found.certificate
    return TokensFound.from_object(
        found,
        vocabulary=posed.table.vocabulary,
        tokens=found.tokens.tolist(),
        present=list(found.found),
        words=None if words is None else [_words(row, words) for row in found.tokens.tolist()],
        present_words=None if words is None else _words(found.found, words),
        windows=[list(window) for window in found.windows],
        window_words=None if words is None else [_words(one, words) for one in found.windows],
        runner_up=None if certificate is None else certificate.runner_up,
        tried=0 if certificate is None else certificate.tested,
        scores=None if truth is None else _scored(found, truth, public),
        blind=None if truth is None or public is None else _blind(truth, public),
    )


def _words(tokens: Sequence[int], words: Sequence[str]) -> list[str]:
    return [words[token] if token >= 0 else "?" for token in tokens]


def _scored(found: TokenReconstruction, truth: Tensor, public: Tensor | None) -> ScoredTokens:
    """Scores of what was found; a token that is not known is the public guess."""
    ordered = found.decided not in ("multisets", "batch")
    known = score_tokens(truth, found.tokens, found=found.found, ordered=ordered)
    if not ordered:
        return known.model_copy(update={"placed": None, "whole": None})
    if public is None:
        return known
    guessed = torch.where(found.tokens >= 0, found.tokens, guess_placed(public))
    placed = score_tokens(truth, guessed)
    return known.model_copy(update={"placed": placed.placed, "whole": placed.whole})


def _blind(truth: Tensor, public: Tensor) -> BlindTokens:
    placed = score_tokens(truth, guess_placed(public).expand_as(truth))
    known = score_tokens(truth, guess_multiset(public, len(truth)))
    return BlindTokens.from_object(placed, multiset=known.multiset)
