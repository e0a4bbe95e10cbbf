"""The user's `train`, called with care: what it gets, what it may give, and what went wrong.

`train(dataset)` is called once for each training. Audits compare trainings that differ in who is in
the data and in nothing else, so data that change under them are refused: items that differ when
asked twice, and a call that leaves the data other than it found them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import math
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import default_collate

from ...privacy.errors import InputError, InputTypeError

# The records that are planted: what each canary looks like, whoever draws it.
#
#     mislabelled   a record of the data with a label that is not its own
#     blank         zeros but for one coordinate, another for each canary, with any label
#     gradient      any record, drawn at random; an adapter that sees gradients replaces its own
#     yours         records that the user gives
#
# A final model shows most of a canary that nothing else in the data explains, and little of any.
# Records are drawn without their coins, so that a canary says nothing of whether it is in.

GRADIENT = "gradient"
KINDS = ("mislabelled", "blank", GRADIENT, "yours")
_LOOKED_AT = 256  # records of the data whose labels and sizes are looked at, besides those drawn
Array = NDArray[np.float64]
Record = Any  # as the data set gives it: a pair (input, target) where we make one


def check_dataset(data: Any, *, name: str) -> int:
    """The length of a map-style data set.

    Raises:
        ValueError: it has no length or no items by number, or is empty.
    """
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise InputError(
            f"{name} of {type(data).__name__} must be arrays (X, y), or a map-style dataset, with "
            "len(...) and [index], such as torch.utils.data.TensorDataset(inputs, targets)"
        )
    size = len(data)
    if size < 1:
        raise InputError(f"{name} is empty; give at least one record")
    return size


def make_records(
    data: Any,
    count: int,
    *,
    kind: str,
    generator: np.random.Generator,
    records: Sequence[Record] | None = None,
    labels: int | None = None,
) -> list[Record]:
    """The canaries of an audit.

    Args:
        data: (n) the data set.
        count: how many.
        kind: one of `KINDS`.
        generator: chooses records and labels.
        records: of "yours", as many as `count`.
        labels: how many classes there are; by default the largest label that is seen, plus 1.

    Raises:
        ValueError: an unknown kind, records where none belong, too many for the kind, items that
            are no pairs of an input and a label, or a single class.
    """
    size = check_dataset(data, name="dataset")
    if kind not in KINDS:
        raise InputError(f"kind={kind!r} must be one of {', '.join(KINDS)}")
    if kind == "yours":
        return _given(records, count, data[0])
    if records is not None:
        raise InputError(f'records belong to kind="yours", not to {kind!r}; leave them out')
    if kind == GRADIENT:
        return [data[int(at)] for at in generator.choice(size, size=count)]
    # As many records as canaries, or as many as tell the number of classes.
    picked = generator.choice(size, size=min(size, max(count, _LOOKED_AT)), replace=False)
    if kind == "mislabelled" and count > size:
        raise InputError(
            f"count={count} must be at most {size}, the records of the data: a mislabelled "
            "canary is a copy of one with another label"
        )
    if kind == "mislabelled" and _is_number(data[0]):
        return _of_others([data[int(at)] for at in picked], count)
    pairs = [_pair(data, int(at)) for at in picked]
    classes = labels or 1 + max(label for _, _, label in pairs)
    if classes < 2:
        raise InputError("all labels that were seen are 0; give labels=, the number of classes")
    if kind == "mislabelled":
        return [
            (x, _like(y, (label + int(generator.integers(1, classes))) % classes))
            for x, y, label in pairs[:count]
        ]
    return _blank(pairs, count, classes, generator)


def _is_number(record: Record) -> bool:
    """Whether a record's target is a number to be predicted, as of a regression."""
    target = record[1] if isinstance(record, tuple | list) and len(record) == 2 else None
    if isinstance(target, Tensor | np.ndarray | np.generic):
        return "float" in str(target.dtype) and _is_one(target)
    return isinstance(target, float)


def _of_others(records: Sequence[Record], count: int) -> list[Record]:
    """Records with the target of one that lies far from their own."""
    ranked = sorted(records, key=lambda record: float(record[1]))
    if float(ranked[0][1]) == float(ranked[-1][1]):
        raise InputError(
            f"all targets that were seen are {float(ranked[0][1]):g}, so that no canary can have "
            'another; give canaries as kind="yours", records=[...]'
        )
    places = np.linspace(0, len(ranked), count, endpoint=False).astype(int)
    return [(ranked[at][0], ranked[at - len(ranked) // 2][1]) for at in places]


def _given(records: Sequence[Record] | None, count: int, like: Record) -> list[Record]:
    if records is None or len(records) != count:
        held = "none" if records is None else len(records)
        raise InputError(
            f'kind="yours" takes records=[...], one for each of the {count} canaries; {held} given'
        )
    wanted = _types(like)
    for at, record in enumerate(records):
        if _types(record) != wanted:
            raise InputError(
                f"canary {at} holds {_types(record)}, and the data hold {wanted}; give records of "
                "the same form, so that they fit into one batch"
            )
    return list(records)


def _types(record: Record) -> str:
    parts = record if isinstance(record, tuple | list) else (record,)
    return ", ".join(type(part).__name__ for part in parts)


def _pair(data: Any, at: int) -> tuple[Any, Any, int]:
    item = data[at]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InputError(
            f"record {at} of the data is a {type(item).__name__} and must be a pair (input, "
            'label); make canaries yourself and give them as kind="yours", records=[...]'
        )
    x, y = item
    label = y.item() if isinstance(y, Tensor | np.ndarray | np.generic) and _is_one(y) else y
    if isinstance(label, bool) or not isinstance(label, int) or label < 0:
        raise InputError(
            f"record {at} of the data has the label {y!r:.40} and must have an integer of at "
            'least 0; make canaries yourself and give them as kind="yours", records=[...]'
        )
    return x, y, label


def _is_one(value: Tensor | np.ndarray | np.generic) -> bool:
    return (value.numel() if isinstance(value, Tensor) else value.size) == 1


def _like(y: Any, label: int) -> Any:
    """A label as the data has them: a tensor, an array, a number."""
    if isinstance(y, Tensor):
        return torch.full_like(y, label)
    if isinstance(y, np.ndarray):
        return np.full_like(y, label)
    return type(y)(label)


def _blank(
    pairs: Sequence[tuple[Any, Any, int]], count: int, classes: int, generator: np.random.Generator
) -> list[Record]:
    x, y, _ = pairs[0]
    if not (isinstance(x, Tensor) and x.is_floating_point()) and not (
        isinstance(x, np.ndarray) and x.dtype.kind == "f"
    ):
        raise InputError(
            f"inputs of {type(x).__name__} cannot be blank; they must be tensors or arrays of "
            'floating-point numbers. Use kind="mislabelled"'
        )
    size = int(np.prod(x.shape))
    if count > size * classes:
        raise InputError(
            f"count={count} must be at most {size * classes}, one blank canary a coordinate and "
            f'label; plant fewer, or use kind="mislabelled"'
        )
    height = max(float(abs(other).max()) for other, _, _ in pairs) or 1.0
    found = []
    for at in generator.choice(size * classes, size=count, replace=False):
        blank = torch.zeros_like(x) if isinstance(x, Tensor) else np.zeros_like(x)
        blank.reshape(-1)[int(at) % size] = height
        found.append((blank, _like(y, int(at) // size)))
    return found


Train = Callable[[Any], Any]
_PROBED = 32  # records that are compared, where nobody says which
_MOST_NUMBERS = 1 << 28  # of a sparse X that is written out


class Rows:
    """The records of arrays X and y: item i is (X[i], y[i]).

    Args:
        x: (n, ...) numbers: an array, a tensor, a data frame, or a sparse matrix.
        y: (n,) integer labels, or numbers that are predicted.

    Raises:
        ValueError: lengths that differ, or values that are no numbers.
    """

    def __init__(self, x: Any, y: Any) -> None:
        if hasattr(x, "toarray"):
            if math.prod(x.shape) > _MOST_NUMBERS:
                raise InputError(
                    f"sparse X of {x.shape} must hold at most {_MOST_NUMBERS} numbers once it is "
                    "written out; give fewer rows or columns"
                )
            x = x.toarray()
        dense = (x, y)
        of_torch = all(isinstance(a, Tensor) for a in dense)
        self._types = [a.dtype for a in dense] if of_torch else None
        self._inputs, self._targets = (
            np.asarray(a.detach().cpu() if isinstance(a, Tensor) else a) for a in dense
        )
        for name, array in (("X", self._inputs), ("y", self._targets)):
            if array.dtype.kind not in "biuf":
                raise InputError(
                    f"{name} holds values of type {array.dtype} and must hold numbers; encode "
                    "labels as 0, 1, ... and columns of text as numbers"
                )
        shapes = self._inputs.shape, self._targets.shape
        if self._inputs.ndim < 2 or shapes[1] != shapes[0][:1]:
            raise InputError(
                f"X of {shapes[0]} and y of {shapes[1]} must be (n, ...) and (n,), one row a record"
            )

    def __len__(self) -> int:
        return len(self._targets)

    def __getitem__(self, at: int) -> Record:
        return self._inputs[at], self._targets[at].item() + 0  # no truth value, but a label

    def joined(self, dataset: Any) -> list[Any]:
        """X and y of the records of another data set, in order: tensors where both were."""
        both = [np.asarray(values) for values in zip(*dataset, strict=True)]
        if self._types is None:
            return both
        return [torch.as_tensor(a, dtype=t) for a, t in zip(both, self._types, strict=True)]


def opened(train: Any, data: Any) -> tuple[Train, Any]:
    """A function of a data set, and the data set, of whatever a user has.

    Args:
        train: a function `train(dataset)`, or `train(X, y)` where the data are arrays, or an
            estimator with `fit(X, y)`, a copy of which is fitted each time.
        data: a map-style data set, or a tuple (X, y).
    """
    rows = Rows(*data) if isinstance(data, tuple) and len(data) == 2 else None
    data = data if rows is None else rows
    if isinstance(train, type) and hasattr(train, "fit"):
        raise InputTypeError(f"train={train.__name__} is a class; give {train.__name__}()")
    if hasattr(train, "fit"):
        return functools.partial(_fitted, train), data
    if rows is None or not callable(train):
        return train, data
    return lambda dataset: train(*rows.joined(dataset)), data


def _fitted(estimator: Any, dataset: Any) -> Any:
    inputs, targets = zip(*dataset, strict=True)
    # Scikit-learn is there if the estimator is one of its, whose clone forgets what was learned.
    base = sys.modules.get("sklearn.base") if hasattr(estimator, "get_params") else None
    fresh = copy.deepcopy(estimator) if base is None else base.clone(estimator)
    fresh.fit(_table(inputs), np.asarray(targets))
    return fresh


def is_model(came: Any) -> bool:
    """Whether it is a module, or an estimator that predicts."""
    return isinstance(came, nn.Module) or (hasattr(came, "fit") and hasattr(came, "predict"))


def _table(inputs: Sequence[Any]) -> Array:
    """(m, D) of an estimator, which takes tables alone."""
    rows = np.stack([np.asarray(x) for x in inputs])
    return rows.reshape(len(rows), -1)


class OwnTraining:
    """Calls `train`, and holds the data against what they were.

    Args:
        train: the user's function of a data set.
        data: map-style, from which the data sets are made.
        probes: numbers of records that are compared before and after each call.

    Raises:
        ValueError: data that are no map-style data set, or give other items when asked twice.
        TypeError: train cannot be called.
    """

    def __init__(self, train: Train, data: Any, *, probes: Sequence[int] | None = None) -> None:
        if not callable(train):
            raise InputTypeError(
                f"train={train!r:.60} must be a function that takes a dataset and trains on it"
            )
        self._train, self._data = train, data
        self.size = check_dataset(data, name="data")
        spread = np.unique(np.linspace(0, self.size - 1, _PROBED).astype(int)).tolist()
        self._probes = spread if probes is None else list(probes)
        self._digests = self._read()
        self._models: list[weakref.ref[Any]] = []
        self.calls = 0
        if (other := self._changed()) is not None:
            raise InputError(
                f"record {other} of the data differs when it is read twice; leave out random "
                "transforms, or apply them inside train, so that it is known what is trained on"
            )

    def __call__(self, dataset: Any) -> Any:
        """What `train` gives for a data set.

        Raises:
            ValueError: it raises, gives nothing, or changes the data.
        """
        self.calls += 1
        where = f"training {self.calls}, on {len(dataset)} records"
        try:
            came = self._train(dataset)
        except InputError:
            raise  # says by itself what is to be done
        except Exception as error:
            raise InputError(
                f"train raised {type(error).__name__} in {where}: {error!s:.300}; call "
                "train(dataset) by itself to see where"
            ) from error
        if came is None:
            raise InputError(f"train gave nothing in {where}; let it return the trained model")
        if len(self._data) != self.size:
            raise InputError(
                f"train changed the data in {where}: {self.size} records became {len(self._data)}; "
                "let it work on a copy"
            )
        if (other := self._changed()) is not None:
            raise InputError(
                f"train changed record {other} of the data in {where}; let it work on a copy"
            )
        return came

    def model(self, dataset: Any) -> Any:
        """The model that `train` gives, another one each time.

        Raises:
            TypeError: it gives something else.
            ValueError: as above, or it gives one model twice.
        """
        came = self(dataset)
        if not is_model(came):
            raise InputTypeError(
                f"train gave a {type(came).__name__} and must return the trained torch.nn.Module "
                "or estimator"
            )
        if any(known() is came for known in self._models):
            raise InputError(
                "train gave the same model object twice, which goes on from what it learned of "
                "other records; make the model inside train"
            )
        self._models.append(weakref.ref(came))
        return came

    def _read(self) -> list[bytes]:
        return [_digest(self._data[at]) for at in self._probes]

    def _changed(self) -> int | None:
        """The first of the probed records that is not what it was."""
        pairs = zip(self._probes, self._digests, self._read(), strict=True)
        return next((at for at, before, now in pairs if before != now), None)


def _digest(item: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    _feed(found, item)
    return found.digest()


def _feed(found: Any, item: Any) -> None:
    if isinstance(item, tuple | list):
        for part in item:
            _feed(found, part)
    elif isinstance(item, dict):
        for key, part in item.items():
            found.update(repr(key).encode())
            _feed(found, part)
    elif isinstance(item, Tensor):
        _feed(found, item.detach().cpu().numpy())
    elif isinstance(item, np.ndarray):
        found.update(repr((item.dtype, item.shape)).encode() + np.ascontiguousarray(item).tobytes())
    else:
        found.update(pickle.dumps(item))


# The loss of single records under a model of the user's: what a final model is asked.

Loss = Callable[[Tensor, Tensor], Tensor]
_BATCH = 512
_LARGEST = 50.0  # of a logit-scaled confidence


def losses_of(model: Any, records: Sequence[Any], *, loss: Loss | None = None) -> Array:
    """The loss of each record, in nats or the unit of `loss`.

    Args:
        model: a module in any mode, which is asked in evaluation mode and left as it was; or an
            estimator, by its probabilities, else its decisions, else the squared error.
        records: (m) pairs (input, target).
        loss: (outputs, targets) -> (B,) losses; by default the cross-entropy of integer targets and
            the squared error of others.

    Returns:
        (m,).

    Raises:
        ValueError: a loss of another shape, or one that is not a number.
        TypeError: what is asked is no module.
    """
    if hasattr(model, "fit"):
        return _losses_of_estimator(model, records)
    found = []
    for outputs, targets in _asked(model, records):
        of = _usual(outputs, targets) if loss is None else loss(outputs, targets)
        if not isinstance(of, Tensor) or of.shape != targets.shape[:1]:
            shape = tuple(of.shape) if isinstance(of, Tensor) else type(of).__name__
            raise InputError(
                f"loss gives {shape} for {len(targets)} records and must give one number a record, "
                '(B,); use reduction="none"'
            )
        found.append(of.detach().double().cpu().numpy())
    losses = np.concatenate(found)
    if (bad := int(np.isnan(losses).sum())) > 0:
        raise InputError(
            f"the model gives no number for {bad} of {len(losses)} records: its training diverged; "
            "train it again with a smaller learning rate"
        )
    return losses


def confidences_of(model: Any, records: Sequence[Any]) -> Array:
    """How sure a classifier is of each record's own label: log(p / (1 - p)), (m,) in [-50, 50].

    Source: Carlini et al., "Membership Inference Attacks From First Principles", section VI-A.
    """
    if hasattr(model, "fit"):
        if not hasattr(model, "classes_"):
            raise InputError(
                f"the {type(model).__name__} is no classifier; membership is inferred of "
                "classifiers, audit takes regressors, too"
            )
        return np.clip(-_losses_of_estimator(model, records, odds=True), -_LARGEST, _LARGEST)
    found = []
    for outputs, targets in _asked(model, records):
        if outputs.ndim != 2 or targets.ndim != 1 or targets.is_floating_point():
            raise InputError(
                f"the model gives {tuple(outputs.shape)} for targets {tuple(targets.shape)}; "
                "membership is inferred of classifiers, which give (B, classes) logits for (B,) "
                "integer labels"
            )
        logits, own = outputs.double(), targets.long()[:, None]
        if int(own.max()) >= logits.shape[1] or int(own.min()) < 0:
            raise InputError(
                f"a label lies outside the {logits.shape[1]} classes that the model tells apart"
            )
        others = logits.scatter(1, own, -torch.inf).logsumexp(dim=1)
        phi = logits.gather(1, own)[:, 0] - others
        phi = phi.nan_to_num(nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        found.append(phi.clamp(-_LARGEST, _LARGEST).cpu().numpy())
    return np.concatenate(found)


def _losses_of_estimator(model: Any, records: Sequence[Any], *, odds: bool = False) -> Array:
    """(m,) -log p of a record's own label, or its log odds; minus its margin; a squared error."""
    inputs, targets = zip(*records, strict=True)
    table, wanted = _table(inputs), np.asarray(targets)
    classes = getattr(model, "classes_", None)
    if classes is None:
        return np.asarray((np.asarray(model.predict(table)) - wanted) ** 2, dtype=np.float64)
    own = wanted[:, None] == np.asarray(classes)  # (m, classes); a label may be none of them
    if hasattr(model, "predict_proba"):
        p = (np.asarray(model.predict_proba(table), dtype=np.float64) * own).sum(axis=1)
        p = np.clip(p, 1e-300, None)
        return np.log(np.clip(1.0 - p, 1e-300, None)) - np.log(p) if odds else -np.log(p)
    if not hasattr(model, "decision_function"):
        return np.asarray(np.asarray(model.predict(table)) != wanted, dtype=np.float64)
    decisions = np.asarray(model.decision_function(table), dtype=np.float64)
    if decisions.ndim == 1:  # for the second of two classes
        decisions = np.stack([-decisions, decisions], axis=1) / 2.0
    others = np.where(own, -np.inf, decisions).max(axis=1)
    return np.where(own.any(axis=1), others - (decisions * own).sum(axis=1), _LARGEST)


def _usual(outputs: Tensor, targets: Tensor) -> Tensor:
    if not targets.is_floating_point():
        return nn.functional.cross_entropy(outputs, targets.long(), reduction="none")
    errors = (outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)) ** 2
    return errors.sum(dim=1)


def _asked(model: nn.Module, records: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """(outputs, targets) of batches of the records."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"a model of {type(model).__name__} must be a torch.nn.Module, which gives outputs for "
            "a batch of inputs"
        )
    first = next(model.parameters(), None)
    with torch.no_grad(), _evaluating(model):
        for start in range(0, len(records), _BATCH):
            inputs, targets = default_collate([tuple(r) for r in records[start : start + _BATCH]])
            if first is not None:
                inputs = inputs.to(first.device)
                inputs = inputs.to(first.dtype) if inputs.is_floating_point() else inputs
                targets = targets.to(first.device)
            yield model(inputs), targets


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
