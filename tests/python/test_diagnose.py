"""`feedline diagnose` of Python data sets: the wiring. What it finds is judged on recorded evidence in
crates/feedline/tests/diagnose.rs, and live in tests/soak/live_diagnosis.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest

DATASETS = '''
import threading
import time

import numpy
import torch
import torch.utils.data
import feedline


class Quick(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return numpy.full((4,), index % 7, numpy.float32)


class Hung(Quick):
    """Its second batch never comes."""

    def __getitem__(self, index):
        if index >= 8:
            threading.Event().wait()
        return super().__getitem__(index)


def quick():
    return feedline.Loader(Quick(), batch_size=8, num_workers=1, executor="threads")


def quick_in_torch():
    return torch.utils.data.DataLoader(Quick(), batch_size=8, num_workers=1)


def hung():
    return torch.utils.data.DataLoader(Hung(), batch_size=8, num_workers=0)


def step(batch):
    time.sleep(0.01)
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("diagnose")
    (folder / "datasets.py").write_text(DATASETS)
    return folder


@pytest.mark.parametrize("name", ["quick", "quick_in_torch"])
def test_a_python_loader_is_measured_and_judged(name, folder):
    command = [
        sys.executable,
        "-m",
        "feedline",
        "diagnose",
        f"datasets.py:{name}",
        "--seconds",
        "0.5",
        "--json",
    ]
    flags = ["--train-step", "datasets.py:step"]
    ran = subprocess.run([*command, *flags], cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["verdict"]["cause"] != "unknown" and found["verdict"]["sentence"]
    assert abs(sum(found["verdict"]["stall"].values()) - 1) < 1e-6
    assert found["evidence"]["executor"] == {"quick": "threads", "quick_in_torch": "torch"}[name]
    assert found["evidence"]["batches"] >= 2 and found["evidence"]["batch_size"] == 8
    # A step of at least 10 ms takes at most 800 samples a second.
    assert 0 < found["ceilings"]["step"] <= 800
    assert found["ceilings"]["real"] > 0


def test_what_cannot_be_opened_is_said(folder):
    command = [sys.executable, "-m", "feedline", "diagnose", "datasets.py:missing"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1
    assert "missing" in ran.stderr and "Traceback" not in ran.stderr


def test_a_batch_that_never_comes_ends_it(folder):
    command = [sys.executable, "-m", "feedline", "diagnose", "datasets.py:hung", "--seconds", "3"]
    ran = subprocess.run(
        [*command, "--timeout", "3s", "--json"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 1
    assert "no batch for 3 s, after 1 of" in ran.stderr and "--timeout" in ran.stderr
    assert "no batch for 3 s" in json.loads(ran.stdout)["error"]["message"]


def test_a_signal_is_answered_while_a_batch_is_waited_for(folder):
    command = [sys.executable, "-m", "feedline", "diagnose", "datasets.py:hung", "--seconds", "3"]
    ran = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    end = threading.Timer(300, ran.kill)
    end.start()
    try:
        # Said when it begins; the signals are watched by then.
        assert "no --train-step" in ran.stderr.readline()
        ran.send_signal(signal.SIGTERM)
        assert "again to end at once" in ran.stderr.readline()
        ran.send_signal(signal.SIGTERM)
        assert ran.wait() == 143
    finally:
        end.cancel()
        ran.kill()
        ran.stderr.close()
