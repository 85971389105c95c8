"""headrace.doctor on a real snapshot; our runs in PyTorch's own reader."""

from __future__ import annotations

import pickle

import pytest

import headrace
from conftest import ROOT, stack_workload

SNAPSHOT = ROOT / "tests/data/snapshots/training_end.pickle"


def test_the_doctor_tells_what_the_command_line_tells():
    text = headrace.doctor(SNAPSHOT, plan=False)
    assert all(len(line) <= 100 for line in text.splitlines())
    for word in ("minimum", "device 0"):
        assert word in text, text
    assert repr(text) == str(text)
    assert text._repr_html_().startswith("<pre>")


def test_the_findings_are_data_too_and_a_plan_says_what_would_have_been_enough():
    found = headrace.doctor(str(SNAPSHOT), json=True, slowdown=0.05)
    assert found["devices"] and found["findings"]
    sizes = [f["bytes"] for f in found["findings"]]
    assert sizes == sorted(sizes, reverse=True)
    bare = headrace.doctor(SNAPSHOT, json=True, plan=False)
    assert bare["findings"] == found["findings"]


def test_what_is_no_snapshot_is_refused_and_nothing_in_it_is_executed(tmp_path):
    with pytest.raises(headrace.HeadraceError, match="/nowhere") as caught:
        headrace.doctor("/nowhere/s.pickle")
    assert caught.value.code == "io"
    text = tmp_path / "text.pickle"
    text.write_text("no pickle")
    with pytest.raises(headrace.HeadraceError, match="no pickle") as caught:
        headrace.doctor(text)
    assert caught.value.code == "bad_file"

    target = tmp_path / "made"

    class Bad:
        def __reduce__(self):
            return (open, (str(target), "w"))

    bad = tmp_path / "bad.pickle"
    bad.write_bytes(pickle.dumps(Bad()))
    with pytest.raises(headrace.HeadraceError) as caught:
        headrace.doctor(bad)
    assert caught.value.code in ("unsupported", "bad_file")
    assert not target.exists()


def test_torchs_own_reader_opens_what_we_write(tmp_path, disk):
    viz = pytest.importorskip("torch.cuda._memory_viz")
    plan = headrace.plan(stack_workload(), 3 << 20, folder=disk)
    file = tmp_path / "run.pickle"
    headrace.snapshot_of(plan, file)
    snapshot = pickle.loads(file.read_bytes())
    for draw in (viz.trace_plot, viz.segment_plot):
        page = draw(snapshot).lstrip()
        assert page.startswith("<!DOCTYPE html>") and len(page) > 1000
    summary = viz.segsum(snapshot)
    assert "segments" in summary
    assert viz.trace(snapshot).count("entries") >= 1
