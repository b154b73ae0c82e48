import reluctant


def test_the_public_names():
    names = (
        "Mask Result attach binarize cost count data errors estimate finetune frontier linearize load methods models "
        "published sloped"
    ).split()
    assert sorted(reluctant.__all__) == names
    assert all(hasattr(reluctant, name) for name in reluctant.__all__)


def test_every_error_is_ours_and_a_builtin():
    family = [
        value
        for value in vars(reluctant.errors).values()
        if isinstance(value, type) and value.__module__ == "reluctant.errors"
    ]
    assert len(family) > 8
    for error in family:
        assert issubclass(error, reluctant.errors.ReluctantError)
        assert error is reluctant.errors.ReluctantError or issubclass(error, ValueError)
        assert error.__name__ in reluctant.errors.__doc__
