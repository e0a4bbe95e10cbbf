"""Where the data of an entry are expected, and which of them are not there. Nothing downloads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...privacy.errors import InputError
from ..reproductions.entry import Scale

__all__ = ["check_data", "placed"]

_ROOT = "OVERHEAR_DATA"
_PLACES = {
    "mnist": ("MNIST", "MNIST/raw with the four idx files"),
    "fashion-mnist": ("FashionMNIST", "FashionMNIST/raw with the four idx files"),
    "cifar10": ("cifar-10-batches-py", "cifar-10-batches-py with data_batch_1 to 5 and test_batch"),
}


def placed(scale: Scale) -> dict[str, object]:
    """The tables of the run file of a scale, with the roots of its data where they lie here."""
    base: dict[str, object] = {name: dict(table) for name, table in scale.base.items()}
    data = dict(scale.base["data"])
    if isinstance(root := data.get("root"), str):
        data["root"] = str(Path(os.environ.get(_ROOT, "")).expanduser() / root)
    base["data"] = data
    return base


def check_data(name: str, scale: Scale) -> None:
    """Refuse an entry whose data are not at hand.

    Args:
        scale: what is to be run.

    Raises:
        FileNotFoundError: data are missing; the sentence names each, and the folder for it.
    """
    wanted = dict(_wanted(scale))
    if not wanted:
        return
    root = os.environ.get(_ROOT)
    if not root:
        raise InputError(
            f"{name} needs data: {_told(wanted)}; let {_ROOT} name the folder that holds it "
            "(nothing is downloaded)"
        )
    folder = Path(root).expanduser()
    missing = {at: words for at, words in wanted.items() if not (folder / at).exists()}
    if missing:
        raise FileNotFoundError(
            f"{name} needs data that are not at hand: {_told(missing)}, expected in {folder}, "
            f"which {_ROOT} names; nothing is downloaded"
        )


def _told(wanted: Mapping[str, str]) -> str:
    return ", ".join(wanted.values())


def _wanted(scale: Scale) -> Iterator[tuple[str, str]]:
    """What every row reads: the place below the folder of data, and its words."""
    own = scale.base["data"]
    chosen = [str(own["name"])]
    for values in scale.grid.get("data.name", ()):
        chosen.append(str(values["data.name"]) if isinstance(values, Mapping) else str(values))
    if "data.name" in scale.grid:
        chosen = chosen[1:]
    for data in chosen:
        if data == "libsvm":
            root = str(own["root"])
            yield root, f"{root} (LIBSVM text)"
            yield f"{root}.t", f"{root}.t (LIBSVM text)"
        elif data in _PLACES:
            yield _PLACES[data]
