import csv
import html
import json
import re
import shutil
import subprocess

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from reluctant import Mask, errors, linearize, models
from reluctant._finetune import pretrain
from reluctant.cost import named, names, read
from reluctant.recipes import Pretrain, Recipe
from reluctant.report import report
from reluctant.report.figures import _searches
from reluctant.report.gather import gather
from reluctant.report.tables import Table
from reluctant.runs import Run
from tests import toys


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A base and three runs of a network that can be made again, as the commands leave them."""
    folder = tmp_path_factory.mktemp("runs")
    x = torch.randn(32, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(x, (x.mean((1, 2, 3)) > 0).long()), batch_size=16)
    torch.manual_seed(0)
    net = models.create("small", num_classes=2, input_shape=(1, 16, 16), width=4)
    net = pretrain(net, train=data, val=data, options=Pretrain(epochs=1, batch_size=16, lr=0.01))
    spec = {"arch": "small", "num_classes": 2, "input_shape": [1, 16, 16], "options": {"width": 4}}
    for name, budget, method in (
        ("snl-700", 700, "snl"),
        ("snl-90", 90, "snl"),
        ("random-90", 90, "random"),
        ("snl-0", 0, "snl"),
    ):
        recipe = Recipe().override({"search.epochs": 2, "finetune.epochs": 1})
        linearize(
            net, budget=budget, train=data, val=data, test=data, recipe=recipe, method=method, run_dir=folder / name,
        )  # fmt: skip
        path = folder / name / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model": spec, "data": {"name": "digits"}}))
    base = Run.begin(folder / "base", {"kind": "pretrain", "data": {"name": "digits"}}, Recipe())
    base.finish({"run": "base", "total": 3584, "accuracy": {"val": 50.0, "test": 50.0}})
    return folder


@pytest.fixture(scope="session")
def page(runs):
    return report([runs], runs / "report.html", figures=runs / "figures")[0]


def test_the_page_shows_every_run_and_needs_nothing_else(page):
    text = page.read_text()
    assert len(text) < 3_000_000
    for name in ("snl-700", "snl-90", "random-90", "snl-0"):
        assert name in text
    assert not re.search(r'(?:src|href)="(?!#|data:image/png)', text)
    assert not re.search(r"@import|url\((?!#)", text)
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text
    assert "Without any ReLU it is" in text


def test_every_figure_has_a_text_alternative(page):
    text = page.read_text()
    labels = re.findall(r'role="img" aria-label="([^"]+)"', text)
    assert len(labels) == text.count("<svg") == 6
    assert all(len(html.unescape(label)) > 40 for label in labels)
    assert "the best reaches" in labels[0]


def test_figures_and_tables_for_papers(page):
    folder = page.parent / "figures"
    for name in ("frontier", "relus-by-site", "search", "kept-pixels-700", "kept-pixels-90", "cost"):
        assert (folder / f"{name}.svg").read_text().startswith("<?xml")
        assert (folder / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    with (folder / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["ReLUs"] for row in rows] == ["700", "90", "0", "90"]
    assert "| snl-700 | snl | 700 |" in (folder / "runs.md").read_text()
    assert r"\begin{tabular}" in (folder / "cost.tex").read_text()


def test_the_same_runs_give_the_same_page(page, runs, tmp_path):
    again = report([runs], tmp_path / "again.html")[0].read_text()
    plaintext = r"\d+\.\d+"  # one plaintext inference is measured anew
    assert re.sub(plaintext, "", again.split('id="cost"')[0]) == re.sub(
        plaintext, "", page.read_text().split('id="cost"')[0]
    )


def test_what_was_measured_stands_beside_the_estimate(runs, tmp_path):
    folder = tmp_path / "snl-90"
    shutil.copytree(runs / "snl-90", folder)
    phase = {"seconds": 0.5, "bytes_sent": 1_000_000, "bytes_received": 2_000_000, "messages": 10}
    bench = {"images": 6, "agree": 6, "online": phase, "offline": phase}
    (folder / "private-bench.json").write_text(json.dumps(bench))
    text = report([folder], tmp_path / "report.html")[0].read_text()
    assert "Measured cost of a query" in text
    assert "6 of 6" in text
    assert "measured" in report([folder], tmp_path / "r.html", figures=tmp_path / "f")[0].read_text()
    (folder / "private-bench.json").write_text("{")
    with pytest.raises(errors.RunError, match="measures it again"):
        report([folder], tmp_path / "report.html")


@pytest.mark.parametrize("protocol", names())
def test_every_protocol_can_be_drawn(runs, tmp_path, protocol):
    assert report([runs / "snl-90"], tmp_path / "report.html", protocol=protocol)[0].exists()


def test_published_points_stand_behind_a_published_data_set(runs, tmp_path):
    folder = tmp_path / "snl-90"
    shutil.copytree(runs / "snl-90", folder)
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"digits"', '"cifar100"'))
    text = report([folder], tmp_path / "report.html")[0].read_text()
    assert "DeepReDuce (published)" in text


def test_a_network_from_python_has_a_page_without_cost(tmp_path):
    linearize(
        toys.toy(),
        budget=40,
        train=toys.batches(),
        val=toys.batches(seed=1),
        recipe=toys.recipe(),
        run_dir=tmp_path / "run",
    )
    text = report([tmp_path / "run"], tmp_path / "report.html")[0].read_text()
    assert "Estimated cost" not in text
    assert "accuracy on validation data" in text


def test_bad_input(runs, tmp_path):
    def refused(*folders):
        with pytest.raises(errors.ReluctantError) as raised:
            report(list(folders), tmp_path / "report.html")
        assert not (tmp_path / "report.html").exists()
        return str(raised.value)

    (tmp_path / "empty").mkdir()
    assert "there is no finished linearized run in" in refused(tmp_path / "empty")
    assert "there is no finished linearized run in nothing" in refused()
    assert "is not a folder" in refused(tmp_path / "nowhere")
    assert "has no mask; pass linearized runs" in refused(runs / "base")
    other = tmp_path / "other"
    shutil.copytree(runs / "snl-90", other)
    path = other / "run.json"
    path.write_text(path.read_text().replace('"digits"', '"cifar10"'))
    assert "different data sets (cifar10, digits)" in refused(runs / "snl-90", other)
    (other / "mask.safetensors").unlink()
    assert "has no mask" in refused(other)
    (other / "result.json").unlink()
    assert "is not finished" in refused(other)
    path.write_text("{")
    assert "cannot be read" in refused(other)


def test_cells_are_escaped():
    table = Table("t", "T", ("name", "#n %"), (("a_b|c", "1,000"),))
    assert table.markdown() == "| name | n % |\n| --- | ---: |\n| a_b\\|c | 1,000 |\n"
    assert r"a\_b|c & 1,000 \\" in table.latex()
    assert r"n \%" in table.latex()
    assert table.csv() == "name,n %\na_b|c,1000\n"


LOOK = """
<iframe id="page" style="width:WIDTHpx;height:900px;border:0" srcdoc="CONTENT"></iframe>
<script>
const frame = document.getElementById("page");
frame.onload = () => {
  const root = frame.contentDocument.documentElement;
  const wide = [...frame.contentDocument.querySelectorAll("main *")].filter(
    each => !each.closest(".scroll, pre, svg") && each.getBoundingClientRect().right > root.clientWidth + 1);
  document.title = `overflow ${root.scrollWidth - root.clientWidth} wide ${wide.length} figures ` +
    [...frame.contentDocument.querySelectorAll("figure svg")].filter(svg => svg.getBoundingClientRect().height > 50).length;
};
</script>
"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed; make browser installs it")
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_it_without_errors_and_nothing_overflows(page, tmp_path, width):
    harness = tmp_path / "look.html"
    harness.write_text(LOOK.replace("WIDTH", str(width)).replace("CONTENT", html.escape(page.read_text(), quote=True)))
    ran = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1280,1000",
         f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000", "--dump-dom", harness.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in ran.stderr
    assert "<title>overflow 0 wide 0 figures 6</title>" in ran.stdout


def test_the_split_of_the_budget_stands_beside_what_bounds_would_do(runs, tmp_path):
    page = report([runs / "snl-90"], tmp_path / "report.html", figures=tmp_path / "f")[0].read_text()
    assert "an analogy" in page
    rows = list(csv.DictReader((tmp_path / "f" / "split.csv").read_text().splitlines()))
    mask = Mask.load(runs / "snl-90" / "mask.safetensors")
    assert [int(row["kept"]) for row in rows] == list(mask.counts.values())
    shared = [int(row["shared bound"]) for row in rows]
    assert sum(shared) == 90
    assert max(shared) - min(shared) <= 1


def test_seeds_are_put_together(runs, tmp_path):
    folder = tmp_path / "seeds"
    for seed, accuracy in enumerate((80.0, 83.0)):
        shutil.copytree(runs / "snl-90", folder / f"seed-{seed}" / "snl-90")
        path = folder / f"seed-{seed}" / "snl-90" / "result.json"
        result = json.loads(path.read_text())
        result["accuracy"]["test"], result["seconds"] = accuracy, 60.0 * (seed + 1)
        path.write_text(json.dumps(result))
    shutil.copytree(runs / "random-90", folder / "random-90")
    page = report([folder], tmp_path / "report.html", figures=tmp_path / "figures")[0]
    assert "Over seeds" in page.read_text()
    rows = {row["method"]: row for row in csv.DictReader((tmp_path / "figures" / "seeds.csv").read_text().splitlines())}
    assert (rows["snl"]["runs"], rows["snl"]["test %"], rows["snl"]["minutes"]) == ("2", "81.50 ± 2.12", "1.5 ± 0.7")
    assert (rows["snl"]["search epochs"], rows["random"]["search epochs"]) == ("2", "–")
    assert "±" not in rows["random"]["test %"]
    by_site = next(csv.reader((tmp_path / "figures" / "sites.csv").read_text().splitlines()))
    assert by_site == ["site", "shape", "before", "90 kept"]  # one column for one budget, whatever the seeds
    assert "Over seeds" not in report([runs], tmp_path / "plain.html")[0].read_text()


def test_a_frontier_goes_through_the_means_of_seeds(runs, tmp_path):
    """One seed with 90 ReLUs was lucky and is above both with 700; their mean is not."""
    accuracies = {"snl-700": (80.0, 82.0), "snl-90": (70.0, 83.0)}
    for name, seeds in accuracies.items():
        for seed, accuracy in enumerate(seeds):
            copy = tmp_path / "runs" / f"seed-{seed}" / name
            shutil.copytree(runs / name, copy)
            (copy / "run.json").write_text(json.dumps(json.loads((copy / "run.json").read_text()) | {"seed": seed}))
            result = json.loads((copy / "result.json").read_text())
            result["accuracy"]["test"] = accuracy
            (copy / "result.json").write_text(json.dumps(result))
    page = report([tmp_path / "runs"], tmp_path / "report.html", figures=tmp_path / "figures")[0].read_text()
    rows = list(csv.DictReader((tmp_path / "figures" / "runs.csv").read_text().splitlines()))
    assert [row["frontier"] for row in rows] == ["yes"] * 4
    assert "it goes through their means" in page
    assert "a line for each seed" in page
    evidence = gather([tmp_path / "runs"], read("delphi"), named("lan"))
    best = evidence.frontier("snl")
    assert [(point.count, point.accuracy) for point in best] == [(90, 76.5), (700, 81.0)]
    searches = _searches(evidence)[""]
    assert len(searches) == 2
    assert all(rows[-1]["count"] <= 90 for rows in searches)


def test_the_frontier_of_the_table_is_that_of_all_methods(runs, tmp_path):
    for name, accuracy in (("snl-90", 80.0), ("random-90", 60.0)):
        shutil.copytree(runs / name, tmp_path / "runs" / name)
        path = tmp_path / "runs" / name / "result.json"
        result = json.loads(path.read_text())
        result["accuracy"]["test"] = accuracy
        path.write_text(json.dumps(result))
    report([tmp_path / "runs"], tmp_path / "report.html", figures=tmp_path / "figures")
    rows = csv.DictReader((tmp_path / "figures" / "runs.csv").read_text().splitlines())
    assert {row["run"]: row["frontier"] for row in rows} == {"snl-90": "yes", "random-90": ""}


def test_runs_with_more_training_images_are_no_other_seed(runs, tmp_path):
    for name in ("usual", "more"):
        shutil.copytree(runs / "snl-90", tmp_path / "runs" / name)
    path = tmp_path / "runs" / "more" / "run.json"
    spec = json.loads(path.read_text())
    spec["data"]["validation"] = 0.02
    path.write_text(json.dumps(spec))
    page = report([tmp_path / "runs"], tmp_path / "report.html")[0].read_text()
    assert "validation=usual" in page
    assert "validation=0.02" in page
    assert "Over seeds" not in page


def _grid(runs, folder, part, key, values):
    for value in values:
        copy = folder / f"{key}={value}" / "snl-90"
        shutil.copytree(runs / "snl-90", copy)
        recipe = copy / "recipe.toml"
        before, heading, after = recipe.read_text().partition(f"[{part}]\n")
        after = re.sub(rf"^{key} = .*\n", "", after, count=1, flags=re.MULTILINE)
        recipe.write_text(f"{before}{heading}{key} = {value}\n{after}")
    return folder


def test_what_a_search_and_finetuning_both_have_is_named_in_full(runs, tmp_path):
    page = report([_grid(runs, tmp_path / "grid", "finetune", "lr", ("0.01", "0.02"))], tmp_path / "report.html")[0]
    assert "snl finetune.lr=0.01" in page.read_text()


def test_a_grid_has_a_line_for_every_variation(runs, tmp_path):
    folder = _grid(runs, tmp_path / "grid", "search", "penalty", ("0.001", "1e-05"))
    page = report([folder], tmp_path / "report.html")[0].read_text()
    assert 0 < page.index("snl penalty=1e-5") < page.index("snl penalty=1e-3")
    assert "ReLUs left at the end: penalty=" in page
    assert "penalty=" not in report([runs], tmp_path / "plain.html")[0].read_text().partition("Recipe and environment")[0]


def test_runs_kept_without_weights_have_their_cost(runs, tmp_path):
    shutil.copytree(runs / "snl-90", tmp_path / "kept" / "snl-90")
    (tmp_path / "kept" / "snl-90" / "model.safetensors").unlink()
    [whole] = gather([runs / "snl-90"], read("delphi"), named("lan")).runs
    [kept] = gather([tmp_path / "kept"], read("delphi"), named("lan")).runs
    assert [each.layer for each in kept.cost.layers] == [each.layer for each in whole.cost.layers]


@pytest.mark.parametrize("damage", [lambda text: "", lambda text: text[: len(text) // 2], lambda text: "{\n" + text])
def test_metrics_that_are_not_whole_are_named(runs, tmp_path, caplog, damage):
    copy = tmp_path / "snl-90"
    shutil.copytree(runs / "snl-90", copy)
    report([copy], tmp_path / "report.html")
    assert not caplog.records
    metrics = copy / "metrics.jsonl"
    metrics.write_text(damage(metrics.read_text()))
    report([copy], tmp_path / "report.html")
    assert f"metrics.jsonl of {copy} is damaged" in caplog.text
    assert "instead of 2 and 1" in caplog.text


def test_the_headline_and_the_bars_say_whose_they_are(runs, page, tmp_path):
    text = page.read_text()
    assert re.search(r"ReLUs \([\d.]+ %\) give [\d.]+ % \((snl|random)\); all of them", text)
    assert "kept as bars (snl-700, snl-90)" in text
    alone = report([runs / "snl-90"], tmp_path / "alone.html")[0].read_text()
    assert re.search(r"ReLUs \([\d.]+ %\) give [\d.]+ %; all of them", alone)
