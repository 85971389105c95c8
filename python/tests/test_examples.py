"""The examples do what they say, in a short form: the line is added, the losses stay."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = pathlib.Path(os.environ.get("HEADRACE_MODELS", ROOT / ".cache" / "models"))
MIB = 1 << 20
FINETUNE = ROOT / "examples" / "05-finetune-hf" / "finetune.py"
VIT = ROOT / "examples" / "06-vit" / "train.py"


def run(script: pathlib.Path, *words: object) -> dict:
    done = subprocess.run([sys.executable, script, *map(str, words), "--json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_real_hugging_face_model_is_fine_tuned_with_one_added_line(tmp_path):
    if not (MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf").exists():
        pytest.skip(f"no real model in {MODELS}; make models fetches it")
    short = ("--steps", 3, "--batch", 1, "--length", 128, "--out", tmp_path)
    plain = run(FINETUNE, "--plain", *short)
    # The least is 1,485 MiB; plain training takes 2,455 MiB.
    ours = run(FINETUNE, "--memory", "1550MiB", *short)
    assert ours["losses"] == plain["losses"]
    assert growth(ours) <= 1550 * MIB < 0.7 * growth(plain)


def growth(out: dict) -> int:
    """Bytes that training took on top of the model."""
    return out["peak_rss_bytes"] - out["resident_before"]


@pytest.mark.parametrize("door", ("fit", "step"))
def test_a_vision_transformer_learns_the_same_in_less_memory(door):
    short = ("--steps", 4, "--batch", 16)
    plain = run(VIT, "--door", "none", *short)
    # The least of fit() is 75 MiB; plain training takes 125 to 131 MiB.
    ours = run(VIT, "--door", door, "--memory", "88MiB", *short)
    if door == "fit":
        assert ours["losses"] == plain["losses"]
    else:
        assert ours["losses"] == pytest.approx(plain["losses"], rel=1e-4)
    assert ours["peak_growth"] <= 88 * MIB < 0.75 * plain["peak_growth"]
