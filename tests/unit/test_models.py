import pytest
import torch
from safetensors.torch import save_file

from reluctant import count, errors, models


@pytest.mark.parametrize(
    ("name", "options", "relus"),
    [
        ("resnet18", {}, 491_520),
        ("resnet18", {"stem_relu": True}, 557_056),
        ("resnet34", {}, 901_120),
        ("wide_resnet22_8", {}, 1_359_872),
        ("wide_resnet22_8", {"final_relu": True}, 1_392_640),
        ("resnet20", {}, 172_032),
        ("resnet20", {"shortcut": "pad"}, 172_032),
        ("resnet20", {"stem_relu": True}, 188_416),
        ("vgg", {"stem_relu": True}, 276_480),
        ("vgg", {}, 210_944),
        ("vgg", {"depth": 11, "pool": "average", "stem_relu": True}, 151_552),
        ("mlp", {"hidden": [300, 100]}, 400),
        ("mlp", {"hidden": 50}, 50),
        ("small", {}, 57_344),
        ("small", {"width": 8}, 28_672),
    ],
)
def test_totals_at_32(name, options, relus):
    assert count(models.create(name, **options), torch.zeros(1, 3, 32, 32)).total == relus


def test_resnet18_at_64_and_small_at_16():
    assert count(models.create("resnet18"), torch.zeros(1, 3, 64, 64)).total == 1_966_080
    small = models.create("small", input_shape=(1, 16, 16))
    assert count(small, torch.zeros(1, 1, 16, 16)).total == 14_336


def test_every_name_makes_a_network_of_that_many_classes():
    for name in models.names():
        assert models.create(name, num_classes=7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


def test_no_relu_after_the_stem_by_default():
    for name in ("resnet18", "resnet20", "small", "vgg"):
        first = count(models.create(name), torch.zeros(1, 3, 32, 32))[0]
        assert first.name in ("layer1.0.relu1", "features.4")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("resnet8", {}, "unknown architecture 'resnet8'; did you mean 'resnet18'"),
        ("resnet18", {"stem_rleu": True}, "unknown option of resnet18 'stem_rleu'; did you mean 'stem_relu'"),
        ("resnet20", {"shortcut": "padd"}, "did you mean 'pad'"),
        ("vgg", {"depth": 12}, "depth of vgg"),
        ("vgg", {"pool": "mean"}, "unknown pool"),
        ("small", {"num_classes": 0}, "at least 1"),
        ("small", {"width": 0}, "width is 0; pass the channels of the first stage, 16 if not given"),
    ],
)
def test_wrong_names_and_options(name, options, said):
    with pytest.raises(errors.OptionError) as raised:
        models.create(name, **options)
    assert said in str(raised.value)


def public_resnet20(tmp_path):
    """A file as it is found in public: a torch file, a nested state_dict, `module.` everywhere, `linear` at the end."""
    torch.manual_seed(1)
    net = models.create("resnet20", shortcut="pad", stem_relu=True)
    state = {
        "module." + name.replace("fc.", "linear."): value
        for name, value in net.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    torch.save({"best_prec1": 91.7, "state_dict": state}, tmp_path / "resnet20.th")
    return net


def test_public_weights_load(tmp_path):
    net = public_resnet20(tmp_path)
    torch.manual_seed(2)
    fresh = models.create("resnet20", shortcut="pad", stem_relu=True)
    models.load_weights(fresh, tmp_path / "resnet20.th")
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(fresh.eval()(x), net.eval()(x))


def test_half_precision_weights_become_single(tmp_path):
    net = models.create("resnet18", num_classes=100)
    save_file({name: value.half() for name, value in net.state_dict().items()}, tmp_path / "w.safetensors")
    fresh = models.create("resnet18", num_classes=100)
    models.load_weights(fresh, tmp_path / "w.safetensors")
    assert fresh.fc.weight.dtype == torch.float32
    torch.testing.assert_close(fresh.fc.weight, net.fc.weight, rtol=1e-3, atol=1e-3)


def test_weights_that_do_not_fit(tmp_path):
    public_resnet20(tmp_path)
    path = tmp_path / "resnet20.th"
    with pytest.raises(errors.WeightsError, match=r"has no 'layer2\.0\.shortcut\.0\.weight' of ResNet"):
        models.load_weights(models.create("resnet20"), path)
    with pytest.raises(errors.WeightsError, match=r"'fc\.weight' is 10×64 .* 100×64"):
        models.load_weights(models.create("resnet20", num_classes=100, shortcut="pad"), path)
    with pytest.raises(errors.WeightsError, match="there is no weight file"):
        models.load_weights(models.create("resnet20"), tmp_path / "none.th")
    (tmp_path / "cut.th").write_bytes(path.read_bytes()[:500])
    with pytest.raises(errors.WeightsError, match="cannot be read"):
        models.load_weights(models.create("resnet20"), tmp_path / "cut.th")
    (tmp_path / "cut.safetensors").write_bytes(b"1234")
    with pytest.raises(errors.WeightsError, match="cannot be read"):
        models.load_weights(models.create("resnet20"), tmp_path / "cut.safetensors")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(errors.WeightsError, match="holds no state_dict"):
        models.load_weights(models.create("resnet20"), tmp_path / "list.pt")


def test_code_in_a_weight_file_is_not_run(tmp_path):
    torch.save(models.create("small"), tmp_path / "whole.pt")  # a pickled module, not a state_dict
    with pytest.raises(errors.WeightsError, match="without running code"):
        models.load_weights(models.create("small"), tmp_path / "whole.pt")
