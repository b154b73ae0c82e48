import copy
import logging
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from reluctant import Mask, attach, count, errors
from tests import nets


@pytest.mark.parametrize("net", nets.EVERY, ids=lambda net: net.__name__)
def test_counts_every_relu_call(net):
    assert count(net(), nets.images()).total == nets.EVERY[net]


def test_names_come_from_modules_and_callers():
    assert list(count(nets.Modules(), nets.images()).by_site()) == ["relu1", "relu2"]
    assert list(count(nets.OneReLUManyTimes(), nets.images()).by_site()) == ["relu", "relu_2", "relu_3"]
    assert list(count(nets.SharedBetweenBlocks(), nets.images()).by_site()) == ["blocks.0.act", "blocks.1.act"]


def test_names_and_shapes_survive_saving_and_loading(tmp_path):
    net = nets.Functional()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    again = nets.Functional()
    again.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert count(net, nets.images()).shapes == count(again, nets.images(5)).shapes


def test_a_taken_name_is_not_used_twice():
    class Taken(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.Conv2d(3, 4, 1)

        def forward(self, x):
            return torch.relu(self.relu(x))

    student = attach(Taken(), nets.images())
    assert isinstance(student.relu, nn.Conv2d)
    assert list(count(Taken(), nets.images()).by_site()) == ["relu_2"]


def test_counting_leaves_the_model_alone():
    net = nets.TrainingHead().train()
    net.conv.eval()
    before = copy.deepcopy(net.state_dict())
    x = nets.images()
    kept = x.clone()
    count(net, x)
    assert net.training
    assert not net.conv.training
    assert torch.equal(x, kept)
    assert set(vars(net)) == set(vars(nets.TrainingHead()))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_relu_of_training_only_is_not_a_site():
    sites = count(nets.TrainingHead(), nets.images())
    assert sites.by_site() == {"relu": 4 * 36, "relu_2": 7}


def test_lists_other_nonlinear_operations_with_their_elements():
    others = {(o.name, o.kind, o.count) for o in count(nets.OthersToo(), nets.images()).other_nonlinear}
    assert others == {
        ("six", "relu6", 4 * 36),
        ("pool", "max_pool2d", 4 * 9),
        ("gelu", "gelu", 4 * 9),
        ("sigmoid", "sigmoid", 4 * 9),
        ("softmax", "softmax", 5),
    }


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.LeakyReLU(), "leaky_relu"),
        (nn.GELU(), "gelu"),
        (nn.SiLU(), "silu"),
        (nn.Hardswish(), "hardswish"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.Tanh(), "tanh"),
        (nn.PReLU(), "prelu"),
        (nn.ELU(), "elu"),
        (nn.Softplus(), "softplus"),
        (nn.Mish(), "mish"),
        (nn.Softmax(1), "softmax"),
        (nn.GroupNorm(2, 4), "group_norm"),
        (nn.Hardtanh(), "hardtanh"),
        (nn.AdaptiveMaxPool2d(6), "adaptive_max_pool2d"),
        (nn.InstanceNorm2d(4), "instance_norm"),
        (nn.CELU(), "celu"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_knows_the_usual_nonlinear_modules(module, kind):
    net = nn.Sequential(nets.conv(), nn.ReLU(), module)
    (other,) = count(net, nets.images()).other_nonlinear
    assert (other.name, other.kind, other.count) == ("2", kind, 4 * 36)


def test_sees_inside_modules_that_torch_keeps_closed():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, activation="relu", batch_first=True)
            self.relu = nn.ReLU()

        def forward(self, x):
            return self.relu(self.layer(x))

    sites = count(Attention().eval(), torch.randn(1, 5, 8))
    assert sites.by_site() == {"relu": 40, "layer.relu": 5 * 16}
    assert [site.reachable for site in sites] == [True, False]
    kinds = {(other.kind, other.count) for other in sites.other_nonlinear}
    assert ("softmax", 2 * 5 * 5) in kinds
    assert ("layer_norm", 5 * 8) in kinds


def test_batchnorm_dropout_and_average_pool_are_not_nonlinear():
    net = nn.Sequential(nets.conv(), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1))
    assert count(net, nets.images()).other_nonlinear == ()


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_clamp_of_parameters_costs_nothing(batch):
    sites = count(nets.Constants(), nets.images(batch))
    assert sites.by_site() == {"relu_2": 4 * 36}
    assert sites.other_nonlinear == ()


def test_relus_out_of_reach_count_and_stay():
    x = torch.randn(2, 5, 4)
    sites = count(nets.FoldedBatch(), x)
    assert sites.by_site() == {"g.1": 8, "f.1": 40}
    assert [(site.fixed, site.reachable) for site in sites] == [(False, True), (True, False)]
    rnn = nn.Sequential(nn.RNN(4, 3, nonlinearity="relu", batch_first=True))
    with pytest.raises(errors.NoReLUError, match="inside closed modules"):
        count(rnn, x)


def test_clamp_with_other_bounds_is_not_a_relu():
    class Clamp(nn.Module):
        def forward(self, x):
            return torch.relu(x).clamp(0, 1).clamp(min=0.5)

    sites = count(Clamp(), nets.images())
    assert len(sites) == 1
    assert [other.kind for other in sites.other_nonlinear] == ["clamp", "clamp"]


@pytest.mark.parametrize(
    "example",
    [
        (nets.images(), torch.ones(2, 4, 6, 6)),
        [nets.images(), torch.ones(2, 4, 6, 6)],
        {"gate": torch.ones(2, 4, 6, 6), "x": nets.images()},
    ],
    ids=["tuple", "list", "dict"],
)
def test_several_inputs_with_options_at_their_defaults(example):
    net = nets.SeveralInputs()
    student = attach(net, example)
    x, gate = nets.images(), torch.ones(2, 4, 6, 6)
    assert torch.equal(student(x, gate), net(x, gate))
    assert torch.equal(student(gate=gate, x=x), net(x, gate))
    assert count(student, example).total == 4 * 36


def test_variable_arguments():
    class Star(nn.Module):
        def forward(self, *xs, **more):
            return torch.relu(sum(xs) + more["last"])

    x = nets.images()

    class Call(nn.Module):
        def __init__(self):
            super().__init__()
            self.star = Star()

        def forward(self, x):
            return self.star(x, x, last=x)

    assert count(Call(), x).by_site() == {"star.relu": 3 * 36}
    assert count(Star(), {"last": x}).total == 3 * 36


def test_include_and_exclude_by_pattern_and_module():
    net = nets.SharedBetweenBlocks()
    x = nets.images()

    def free(**options):
        return [site.name for site in count(net, x, **options) if not site.fixed]

    assert free(include="blocks.0.*") == ["blocks.0.act"]
    assert free(include="blocks.1") == ["blocks.1.act"]
    assert free(exclude=["*.1.act"]) == ["blocks.0.act"]
    assert free(exclude=net.blocks[0]) == ["blocks.1.act"]
    assert free(include=net.blocks) == ["blocks.0.act", "blocks.1.act"]
    assert count(net, x, exclude="blocks.0").total == 2 * 4 * 36


def test_a_relu_that_is_called_many_times_is_excluded_at_all_of_them():
    net = nets.OneReLUManyTimes()
    for pattern in (net.relu, "relu"):
        with pytest.raises(errors.OptionError, match="leave no site"):
            count(net, nets.images(), exclude=pattern)
    assert [site.fixed for site in count(net, nets.images(), exclude="relu_2")] == [False, True, False]


@pytest.mark.parametrize("option", [nn.ReLU, 3])
def test_a_pattern_that_is_none(option):
    with pytest.raises(errors.OptionError, match="pass names with"):
        count(nets.Modules(), nets.images(), exclude=option)


@pytest.mark.parametrize("options", [{"include": "layer9"}, {"exclude": "relu"}, {"exclude": nn.ReLU()}])
def test_a_pattern_that_matches_nothing_is_an_error(options):
    with pytest.raises(errors.OptionError, match="matches no site; the sites are relu1, relu2"):
        count(nets.Modules(), nets.images(), **options)


def test_excluding_everything_is_an_error():
    with pytest.raises(errors.OptionError, match="leave no site"):
        count(nets.Modules(), nets.images(), exclude="*")


def test_a_model_that_cannot_be_traced_is_replaced_by_module(caplog):
    net = nets.DataDependentModules().eval()
    with caplog.at_level(logging.INFO):
        sites = count(net, nets.images())
    assert "cannot follow" in caplog.text
    assert sites.by_site() == {"relu1": 144, "relu2": 144}
    assert [(o.name, o.kind) for o in sites.other_nonlinear] == [("gt", "gt"), ("six", "relu6")]
    masked = Mask({"relu1": torch.zeros(4, 6, 6, dtype=bool), "relu2": torch.ones(4, 6, 6, dtype=bool)})
    linear = masked.apply(net, nets.images())
    assert isinstance(linear.relu1, nn.Identity)
    assert isinstance(net.relu1, nn.ReLU)
    assert count(linear, nets.images()).by_site() == {"relu1": 0, "relu2": 144}


def test_what_cannot_be_replaced_says_which_module_and_line():
    with pytest.raises(errors.TraceError) as raised:
        count(nets.DataDependentFunction(), nets.images())
    assert "DataDependentFunction" in str(raised.value)
    assert str(raised.value).count("nets.py:") == 2
    with pytest.raises(errors.TraceError, match="'never' is not called for this example"):
        count(nets.DataDependentNever(), nets.images())
    with pytest.raises(errors.TraceError, match="'relu' is called 2 times"):
        count(nets.DataDependentTwice(), nets.images())
    outer = nn.Sequential(nn.Conv2d(3, 3, 1), nets.DataDependentFunction())
    with pytest.raises(errors.TraceError, match=r"module '1' \(DataDependentFunction\) at .*nets\.py:\d+"):
        count(outer, nets.images())


@pytest.mark.parametrize(
    "draw", [random.random, lambda: np.random.rand(), lambda: torch.rand(1).item()], ids=["python", "numpy", "torch"]
)
def test_random_numbers_in_forward_are_not_frozen(draw):
    with pytest.raises(errors.TraceError, match="draws random numbers"):
        count(nets.RandomInForward(draw), nets.images())


def test_generators_of_a_modules_own_are_watched():
    class Own(nn.Module):
        def __init__(self, generator, draw):
            super().__init__()
            self.generator, self.draw = generator, draw

        def forward(self, x):
            return x if self.draw(self.generator) < 1e-6 else torch.relu(x)

    for generator, draw in (
        (random.Random(1), lambda own: own.random()),
        (np.random.default_rng(1), lambda own: own.random()),
        (torch.Generator().manual_seed(1), lambda own: torch.rand(1, generator=own).item()),
    ):
        with pytest.raises(errors.TraceError, match="draws random numbers"):
            count(Own(generator, draw), nets.images())


def test_calls_that_are_left_to_chance_are_refused():
    class Chance(nn.Module):
        def __init__(self):
            super().__init__()
            self.relu = nn.ReLU()

        def forward(self, x):
            x = self.relu(x)
            return x if random.random() < 0.5 else torch.relu(x - 1)

    for seed in range(4):
        random.seed(seed)
        with pytest.raises(errors.TraceError):
            count(Chance(), nets.images())


@pytest.mark.parametrize("batch", [1, 5, 6])
def test_a_dimension_that_happens_to_have_the_size_of_the_batch(batch):
    class SequenceFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.ReLU()

        def forward(self, x):
            return self.last(torch.relu(x.transpose(0, 1)).transpose(0, 1) - 1)

    sites = count(SequenceFirst(), torch.randn(batch, 5, 3))
    assert {site.name: (site.count, site.reachable) for site in sites} == {"last": (15, True), "relu": (15, False)}


def test_drop_path_written_by_hand_is_fine():
    class DropPath(nn.Module):
        def forward(self, x):
            keep = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(0.5) if self.training else 1.0
            return torch.relu(x) * keep

    student = attach(DropPath().train(), nets.images())
    x = nets.images(64)
    assert torch.equal(nets.output(student, x)[0], nets.output(DropPath().train(), x)[0])
    assert not torch.equal(nets.output(student, x)[0], nets.output(student, x, seed=1)[0])


def test_a_relu_made_inside_forward():
    class Inside(nn.Module):
        def forward(self, x):
            return nn.MaxPool2d(2)(nn.ReLU(inplace=True)(x - 1))

    assert count(Inside(), nets.images()).by_site() == {"relu": 3 * 36}


def test_networks_that_return_dataclasses():
    @dataclass
    class Output:
        logits: torch.Tensor
        hidden: torch.Tensor | None = None

    class Net(nn.Module):
        def forward(self, x):
            return Output(torch.relu(x))

    assert count(Net(), nets.images()).total == 3 * 36


def test_a_compiled_network_is_counted_as_the_one_it_was_made_of():
    assert count(torch.compile(nets.Modules(), backend="eager"), nets.images()).by_site() == {"relu1": 144, "relu2": 144}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nets.Modules, "pass an nn.Module, an instance"),
        (torch.relu, "pass an nn.Module, an instance"),
        (None, "pass an nn.Module"),
        (nets.Modules().to("meta"), "meta device"),
    ],
    ids=["class", "function", "None", "meta"],
)
def test_what_is_not_a_network(model, said):
    with pytest.raises(errors.ModelError, match=said):
        count(model, nets.images())


def test_a_trace_that_computes_something_else_is_refused():
    with pytest.raises(errors.TraceError, match="in place through a view"):
        count(nets.ThroughAView(), nets.images())


def test_no_relu():
    with pytest.raises(errors.NoReLUError, match="its non-linear operations are gelu"):
        count(nets.NoReLU(), nets.images())
    with pytest.raises(errors.NoReLUError, match="no other non-linear"):
        count(nn.Sequential(nets.conv(), nn.Flatten()), nets.images())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_models_are_refused(kind):
    with pytest.raises(errors.ModelError, match=rf"'a.weight' is in {str(kind)[6:]}; call model.float\(\)"):
        count(nets.Modules().to(kind), nets.images().to(kind))


def test_double_precision_is_fine():
    assert count(nets.Modules().double(), nets.images(dtype=torch.float64)).total == 288


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (torch.randn(2, 4, 6, 6), "does not accept an example of shape 2×4×6×6"),
        (torch.randn(6), "does not accept an example of shape 6"),
        (torch.tensor(1.0), "scalar"),
        (torch.randn(0, 3, 6, 6), "an empty batch of shape 0×3×6×6"),
        ((), "holds no tensor"),
        (None, "is a NoneType"),
        ((nets.images(), nets.images()), "does not fit the network's forward"),
        ({"y": nets.images()}, "does not fit the network's forward"),
    ],
)
def test_a_wrong_example(example, said):
    with pytest.raises(errors.ExampleError) as raised:
        count(nets.Modules(), example)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_model_that_cannot_be_copied():
    class Uncopyable(nets.Modules):
        def __deepcopy__(self, memo):
            raise RuntimeError("no copies")

    with pytest.raises(errors.ModelError, match=r"copy.deepcopy: no copies"):
        count(Uncopyable(), nets.images())
