import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reluctant import count, errors, models
from reluctant.private import clear, fixed
from reluctant.private.calibrate import calibrate, float_step
from reluctant.private.lower import lower
from reluctant.private.plan import Plan, Scales, Step
from tests.unit.private import nets


def in_float(plan, weights, x):
    made = [torch.from_numpy(plan.normalised(x))]
    for number, step in enumerate(plan.steps):
        made.append(float_step(plan, weights, number, [made[value] for value in step.inputs]))
    return made[-1].numpy()


def by_torch(model, plan, x):
    with torch.no_grad():
        return model.double()(torch.from_numpy(plan.normalised(x))[None])[0].numpy()


@pytest.mark.parametrize("name", nets.NETS)
@pytest.mark.parametrize("share", [1.0, 0.4, 0.0])
def test_a_plan_computes_what_the_masked_network_computes(name, share):
    model = nets.masked(name, share)
    plan, weights = lower(model, nets.SHAPE, mean=(0.4, 0.5), std=(0.2, 0.3))
    np.testing.assert_allclose(
        in_float(plan, weights, nets.image()), by_torch(model, plan, nets.image()), rtol=1e-6, atol=1e-7
    )
    assert plan.relus == count(model.float(), torch.zeros(1, *nets.SHAPE)).total


@pytest.mark.parametrize("name", nets.NETS)
def test_clear_computes_it_in_fixed_point(name):
    model = nets.masked(name)
    plan, weights = lower(model, nets.SHAPE, mean=(0.4, 0.5), std=(0.2, 0.3))
    plan = calibrate(plan, weights, [nets.image(seed=seed) for seed in range(3)])
    assert 0 < plan.scales.expected_wraps <= 1e-6
    for seed in range(5):
        x = nets.image(seed=seed)
        np.testing.assert_allclose(clear.infer(plan, weights, x), by_torch(model, plan, x), atol=5e-3)


def test_a_site_that_keeps_nothing_vanishes():
    full, _ = lower(nets.masked("small"), nets.SHAPE)
    empty, _ = lower(nets.masked("small", empty=True), nets.SHAPE)
    kinds = [step.kind for step in full.steps]
    assert kinds.count("relu") - 1 == [step.kind for step in empty.steps].count("relu")
    assert len(empty.steps) == len(full.steps) - 1


def test_resnets_with_both_shortcuts():
    for shortcut in ("pad", "projection"):
        model = models.create("resnet20", shortcut=shortcut, stem_relu=True).eval()
        plan, weights = lower(model, (3, 32, 32))
        assert plan.relus == 188_416
        x = nets.image((3, 32, 32))
        np.testing.assert_allclose(in_float(plan, weights, x), by_torch(model, plan, x), rtol=1e-5, atol=1e-6)


def test_a_plan_survives_its_bytes_and_has_no_weights():
    plan, weights = lower(nets.masked("odd"), nets.SHAPE, mean=(0.4, 0.5), std=(0.2, 0.3), classes=("a", "b"))
    data = plan.save()
    again = Plan.load(data)
    assert again.steps == plan.steps
    assert again.version == plan.version
    assert again.classes == ("a", "b")
    assert all(np.array_equal(again.kept[number], indices) for number, indices in plan.kept.items())
    for values in weights.weight.values():
        assert values.astype(np.float32).tobytes() not in data
    assert plan.with_scales(Scales(10, 10)).version != plan.version


def test_what_cannot_be_lowered_is_named():
    def refused(*layers, shape=nets.SHAPE):
        with pytest.raises(errors.PlanError) as raised:
            lower(nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU(), *layers).eval(), shape)
        return str(raised.value)

    assert "the module GELU at '2'" in refused(nn.GELU())
    assert "padding of mode 'reflect'" in refused(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"))
    assert "whose windows overlap" in refused(nn.AdaptiveAvgPool2d(2))
    assert "average pooling in ceil mode" in refused(nn.AvgPool2d(2, ceil_mode=True))
    assert "the module Softmax" in refused(nn.Softmax(1))

    class Times(nn.Module):
        def forward(self, x):
            return torch.relu(x) * x

    assert "the operation 'mul'" in refused(Times())

    class Two(nn.Module):
        def forward(self, x):
            return torch.relu(x), x

    assert "returns more than one tensor" in refused(Two())


def tampered(change):
    plan, _ = lower(nets.masked("small"), nets.SHAPE, mean=(0.4, 0.5), std=(0.2, 0.3))
    data = plan.save()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    content = json.loads(header["__metadata__"]["plan"])
    change(content)
    header["__metadata__"]["plan"] = json.dumps(content)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(version=9), "of version 9"),
        (lambda c: c.update(steps=[]), "has no steps"),
        (lambda c: c.update(input_shape=[2, 10**6, 10**6]), "not believed"),
        (lambda c: c.update(input_shape=[2, -7, 9]), "not believed"),
        (lambda c: c["steps"][0].update(kind="exec"), "unknown kind"),
        (lambda c: c["steps"][0].update(inputs=[5]), "not there yet"),
        (lambda c: c["steps"][0].update(shape=[1, 1, 1]), "and says 1×1×1"),
        (lambda c: c["steps"][0]["options"].update(stride=[0, 1]), "whole numbers from 1 on"),
        (lambda c: c["steps"][0]["options"].update(groups="2"), "not a whole number"),
        (lambda c: c["steps"][0]["options"].pop("weight"), "not whole"),
        (lambda c: c["scales"].update(value_bits=60), "not between 1 and 30 bits"),
        (lambda c: c["scales"].update(colour=1), "not whole"),
        (lambda c: c.update(std=[0.0, 1.0]), "not numbers to normalise with"),
        (lambda c: c.update(mean=[0.1]), "do not fit its input"),
        (lambda c: c["steps"].pop(), None),
    ],
)
def test_a_plan_from_somebody_else_is_checked(change, said):
    if said is None:
        Plan.load(tampered(change))
        return
    with pytest.raises(errors.PlanError) as raised:
        Plan.load(tampered(change))
    assert said in str(raised.value)


@given(st.binary(max_size=300))
def test_garbage_is_not_a_plan(data):
    with pytest.raises(errors.PlanError):
        Plan.load(data)


def test_indices_are_checked():
    plan, _ = lower(nets.masked("small"), nets.SHAPE)
    number = next(iter(plan.kept))
    for indices in ([-1, 2], [3, 3], [5, 4], [10**6], []):
        wrong = Plan(plan.steps, plan.input_shape, {**plan.kept, number: np.array(indices, np.int64)})
        with pytest.raises(errors.PlanError, match="are not indices"):
            wrong.check()


@given(st.integers(0, 2**32))
def test_products_wrap_exactly(seed):
    rng = np.random.default_rng(seed)
    step = Step("linear", (0,), (3,), options={"weight": [3, 50]})
    weight = rng.integers(-(2**17), 2**17, (3, 50))
    x = rng.integers(-(2**63), 2**63 - 1, 50)
    expected = [sum(int(w) * int(v) for w, v in zip(row, x, strict=True)) for row in weight]
    wrapped = [(total + 2**63) % 2**64 - 2**63 for total in expected]
    assert fixed.affine(step, weight, x).tolist() == wrapped


def test_products_that_would_not_be_exact_are_refused():
    step = Step("linear", (0,), (1,), options={"weight": [1, 4]})
    with pytest.raises(OverflowError):
        fixed.affine(step, np.full((1, 4), 2**40), np.zeros(4, np.int64))


@given(st.integers(-(2**40), 2**40), st.integers(-(2**63), 2**63 - 1), st.integers(1, 16))
def test_truncated_shares_add_up(y, r, bits):
    client = np.array([r], np.int64)
    server = np.array([y], np.int64) - client
    total = fixed.shifted(server, bits) + fixed.shifted_by_client(client, bits)
    if -(2**63) <= y - r < 2**63:  # no wrap
        assert abs(int(total[0]) - (y >> bits)) <= 1


def test_calibration_wants_images_and_reasonable_values():
    plan, weights = lower(nets.masked("small"), nets.SHAPE)
    with pytest.raises(errors.PlanError, match="no image"):
        calibrate(plan, weights, [])
    with pytest.raises(errors.PlanError, match="normalise its inputs"):
        calibrate(plan, weights, [nets.image() * 1e12])
    few = calibrate(plan, weights, [nets.image()], most_wraps=1e-9)
    assert few.scales.value_bits < calibrate(plan, weights, [nets.image()]).scales.value_bits
    with pytest.raises(errors.PlanError, match="the image is 2×3×3 and the network takes 2×7×9"):
        plan.normalised(np.zeros((2, 3, 3)))
