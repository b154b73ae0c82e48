import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

from reluctant import errors
from reluctant.private.material import Store

NAME = "0123456789abcdef" * 2


def test_material_is_used_once_and_private(tmp_path):
    store = Store(tmp_path, "v1")
    store.put(NAME, {"input": np.arange(5)})
    assert store.ready() == [NAME]
    (path,) = (tmp_path / "v1").glob("*.material")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert store.take(NAME)["input"].tolist() == [0, 1, 2, 3, 4]
    assert store.ready() == []
    for again in (store, Store(tmp_path, "v1")):
        with pytest.raises(errors.MaterialError, match="is spent"):
            again.take(NAME)
    with pytest.raises(errors.MaterialError, match="already"):
        store.put(NAME, {})
    assert not list((tmp_path / "v1").glob("*.material"))


def test_material_of_another_plan_or_none(tmp_path):
    Store(tmp_path, "v1").put(NAME, {"input": np.arange(5)})
    with pytest.raises(errors.MaterialError, match="there is no material"):
        Store(tmp_path, "v2").take(NAME)
    assert not list((tmp_path / "v2").iterdir())
    for name in ("../secret", "", NAME.upper(), NAME + "0"):
        with pytest.raises(errors.MaterialError, match="not a name"):
            Store(tmp_path, "v1").take(name)


def test_damaged_material_is_refused_and_spent(tmp_path):
    store = Store(tmp_path, "v1")
    store.put(NAME, {"input": np.arange(5)})
    (tmp_path / "v1" / f"{NAME}.material").write_bytes(b"gone")
    with pytest.raises(errors.MaterialError, match="cannot be read"):
        store.take(NAME)
    with pytest.raises(errors.MaterialError, match="is spent"):
        store.take(NAME)


def test_killed_after_taking_it_stays_spent(tmp_path):
    Store(tmp_path, "v1").put(NAME, {"input": np.arange(5)})
    code = (
        "import os, signal, sys; from pathlib import Path; from reluctant.private.material import Store; "
        f"Store(Path(sys.argv[1]), 'v1').take('{NAME}'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, env=os.environ)
    assert ran.returncode == -signal.SIGKILL
    with pytest.raises(errors.MaterialError, match="is spent"):
        Store(tmp_path, "v1").take(NAME)
