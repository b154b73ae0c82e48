import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reluctant import Mask, attach, binarize, count, errors, sloped
from reluctant._binarize import count_slopes
from reluctant.slopes import SlopedReLU, left_alone
from tests import nets


def four_ops(x, c):
    return c * torch.relu(x) + (1 - c) * x


def zero_out(x, c):
    return c * torch.relu(x)


@pytest.mark.parametrize("net", nets.EVERY, ids=lambda net: net.__name__)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_slopes_of_one_change_nothing(net, training):
    model = net().train(training)
    student = attach(model, nets.images())
    assert student.training == training
    x = nets.images(4, seed=1)
    for mine, theirs in zip(nets.output(student, x), nets.output(model, x), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("net", nets.EVERY, ids=lambda net: net.__name__)
def test_parameters_and_buffers_keep_names_and_values(net):
    model = nn.Sequential(net(), nn.Identity())
    model.register_buffer("extra", torch.ones(3))
    before = {name: (id(value), value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    student = attach(model, nets.images())
    theirs = student.state_dict()
    for name, (identity, value) in before.items():
        assert torch.equal(theirs[name], value)
        assert id(model.state_dict(keep_vars=True)[name]) == identity
    added = set(theirs) - set(before)
    assert added
    assert all(isinstance(student.get_submodule(name.rpartition(".")[0]), SlopedReLU) for name in added)


def test_constants_of_forward_are_not_in_the_state_but_move_with_the_model():
    student = attach(nets.Constants(), nets.images())
    assert not any("constant" in name for name in student.state_dict())
    doubled = student.double()
    assert doubled(nets.images(dtype=torch.float64)).dtype == torch.float64


def test_slopes_are_found_by_type_in_the_order_of_the_calls():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.ReLU(), nn.ReLU()
            self.alpha_slope = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.last(self.first(x) - self.alpha_slope)

    student = attach(Backwards(), nets.images())
    assert list(sloped(student)) == ["first", "last"]
    assert list(sloped(nn.ModuleDict({"module": student}))) == ["first", "last"]


@pytest.mark.parametrize(
    ("granularity", "image_slopes", "token_slopes"),
    [("pixel", (4, 6, 6), (5, 8)), ("channel", (4, 1, 1), (1, 8)), ("layer", (1, 1, 1), (1, 1))],
)
def test_granularities(granularity, image_slopes, token_slopes):
    student = attach(nets.Modules(), nets.images(), granularity=granularity)
    for module in sloped(student).values():
        assert module.slope.shape == image_slopes
        assert module.governs * module.slope.numel() == 144
    tokens = attach(nets.Tokens(), torch.randn(2, 5, 3), granularity=granularity)
    assert sloped(tokens)["relu"].slope.shape == token_slopes


def test_unknown_granularity_suggests_the_nearest():
    with pytest.raises(errors.OptionError, match="did you mean 'pixel'"):
        attach(nets.Modules(), nets.images(), granularity="pixels")


def test_what_is_excluded_stays_a_relu():
    student = attach(nets.Modules(), nets.images(), exclude="relu1")
    assert list(sloped(student)) == ["relu2"]
    assert list(left_alone(student)) == ["relu1"]
    assert isinstance(student.relu1, nn.ReLU)


def test_a_network_without_slopes_says_so():
    with pytest.raises(errors.ModelError, match=r"reluctant\.attach"):
        sloped(nets.Modules())


@pytest.mark.parametrize("zeroing", [False, True], ids=["linear", "zero_out"])
@pytest.mark.parametrize("granularity", ["pixel", "channel", "layer"])
def test_gradients_equal_those_of_the_formula(granularity, zeroing):
    relu = SlopedReLU("relu", 0, (3, 4, 2), granularity=granularity, zero_out=zeroing).double()
    with torch.no_grad():
        relu.slope.uniform_(-0.5, 1.5)
    x = torch.randn(5, 3, 4, 2, dtype=torch.float64)
    x[0, 0, 0, 0] = 0.0  # where relu has its corner
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    c = relu.slope.detach().clone().requires_grad_()
    weight = torch.randn_like(x)
    (relu(ours) * weight).sum().backward()
    ((zero_out if zeroing else four_ops)(theirs, c) * weight).sum().backward()
    torch.testing.assert_close(relu(ours), (zero_out if zeroing else four_ops)(theirs, c), rtol=0, atol=1e-15)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(relu.slope.grad, c.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("zeroing", [False, True], ids=["linear", "zero_out"])
@pytest.mark.parametrize("granularity", ["pixel", "channel", "layer"])
def test_slopes_from_full_on_are_computed_with_as_one(granularity, zeroing):
    relu = SlopedReLU("relu", 0, (3, 4, 2), granularity=granularity, zero_out=zeroing).double()
    with torch.no_grad():
        relu.slope.uniform_(-0.01, 0.9)
    relu.full = 0.3
    x = torch.randn(5, 3, 4, 2, dtype=torch.float64, requires_grad=True)
    effective = (relu.slope.detach() / 0.3).clamp(max=1).requires_grad_()
    expected = (zero_out if zeroing else four_ops)(x, effective)
    torch.testing.assert_close(relu(x), expected, rtol=0, atol=1e-14)
    weight = torch.randn_like(x)
    (relu(x) * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(relu.slope.grad, effective.grad, rtol=1e-12, atol=1e-14)
    if granularity == "pixel":
        assert relu.slope.grad[relu.slope > 0.3].abs().sum() > 0  # also where it is full


@pytest.mark.parametrize("zeroing", [False, True], ids=["linear", "zero_out"])
def test_gradcheck(zeroing):
    relu = SlopedReLU("relu", 0, (2, 3), granularity="pixel", zero_out=zeroing).double()
    x = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    c = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)

    def apply(x, c):
        return torch.func.functional_call(relu, {"slope": c}, (x,))

    assert torch.autograd.gradcheck(apply, (x, c))
    assert torch.autograd.gradgradcheck(apply, (x, c))


def test_autocast_keeps_features_in_bfloat16_and_slopes_in_float32():
    student = attach(nets.Modules(), nets.images())
    with torch.autocast("cpu", torch.bfloat16):
        out = student(nets.images())
        features = student.relu1(student.a(nets.images()))
    assert features.dtype == torch.bfloat16
    out.float().sum().backward()
    for module in sloped(student).values():
        assert module.slope.dtype == module.slope.grad.dtype == torch.float32
        assert module.slope.grad.abs().sum() > 0
    torch.testing.assert_close(out.float(), nets.Modules.forward(student, nets.images()), rtol=0.05, atol=0.05)


def test_channels_last_stays_channels_last():
    student = attach(nets.Modules(), nets.images()).to(memory_format=torch.channels_last)
    with torch.no_grad():
        for module in sloped(student).values():
            module.slope.uniform_()
    x = nets.images(4)
    features = student.relu1(student.a(x.to(memory_format=torch.channels_last)))
    assert features.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(student(x.to(memory_format=torch.channels_last)), student(x))


def test_torch_compile():
    student = attach(nets.TrainingHead(), nets.images()).eval()
    with torch.no_grad():
        sloped(student)["relu"].slope.uniform_()
    compiled = torch.compile(student, backend="aot_eager", fullgraph=True)
    x = nets.images(3)
    torch.testing.assert_close(compiled(x), student(x))
    assert list(sloped(compiled)) == ["relu", "relu_2"]
    compiled(x).sum().backward()
    assert sloped(student)["relu"].slope.grad.abs().sum() > 0


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))], ids=["deepcopy", "pickle"])
def test_copies_are_independent(copied):
    student = attach(nets.TrainingHead(), nets.images())
    other = copied(student)
    with torch.no_grad():
        sloped(other)["relu"].slope.zero_()
    assert sloped(student)["relu"].slope.min() == 1
    x = nets.images(1)
    for training in (True, False):
        student.train(training), other.train(training)
        other.load_state_dict(student.state_dict())
        for mine, theirs in zip(nets.output(student, x), nets.output(other, x), strict=True):
            assert torch.equal(mine, theirs)


def test_state_dict_round_trip(tmp_path):
    student = attach(nets.Modules(), nets.images(), granularity="channel")
    with torch.no_grad():
        for module in sloped(student).values():
            module.slope.uniform_()
    torch.save(student.state_dict(), tmp_path / "student.pt")
    fresh = attach(nets.Modules(), nets.images(), granularity="channel")
    fresh.load_state_dict(torch.load(tmp_path / "student.pt", weights_only=True))
    assert torch.equal(fresh(nets.images()), student(nets.images()))


def test_attaching_to_a_network_with_slopes_or_a_mask_begins_with_those():
    student = attach(nets.Modules(), nets.images())
    with torch.no_grad():
        sloped(student)["relu1"].slope.uniform_()
    x = nets.images(3, seed=4)
    assert torch.equal(attach(student, nets.images())(x), student(x))
    sloped(student)["relu1"].full = 0.5
    assert torch.equal(attach(student, nets.images())(x), student(x))
    with torch.no_grad():
        sloped(student)["relu2"].slope.zero_()
    masked = binarize(student, 50).apply(student, nets.images())
    again = attach(masked, nets.images())
    assert torch.equal(again(x), masked(x))
    assert count_slopes(again) == 50
    with pytest.raises(errors.ModelError, match="'relu1' has a finer mask than one channel"):
        attach(masked, nets.images(), granularity="channel")


def test_what_a_masked_network_has_lost_does_not_come_back():
    x = nets.images()
    student = attach(nets.Modules(), x)
    with torch.no_grad():
        sloped(student)["relu2"].slope.zero_()
    masked = binarize(student, 100).apply(student, x)
    for options in ({"exclude": "relu1"}, {"include": "relu1"}):
        with pytest.raises(errors.ModelError, match="is masked already"):
            attach(masked, x, **options)
    with pytest.raises(errors.ModelError, match="is linear already; it cannot become zero"):
        attach(masked, x, zero_out=True)
    zeroed = Mask(dict(binarize(student, 100)), zero_out=True).apply(student, x)
    with pytest.raises(errors.ModelError, match="is zero already; it cannot become linear"):
        attach(zeroed, x)
    assert torch.equal(attach(zeroed, x, zero_out=True)(x), zeroed(x))


def test_inference_mode_does_not_reach_the_copy():
    with torch.inference_mode():
        student = attach(nets.Modules(), nets.images())
    student(nets.images()).sum().backward()
    assert sloped(student)["relu1"].slope.grad is not None


def test_arguments_that_are_no_tensors_are_kept_and_checked():
    class Flags(nn.Module):
        def forward(self, x, double=False, scale=None):
            x = torch.relu(x) * (2 if double else 1)
            return x if scale is None else x * scale

    x = nets.images()
    student = attach(Flags(), (x, True, 3.0))
    assert torch.equal(student(x, True, 3.0), Flags()(x, True, 3.0))
    assert torch.equal(student(x=x, double=True, scale=3.0), Flags()(x, True, 3.0))
    for wrong in ((x, False, 3.0), (x, True, 2.0), (x, True), (x,)):
        with pytest.raises(errors.ModelError, match="made for"):
            student(*wrong)
    assert torch.equal(attach(Flags(), (x, False, None))(x), Flags()(x))
    named = attach(Flags(), {"x": x, "scale": 2.0})
    assert torch.equal(named(x, scale=2.0), Flags()(x, scale=2.0))


def test_a_network_with_a_functional_max_pool_can_be_pickled():
    class Pool(nn.Module):
        def forward(self, x):
            return F.max_pool2d(torch.relu(x), 2)

    student = attach(Pool(), nets.images())
    again = pickle.loads(pickle.dumps(student))
    assert torch.equal(again(nets.images()), Pool()(nets.images()))
    assert count(again, nets.images()).total == 3 * 36
