"""What the code of a function reads from outside of it, by its instructions.

Instructions differ between versions of Python, so they are taken by their names, and what carries a
name and is not known here is refused. A chain `torch.linalg.norm` is read as a whole: what is asked
of a module is settled before the function runs.
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from ...privacy.errors import UndeclaredOperation

# What a function of `postprocess` or `bounded` may use: names that only compute.
#
# A name that is not here is refused, so nothing has to be said of what makes random numbers, reads
# a clock, opens a file or hands out memory that nobody has written (`empty`: what lay there
# before).
#
# `torch.sigmoid` and its like are known by identity: another function put in their place is
# refused.


def _names(text: str) -> list[str]:
    return text.split()


# Functions of torch that are methods of a tensor, too; `name_` writes into the tensor itself.
_TENSORS = _names(
    """
    abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr all allclose amax amin
    aminmax angle any arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort
    argwhere asin asinh atan atan2 atanh baddbmm bincount bitwise_and bitwise_not bitwise_or
    bitwise_xor bmm broadcast_to bucketize ceil cholesky chunk clamp clamp_max clamp_min clip
    clone conj copysign corrcoef cos cosh count_nonzero cov cross cummax cummin cumprod cumsum
    deg2rad det detach diag diag_embed diagflat diagonal diff digamma dist div divide dot dsplit
    eq equal erf erfc erfinv exp exp2 expm1 fix flatten flip fliplr flipud float_power floor
    floor_divide fmax fmin fmod frac frexp gather gcd ge ger greater greater_equal gt heaviside
    histc hsplit hypot i0 index_add index_copy index_fill index_put index_select inner inverse
    is_complex is_floating_point is_nonzero isclose isfinite isin isinf isnan isneginf isposinf
    isreal kron kthvalue lcm ldexp le lerp less less_equal lgamma log log10 log1p log2 logaddexp
    logaddexp2 logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logsumexp
    lt masked_fill masked_scatter masked_select matmul matrix_exp matrix_power max maximum mean
    median min minimum mm mode moveaxis movedim msort mul multiply mv nan_to_num nanmean nanmedian
    nanquantile nansum narrow ne neg negative nextafter nonzero norm not_equal numel outer permute
    pinverse polygamma positive pow prod put qr quantile rad2deg ravel reciprocal relu remainder
    renorm repeat_interleave reshape roll rot90 round rsqrt scatter scatter_add scatter_reduce
    searchsorted select select_scatter sgn sigmoid sign signbit sin sinc sinh slice_scatter
    slogdet softmax log_softmax sort split sqrt square squeeze std sub subtract sum svd swapaxes
    swapdims t take take_along_dim tan tanh tensor_split tile topk trace transpose
    triangular_solve tril triu true_divide trunc unbind unflatten unique unique_consecutive
    unsqueeze var vdot view_as_real view_as_complex vsplit where xlogy std_mean var_mean
    """
)
_TORCH = _names(
    """
    arange as_tensor asarray from_numpy atleast_1d atleast_2d atleast_3d block_diag
    broadcast_shapes broadcast_tensors bool bfloat16 cartesian_prod cat cdist column_stack
    combinations complex complex128 complex64 concat concatenate cosine_similarity
    cumulative_trapezoid device double dstack e einsum eye finfo float float16 float32 float64
    full full_like half hstack iinfo inf int int16 int32 int64 int8 linspace logspace long
    meshgrid nan no_grad enable_grad ones ones_like pairwise_distance pi polar promote_types
    scalar_tensor short stack tensor tensordot trapezoid trapz tril_indices triu_indices uint8
    vander vmap vstack zeros zeros_like Tensor
    """
)
_METHODS = _names(
    """
    H T mH mT copy_ cpu cuda contiguous data device dim dtype element_size expand expand_as fill_
    float double half long int bool short bfloat16 fill_diagonal_ imag is_contiguous is_cuda item
    nbytes ndim ndimension new_full new_ones new_tensor new_zeros numpy real repeat reshape_as
    resolve_conj resolve_neg shape size squeeze_ stride sum_to_size to tolist transpose_ type_as
    unfold unsqueeze_ view view_as zero_
    """
)
# Fields of what torch gives back, of numbers, arrays, text and containers, and of enum members.
_FIELDS = _names(
    """
    values indices Q R U S Vh V L LU P pivots info solution residuals rank singular_values
    eigenvalues eigenvectors logabsdet sign mantissa exponent hist bin_edges inverse_indices
    counts eps tiny max min smallest_normal resolution bits astype argpartition partition choose
    compress conjugate cumprod cumsum diagonal dot fill flatten itemsize ptp ravel tobytes
    swapaxes is_integer as_integer_ratio bit_length bit_count hex fromhex numerator denominator
    to_bytes from_bytes append extend insert pop remove clear index count sort reverse copy keys
    items get setdefault update add discard union intersection difference symmetric_difference
    issubset issuperset isdisjoint fromkeys join split strip lower upper startswith endswith
    replace start stop step name value
    """
)
_LINALG = _names(
    """
    cholesky cond cross det diagonal eig eigh eigvals eigvalsh inv lstsq lu lu_factor lu_solve
    matmul matrix_exp matrix_norm matrix_power matrix_rank multi_dot norm pinv qr slogdet solve
    solve_triangular svd svdvals tensorinv tensorsolve vander vecdot vector_norm
    """
)
_SPECIAL = _names(
    """
    digamma entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 i0e i1 i1e
    log1p log_ndtr log_softmax logit logsumexp multigammaln ndtr ndtri polygamma psi round sinc
    softmax xlog1py xlogy zeta
    """
)
_FFT = _names(
    """
    fft fft2 fftfreq fftn fftshift ifft ifft2 ifftn ifftshift irfft irfft2 irfftn rfft rfft2
    rfftfreq rfftn hfft ihfft
    """
)
_FUNCTIONAL = _names(
    """
    avg_pool1d avg_pool2d bilinear binary_cross_entropy binary_cross_entropy_with_logits celu
    conv1d conv2d cosine_similarity cross_entropy elu fold gelu glu hardshrink hardsigmoid
    hardswish hardtanh huber_loss interpolate kl_div l1_loss layer_norm leaky_relu linear
    log_softmax logsigmoid max_pool1d max_pool2d mish mse_loss nll_loss normalize one_hot pad
    pairwise_distance pdist relu relu6 selu sigmoid silu smooth_l1_loss softmax softmin softplus
    softshrink softsign tanh tanhshrink threshold unfold
    """
)
_NUMPY = _names(
    """
    abs absolute add all allclose amax amin any arange arccos arccosh arcsin arcsinh arctan
    arctan2 arctanh argmax argmin argpartition argsort argwhere around array array_equal asarray
    ascontiguousarray atleast_1d atleast_2d average bincount bool_ broadcast_to cbrt ceil clip
    column_stack concatenate convolve copy copysign corrcoef cos cosh count_nonzero cov cross
    cumprod cumsum deg2rad diag diagonal diff digitize divide dot e einsum equal exp exp2
    expand_dims expm1 eye fabs finfo fix flatnonzero flip float32 float64 floor floor_divide fmax
    fmin fmod full full_like gradient greater greater_equal heaviside histogram hstack hypot
    identity iinfo inf inner int32 int64 interp isclose isfinite isin isinf isnan kron less
    less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not logical_or
    logical_xor logspace matmul max maximum mean median meshgrid min minimum mod moveaxis multiply
    nan nan_to_num nanmax nanmean nanmin nansum ndarray newaxis nonzero not_equal ones ones_like
    outer partition percentile pi piecewise polyfit polyval power prod ptp quantile rad2deg ravel
    reciprocal remainder repeat reshape rint roll round searchsorted select sign sin sinc sinh
    size shape sort split sqrt square squeeze stack std subtract sum swapaxes take take_along_axis
    tan tanh tensordot tile trace transpose trapezoid tri tril triu true_divide trunc unique var
    vdot vstack where zeros zeros_like
    """
)
_NUMPY_LINALG = _names(
    """
    cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_power matrix_rank multi_dot norm
    pinv qr slogdet solve svd
    """
)
_BUILTINS = _names(
    """
    abs all any bool callable complex dict divmod enumerate filter float frozenset int isinstance
    iter len list map max min next pow range reversed round set slice sorted str sum tuple zip
    ArithmeticError AssertionError AttributeError Exception FloatingPointError IndexError KeyError
    LookupError NotImplementedError OverflowError RuntimeError StopIteration TypeError ValueError
    ZeroDivisionError Ellipsis NotImplemented
    """
)
# Names that a step might try for noise of its own; the refusal then names `round.noise`.
RANDOM = frozenset(
    _names(
        """
    rand rand_like randint randint_like randn randn_like randperm normal normal_ uniform uniform_
    random random_ bernoulli bernoulli_ multinomial poisson exponential_ geometric_ cauchy_
    log_normal_ manual_seed seed initial_seed get_rng_state set_rng_state fork_rng Generator
    default_rng RandomState dropout dropout_ alpha_dropout feature_dropout dropout1d dropout2d
    dropout3d feature_alpha_dropout rrelu rrelu_ gumbel_softmax binomial standard_normal choice
    shuffle permutation distributions
    """
    )
)

MODULES: dict[str, frozenset[str]] = {
    "torch": frozenset([*_TENSORS, *_TORCH]),
    "torch.linalg": frozenset(_LINALG),
    "torch.special": frozenset(_SPECIAL),
    "torch.fft": frozenset(_FFT),
    "torch.nn": frozenset(),
    "torch.nn.functional": frozenset(_FUNCTIONAL),
    "torch.func": frozenset(
        ["vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "jvp", "vjp"]
    ),
    "math": frozenset(name for name in vars(importlib.import_module("math")) if name[0] != "_"),
    "numpy": frozenset(_NUMPY),
    "numpy.linalg": frozenset(_NUMPY_LINALG),
    "functools": frozenset(["partial", "reduce"]),
    "itertools": frozenset(
        ["accumulate", "chain", "combinations", "islice", "pairwise", "permutations", "product"]
    ),
    "scipy.optimize": frozenset(["nnls", "lsq_linear", "brentq", "bisect"]),
    "scipy.special": frozenset(_SPECIAL),
}
BUILTINS: dict[str, Any] = {name: getattr(builtins, name) for name in _BUILTINS}


def _methods() -> frozenset[str]:
    into = {name + "_" for name in _TENSORS if hasattr(torch.Tensor, name + "_")}
    return frozenset([*_TENSORS, *into, *_METHODS, *_FIELDS])


ATTRIBUTES = _methods()


def made_by(code: types.CodeType, package: str) -> bool:
    """Whether code lies in the folder of a package that is loaded."""
    home = getattr(sys.modules.get(package), "__file__", None)
    return home is not None and Path(home).parent in Path(code.co_filename).parents


def _own(found: object, package: str) -> bool:
    """Whether something is a package's own, as far as it says where it was made."""
    if isinstance(found, types.FunctionType):
        return made_by(found.__code__, package)
    if isinstance(found, type):
        return found.__module__.partition(".")[0] in (package, "builtins")
    if isinstance(found, int | float | torch.dtype | None):
        return True
    return type(found).__module__.partition(".")[0] in (package, "builtins")


_owned: dict[int, tuple[str, object, object]] = {}
_not_looked_at = list(MODULES)


def owned_name(found: object) -> str | None:
    """The name of a function of `MODULES` or of a builtin, such as "torch.sigmoid"; else None.

    >>> owned_name(torch.sigmoid), owned_name(torch.rand)
    ('torch.sigmoid', None)
    """
    known = _owned.get(id(found))
    if known is None:
        _look_at_loaded_modules()
        known = _owned.get(id(found))
    if known is None or getattr(found, "__code__", None) is not known[2]:
        return None
    return known[0]


def _look_at_loaded_modules() -> None:
    """Take in the modules that came to be loaded; what is taken in stays as it was then."""
    for module in [name for name in _not_looked_at if name in sys.modules]:
        package = module.partition(".")[0]
        for name in sorted(MODULES[module]):
            one = vars(sys.modules[module]).get(name)
            if callable(one) and _own(one, package):
                held = (f"{module}.{name}", one, getattr(one, "__code__", None))
                _owned.setdefault(id(one), held)
        _not_looked_at.remove(module)


def own_attribute(name: str) -> bool:
    """Whether an attribute of tensors is torch's, or tensors have none of this name."""
    return getattr(torch.Tensor, name, None) is _OF_TENSORS.get(name)


def mode_is_on() -> bool:
    """Whether a mode of torch is active, which may put anything in the place of its functions."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


class _Kind(type):
    """A class that only `isinstance` may ask: `torch.Tensor(5)` shows memory as it lay there."""

    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, vars(cls)["kind"])

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        raise UndeclaredOperation(
            f"{cls.__name__}(...) shows memory that no one has written: use zeros or full"
        )


def _whole(ufunc: np.ufunc) -> Callable[..., Any]:
    """A ufunc that writes all of its result; where a mask is False it would show old memory."""

    @functools.wraps(ufunc, assigned=("__name__",))
    def computed(*args: Any, **how: Any) -> Any:
        if "where" in how:
            raise UndeclaredOperation(
                f"numpy.{ufunc.__name__} with where= shows memory that no one has written: use "
                "numpy.where"
            )
        return ufunc(*args, **how)

    return computed


def stand_in(found: Any) -> Any:
    """What a function gets for one of `MODULES`: the same, unless that can show old memory."""
    if isinstance(found, np.ufunc):
        return _stand_ins.setdefault(id(found), _whole(found))
    if found is torch.Tensor or found is np.ndarray:
        return _stand_ins.setdefault(id(found), _Kind(found.__name__, (), {"kind": found}))
    return found


_stand_ins: dict[int, Any] = {}
_OF_TENSORS: dict[str, object] = {
    name: found
    for name in ATTRIBUTES
    if (found := getattr(torch.Tensor, name, None)) is not None and _own(found, "torch")
}
for _name, _one in BUILTINS.items():
    _owned[id(_one)] = (_name, _one, None)
_look_at_loaded_modules()


Chain = tuple[str, ...]  # the attributes that are asked one after the other, such as linalg, norm

_INSPECT = re.compile(r"(_|tb_|gi_|cr_|ag_|f_|co_|func_)")
_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_NAME")
_HARMLESS = ("LOAD_CLOSURE", "MAKE_CELL", "COPY_FREE_VARS")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "IMPORT_NAME", "IMPORT_FROM")
_NAMED = (*_LOADS, *_ATTRIBUTE, *_WRITES, "STORE_DEREF", "DELETE_DEREF", "DELETE_FAST")


class _Step(NamedTuple):
    """An instruction on one name: LOAD or STORE of what kind, or the instruction's own name."""

    op: str
    name: str
    jumped_to: bool


@dataclass
class Reads:
    """What code reads from outside, nested functions included.

    Attributes:
        globals, cells: by name the chains that begin there; `()` where it is used itself.
        imports: the same of modules that are imported within.
        attributes: names that are asked of values.
        constants: in the order of the code.
        refusal: what it does that no such function may; empty where nothing.
        asks: which attribute it asks for that no such function may; empty where none.
        digest: of the code, the same in every process: nested tuples of text.
    """

    globals: dict[str, set[Chain]] = field(default_factory=dict)
    cells: dict[str, set[Chain]] = field(default_factory=dict)
    imports: dict[str, set[Chain]] = field(default_factory=dict)
    attributes: set[str] = field(default_factory=set)
    constants: list[object] = field(default_factory=list)
    refusal: str = ""
    asks: str = ""
    digest: object = ()

    def refuse(self, words: str) -> None:
        """Note the first thing that is refused."""
        self.refusal = self.refusal or words


_MOST_KEPT = 1024
_kept: dict[int, tuple[types.CodeType, Reads]] = {}


def reads_of(code: types.CodeType) -> Reads:
    """What a function's code reads; kept, because code does not change."""
    held = _kept.get(id(code))
    if held is not None:
        return held[1]
    found = Reads()
    _read(code, outside=frozenset(code.co_freevars), into=found)
    for name in sorted(found.attributes - ATTRIBUTES):
        found.asks = found.asks or _attribute_words(name)
    found.digest = _digest(code)
    if len(_kept) >= _MOST_KEPT:
        _kept.clear()
    _kept[id(code)] = (code, found)
    return found


def _attribute_words(name: str) -> str:
    if name in RANDOM:
        return (
            f"makes random numbers by .{name}: add round.noise, which is accounted for, "
            "or give the function round.public(seed), which everybody knows"
        )
    if _INSPECT.match(name):
        return f"asks for .{name}, which looks behind a value: use what its arguments hold"
    return (
        f"asks for .{name}, which is not among the attributes of tensors, arrays and numbers that "
        "only compute: see overhear.training.step.bytecode"
    )


def _read(code: types.CodeType, *, outside: frozenset[str], into: Reads) -> None:
    """Take in one code object and those that it makes functions of."""
    if code.co_flags & _SUSPENDED and code.co_name != "<genexpr>":
        into.refuse(f"makes a generator or coroutine ({code.co_name}): return the value at once")
    steps = list(_steps(code))
    imported = _imported(steps, into)
    # A name counts with the attributes that are asked of it, up to a jump.
    at = 0
    while at < len(steps):
        op, name, _ = steps[at]
        at += 1
        roots = _roots(op, name, outside=outside, imported=imported, into=into)
        if roots is not None:
            chain: list[str] = []
            while at < len(steps) and steps[at].op in _ATTRIBUTE and not steps[at].jumped_to:
                chain.append(steps[at].name)
                at += 1
            begun = imported[name] if roots is into.imports else name
            roots.setdefault(begun, set()).add(tuple(chain))
        elif op in _ATTRIBUTE:
            into.attributes.add(name)
        elif op in _WRITES:
            into.refuse(_write_words(op, name))
        elif op in ("STORE_DEREF", "DELETE_DEREF") and name in outside:
            into.refuse(f"writes to {name!r} outside of it (nonlocal): return the value instead")
        elif op == "LOAD_BUILD_CLASS":
            into.refuse("makes a class: a function has no state")
        elif op == "MATCH_CLASS":
            into.refuse("matches a class, which asks for its attributes: use isinstance")
        elif op.startswith("UNKNOWN "):
            into.refuse(
                f"has the instruction {op[8:]} of Python, which is not known to be harmless"
            )
    # Functions that it makes are constants of its code, and are read likewise.
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read(constant, outside=outside & frozenset(constant.co_freevars), into=into)
        else:
            into.constants.append(constant)


_SUSPENDED = (
    0x20 | 0x80 | 0x100 | 0x200
)  # generator, coroutine, iterable coroutine, async generator


def _write_words(op: str, name: str) -> str:
    if op.endswith("ATTR"):
        return f"writes to the attribute .{name}: what it computes is what it returns"
    return f"writes to the global {name!r}: what it computes is what it returns"


def _roots(
    op: str, name: str, *, outside: frozenset[str], imported: dict[str, str], into: Reads
) -> dict[str, set[Chain]] | None:
    """Where the chain belongs that an instruction begins; None where it begins none."""
    if op in ("LOAD_GLOBAL", "LOAD_NAME"):
        return into.globals
    if op == "LOAD_DEREF" and name in outside:
        return into.cells
    if op == "LOAD_FAST" and name in imported:
        return into.imports
    return None


def _imported(steps: list[_Step], into: Reads) -> dict[str, str]:
    """The locals that hold modules, by `import math` within the function; the rest is noted."""
    found: dict[str, str] = {}
    stored: list[int] = []
    head = "import it at the head of the file"
    # Modules that are imported, whole or by name.
    for at, step in enumerate(steps):
        if step.op != "IMPORT_NAME":
            continue
        after = steps[at + 1] if at + 1 < len(steps) else _Step("", "", False)
        if after.op == "STORE_FAST" and "." not in step.name:
            found[after.name] = step.name
            into.imports.setdefault(step.name, set())
            stored.append(at + 1)
        elif after.op == "IMPORT_FROM":
            into.imports.setdefault(step.name, set())
            for one, then in itertools.pairwise(steps[at + 1 :]):
                if one.op == "IMPORT_FROM":
                    into.imports[step.name].add((one.name,))
                    if not then.op.startswith("STORE_"):  # import a.b as c
                        into.refuse(f"imports {step.name!r} within: {head}")
                elif not one.op.startswith("STORE_"):
                    break
        else:
            into.refuse(f"imports {step.name!r} within: {head}")
    for at, step in enumerate(steps):
        if step.op in ("STORE_FAST", "DELETE_FAST") and step.name in found and at not in stored:
            into.refuse(f"names both a module and a value {step.name!r}: {head}")
    return found


def _steps(code: types.CodeType) -> Iterator[_Step]:
    """The instructions, those on several locals one by one, and without those that only jump."""
    for one in dis.get_instructions(code):
        op, arg, jumped_to = one.opname, one.argval, bool(one.is_jump_target)
        if re.match(r"(LOAD|STORE)_FAST", op):
            names = arg if isinstance(arg, tuple) else (arg,)
            kinds = re.findall(r"(LOAD|STORE)_FAST", op)
            for kind, name in zip(kinds, names, strict=True):
                yield _Step(f"{kind}_FAST", str(name), jumped_to)
        elif op in _NAMED:
            yield _Step(op, str(arg), jumped_to)
        elif (one.opcode in dis.hasname or one.opcode in dis.hasfree) and op not in _HARMLESS:
            yield _Step(f"UNKNOWN {op}", str(arg), jumped_to)
        elif op not in ("PUSH_NULL", "CACHE", "EXTENDED_ARG", "NOP", "RESUME"):
            yield _Step(op, "", jumped_to)


def _digest(code: types.CodeType) -> object:
    """Nested tuples of what decides what code does; names and line numbers of the source do not."""
    return (
        "code",
        code.co_code.hex(),
        code.co_exceptiontable.hex(),
        str((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)),
        code.co_names,
        code.co_varnames,
        code.co_cellvars,
        code.co_freevars,
        tuple(
            _digest(one) if isinstance(one, types.CodeType) else "constant"
            for one in code.co_consts
        ),
    )
