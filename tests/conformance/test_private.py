"""What every way to compute a plan has to do: in plain fixed point, as one SPU program, and split between two parties."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from reluctant.private import clear, engine
from reluctant.private.bundle import Bundle
from reluctant.private.calibrate import calibrate
from reluctant.private.clear import Encoded
from reluctant.private.lower import lower
from reluctant.private.server import PrivateServer
from tests.unit.private import nets

IMAGES = [nets.image(seed=seed) for seed in range(3)]
CLIENT = """
import json, sys, numpy as np
from pathlib import Path
from reluctant.private.session import Session
session = Session(("127.0.0.1", int(sys.argv[1])), Path(sys.argv[2]), timeout=60)
images = [np.array(image) for image in json.load(sys.stdin)]
asked = {"split": session.query, "whole": session.whole}
print(json.dumps({name: [ask(image)[0].tolist() for image in images] for name, ask in asked.items()}))
session.close()
"""


def between_two(bundle, folder):
    """Ask a server in every mode, in one session, for a session takes seconds to begin."""
    server = PrivateServer(bundle, "127.0.0.1", 0, folder / "server", timeout=60)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        command = [sys.executable, "-c", CLIENT, str(server.port), str(folder / "client")]
        asked = json.dumps([image.tolist() for image in IMAGES])
        ran = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=180)
    finally:
        server.close()
        thread.join()
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


class Network:
    """A masked network, its plan, and what the backends say about it."""

    def __init__(self, name, share, folder):
        self.model = nets.masked(name, share)
        plan, self.weights = lower(self.model, nets.SHAPE, mean=(0.4, 0.5), std=(0.2, 0.3))
        self.plan = calibrate(plan, self.weights, IMAGES)
        self._folder = folder
        self._asked = None

    def logits(self, backend):
        if backend == "clear":
            return np.array([clear.infer(self.plan, self.weights, image) for image in IMAGES])
        if self._asked is None:
            self._asked = between_two(Bundle(self.plan, Encoded.of(self.plan, self.weights)), self._folder)
        return np.array(self._asked[backend])


@pytest.fixture(
    scope="module",
    params=[*((name, 0.4) for name in nets.NETS), ("small", 1.0), ("wide", 0.0)],
    ids=lambda param: f"{param[0]}, {param[1]:.0%} kept",
)
def network(request, tmp_path_factory):
    return Network(*request.param, tmp_path_factory.mktemp("parties"))


needs_spu = pytest.mark.skipif(not engine.available(), reason="SPU is not installed; pip install 'reluctant[private]'")


@pytest.mark.parametrize("backend", ["clear", *(pytest.param(name, marks=needs_spu) for name in ("whole", "split"))])
def test_a_backend_gives_the_logits_of_the_masked_network(backend, network):
    found = network.logits(backend)
    images = torch.from_numpy(np.stack([network.plan.normalised(image) for image in IMAGES]))
    with torch.no_grad():
        expected = network.model.double()(images).numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1e-2 * np.abs(expected).max()
    first, second = np.sort(expected, axis=1)[:, -1], np.sort(expected, axis=1)[:, -2]
    clear_cut = first - second > 2e-2 * np.abs(expected).max()
    assert (found.argmax(1) == expected.argmax(1))[clear_cut].all()
    assert clear_cut.any()
