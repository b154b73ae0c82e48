import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file

from reluctant import Mask, count, errors, linearize, load
from reluctant.recipes import Recipe
from reluctant.runs import Run
from tests import toys

SPEC = {"kind": "test", "budget": 5}


def begin(folder, recipe=None, spec=SPEC, **options):
    return Run.begin(folder, spec, recipe or Recipe(), **options)


def linearized(folder, recipe=None, **options):
    return linearize(
        toys.toy(),
        budget=40,
        train=toys.batches(shuffle=True),
        val=toys.batches(32, seed=1),
        test=toys.batches(32, seed=2),
        recipe=recipe or toys.recipe(),
        run_dir=folder,
        **options,
    )


def test_linearize_gives_a_finished_run_that_loads_again(tmp_path):
    told = []
    result = linearized(tmp_path / "run", on_epoch=told.append)
    assert result.count == result.mask.count == 40
    assert set(result.accuracy) == {"base", "val", "base_test", "test"}
    assert [row["phase"] for row in result.history] == ["search"] * 4 + ["finetune"] * 2
    assert told == result.history
    files = {path.name for path in (tmp_path / "run").iterdir()}
    expected = {"run.json", "recipe.toml", "environment.json", "metrics.jsonl", "mask.safetensors", "model.safetensors"}
    assert expected | {"result.json"} <= files
    assert not any(name.endswith((".ckpt", ".previous", ".part")) for name in files)
    printed = json.loads((tmp_path / "run" / "result.json").read_text())
    keys = ["run", "total", "budget", "count", "granularity", "method", "schedule", "search_epochs", "seconds", "accuracy"]
    assert list(printed) == keys
    assert (printed["total"], printed["budget"], printed["count"], printed["search_epochs"]) == (127, 40, 40, 4)
    again = load(tmp_path / "run", model=toys.toy(seed=5))
    x = toys.examples(8)[0]
    assert torch.equal(again.model(x), result.model.eval()(x))
    assert again.mask == result.mask == Mask.load(tmp_path / "run" / "mask.safetensors")
    assert again.recipe == toys.recipe()
    assert again.metrics == result.history
    assert count(again.model, x).total == 40
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    if not torch.cuda.is_available():
        name, _, vectors = environment["device"].rpartition(", ")
        assert name
        assert vectors == torch.backends.cpu.get_cpu_capability()


def test_a_mask_that_is_given_is_finetuned_on_the_networks_own_weights(tmp_path):
    found = linearized(tmp_path / "searched")
    options = {"train": toys.batches(shuffle=True), "val": toys.batches(32, seed=1), "recipe": toys.recipe()}
    for mask in (found.mask, tmp_path / "searched", tmp_path / "searched" / "mask.safetensors"):
        result = linearize(toys.toy(), mask=mask, run_dir=tmp_path / "given", force=True, **options)
        assert result.mask == found.mask
        assert (result.method, result.schedule, result.budget) == ("given", "none", 40)
        assert [row["phase"] for row in result.history] == ["finetune"] * 2
    begun = found.mask.apply(toys.toy(), toys.examples(2)[0]).state_dict()
    kept = load_file(tmp_path / "given" / "searched.safetensors")
    assert kept
    assert all(torch.equal(begun[name], value) for name, value in kept.items())
    assert not torch.equal(load(tmp_path / "given", model=toys.toy()).model.fc.weight, toys.toy().fc.weight)


def test_another_mask_does_not_go_on_with_a_run(tmp_path):
    options = {"train": toys.batches(), "val": toys.batches(seed=1), "recipe": toys.recipe(), "run_dir": tmp_path / "run"}
    mask = linearized(tmp_path / "searched").mask

    def kill(row):
        raise Killed

    with pytest.raises(Killed):
        linearize(toys.toy(), mask=mask, on_epoch=kill, **options)
    other = linearized(tmp_path / "other", seed=1).mask
    assert other != mask
    with pytest.raises(errors.RunError, match="holds a run with mask"):
        linearize(toys.toy(), mask=other, **options)
    assert linearize(toys.toy(), mask=mask, **options).mask == mask


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, errors.OptionError, "pass either a budget"),
        ({"budget": 40, "mask": "given"}, errors.OptionError, "pass either a budget"),
        ({"mask": "given", "granularity": "channel", "include": "a"}, errors.OptionError, "leave out granularity, include"),
        ({"mask": "nowhere"}, errors.MaskError, "there is no mask file nowhere"),
        ({"mask": Mask({"relu": torch.ones(3, dtype=torch.bool)})}, errors.MaskMismatch, "made for another network"),
    ],
)
def test_masks_that_cannot_be_given(tmp_path, options, error, said):
    if options.get("mask") == "given":
        options = options | {"mask": linearized(tmp_path / "searched").mask}
    with pytest.raises(error, match=said):
        linearize(toys.toy(), train=toys.batches(), val=toys.batches(seed=1), run_dir=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_the_model_passed_in_is_untouched(tmp_path):
    model = toys.toy()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = linearize(model, budget=10, train=toys.batches(), val=toys.batches(seed=1), recipe=toys.recipe())
    assert result.run_dir is None
    assert set(result.accuracy) == {"base", "val"}
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_loss_and_a_metric_of_ones_own(tmp_path):
    called = []

    def loss(outputs, targets):
        called.append("loss")
        return outputs.square().mean()

    result = linearize(
        toys.toy(),
        budget=10,
        train=toys.batches(),
        val=toys.batches(seed=1),
        recipe=toys.recipe(),
        loss=loss,
        metric=lambda outputs, targets: 3.0,
    )
    assert called
    assert result.accuracy == {"base": 3.0, "val": 3.0}


def test_a_finished_run_is_not_overwritten(tmp_path):
    linearized(tmp_path / "run")
    with pytest.raises(errors.RunError, match="holds a finished run; pass another folder, or replace it"):
        linearized(tmp_path / "run")
    assert linearized(tmp_path / "run", force=True).count == 40


class Killed(BaseException):
    pass


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(tmp_path, rows):
    whole = linearized(tmp_path / "whole")
    seen = []

    def kill(row):
        seen.append(row)
        if len(seen) == rows:
            raise Killed

    with pytest.raises(Killed):
        linearized(tmp_path / "run", on_epoch=kill)
    resumed = linearized(tmp_path / "run")
    assert resumed.mask == whole.mask
    assert resumed.accuracy == whole.accuracy
    plain = [{k: v for k, v in row.items() if k != "seconds"} for row in resumed.history]
    assert plain == [{k: v for k, v in row.items() if k != "seconds"} for row in whole.history]


def test_an_unfinished_run_with_other_settings_is_not_continued(tmp_path):
    begin(tmp_path)
    with pytest.raises(errors.RunError, match="holds a run with budget 5, not 6"):
        begin(tmp_path, spec={**SPEC, "budget": 6})
    with pytest.raises(errors.RunError, match=r"search.penalty = None, not 0.1"):
        begin(tmp_path, Recipe().override({"penalty": 0.1}))
    assert begin(tmp_path, spec={**SPEC, "budget": 6}, force=True).spec["budget"] == 6


def test_a_budget_not_reached_can_be_continued_with_more_epochs(tmp_path):
    slow = {"schedule": "paper", "penalty": 1e-2, "slope_lr": 3e-2, "lr": 1e-3}
    with pytest.raises(errors.BudgetError, match=r"after 3 epochs \d+ ReLUs are left and the budget is 40"):
        linearized(tmp_path / "run", toys.recipe(**slow, epochs=3))
    result = linearized(tmp_path / "run", toys.recipe(**slow, epochs=200))
    assert result.count == 40
    assert result.history[2]["epoch"] == 2
    assert result.mask == linearized(tmp_path / "whole", toys.recipe(**slow, epochs=200)).mask


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_there(tmp_path):
    run = begin(tmp_path)
    run.save("search", {"epoch": 1})
    run.save("search", {"epoch": 2})
    assert run.load("search") == {"epoch": 2}
    (tmp_path / "search.ckpt").write_bytes(b"gone")
    with pytest.raises(errors.RunError, match=r"search.ckpt is damaged .*; move search.ckpt.previous there"):
        run.load("search")
    (tmp_path / "search.ckpt.previous").rename(tmp_path / "search.ckpt")
    assert run.load("search") == {"epoch": 1}


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    run = begin(tmp_path)
    run.save("search", {"epoch": 1})

    def full(state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(errors.RunError, match="No space left on device"):
        run.save("search", {"epoch": 2})
    assert run.load("search") == {"epoch": 1}
    assert not list(tmp_path.glob(".*.part"))


def test_metrics_after_the_last_checkpoint_are_dropped(tmp_path):
    run = begin(tmp_path)
    for epoch in range(3):
        run.log({"phase": "search", "epoch": epoch})
    run.save("search", {"epoch": 2})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"phase": "sea')
    run.drop_metrics("search", after=run.load("search")["epoch"])
    assert [row["epoch"] for row in run.metrics()] == [0, 1]


def test_two_processes_cannot_work_in_one_folder(tmp_path):
    run = begin(tmp_path)
    with run.lock(), pytest.raises(errors.RunError, match="another process is at work"), run.lock():
        pass
    run.log({"phase": "search", "epoch": 0})
    with run.lock(), pytest.raises(errors.RunBusyError, match="another process is at work"):
        begin(tmp_path, force=True)
    assert len(run.metrics()) == 1


@pytest.mark.parametrize("written", [[], ["recipe.toml"], ["recipe.toml", "environment.json"], [".run.json.x1.part"]])
def test_a_run_that_is_just_being_begun_can_be_begun(tmp_path, written):
    for name in written:
        (tmp_path / name).touch()
    assert begin(tmp_path).recipe == Run.open(tmp_path).recipe


def test_processes_may_begin_a_run_at_the_same_time(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        for number in range(20):
            begun = [pool.submit(begin, tmp_path / str(number)) for _ in range(8)]
            assert all(run.result().spec == Run.open(tmp_path / str(number)).spec for run in begun)


def test_a_folder_of_runs_names_them(tmp_path):
    for name in ("snl-5", "snl-9"):
        begin(tmp_path / name)
    with pytest.raises(errors.RunError, match="pass one of those in it: snl-5, snl-9"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ([(torch.zeros(4, 2, 6, 6), torch.zeros(4).long())], "training inputs are 2×6×6 and the example, .* is 2×4×3"),
        ([(torch.zeros(4, 2, 4, 3), torch.tensor([0, 1, 2, 0]))], "cannot be computed .*out of bounds"),
        ([(torch.zeros(4, 2, 4, 3), torch.zeros(4))], "cannot be computed"),
        ([(torch.zeros(4, 2, 4, 3), torch.zeros(3).long())], "cannot be computed"),
        ([], "training loader yields no batch"),
        (None, "without a length"),
    ],
    ids=["another size", "a class too many", "targets with a point", "targets missing", "empty", "none"],
)
def test_wrong_training_data_are_said_before_anything_is_written(tmp_path, train, said):
    with pytest.raises(errors.DataError, match=said):
        linearize(
            toys.toy(), budget=10, train=train, val=toys.batches(seed=1), recipe=toys.recipe(), run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_loss_of_ones_own_may_have_targets_of_its_own():
    train = [(x, y.float()) for x, y in toys.batches()]
    options = {"budget": 10, "train": train, "val": toys.batches(seed=1), "recipe": toys.recipe(epochs=1)}
    result = linearize(toys.toy(), loss=lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).mean(), **options)
    assert result.count == 10


def test_folders_that_are_no_runs(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(errors.RunError, match="is a file"):
        begin(tmp_path / "file")
    with pytest.raises(errors.RunError, match="has files in it but no run"):
        begin(tmp_path)
    with pytest.raises(errors.RunError, match="is not a run folder"):
        Run.open(tmp_path)
    begin(tmp_path / "run")
    with pytest.raises(errors.RunError, match="is not finished; give the command that began it again"):
        load(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(errors.RunError, match="cannot be read"):
        Run.open(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"format": 99}')
    with pytest.raises(errors.RunError, match="upgrade"):
        Run.open(tmp_path / "run")


def test_a_run_of_a_class_of_ones_own_needs_the_model(tmp_path):
    linearized(tmp_path / "run")
    with pytest.raises(errors.RunError, match=r"is of a Toy .* reluctant.load\(run, model=…\)"):
        load(tmp_path / "run")
