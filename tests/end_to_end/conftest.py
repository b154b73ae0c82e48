"""What the tests of several files begin with."""

import json

import pytest

from tests.end_to_end.commands import SETTINGS, reluctant


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "base"
    arch = ["--arch", "mlp", "--arch-arg", "hidden=[3000,1000]"]
    ran = reluctant("pretrain", "--data", "digits", *arch, "-o", folder, *SETTINGS, "--json")
    assert json.loads(ran.stdout)["total"] == 4000
    return folder
