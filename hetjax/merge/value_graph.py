"""The values of a traced merge as a graph: which are equal, and what each is made of.

A value has a key: equal keys mean equal values, even where the function computes them
twice. Calls of jitted functions are replaced by their operations.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal, Primitive

# cheap operations whose parameters can be pickled, which a worker may do
CHEAP = frozenset(
    {
        *("abs", "add", "and", "broadcast_in_dim", "convert_element_type", "div"),
        *("eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "neg", "not", "or"),
        *("reshape", "select_n", "sign", "sqrt", "square", "squeeze", "sub"),
    }
)
# calls of functions, with the parameter that has the function's jaxpr
CALLED = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}


class Operation(NamedTuple):
    """An operation of the graph, whose results are values."""

    number: int  # in the order of the function
    equation: Any
    operands: tuple[Hashable, ...]

    def result(self, index: int) -> Hashable:
        """Return the key of one of its results."""
        return "made", self.number, index


class ValueGraph:
    """The values of a function that `jax.make_jaxpr` has traced."""

    def __init__(self, closed: Any):
        """Give every value its key, made of the operation and its operands."""
        jaxpr = closed.jaxpr
        self._keys: dict[Any, Hashable] = {}
        self._avals: dict[Hashable, Any] = {}
        self._literals: dict[Hashable, np.ndarray] = {}
        self._operations: dict[Hashable, Operation] = {}  # by value
        self._fills: dict[Hashable, float] = {}
        self._unique: dict[Hashable, int] = {}
        # whether `compute` may repeat parts of the function: it has no effects, such as
        # printing, no contexts of its own, and no primitives with functions
        self.is_plain, self._usual = not jaxpr.effects, _usual_context()
        self._consts: dict[Hashable, Any] = {}
        self.inputs = [("input", i) for i in range(len(jaxpr.invars))]
        for variable, key in zip(jaxpr.invars, self.inputs, strict=True):
            self._name(variable, key)
        for variable, const in zip(jaxpr.constvars, closed.consts, strict=True):
            self._name_const(variable, const)
        self._add(jaxpr.eqns)
        self.outputs = [self._key(v) for v in jaxpr.outvars]

    def _add(self, equations: Sequence[Any]) -> None:
        for equation in equations:
            called = CALLED.get(equation.primitive.name)
            if called is None:
                self._add_operation(equation)
            else:
                self._add_call(equation, equation.params[called])

    def _add_call(self, equation: Any, closed: Any) -> None:
        """Add a called function's operations; its variables may have other values."""
        inner = closed.jaxpr
        for variable, const in zip(inner.constvars, closed.consts, strict=True):
            self._name_const(variable, const)
        for variable, given in zip(inner.invars, equation.invars, strict=True):
            self._name(variable, self._key(given))
        self._add(inner.eqns)
        for variable, found in zip(equation.outvars, inner.outvars, strict=True):
            self._name(variable, self._key(found))

    def _add_operation(self, equation: Any) -> None:
        ordinary = _binding(type(equation.primitive)) is _binding(Primitive)
        self.is_plain &= ordinary and _context(equation) == self._usual
        given = tuple(self._key(v) for v in equation.invars)
        name = equation.primitive.name
        if name == "copy":  # the same value in another buffer
            self._name(equation.outvars[0], given[0])
            return
        params = tuple((k, _hashable(v)) for k, v in sorted(equation.params.items()))
        # keys have numbers: nested keys would grow with the program
        number = self._unique.setdefault((name, params, given), len(self._unique))
        for index, variable in enumerate(equation.outvars):
            operation = Operation(number, equation, given)
            key = operation.result(index)
            self._name(variable, key)
            self._operations.setdefault(key, operation)
            fill = self.constant(given[0]) if name == "broadcast_in_dim" else None
            if fill is not None:
                self._fills[key] = fill

    def _name(self, variable: Any, key: Hashable) -> None:
        self._keys[variable] = key
        self._avals.setdefault(key, variable.aval)

    def _name_const(self, variable: Any, const: Any) -> None:
        key = ("const", len(self._consts))
        self._name(variable, key)
        self._consts[key] = const

    def _key(self, variable: Any) -> Any:
        if not isinstance(variable, Literal):
            return self._keys[variable]
        aval: Any = variable.aval
        number = np.asarray(variable.val, aval.dtype)
        # by its bytes: 0.0 and -0.0 differ
        key = ("literal", number.tobytes(), str(aval))
        self._literals[key] = number
        return key

    # -- questions -------------------------------------------------------------------

    def constant(self, value: Any) -> float | None:
        """The number that fills a value; None if it is not constant."""
        literal = self._literals.get(value)
        return self._fills.get(value) if literal is None else float(literal)

    def like(self, value: Hashable) -> jax.ShapeDtypeStruct:
        """The shape and dtype of a value that is not a literal."""
        aval = self._avals[value]
        return jax.ShapeDtypeStruct(aval.shape, aval.dtype)

    def num_bytes(self, value: Hashable) -> int:
        """The bytes of a value that is not a literal."""
        aval = self._avals[value]
        return aval.size * aval.dtype.itemsize

    def is_cheap(self, value: Hashable) -> bool:
        """Whether a value is made by one of the operations that a worker may do."""
        made = self._operations.get(value)
        return made is not None and made.equation.primitive.name in CHEAP

    def is_broadcast(self, value: Hashable) -> bool:
        """Whether a value repeats the numbers of a smaller one."""
        made = self._operations.get(value)
        return made is not None and made.equation.primitive.name == "broadcast_in_dim"

    def operands(self, value: Hashable) -> tuple[Hashable, ...]:
        """The values that a value is made of; none of an input."""
        made = self._operations.get(value)
        return () if made is None else made.operands

    def read_by(
        self, values: Iterable[Hashable], known: Iterable[Hashable] = ()
    ) -> set[Hashable]:
        """These values, and all that they are computed from if some are `known`."""
        found, ahead, known = set(), list(values), set(known)
        while ahead:
            value = ahead.pop()
            if value not in found:
                found.add(value)
                ahead += () if value in known else self.operands(value)
        return found

    def in_order(
        self,
        values: Iterable[Hashable],
        operands: Callable[[Hashable], Iterable[Hashable]],
    ) -> list[Hashable]:
        """These values and their `operands`, which come before what is made of them."""
        found, ahead = set(), list(values)
        while ahead:
            value = ahead.pop()
            if value not in found:
                found.add(value)
                ahead += operands(value)
        made = {v: o.number for v, o in self._operations.items() if v in found}
        return sorted(found, key=lambda value: made.get(value, -1))

    def masks(self, bits: Mapping[Any, int]) -> dict[Hashable, int]:
        """By value, the union of the bits of the inputs that it is computed from."""
        found = dict(bits)
        for value, made in self._operations.items():  # operands come first
            mask = 0
            for operand in made.operands:
                mask |= found.get(operand, 0)
            found[value] = mask
        return found

    def literal(self, value: Hashable) -> np.ndarray | None:
        """Return a literal's number; None for any other value."""
        return self._literals.get(value)

    def operations(
        self, values: Iterable[Hashable], known: Iterable[Hashable]
    ) -> list[Operation]:
        """Return the operations that make these values from `known` ones, in order."""
        known = set(known)
        needed = self.read_by(values, known)
        made = {
            operation.number: operation
            for value, operation in self._operations.items()
            if value in needed and value not in known
        }
        return [made[number] for number in sorted(made)]

    # -- computing -------------------------------------------------------------------

    def compute(self, values: Sequence[Any], known: Mapping[Any, Any]) -> list[Any]:
        """Compute values of a plain graph from others that are `known`; not jitted."""
        found = {**self._literals, **self._consts, **known}
        for operation in self.operations(values, found):
            equation = operation.equation
            given = [found[operand] for operand in operation.operands]
            results = equation.primitive.bind(*given, **equation.params)
            several = equation.primitive.multiple_results
            for index, result in enumerate(results if several else [results]):
                found.setdefault(operation.result(index), result)
        return [found[value] for value in values]


def _binding(primitive: type) -> Any:
    """How a kind of primitive is bound, if not with the parameters of its equation."""
    return getattr(primitive, "get_bind_params", None)


def _context(equation: Any) -> tuple[Any, ...]:
    """Settings with which an equation was traced, and which change what it computes."""
    names = "compute_type", "threefry_partitionable", "xla_metadata"
    return tuple(getattr(equation.ctx, name, None) for name in names)


def _usual_context() -> tuple[Any, ...]:
    (equation,) = jax.make_jaxpr(jax.lax.neg)(0.0).jaxpr.eqns
    return _context(equation)


def _hashable(value: Any) -> Hashable:
    """An equation's parameter as part of a key; unhashable ones equal themselves."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
