"""What to use in place of what a step may not do to a value, by name; and how long it may be."""

from __future__ import annotations

MOST_STEPS = 10_000  # of one local update

REMEDY = (
    "declare it: round.postprocess(fn, ...) for a function of released values, "
    "round.bounded(fn, secret, ...) for one of a secret"
)

_SEEN = (
    "a step may not look at a value; a public table shows its numbers by .public(), and a function "
    "of the rows goes into round.postprocess (of released values) or round.bounded (of a secret)"
)
_NAMES = {
    "a norm is a bound on a record: give clip_norm to round.clipped_sums (each record) or "
    "round.clipped_mean (a batch's mean); another function with a known Lipschitz constant goes "
    "through round.bounded": (
        *("norm", "vector_norm", "clip", "clamp", "clip_", "clamp_", "normalize", "renorm"),
        *("linalg_norm", "linalg_vector_norm", "linalg_matrix_norm", "abs", "__abs__", "absolute"),
        *("clamp_min", "clamp_max", "max", "min", "amax", "amin", "clip_grad_norm_"),
    ),
    _SEEN: (
        *("rows", "base", "pick", "data", "numpy", "tolist", "item", "cpu", "cuda", "to", "value"),
        *("detach", "clone", "copy", "__array__", "__iter__", "__getitem__", "__len__", "__next__"),
        *("__float__", "__int__", "__index__", "__bool__", "__array_interface__", "__buffer__"),
        *("__dlpack__", "__contains__", "__format__", "storage", "untyped_storage", "data_ptr"),
        *("grad", "matrix", "pickle", "__complex__", "float", "double", "half", "_value"),
        *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "eq", "gt", "lt", "equal"),
    ),
    "how many coordinates a value has is the same for all of a block: for noise of the same shape "
    "use round.noise(like, std=...), for zeros 0.0 * value": (
        *("shape", "size", "ndim", "dim", "numel", "dtype", "device", "zeros_like", "ones_like"),
        *("empty_like", "full_like", "expand_as", "new_zeros", "new_ones", "new_empty"),
    ),
    "sums over agents are sent: round.mix, round.sum_in, round.upload or round.average": (
        *("sum", "mean", "average", "median", "stack", "cat", "concat", "einsum"),
    ),
    "randomness comes from round.noise(like, std=...)": (
        *("randn_like", "rand_like", "randint_like", "normal", "normal_", "bernoulli", "dropout"),
        *("uniform_", "random_", "poisson", "multinomial", "noise", "add_noise"),
    ),
    "a value does not change; write x = x + y or x = 0.5 * x": (
        *("add_", "sub_", "mul_", "div_", "copy_", "zero_", "fill_", "__setitem__", "index_add_"),
        *("iadd", "addcmul_", "addcdiv_", "lerp_", "neg_", "square_", "sqrt_"),
    ),
}
_BY_NAME = {name: sentence for sentence, names in _NAMES.items() for name in names}


def remedy(name: str) -> str:
    """What to use in place of an operation that a step tried on a value.

    >>> remedy("shape").split(":")[0]
    'how many coordinates a value has is the same for all of a block'
    """
    return _BY_NAME.get(name, REMEDY)


def foreign_weights(given: object) -> str:
    """What is wrong with weights of `round.sum_in` that are no value of the round.

    >>> foreign_weights(0.5)[:34]
    'round.sum_in with weights of float'
    """
    return (
        f"round.sum_in with weights of {type(given).__name__}: give round.weights, or a table of "
        "all edges by round.of_edges(table)"
    )
