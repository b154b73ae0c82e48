import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reluctant import errors, theory
from reluctant.theory import Layer, attaining, best_split_paper, best_split_shared, capacity, count_pieces


def test_the_papers_bounds():
    assert theory.full([50, 5]) == 2 * 50 * 5 + 5 + 2
    assert theory.full([4, 3], pieces=3) == 3 * 2 * 12 + 2 * 3 + 2
    widths, kept = [50, 8], [10, 4]
    a1, a2 = 10 / 50, 4 / 8
    assert theory.linearized(widths, kept) == pytest.approx(a1 * (1 + a2) * 50 * 8 + a2 * 8 + 2)
    assert theory.pruned(kept) == pytest.approx(2 * a1 * a2 * 50 * 8 + a2 * 8 + 2)
    assert theory.gap(widths, kept) == pytest.approx(a1 * (1 - a2) * 50 * 8)
    assert theory.gap(widths, [10, 8]) == 0


def test_the_papers_example_and_what_it_keeps():
    split = best_split_paper([50_000, 5_000], 10_000)
    assert split.alpha == (0.14999, 0.5001)
    assert split.interior
    assert sum(split.kept) == 10_000
    assert split.kept in ((7_499, 2_501), (7_500, 2_500))
    shared = best_split_shared([50_000, 5_000], 10_000)
    assert (shared.kept, shared.bound) == ((5_000, 5_000), 5_001**2)
    assert capacity([50_000, 5_000], [7_500, 2_500])["shared"] == 7_501 * 2_501


small = st.lists(st.integers(1, 12), min_size=2, max_size=2)


@given(small, st.integers(0, 24), st.integers(2, 4))
def test_the_papers_split_is_the_best_of_all(widths, budget, pieces):
    budget = min(budget, sum(widths))
    split = best_split_paper(widths, budget, pieces)
    every = [(k, budget - k) for k in range(budget + 1) if k <= widths[0] and budget - k <= widths[1]]
    best = max(theory.linearized(widths, kept, pieces) for kept in every)
    assert split.bound == best == theory.linearized(widths, split.kept, pieces)
    assert split.kept[0] == min(kept[0] for kept in every if theory.linearized(widths, kept, pieces) == best)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 24), st.integers(2, 4))
def test_the_shared_split_is_the_best_of_all(widths, budget, pieces):
    budget = min(budget, sum(widths))
    split = best_split_shared(widths, budget, pieces)
    assert sum(split.kept) == budget
    assert all(0 <= k <= d for k, d in zip(split.kept, widths, strict=True))
    every = [kept for kept in itertools.product(*(range(d + 1) for d in widths)) if sum(kept) == budget]
    assert split.bound == max(capacity(widths, kept, pieces)["shared"] for kept in every)


def test_the_range_of_the_papers_theorem():
    d1, d2 = 100, 10
    assert best_split_paper([d1, d2], 3 * d2 - 1).interior
    assert not best_split_paper([d1, d2], 3 * d2).interior
    assert best_split_paper([d1, d2], 60).kept == (50, 10)
    assert best_split_paper([d1, d2], d2 - 2).kept == (d2 - 2, 0)
    narrow = [10, 15]
    assert best_split_paper(narrow, 2 * 10 - 15 + 1).interior is False  # below d₂ − 1: everything in layer one
    assert best_split_paper(narrow, 25).kept == (10, 15)


def rational_network(rng, widths, kept):
    layers, size = [], 3
    for width, k in zip(widths, kept, strict=True):
        weight = [[Fraction(rng.randint(-9, 9), rng.randint(1, 5)) for _ in range(size)] for _ in range(width)]
        bias = [Fraction(rng.randint(-9, 9), rng.randint(1, 5)) for _ in range(width)]
        chosen = set(rng.sample(range(width), k))
        layers.append(Layer(weight, bias, [unit in chosen for unit in range(width)]))
        size = width
    output = [Fraction(rng.randint(-9, 9)) for _ in range(size)]
    return layers, output, [Fraction(rng.randint(-5, 5)) for _ in range(3)]


@given(st.integers(0, 10_000))
def test_random_networks_stay_under_both_bounds(seed):
    rng = random.Random(seed)
    widths = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
    kept = [rng.randint(0, width) for width in widths]
    found = count_pieces(*rational_network(rng, widths, kept))
    bounds = capacity(widths, kept)
    assert found <= bounds["shared"]
    if len(widths) == 2:
        assert found + 1 <= bounds["paper"]


@pytest.mark.parametrize(
    ("widths", "kept"),
    [
        ([3], [2]),
        ([4, 3], [3, 2]),
        ([5, 2], [1, 1]),
        ([2, 6], [1, 5]),
        ([3, 3, 3], [2, 1, 2]),
        ([4, 4, 4], [3, 3, 3]),
        ([2, 2], [0, 1]),
    ],
)
def test_constructed_weights_attain_the_product(widths, kept):
    assert count_pieces(*attaining(widths, kept)) == capacity(widths, kept)["shared"]


def test_pieces_by_hand():
    def pieces(weight, bias, output):
        return count_pieces([Layer([[w] for w in weight], bias, [True] * len(weight))], output, [1])

    assert pieces([1], [0], [1]) == 2
    assert pieces([1, 1], [0, -1], [1, -2]) == 3
    assert pieces([1, -1], [0, 0], [1, -1]) == 1  # relu(t) − relu(−t) = t
    assert pieces([0], [5], [1]) == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: capacity([0, 3], [0, 1]), "not whole numbers above 0"),
        (lambda: capacity([3, 3], [4, 1]), "do not fit layers"),
        (lambda: capacity([3, 3], [1, 1], pieces=1), "1 pieces"),
        (lambda: best_split_paper([3, 3, 3], 2), "for two hidden layers, got 3"),
        (lambda: best_split_paper([3, 3], 7), "not between 0 and the network's 6 units"),
        (lambda: best_split_shared([3, 3], -1), "not between 0 and"),
        (lambda: attaining([2], [2]), "keeps fewer units"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(errors.ReluctantError) as raised:
        call()
    assert said in str(raised.value)
