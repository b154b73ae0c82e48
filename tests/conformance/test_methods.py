"""What every method must do, whatever it is."""

import copy

import pytest
import torch

from reluctant import attach, count, methods
from reluctant.train import Trainer
from tests import toys

GRANULARITIES = dict.fromkeys(("snl", "snip", "random"), ("pixel", "channel", "layer"))
"""What each method claims."""

CLAIMS = [(method, granularity) for method, known in GRANULARITIES.items() for granularity in known]


def search(method, budget, *, granularity="pixel", seed=0, **options):
    model = toys.toy()
    student = attach(model, toys.examples(2)[0], granularity=granularity, **options)
    return methods.find(method)(
        student,
        teacher=model,
        train=toys.batches(),
        budget=budget,
        options=toys.recipe().search,
        trainer=Trainer(seed=seed),
    )


def test_every_method_is_here():
    assert set(GRANULARITIES) == set(methods.names())


@pytest.mark.parametrize(("method", "granularity"), CLAIMS)
@pytest.mark.parametrize("budget", [0, 1, 40, 126, toys.Toy.TOTAL, "33%"])
def test_the_budget_is_never_exceeded(method, granularity, budget):
    found = search(method, budget, granularity=granularity)
    limit = int(0.33 * toys.Toy.TOTAL) if budget == "33%" else budget
    assert found.mask.count <= limit
    assert count(found.model, toys.examples(2)[0]).total == found.mask.count
    assert found.mask.granularity == granularity
    if granularity == "pixel":
        assert found.mask.count == limit


@pytest.mark.parametrize("method", methods.names())
def test_the_teacher_is_untouched(method):
    model = toys.toy()
    before = copy.deepcopy(model.state_dict())
    student = attach(model, toys.examples(2)[0])
    options = toys.recipe().search
    methods.find(method)(student, teacher=model, train=toys.batches(), budget=30, options=options, trainer=Trainer())
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", methods.names())
def test_a_seed_gives_the_same_again_and_another_another(method):
    first, again, other = search(method, 40), search(method, 40), search(method, 40, seed=1)
    assert first.mask == again.mask
    state = again.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.model.state_dict().items())
    assert first.mask != other.mask


@pytest.mark.parametrize("method", methods.names())
def test_sites_left_alone_stay_whole(method):
    found = search(method, 80, exclude="relu_2")
    assert found.mask["relu_2"].all()
    assert found.mask.count == 80


@pytest.mark.parametrize("method", methods.names())
def test_budgets_on_the_way_down_are_told_from_high_to_low(method):
    model = toys.toy()
    told = []
    methods.find(method)(
        attach(model, toys.examples(2)[0]),
        teacher=model,
        train=toys.batches(),
        budget=10,
        options=toys.recipe().search,
        trainer=Trainer(),
        passing=[60, 127, 90],
        on_pass=lambda budget, found: told.append((budget, found.mask.count)),
    )
    assert told == [(127, 127), (90, 90), (60, 60)]
