import pytest
from hypothesis import given
from hypothesis import strategies as st

from reluctant import errors, published
from reluctant.frontier import Measured, area, compare, frontier, per_thousand

OTHERS = ("DeepReDuce", "Sphynx", "CryptoNAS", "SAFENet", "DELPHI")


def test_every_method_of_the_paper_is_there():
    methods = {point.method for point in published.load()}
    assert methods >= {*OTHERS, "SNL", "SNIP", "l1 filter pruning", "LFPC", "SNL zero-out", "SNL scratch"}
    assert {point.dataset for point in published.load()} == {"cifar10", "cifar100", "tiny-imagenet"}
    assert all(point.source for point in published.load())
    assert len(published.load(dataset="cifar100", method="SNL")) == 22


def test_latency_is_a_table_of_its_own():
    rows = published.load(table="latency")
    assert all(point.latency > 0 for point in rows)
    assert all(point.latency is None for point in published.load())


def test_which_method_removes_which_units():
    units = {row.method: row for row in published.units()}
    assert units["SNL"].units == "pixels and channels"
    assert not units["unstructured pruning"].reduces_relus


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": "cifar-100"}, "unknown published dataset 'cifar-100'; did you mean 'cifar100'"),
        ({"method": "deepreduce"}, "unknown published method 'deepreduce'; did you mean 'DeepReDuce'"),
        ({"table": "speed"}, "unknown table 'speed'"),
    ],
)
def test_what_is_not_published(options, said):
    with pytest.raises(errors.OptionError) as raised:
        published.load(**options)
    assert said in str(raised.value)


def others(table):
    return [p for p in published.load(dataset="cifar100", table=table) if p.method in OTHERS]


def snl(table):
    return published.load(dataset="cifar100", method="SNL", table=table)


def test_the_claim_at_equal_counts_follows_from_the_published_points():
    found = compare(snl("accuracy"), others("accuracy"), at_count=50_000)
    assert found.points == pytest.approx(4.25)
    assert (found.a.count, found.b.method) == (49_400, "DeepReDuce")


def test_the_claim_at_equal_accuracy_follows_if_69_and_a_half_is_about_70():
    found = compare(snl("latency"), others("latency"), at_accuracy=70, tolerance=0.5, cost="latency")
    assert found.times == pytest.approx(2.2, abs=0.01)
    strictly = compare(snl("latency"), others("latency"), at_accuracy=70, cost="latency")
    assert strictly.times == pytest.approx(2.385 / 0.542)


def test_the_accuracy_per_relu_that_the_paper_misprints():
    best = next(point for point in snl("accuracy") if point.count == 12_900)
    assert per_thousand(best) == pytest.approx(5.157, abs=5e-4)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 100)), max_size=30))
def test_the_frontier_has_what_nothing_dominates(pairs):
    points = [Measured(count, float(accuracy)) for count, accuracy in pairs]
    best = frontier(points)
    assert [p.count for p in best] == sorted({p.count for p in best})
    for point in points:
        assert any(f.count <= point.count and f.accuracy >= point.accuracy for f in best)
    for f in best:
        assert not any(p.count <= f.count and p.accuracy > f.accuracy for p in points)


def test_area_counts_nothing_before_the_first_point():
    assert area([Measured(100, 80.0)], 10, 1000) == pytest.approx(40.0)
    assert area([], 10, 1000) == 0.0
    with pytest.raises(errors.OptionError, match="pass 0 < low < high"):
        area([], 0, 10)


def test_compare_says_what_is_missing():
    one = [Measured(100, 80.0)]
    with pytest.raises(errors.OptionError, match="either at_count or at_accuracy"):
        compare(one, one)
    with pytest.raises(errors.OptionError, match="the second set has no point with at most 50 ReLUs"):
        compare([Measured(40, 70.0)], one, at_count=50)
    with pytest.raises(errors.OptionError, match="the first set has no point with at least 90 %"):
        compare(one, one, at_accuracy=90)
    with pytest.raises(errors.OptionError, match="has no latency"):
        compare(one, one, at_accuracy=80, cost="latency")
    assert compare([Measured(0, 90.0)], one, at_accuracy=80).times is None
