"""The demo, with very little training."""

import json
from pathlib import Path

from reluctant import Mask
from reluctant.cli.demo import _between_two
from reluctant.private import engine
from tests.end_to_end.commands import SETTINGS, reluctant


def test_demo(tmp_path):
    ran = reluctant("demo", "-o", tmp_path / "demo", *SETTINGS, "--json")
    printed = json.loads(ran.stdout)
    counts = [row["count"] for row in printed["frontier"]]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    assert (tmp_path / "demo" / "base" / "model.safetensors").exists()
    for count in counts:
        for method in ("snl", "random"):
            assert Mask.load(tmp_path / "demo" / f"{method}-{count}" / "mask.safetensors").count == count
    shown = reluctant("demo", "-o", tmp_path / "demo", *SETTINGS).stdout
    assert "The frontier" in shown
    assert "reluctant.linearize(model" in shown
    assert "Between two parties" in shown or not engine.available()
    private = {Path(row["run"]).name: row for row in printed["private"]}
    if engine.available():
        assert all(row["agree"] == row["images"] == 5 for row in private.values())
        online = {name: row["online"]["bytes_sent"] + row["online"]["bytes_received"] for name, row in private.items()}
        assert online["snl-500"] < online["base"] / 5


def test_demo_without_spu(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "available", lambda: False)
    said = []
    assert _between_two([tmp_path], said.append, force=False) == []
    assert "SPU is not installed" in said[0]
