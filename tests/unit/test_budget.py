import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reluctant.budget import parse
from reluctant.errors import BudgetError, ReluctantError

TOTAL = 491_520


@pytest.mark.parametrize(
    ("typed", "relus"),
    [
        (50_000, 50_000),
        ("50000", 50_000),
        ("50_000", 50_000),
        ("50k", 50_000),
        ("50K", 50_000),
        ("12.9k", 12_900),
        (" 12.9k ", 12_900),
        ("0.1M", 100_000),
        ("10%", 49_152),
        ("0.001%", 4),
        ("100%", TOTAL),
        ("0%", 0),
        (0, 0),
        (TOTAL, TOTAL),
        (5.0e4, 50_000),
        (np.int64(7), 7),
        ("1.9999k", 1_999),
    ],
)
def test_reads_what_a_person_types(typed, relus):
    assert parse(typed, TOTAL) == relus


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (-1, "negative"),
        ("-5k", "negative"),
        ("-5%", "negative"),
        (0.1, '"10%"'),
        ("0.1", '"10%"'),
        (0.125, '"12.5%"'),
        (1.5, "whole number"),
        (float("nan"), "whole number"),
        (float("inf"), "whole number"),
        (600_000, "above the network's 491520"),
        ("600k", "above the network's 491520"),
        ("abc", "cannot be read"),
        ("", "cannot be read"),
        ("5 k k", "cannot be read"),
        ("110%", "100%"),
        (True, "not a number"),
        (None, "not a number"),
        ([5], "not a number"),
    ],
)
def test_says_what_is_wrong_with_a_budget(typed, said):
    with pytest.raises(BudgetError) as raised:
        parse(typed, TOTAL)
    assert said in str(raised.value)
    assert isinstance(raised.value, ReluctantError)
    assert isinstance(raised.value, ValueError)
    assert "\n" not in str(raised.value)


@given(st.integers(0, 10**7), st.decimals(0, 100, places=3))
def test_a_share_never_exceeds_itself(total, share):
    assert parse(f"{share}%", total) <= total * share / 100
