"""A budget as a person types it, as the int everything inside works with."""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from typing import SupportsIndex

from reluctant.errors import BudgetError

Budget = int | str | SupportsIndex

_TYPED = re.compile(r"([+-]?)(\d[\d_]*(?:\.\d+)?|\.\d+)\s*([kKmM%]?)")
_SCALE = {"": Decimal(1), "k": Decimal(1000), "m": Decimal(1_000_000)}


def parse(budget: Budget, total: int) -> int:
    """Read a budget for a network of `total` ReLUs.

    An int, or a string: `"50000"`, `"50k"`, `"12.9k"`, `"1.2M"`, or a share of the network, `"10%"`. Fractions of a ReLU
    are dropped, since a budget is an upper limit. 0 and the total are valid.

    Args:
        budget: what the person typed.
        total: the network's count.

    Returns:
        The budget in ReLUs, from 0 to `total`.

    Raises:
        BudgetError: it cannot be read, or is outside 0…total.

    Example:
        >>> parse("12.9k", 491_520), parse("10%", 491_520), parse(0, 491_520)
        (12900, 49152, 0)
    """
    relus = _read(budget, total)
    if relus < 0:
        raise BudgetError(f"budget {budget} is negative; pass a number of ReLUs from 0 to {total}")
    if relus > total:
        raise BudgetError(f"budget {budget} is above the network's {total} ReLUs; pass at most that")
    return relus


def _read(budget: Budget, total: int) -> int:
    expected = 'pass a whole number of ReLUs, "50k" or "10%"'
    if isinstance(budget, bool):
        raise BudgetError(f"budget {budget} is not a number; {expected}")
    if isinstance(budget, float):
        budget = _read_float(budget, expected)
    if not isinstance(budget, str):
        try:
            return operator.index(budget)
        except TypeError:
            raise BudgetError(f"budget {budget!r} is not a number; {expected}") from None
    found = _TYPED.fullmatch(budget.strip())
    if not found:
        raise BudgetError(f"budget '{budget}' cannot be read; {expected}")
    sign, digits, unit = found.groups()
    number = Decimal(digits.replace("_", "")) * (-1 if sign == "-" else 1)
    if unit == "%":
        if number > 100:
            raise BudgetError(f"budget '{budget}' is more than the whole network; pass at most 100%")
        return int(total * number / 100) if number >= 0 else -1
    if not unit and number % 1:
        raise BudgetError(_fraction(float(number), expected))
    return int(number * _SCALE[unit.lower()])


def _read_float(budget: float, expected: str) -> int:
    if budget != budget or abs(budget) == float("inf") or budget % 1:
        raise BudgetError(_fraction(budget, expected))
    return int(budget)


def _fraction(number: float, expected: str) -> str:
    if 0 < number < 1:
        return f'budget {number:g} is not a whole number of ReLUs; for that share of the network pass "{number * 100:g}%"'
    return f"budget {number:g} is not a whole number of ReLUs; {expected}"
