import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from reluctant import Mask, attach, binarize, count, errors, sloped
from reluctant.mask import MaskedReLU
from tests import nets


def uniform_slopes(model, example, seed=0, **options):
    student = attach(model, example, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in sloped(student).values():
            module.slope.uniform_(-0.2, 1.2, generator=generator)
    return student


def constant_mask(model, value):
    shapes = count(model, nets.images()).shapes
    return Mask({site: torch.full(shape, value, dtype=torch.bool) for site, shape in shapes.items()})


@pytest.mark.parametrize("net", nets.EVERY, ids=lambda net: net.__name__)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_an_all_true_mask_is_bit_for_bit_the_original(net, training):
    model = net().train(training)
    masked = constant_mask(model, True).apply(model, nets.images())
    x = nets.images(4, seed=2)
    ours, theirs = nets.output(masked, x), nets.output(model, x)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    sum(out.sum() for out in ours).backward()
    sum(out.sum() for out in theirs).backward()
    gradients = {name: p.grad for name, p in masked.named_parameters()}
    for name, parameter in model.named_parameters():
        assert (gradients[name] is None) == (parameter.grad is None)  # a head that this mode does not run
        assert parameter.grad is None or torch.equal(gradients[name], parameter.grad)


@pytest.mark.parametrize("net", [nets.Modules, nets.OneReLUManyTimes, nets.Functional, nets.InPlaceSeenLater])
def test_an_all_false_mask_is_affine(net):
    model = net().double().eval()
    linear = constant_mask(net(), False).apply(model, nets.images(dtype=torch.float64))
    x, y = nets.images(2, 1, torch.float64), nets.images(2, 2, torch.float64)
    torch.testing.assert_close(linear((x + 3 * y) / 4), (linear(x) + 3 * linear(y)) / 4)
    assert count(linear, nets.images(dtype=torch.float64)).total == 0


def test_sites_become_the_plainest_module():
    mask = Mask(
        {
            "relu": torch.ones(4, 6, 6, dtype=torch.bool),
            "relu_2": torch.zeros(4, 6, 6, dtype=torch.bool),
            "relu_3": torch.rand(4, 6, 6) > 0.5,
        }
    )
    masked = mask.apply(nets.OneReLUManyTimes(), nets.images())
    assert type(masked.relu) is nn.ReLU
    assert type(masked.relu_2) is nn.Identity
    assert type(masked.relu_3) is MaskedReLU
    assert count(masked, nets.images()).by_site() == mask.counts
    assert isinstance(masked.relu_3.mask, torch.Tensor)
    assert "relu_3.mask" in dict(masked.named_buffers())
    assert not any("relu" in name for name, _ in masked.named_parameters())


@pytest.mark.parametrize("zero_out", [False, True], ids=["linear", "zero_out"])
def test_a_masked_network_computes_what_its_slopes_would(zero_out):
    student = uniform_slopes(nets.Functional().double(), nets.images(dtype=torch.float64), zero_out=zero_out)
    mask = binarize(student, "40%")
    assert mask.zero_out == zero_out
    masked = mask.apply(student, nets.images(dtype=torch.float64))
    with torch.no_grad():
        for site, module in sloped(student).items():
            module.slope.copy_(mask[site])
    x = nets.images(3, 5, torch.float64)
    torch.testing.assert_close(masked(x), student(x))
    assert count(masked, x).total == mask.count


def test_the_gradient_at_zero_is_that_of_relu():
    masked = MaskedReLU(torch.tensor([True, False]))
    x = torch.tensor([[0.0, 0.0], [-1.0, -1.0], [2.0, 2.0]], requires_grad=True)
    masked(x).sum().backward()
    assert x.grad.tolist() == [[0, 1], [0, 1], [1, 1]]


def test_masked_relu_gradcheck_and_precision():
    masked = MaskedReLU(torch.rand(3, 2) > 0.5)
    assert torch.autograd.gradcheck(masked, torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True))
    assert masked(torch.randn(4, 3, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    x = torch.randn(4, 3, 2)
    torch.testing.assert_close(torch.compile(masked, backend="aot_eager", fullgraph=True)(x), masked(x))


def test_masks_can_be_applied_to_masked_and_sloped_networks():
    model = nets.Modules()
    student = uniform_slopes(model, nets.images())
    big, little = binarize(student, 200), binarize(student, 20)
    once = little.apply(model, nets.images())
    twice = little.apply(big.apply(student, nets.images()), nets.images())
    x = nets.images(4)
    assert torch.equal(once(x), twice(x))
    assert big.apply(once, nets.images()).get_submodule("relu1").count + 0 == big.counts["relu1"]


@given(budget=st.integers(0, 288), seed=st.integers(0, 50), granularity=st.sampled_from(["pixel", "channel", "layer"]))
@settings(max_examples=60, deadline=None)
def test_binarize_never_exceeds_the_budget_and_leaves_nothing_that_fits(budget, seed, granularity):
    student = uniform_slopes(nets.Modules(), nets.images(), seed, granularity=granularity)
    mask = binarize(student, budget)
    assert mask.count <= budget
    smallest_left_out = min((s.governs for site, s in sloped(student).items() if not mask[site].all()), default=budget + 1)
    assert smallest_left_out > budget - mask.count
    if granularity == "pixel":
        assert mask.count == budget


@given(small=st.integers(0, 288), large=st.integers(0, 288), seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_pixel_masks_nest_as_the_budget_shrinks(small, large, seed):
    small, large = sorted((small, large))
    student = uniform_slopes(nets.Modules(), nets.images(), seed)
    assert binarize(student, small) <= binarize(student, large)


def test_masks_nest_even_where_slopes_are_equal():
    student = attach(nets.Modules(), nets.images())
    assert binarize(student, 10) < binarize(student, 100) < binarize(student, 288)


def test_the_highest_slopes_are_kept():
    student = uniform_slopes(nets.Modules(), nets.images())
    mask = binarize(student, 100)
    kept = torch.cat([s.slope[mask[site]] for site, s in sloped(student).items()])
    left = torch.cat([s.slope[~mask[site]] for site, s in sloped(student).items()])
    assert kept.min() >= left.max()


def test_channels_are_kept_whole():
    student = uniform_slopes(nets.Modules(), nets.images(), granularity="channel")
    mask = binarize(student, 150)
    assert mask.count == 4 * 36  # the fifth channel does not fit
    assert mask.granularity == "channel"
    for tensor in mask.values():
        per_channel = tensor.flatten(1).float().mean(1)
        assert set(per_channel.tolist()) <= {0.0, 1.0}


def test_the_papers_threshold_stays_available():
    student = uniform_slopes(nets.Modules(), nets.images())
    above = sum(int((s.slope > 0.01).sum()) for s in sloped(student).values())
    assert binarize(student, 288, exact=False).count == above
    with pytest.raises(errors.BudgetError, match=rf"{above} slopes are above 0.01"):
        binarize(student, above - 1, exact=False)


def test_the_budget_includes_what_was_left_alone():
    student = uniform_slopes(nets.Modules(), nets.images(), exclude="relu1")
    mask = binarize(student, 150)
    assert mask.counts == {"relu1": 144, "relu2": 6}
    with pytest.raises(errors.BudgetError, match="below the 144 ReLUs that stay"):
        binarize(student, 100)


@pytest.mark.parametrize("budget", [-1, 0.1, 289, "abc", "110%"])
def test_binarize_refuses_a_bad_budget(budget):
    with pytest.raises(errors.BudgetError):
        binarize(attach(nets.Modules(), nets.images()), budget)


def test_nan_slopes_are_refused():
    student = attach(nets.Modules(), nets.images())
    with torch.no_grad():
        sloped(student)["relu1"].slope[0] = float("nan")
    with pytest.raises(errors.MaskError, match="diverged"):
        binarize(student, 5)


def test_relus_out_of_reach_stay_and_count():
    x = torch.randn(2, 5, 4)
    student = attach(nets.FoldedBatch(), x)
    with pytest.raises(errors.BudgetError, match="below the 40 ReLUs that stay"):
        binarize(student, 20)
    mask = binarize(student, 43)
    assert mask.counts == {"g.1": 3, "f.1": 40}
    masked = mask.apply(nets.FoldedBatch(), x)
    assert count(masked, x).total == 43
    assert count(mask.freeze(student), x).total == 43
    with pytest.raises(errors.MaskMismatch, match=r"'f\.1' is out of reach"):
        (mask - mask).apply(nets.FoldedBatch(), x)


def test_a_mask_by_channel_that_fits_nothing_says_so(caplog):
    student = uniform_slopes(nets.Modules(), nets.images(), granularity="layer")
    assert binarize(student, 100).count == 0
    assert "no layer fits into the budget of 100" in caplog.text


def test_binarizing_without_a_search_says_so(caplog):
    binarize(attach(nets.Modules(), nets.images()), 100)
    assert "all slopes are equal" in caplog.text


def test_another_input_size_names_the_site():
    masked = binarize(uniform_slopes(nets.Modules(), nets.images()), 100).apply(nets.Modules(), nets.images())
    with pytest.raises(errors.ExampleError, match="site 'relu1' was masked for features of 4×6×6 and got 4×8×8"):
        masked(torch.randn(1, 3, 8, 8))


def test_a_flipped_bit_in_a_file_is_noticed(saved):
    content = bytearray(saved.read_bytes())
    content[-5] ^= 1
    saved.write_bytes(bytes(content))
    with pytest.raises(errors.MaskError, match="its bits are not those"):
        Mask.load(saved)


def test_masks_behave_as_sets():
    a = Mask({"r": torch.tensor([True, True, False, False])})
    b = Mask({"r": torch.tensor([True, False, True, False])})
    assert (a & b)["r"].tolist() == [True, False, False, False]
    assert (a | b)["r"].tolist() == [True, True, True, False]
    assert (a ^ b)["r"].tolist() == [False, True, True, False]
    assert (a - b)["r"].tolist() == [False, True, False, False]
    assert (~a)["r"].tolist() == [False, False, True, True]
    assert a & b <= a < (a | b) > b >= b
    assert not a <= b
    assert a == Mask(dict(a))
    assert a != b
    assert dict(a.counts) == {"r": 2}
    assert len(a) == 1
    assert "2 of 4 ReLUs in 1 sites" in repr(a)
    with pytest.raises(errors.MaskMismatch, match="'r'"):
        a & Mask({"s": torch.tensor([True])})
    with pytest.raises(TypeError):
        a & 3
    with pytest.raises(TypeError):
        hash(a)


def test_a_mask_does_not_change_with_the_tensors_it_was_made_of():
    tensor = torch.tensor([True, False])
    mask = Mask({"r": tensor})
    tensor[:] = False
    assert mask.count == 1
    with pytest.raises(errors.MaskError, match="pass bool tensors"):
        Mask({"r": torch.ones(3)})


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda t: t != "__metadata__"),
        st.lists(st.booleans(), min_size=1, max_size=20),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["pixel", "channel", "layer"]),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_save_and_load_is_the_identity(tmp_path_factory, content, granularity, zero_out):
    mask = Mask({site: torch.tensor(bits) for site, bits in content.items()}, granularity=granularity, zero_out=zero_out)
    path = tmp_path_factory.mktemp("masks") / "mask.safetensors"
    mask.save(path)
    again = Mask.load(path)
    assert again == mask
    assert list(again) == list(mask)
    assert (again.granularity, again.zero_out, again.fingerprint) == (granularity, zero_out, mask.fingerprint)
    assert [file.name for file in path.parent.iterdir()] == ["mask.safetensors"]


@pytest.fixture
def saved(tmp_path):
    mask = constant_mask(nets.Modules(), True)
    mask.save(tmp_path / "mask.safetensors")
    return tmp_path / "mask.safetensors"


def rewritten(path, **metadata):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        old = file.metadata()
    save_file(load_file(path), path, metadata={**old, **metadata})


def test_a_truncated_file(saved):
    saved.write_bytes(saved.read_bytes()[:-40])
    with pytest.raises(errors.MaskError, match="is damaged"):
        Mask.load(saved)
    saved.write_bytes(b"")
    with pytest.raises(errors.MaskError, match="is damaged"):
        Mask.load(saved)


def test_a_file_of_a_future_version(saved):
    rewritten(saved, version="2")
    with pytest.raises(errors.MaskError, match="format version 2, and this reluctant reads up to 1; upgrade"):
        Mask.load(saved)


def test_a_file_with_other_sites_than_it_was_saved_with(saved):
    rewritten(saved, sites=json.dumps(["relu1"]))
    with pytest.raises(errors.MaskError, match="its sites are not those"):
        Mask.load(saved)


def test_a_safetensors_file_that_is_no_mask(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(errors.MaskError, match="not a mask"):
        Mask.load(tmp_path / "weights.safetensors")
    with pytest.raises(errors.MaskError, match="there is no mask file"):
        Mask.load(tmp_path / "nothing.safetensors")


def test_a_failed_save_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    old = saved.read_bytes()

    def disk_full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("reluctant.mask.save_file", disk_full)
    with pytest.raises(errors.MaskError, match="No space left"):
        constant_mask(nets.Modules(), False).save(saved)
    assert saved.read_bytes() == old
    assert len(list(saved.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"relu1": (4, 6, 6)}, "the network has a site 'relu2' and the mask does not"),
        ({"relu1": (4, 6, 6), "relu2": (4, 6, 6), "x": (1,)}, "the mask has a site 'x' and the network does not"),
        ({"relu1": (4, 6, 6), "relu2": (4, 8, 8)}, "site 'relu2' is 4×8×8 in the mask and 4×6×6 in the network"),
    ],
)
def test_a_mask_of_another_network(tensors, said):
    mask = Mask({site: torch.ones(shape, dtype=torch.bool) for site, shape in tensors.items()})
    with pytest.raises(errors.MaskMismatch) as raised:
        mask.apply(nets.Modules(), nets.images())
    assert said in str(raised.value)
