import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from reluctant import Mask, attach, cost, count, errors, models, published
from reluctant.slopes import shapes
from tests import nets

LINEAR = 1e-6
"""Seconds a multiplication, of a protocol made for these tests."""


def mlp():
    return nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 100), nn.ReLU(), nn.Linear(100, 2))


X = torch.zeros(1, 4)
MACS = [4 * 1000, 1000 * 100, 100 * 2]


def own_protocol(tmp_path, text=""):
    path = tmp_path / "mine.toml"
    path.write_text(
        text
        or """
[mine]
title = "Mine"
[mine.relu]
online_seconds = { value = 1e-3, source = "made up" }
online_up = { value = 10, source = "made up" }
online_down = { value = 30, source = "made up" }
offline_down = { value = 100, source = "made up" }
stored_by_client = { value = 7, source = "made up" }
[mine.linear]
offline_seconds = { value = 1e-6, source = "made up" }
offline_up = { value = 2, source = "made up" }
offline_down = { value = 3, source = "made up" }
[mine.rounds]
online_relu = { value = 2, source = "made up" }
offline_linear = { value = 1, source = "made up" }
"""
    )
    return path


def test_layers_are_in_order_with_their_multiplications():
    found, _ = cost.layers(mlp(), X)
    assert [(layer.name, layer.kind) for layer in found] == [
        ("0", "linear"), ("1", "relu"), ("2", "linear"), ("3", "relu"), ("4", "linear"),
    ]  # fmt: skip
    assert [layer.macs for layer in found if layer.kind == "linear"] == MACS
    assert [(layer.inputs, layer.outputs) for layer in found if layer.kind == "linear"] == [
        (4, 1000),
        (1000, 100),
        (100, 2),
    ]
    assert [layer.relus for layer in found if layer.kind == "relu"] == [1000, 100]


def test_layers_of_convolutions_and_functional_relus():
    found, _ = cost.layers(nets.Functional(), nets.images(3))
    assert sum(layer.relus for layer in found) == count(nets.Functional(), nets.images()).total
    first = next(layer for layer in found if layer.kind == "linear")
    assert (first.macs, first.inputs, first.outputs) == (4 * 36 * 27, 3 * 36, 4 * 36)
    big, _ = cost.layers(models.create("resnet18"), torch.zeros(1, 3, 32, 32))
    assert sum(layer.relus for layer in big) == 491_520
    assert big[0].macs == 64 * 32 * 32 * 27


def test_an_estimate_by_hand(tmp_path):
    network = cost.Network(bandwidth=8e3, rtt=0.25)
    found = cost.estimate(mlp(), X, protocol=own_protocol(tmp_path), network=network, plaintext_seconds=0.5)
    assert found.relus == 1100
    assert found.macs == sum(MACS)
    assert found.online.bytes_up == 11_000
    assert found.online.bytes_down == 33_000
    assert found.online.rounds == 4
    assert found.online.seconds == pytest.approx(1.1 + 0.5 + 44_000 / 1e3 + 4 * 0.25)
    sent = 2 * (4 + 1000 + 100) + 3 * (1000 + 100 + 2) + 100 * 1100
    assert found.offline.seconds == pytest.approx(sum(MACS) * LINEAR + sent / 1e3 + 3 * 0.25)
    assert found.stored_by_client == 7 * 1100
    assert found.total.seconds == pytest.approx(found.online.seconds + found.offline.seconds)
    assert sum(each.online.seconds for each in found.layers) == pytest.approx(found.online.seconds)
    assert found.estimated
    assert not found.plaintext_measured
    assert json.loads(json.dumps(found.as_dict()))["estimated"] is True


def test_a_mask_makes_it_cheaper_and_an_empty_site_is_free(tmp_path):
    student = attach(mlp(), X)
    tensors = {site: torch.zeros(shape, dtype=torch.bool) for site, shape in shapes(student).items()}
    tensors["1"][:40] = True
    masked = Mask(tensors).apply(mlp(), X)
    found = cost.estimate(
        masked, X, protocol=own_protocol(tmp_path), network=cost.Network(8e3, 0.25), plaintext_seconds=0.0
    )
    assert found.relus == 40
    assert found.online.rounds == 2
    assert found.online.seconds == pytest.approx(0.04 + 40 * 40 / 1e3 + 0.5)


def test_relus_are_spread_exactly():
    found = cost.estimate(mlp(), X, protocol="snl-paper", plaintext_seconds=0.0, relus=333)
    assert [each.layer.relus for each in found.layers if each.layer.kind == "relu"] == [303, 30]
    assert found.online.seconds == pytest.approx(333 * 21e-6)
    assert found.online.bytes_up is None
    assert found.stored_by_client is None


def test_plaintext_is_measured_where_it_is_not_given():
    found = cost.estimate(mlp(), X, protocol="snl-paper")
    assert found.plaintext_measured
    assert 0 < found.plaintext_seconds < 5


PLAINTEXT = {
    ("cifar100", "resnet18", "SNL paper, CIFAR-100 table"): 0.019,
    ("cifar100", "wide_resnet22_8", "SNL paper, CIFAR-100 table"): 0.265,
    ("cifar100", "resnet34", "SNL paper, ResNet34 table"): 0.025,
    ("cifar100", "resnet18", "SNL paper, channel-wise table"): 0.019,
    ("cifar100", "wide_resnet22_8", "SNL paper, channel-wise table"): 0.017,
    ("tiny-imagenet", "resnet18", "SNL paper, Tiny-ImageNet table"): 0.0225,
    ("tiny-imagenet", "wide_resnet22_8", "SNL paper, Tiny-ImageNet table"): 0.016,
    ("tiny-imagenet", "resnet34", "SNL paper, ResNet34 table"): 0.0275,
}
"""One plaintext inference for every data set, backbone and table, in seconds, fitted to the rows."""


def published_rows():
    return [row for row in published.load(table="latency") if row.method.startswith("SNL")]


def test_the_papers_latencies_follow_from_its_constant():
    rows = published_rows()
    assert len(rows) == 30
    net = nn.Sequential(nn.Linear(1, 1_000_000), nn.ReLU(), nn.Linear(1_000_000, 1))
    strict = 0
    for row in rows:
        plain = PLAINTEXT[row.dataset, row.backbone, row.source]
        found = cost.estimate(net, torch.zeros(1, 1), protocol="snl-paper", plaintext_seconds=plain, relus=row.count)
        off = abs(found.online.seconds - row.latency)
        inconsistent = row.backbone == "wide_resnet22_8" and "CIFAR-100 table" in row.source
        assert off <= (0.02 if inconsistent else 0.005), (row, found.online.seconds)
        strict += not inconsistent
    assert strict == 27


def test_a_regression_over_deepreduce_gives_the_papers_footnote():
    rows = published.load(method="DeepReDuce", dataset="cifar100", table="latency")
    slope, _ = np.polyfit([row.count / 1000 for row in rows], [row.latency for row in rows], 1)
    assert slope == pytest.approx(0.019, abs=0.0006)


@pytest.mark.parametrize("name", cost.names())
def test_every_constant_has_a_source_and_more_relus_never_cost_less(name):
    rules = cost.read(name)
    assert rules.title
    assert rules.about
    assert all(len(source) > 5 for source in rules.sources.values())
    assert "relu.online_seconds" in rules.sources
    few, many = (cost.estimate(mlp(), X, protocol=name, plaintext_seconds=0.0, relus=n) for n in (10, 1000))
    assert few.online.seconds < many.online.seconds
    assert few.total.seconds < many.total.seconds
    assert few.bottleneck().startswith("Online, ReLUs ")


def test_it_says_when_relus_are_not_the_bottleneck(tmp_path):
    found = cost.estimate(mlp(), X, protocol="cheetah", network="none", plaintext_seconds=0.0, relus=10)
    assert "ReLUs are not the bottleneck:" in found.bottleneck()
    assert "'2' most of it" in found.bottleneck()
    many = cost.estimate(mlp(), X, protocol="snl-paper", plaintext_seconds=0.0)
    assert many.bottleneck() == "Online, ReLUs take 100 % of the time; '1' takes most (0.021 s)."


def test_budget_for_a_latency(tmp_path):
    options = {"protocol": own_protocol(tmp_path), "network": cost.Network(8e3, 0.25), "plaintext_seconds": 0.1}
    budget = cost.budget_for(10.0, mlp(), X, **options)
    assert budget == int((10.0 - 0.1 - 1.0) / (1e-3 + 0.04))

    def seconds(relus):
        return cost.estimate(mlp(), X, relus=relus, **options).online.seconds

    assert seconds(budget) <= 10.0 < seconds(budget + 1)
    assert cost.budget_for(1e6, mlp(), X, **options) == 1100
    with pytest.raises(errors.BudgetError, match="waiting for 2 sites takes 1 s of them"):
        cost.budget_for(0.5, mlp(), X, **options)
    assert cost.budget_for(20.0, mlp(), X, together=True, **options) < cost.budget_for(20.0, mlp(), X, **options)
    with pytest.raises(errors.BudgetError, match=r"without any ReLU it already takes 0\.1 s"):
        cost.budget_for(0.05, mlp(), X, **options)


def test_the_papers_budget_for_one_second():
    net = models.create("resnet18", num_classes=100)
    found = cost.budget_for(1.0, net, torch.zeros(1, 3, 32, 32), protocol="snl-paper", plaintext_seconds=0.019)
    assert found == int((1.0 - 0.019) / 21e-6)


def test_other_operations_are_named_and_not_forgotten():
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    found = cost.estimate(net, nets.images(), protocol="delphi", plaintext_seconds=0.0)
    assert found.not_counted == {"max_pool2d": 36}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cost.estimate(mlp(), X, protocol="delfi"), "unknown protocol 'delfi'; did you mean 'delphi'"),
        (lambda: cost.estimate(mlp(), X, network="lann"), "unknown network 'lann'; did you mean 'lan'"),
        (lambda: cost.Network(-1.0, 0.1), "the bandwidth is -1 bits a second; pass a number above 0"),
        (lambda: cost.Network(1.0, -0.1), "the round-trip time is -0.1 s; pass 0 or more"),
        (lambda: cost.Network(1.0, math.nan), "the round-trip time is nan s; pass 0 or more"),
        (lambda: cost.estimate(mlp(), X, plaintext_seconds=-1.0), "takes -1.0 s; pass 0 or more"),
        (lambda: cost.budget_for(-1.0, mlp(), X), "the latency is -1 s; pass a number above 0"),
        (lambda: cost.budget_for(math.inf, mlp(), X), "the latency is inf s; pass a number above 0"),
        (lambda: cost.budget_for(1.0, mlp(), X, together=True, protocol="snl-paper"), "has no offline phase to count"),
        (lambda: cost.read("nowhere.toml"), "nowhere.toml cannot be read"),
    ],
)
def test_bad_input(call, said):
    with pytest.raises(errors.OptionError) as raised:
        call()
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mine", "is not TOML"),
        ("a = 1", "has to have one table"),
        ("[mine]\ncolour = 1", "unknown key of protocol mine"),
        ("[mine.relu]\nonline_second = { value = 1, source = 'x' }", "did you mean 'online_seconds'"),
        ("[mine.relu]\nonline_seconds = 1", "write { value = …, source"),
        ("[mine.relu]\nonline_seconds = { value = -1, source = 'x' }", "is -1; pass a number, 0 or more"),
    ],
)
def test_a_protocol_file_with_a_mistake(tmp_path, text, said):
    with pytest.raises(errors.OptionError) as raised:
        cost.read(own_protocol(tmp_path, text))
    assert said in str(raised.value)
