"""Two real processes that know each other by TCP only."""

import json
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from reluctant import data, linearize, models
from reluctant.cli.private._options import parse_network
from reluctant.errors import OptionError, PeerError
from reluctant.private import clear, engine
from reluctant.private.bundle import from_run
from reluctant.private.session import GREETING, Session
from reluctant.private.wire import Channel
from reluctant.recipes import Recipe
from reluctant.runs import Run

pytestmark = pytest.mark.skipif(not engine.available(), reason="SPU is not installed; pip install 'reluctant[private]'")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small network of 60 ReLUs for the digits, finished as the commands leave it."""
    folder = tmp_path_factory.mktemp("private") / "run"
    splits = data.load("digits")
    some = splits.train.pixels[:64].float() / 255, splits.train.labels[:64]
    loader = DataLoader(TensorDataset(*some), batch_size=32)
    torch.manual_seed(0)
    model = models.create("small", input_shape=(1, 16, 16), width=2)
    recipe = Recipe().override({"search.epochs": 1, "finetune.epochs": 1})
    linearize(model, budget=60, train=loader, val=loader, recipe=recipe, run_dir=folder)
    spec = {"arch": "small", "num_classes": 10, "input_shape": [1, 16, 16], "options": {"width": 2}}
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": spec, "data": {"name": "digits"}}))
    return folder


class Served:
    def __init__(self, run, folder):
        command = [
            sys.executable,
            "-m",
            "reluctant",
            "private",
            "serve",
            str(run),
            "--port",
            "0",
            "--material",
            str(folder),
        ]
        self.process = subprocess.Popen(
            [*command, "--timeout", "60"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        line = self.process.stdout.readline()
        found = re.search(r"on 127\.0\.0\.1:(\d+): plan (\w+)", line)
        assert found, line
        self.address, self.plan = ("127.0.0.1", int(found[1])), found[2]


@pytest.fixture(scope="module")
def server(run, tmp_path_factory):
    served = Served(run, tmp_path_factory.mktemp("server-material"))
    yield served
    served.process.terminate()
    said, _ = served.process.communicate(timeout=30)
    assert "stopped" in said


def client(server, folder, code, **options):
    """Run some client's code in a process of its own: SPU has one engine per process."""
    script = f"""
import json, sys, numpy as np
from pathlib import Path
from reluctant import data
from reluctant.private.session import Session
images = data.load("digits").test.pixels[::40].numpy() / 255
session = Session({server.address!r}, Path({str(folder)!r}), timeout=60)
{code}
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180, **options)


def test_two_processes_give_the_logits_of_clear(server, run, tmp_path):
    code = """
logits = []
for _ in range(2):
    session.prepare()
for image in images[:3]:
    answer, spent = session.query(image)
    logits.append(answer.tolist())
both = spent.traffic().sent + spent.traffic().received
whole = [session.whole(images[0], naive=naive) for naive in (False, False, True)][1:]  # keys come with the first
sent = [spent.traffic().sent + spent.traffic().received for _, spent in whole]
answers = [answer.tolist() for answer, _ in whole]
print(json.dumps({"logits": logits, "bytes": both, "plan": session.plan.version, "whole": answers, "whole_bytes": sent}))
session.close()
"""
    ran = client(server, tmp_path, code)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["plan"] == server.plan
    bundle = from_run(Run.open(run))
    images = data.load("digits").test.pixels[::40].numpy()[:3] / 255
    expected = [clear.infer(bundle.plan, bundle.floats, image) for image in images]
    np.testing.assert_allclose(found["logits"], expected, atol=2e-3)
    np.testing.assert_allclose(found["whole"], [expected[0]] * 2, atol=2e-2)
    assert found["bytes"] < found["whole_bytes"][0] < found["whole_bytes"][1]
    assert found["bytes"] < 60 * 250 + 8 * 256 + 20_000


def test_the_client_never_opens_the_weights(server, run, tmp_path):
    code = """
import builtins, os
session.query(images[0])
opened = [os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{n}")]
print(json.dumps(opened))
session.close()
"""
    hidden = run.with_name("hidden")
    run.rename(hidden)
    try:
        ran = client(server, tmp_path, code)
    finally:
        hidden.rename(run)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert not any("safetensors" in path or "bundle" in path for path in json.loads(ran.stdout.splitlines()[-1]))


def test_material_is_refused_a_second_time_also_after_a_kill(server, tmp_path):
    code = """
import os, signal
name, _ = session.prepare()
print(name, flush=True)
material = session.store.take(name)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ran = client(server, tmp_path, code)
    assert ran.returncode == -signal.SIGKILL
    name = ran.stdout.split()[-1]
    again = client(server, tmp_path, f"session.query(images[0], {name!r})")
    assert again.returncode != 0
    assert "is spent; prepare new material" in again.stderr


def test_the_server_refuses_spent_material_too(server, tmp_path):
    code = """
name, _ = session.prepare()
path = next(session.store._folder.glob("*.material"))
kept = path.read_bytes()
session.query(images[0], name)
path.write_bytes(kept)
path.with_suffix(".spent").unlink()
try:
    session.query(images[0], name)
except Exception as error:
    print(type(error).__name__, error)
"""
    ran = client(server, tmp_path, code)
    assert "PeerError refused: material" in ran.stdout
    assert "is spent" in ran.stdout


def test_the_server_survives_what_clients_do(server, tmp_path):
    garbage = socket.create_connection(server.address)
    garbage.sendall(b"\x00" * 1000)
    garbage.close()
    silent = socket.create_connection(server.address)
    other = Channel(socket.create_connection(server.address), 20)
    other.send({"hello": "reluctant private 99"})
    with pytest.raises(PeerError, match="use the same version"):
        other.receive()
    other.close()
    with pytest.raises(PeerError, match="and you have 'feed'; fetch the plan again"):
        Session(server.address, tmp_path, timeout=20, plan="feed")
    wrong = Channel(socket.create_connection(server.address), 20)
    wrong.send({"hello": GREETING, "plan": None})
    wrong.receive(most=1 << 24)
    wrong.send({"port": "seven"})
    with pytest.raises(PeerError, match="cannot be read"):
        wrong.receive()
    wrong.close()
    in_the_middle = """
import os, signal
name, _ = session.prepare()
channel = session._client.channel
channel.send({"query": name})
channel.receive()
channel.send_ring(np.zeros(session.plan.input_shape, np.int64))
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert client(server, tmp_path, in_the_middle).returncode == -signal.SIGKILL
    shapes = """
session.channel = session._client.channel
name, _ = session.prepare()
session.channel.send({"query": name})
session.channel.receive()
session.channel.send_ring(np.zeros(3, np.int64))
try:
    session.channel.receive()
except Exception as error:
    print(error)
"""
    ran = client(server, tmp_path, shapes)
    assert "24 bytes where 2048 were expected" in ran.stdout
    fine = client(server, tmp_path / "other", "session.query(images[0]); session.close(); print('fine')")
    assert fine.stdout.endswith("fine\n"), fine.stderr
    silent.close()
    assert server.process.poll() is None


def test_query_on_the_command_line(server, tmp_path):
    address = ":".join(map(str, server.address))
    command = [sys.executable, "-m", "reluctant", "private", "query", "--server", address, "--material", str(tmp_path)]
    ran = subprocess.run([*command, "--test-set", "1", "--json"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["relus"] == 60
    assert len(found["queries"]) == len(found["offline"]) == 1
    assert found["expected_wraps"] <= 1e-6
    nobody = subprocess.run([*command[:-4], "--server", "127.0.0.1:1", "--test-set", "1"], capture_output=True, text=True)
    assert nobody.returncode == 2
    assert "there is no server at 127.0.0.1:1" in nobody.stderr


def test_bench_over_a_network_to_pretend_beside_masks_multiplied_in(run):
    command = [sys.executable, "-m", "reluctant", "private", "bench", str(run), "--images", "2", "--json"]
    command += ["--simulate-network", "2ms,500mbit", "--compare-mask-multiply"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    keys = {"images", "agree", "max_logit_error", "relus", "setup", "offline", "online", "peak_memory_bytes", "estimated"}
    assert keys | {"expected_wraps"} <= set(found)
    assert (found["images"], found["agree"], found["relus"]) == (2, 2, 60)
    assert found["max_relative_error"] < 1e-2
    assert found["network"] == {"rtt": 0.002, "bandwidth": 5e8}
    for phase in ("setup", "offline", "online"):
        assert set(found[phase]) == {"seconds", "bytes_sent", "bytes_received", "messages"}
    relu_steps = [step for step in found["steps"]["online"] if step["kind"] == "relu"]
    assert len(relu_steps) * 0.002 < found["online"]["seconds"]
    online = {mode: each["online"]["bytes_sent"] for mode, each in found["compared"].items()}
    assert found["online"]["bytes_sent"] < online["whole"] < online["whole-naive"]
    assert not (run / "private-bench.json").exists()


def test_a_server_that_says_nothing_is_not_waited_for_forever(tmp_path):
    silent = socket.create_server(("127.0.0.1", 0))
    began = time.monotonic()
    with pytest.raises(PeerError, match="has not answered in time"):
        Session(silent.getsockname(), tmp_path, timeout=1)
    assert time.monotonic() - began < 10
    silent.close()


@pytest.mark.parametrize("network", ["40", "40ms", "0ms,0mbit", "fast,100mbit"])
def test_networks_that_cannot_be_read(network):
    with pytest.raises(OptionError, match="such as 40ms,100mbit"):
        parse_network(network)
