"""The eager door holds its promise about memory: measured, in processes of their own."""
import json
import pathlib
import subprocess
import sys

import pytest
import torch

import headrace
from headrace.eager import stats

MIB = 1 << 20
HERE = pathlib.Path(__file__).resolve().parent

# A model whose saved tensors are 12 x 24 MiB and more, its optimizer state 24 MiB.
PROGRAM = """
import hashlib, json, sys
import torch, torch.nn.functional as F
from torch import nn
torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(12))
    def forward(self, x):
        for layer in self.layers:
            x = x + F.gelu(layer(x))
        return x.square().mean()

memory, folder = sys.argv[1], sys.argv[2]
torch.manual_seed(1)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(6144, 512)
Net()(x[:512]).backward()  # libraries are loaded and first calls done
import headrace
headrace.tune_malloc()
headrace.reset_peak()
base = headrace.process_memory().rss
out = {}
if memory != "none":
    headrace.fit(model, optimizer, memory, folder=folder)
peaks = []
try:
    for _ in range(4):
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        peaks.append(headrace.process_memory().peak - base)
        if memory == "none":
            headrace.reset_peak()
except headrace.DoesNotFit as refused:
    out.update(needed=refused.needed_bytes, options=refused.options)
digest = hashlib.sha256()
for p in model.parameters():
    digest.update(p.detach().numpy().tobytes())
out.update(peak=max(peaks), digest=digest.hexdigest())
if memory != "none":
    from headrace.eager import stats
    s = stats(model)
    out.update(followed=s.followed, mode=s.mode, stored=s.stored_bytes,
               recorded=s.recorded_peak_bytes - base)
print(json.dumps(out))
"""


def run(memory, folder):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(memory), str(folder)], cwd=HERE,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not done.stderr, done.stderr  # nothing is said at the end either
    return json.loads(done.stdout.splitlines()[-1])


def test_growth_stays_within_what_was_asked_for(disk):
    plain = run("none", disk)
    assert plain["peak"] > 300 * MIB
    for memory in (120 * MIB, 160 * MIB, 220 * MIB):
        ours = run(memory, disk)
        assert ours["mode"] == "following" and ours["followed"] == 3, ours
        assert ours["peak"] <= memory, f"{ours['peak'] / MIB:.0f} of {memory / MIB:.0f} MiB"
        assert ours["recorded"] <= memory + 32 * MIB
        assert ours["digest"] == plain["digest"] and ours["stored"] > 0


def test_a_refusal_names_what_would_do(disk):
    refused = run(24 * MIB, disk)
    assert 24 * MIB < refused["needed"] < 200 * MIB and refused["options"]
    ours = run(refused["needed"] + 8 * MIB, disk)
    assert ours["followed"] == 3 and ours["peak"] <= refused["needed"] + 8 * MIB


def test_nothing_moves_and_nothing_is_added_when_all_fits(disk):
    plain, ours = run("none", disk), run("4GiB", disk)
    assert ours["mode"] == "off" and ours["stored"] == 0 and ours["digest"] == plain["digest"]
    assert ours["peak"] <= plain["peak"] + 4 * MIB


def test_gradients_that_are_too_much_are_refused_at_once():
    model = torch.nn.Linear(1024, 1024)
    with pytest.raises(headrace.DoesNotFit, match="gradients alone") as refused:
        headrace.fit(model, torch.optim.AdamW(model.parameters()), "2MiB")
    assert refused.value.needed_bytes >= 4 * MIB and refused.value.budget_bytes == 2 * MIB
    with pytest.raises(headrace.HeadraceError, match="was not called"):
        stats(model)


def test_what_is_found_is_printed_when_asked_for(disk, capsys):
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    headrace.fit(model, optimizer, "1GiB", folder=disk, verbose=True)
    assert "MiB of parameters" in capsys.readouterr().out
    for _ in range(2):
        model(torch.ones(300, 256)).sum().backward()
        optimizer.step()
    assert "everything fits" in capsys.readouterr().out
    headrace.release(model)
