import pytest

from reluctant import errors, recipes
from reluctant.recipes import Recipe, Search


@pytest.mark.parametrize("name", recipes.named())
def test_every_recipe_that_ships_can_be_read(name):
    assert recipes.load(name) != Recipe()


def test_the_papers_recipe_has_the_papers_values():
    recipe = recipes.load("cifar100-resnet18")
    assert (recipe.pretrain.epochs, recipe.pretrain.lr, recipe.pretrain.milestones) == (160, 0.1, (80, 120))
    assert (recipe.search.schedule, recipe.search.penalty, recipe.search.growth) == ("paper", 1e-5, 1.1)
    assert (recipe.finetune.epochs, recipe.finetune.lr, recipe.finetune.temperature) == (100, 1e-3, 4)
    assert recipes.load("tiny-imagenet-resnet34").pretrain.milestones == (50, 75)
    assert {
        f"{d}-{a}" for d in ("cifar10", "cifar100", "tiny-imagenet") for a in ("resnet18", "resnet34", "wide_resnet22_8")
    } < set(recipes.named())


@pytest.mark.parametrize("full_at", [0.9, 0.25, "none"])
def test_written_and_read_it_is_the_same(tmp_path, full_at):
    changes = {"search.slope_lr": 0.02, "milestones": "[3, 4.5]", "channels_last": "true", "full_at": full_at}
    recipe = Recipe().override(changes)
    (tmp_path / "recipe.toml").write_text(recipes.write(recipe))
    assert recipes.load(tmp_path / "recipe.toml") == recipe
    assert recipes.load(recipe.as_dict()) == recipe


def test_every_value_can_be_overridden_by_what_a_person_types():
    for key in recipes.keys():  # noqa: SIM118
        section, _, name = key.partition(".")
        value = getattr(getattr(Recipe(), section), name)
        typed = str(value).lower() if isinstance(value, bool) else str(value)
        assert Recipe().override({key: typed}) == Recipe()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"penalti": 1}, "unknown recipe key 'penalti'; did you mean 'penalty'"),
        ({"search.epoch": 1}, "did you mean 'search.epochs'"),
        ({"epochs": 1}, "ambiguous; pass one of pretrain.epochs, search.epochs, finetune.epochs"),
        ({"search.epochs": "many"}, "epochs is 'many'; pass a whole number"),
        ({"search.epochs": 1.5}, "pass a whole number"),
        ({"search.epochs": -1}, "pass 0 or more"),
        ({"penalty": "x"}, "penalty is 'x'; pass a number"),
        ({"search.lr": 0}, "pass a number above 0"),
        ({"full_at": 1.5}, "search.full_at is 1.5; pass a number from 0 to 1, or none"),
        ({"exact": "perhaps"}, "pass true or false"),
        ({"milestones": "a,b"}, "pass a list of numbers"),
        ({"search.schedule": "papers"}, "unknown search.schedule 'papers'; did you mean 'paper'"),
        ({"finetune.schedule": "cosin"}, "did you mean 'cosine'"),
        ({"grow_unless": "lower"}, "did you mean 'lowest'"),
        ({"precision": "float16"}, "unknown training.precision 'float16'"),
    ],
)
def test_what_is_wrong_is_said(changes, said):
    with pytest.raises(errors.OptionError) as raised:
        Recipe().override(changes)
    assert said in str(raised.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "bad.toml").write_text("[search\nepochs=")
    with pytest.raises(errors.OptionError, match="is not TOML"):
        recipes.load(tmp_path / "bad.toml")
    (tmp_path / "section.toml").write_text("[serach]\nepochs=1")
    with pytest.raises(errors.OptionError, match="did you mean 'search'"):
        recipes.load(tmp_path / "section.toml")
    with pytest.raises(errors.OptionError, match="did you mean 'laptop'"):
        recipes.load("laptops")
    with pytest.raises(errors.OptionError, match="is not a section"):
        recipes.load({"search": 5})


def test_what_is_left_to_the_schedule():
    assert (Search(schedule="paper").first_penalty, Search(schedule="paper").rate_of_slopes(500)) == (1e-5, 1e-3)
    assert (Search().first_penalty, Search().rate_of_slopes(400), Search().rate_of_slopes(1)) == (1e-4, 1 / 60, 1 / 3)
    assert (Search(penalty=0.0).first_penalty, Search(slope_lr=1.0).rate_of_slopes(500)) == (0.0, 1.0)


def test_values_are_frozen():
    with pytest.raises(AttributeError):
        Search().epochs = 3
