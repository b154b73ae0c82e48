"""What the documents show is run as it stands there."""

import re
from pathlib import Path

import pytest
import torch

from reluctant import Mask, count

ROOT = Path(__file__).parents[2]


def blocks(document):
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def test_your_model(tmp_path, monkeypatch):
    (code,) = blocks("docs/your-model.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 16
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    exec(code, names)
    result = names["result"]
    assert result.count == count(result.model, names["images"][:1]).total <= 0.1 * 7744
    assert Mask.load("mask.safetensors") == result.mask


@pytest.mark.parametrize("code", blocks("README.md"))
def test_the_readme(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    assert names["reluctant"].count(names["net"], names["example"]).total == 49152
