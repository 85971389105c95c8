"""headrace.plan: what it reads, what it answers, what it refuses."""

from __future__ import annotations

import json
import pathlib
import pickle
import subprocess
import sys

import pytest

import headrace
from headrace import _report
from conftest import ROOT, stack_workload

LLAMA = {"preset": "llama-8b", "phase": "train", "batch": 1, "sequence": 1024}


def test_a_known_model_is_planned_from_a_mapping():
    plan = headrace.plan(LLAMA, "60GiB", machine="h200-pcie5", goal="throughput")
    assert plan.arena_bytes <= plan.budget_bytes == 60 << 30
    assert plan.peak_bytes > plan.budget_bytes  # or there was nothing to plan
    assert plan.stored_bytes > 0 and plan.loaded_bytes > 0
    assert plan.predicted_seconds >= plan.compute_seconds > 0
    text = str(plan)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "h200" in text
    page = plan._repr_html_()
    assert page.startswith("<pre") and "<details>" in page and page.count("<li>") == 10
    assert f"of {len(plan.choices())} choices" in page and "policies compared" in page
    assert "\x1b[" in plan.text(color=True) and "\x1b[" not in text


def test_a_file_its_text_and_a_mapping_give_the_same_plan(tmp_path, disk):
    text = stack_workload()
    file = tmp_path / "stack.json"
    file.write_text(text)
    forms = (file, str(file), text, json.loads(text))
    plans = [headrace.plan(form, 3 << 20, folder=disk) for form in forms]
    # Not as a whole: what the disk has free changes from plan to plan.
    told = {str([(i.kind, i.name, i.begin, i.bytes, i.waits) for i in p.instructions()])
            for p in plans}
    assert len(told) == 1
    assert json.loads(plans[0].to_json())["fits"] is True
    assert plans[0].name == "stack"
    assert plans[0].folder == disk


def test_the_instructions_say_what_happens_in_order(disk):
    plan = headrace.plan(stack_workload(layers=6), 2 << 20, folder=disk, reorder=False)
    instructions = plan.instructions()
    assert [i.name for i in instructions if i.kind == "compute"] == plan.ops
    stored = [i for i in instructions if i.kind == "store"]
    loaded = [i for i in instructions if i.kind == "load"]
    assert sum(i.bytes for i in stored) == plan.stored_bytes > 0
    assert sum(i.bytes for i in loaded) == plan.loaded_bytes > 0
    assert {i.tier for i in stored + loaded} == {"scratch"}
    at = {(i.kind, i.name): k for k, i in enumerate(instructions)}
    for i in stored:
        assert at["compute", i.name.replace("saved", "pack")] < at["store", i.name]
        assert at["store", i.name] < at["compute", i.name.replace("saved", "unpack")]
    moved = {c.tensor for c in plan.choices() if c.way == "move"}
    assert moved == {i.name for i in stored}
    assert plan.recomputed_ops == 0


def test_with_room_for_everything_nothing_moves(disk):
    plan = headrace.plan(stack_workload(layers=4), "1GiB", folder=disk)
    assert plan.stored_bytes == plan.loaded_bytes == 0
    assert 4 << 20 <= plan.peak_bytes < (4 << 20) + 4096


def test_what_cannot_fit_says_by_how_much_and_what_would_help(disk):
    with pytest.raises(headrace.DoesNotFit) as caught:
        headrace.plan(stack_workload(), "64KiB", folder=disk)
    error = caught.value
    assert isinstance(error, headrace.HeadraceError) and isinstance(error, RuntimeError)
    assert error.code == "does_not_fit"
    assert error.budget_bytes == 64 << 10
    assert error.needed_bytes >= 1 << 20
    assert error.options and all(isinstance(option, str) for option in error.options)
    headrace.plan(stack_workload(), error.needed_bytes, folder=disk)


@pytest.mark.parametrize("workload, code, told", [
    ("/nowhere/step.json", "io", "/nowhere/step.json"),
    ("model.gguf", "unsupported", "headrace plan model.gguf"),
    ("{}", "bad_file", ""),
    ({"step": {"preset": "nobody"}}, "bad_file", "nobody"),
    ({"headrace_workload": 1, "tensors": [{"name": "a", "bytes": -1}], "ops": []},
     "bad_file", "a")])
def test_what_is_no_workload_is_refused_by_name(workload, code, told):
    with pytest.raises(headrace.HeadraceError) as caught:
        headrace.plan(workload, "1GiB", machine="h200-pcie5")
    assert caught.value.code == code
    assert told in str(caught.value)


def test_other_wrong_arguments_are_refused_by_name(disk):
    with pytest.raises(headrace.HeadraceError, match="goal 'speed'"):
        headrace.plan(stack_workload(), "1GiB", folder=disk, goal="speed")
    with pytest.raises(headrace.HeadraceError, match="nobodys"):
        headrace.plan(stack_workload(), "1GiB", machine="nobodys")
    with pytest.raises(headrace.HeadraceError, match="memory='much'"):
        headrace.plan(stack_workload(), "much", folder=disk)
    with pytest.raises(headrace.HeadraceError, match="/nowhere"):
        headrace.plan(stack_workload(), "1GiB", folder="/nowhere")
    with pytest.raises(headrace.HeadraceError, match="in memory"):
        headrace.plan(stack_workload(), "1GiB", folder="/dev/shm")


def test_machines_have_names_files_and_other_disks(tmp_path):
    assert "a100-pcie3" in headrace.Machine.profiles()
    machine = headrace.Machine.from_profile("a100-pcie3")
    assert machine.load_bytes_per_s > 1e9
    file = tmp_path / "mine.json"
    file.write_text(machine.text())
    assert headrace.Machine.from_file(str(file)).text() == machine.text()
    slow = machine.with_disk(1e6, 2e6)
    assert (slow.load_bytes_per_s, slow.store_bytes_per_s) == (1e6, 2e6)
    with pytest.raises(headrace.HeadraceError):
        machine.with_disk(0, 1)


def test_a_slower_disk_is_never_predicted_to_be_faster(disk):
    machine = headrace.Machine.from_profile("a100-pcie3")
    seconds = []
    for rate in (5e9, 5e8, 5e7):
        plan = headrace.plan(stack_workload(), 2 << 20, folder=disk,
                             machine=machine.with_disk(rate, rate))
        seconds.append(plan.predicted_seconds)
    assert seconds == sorted(seconds)


def test_pictures_are_written_and_read_as_what_they_are(tmp_path, disk):
    plan = headrace.plan(stack_workload(), 3 << 20, folder=disk)
    plan.timeline_html(str(tmp_path / "t.html"))
    assert (tmp_path / "t.html").read_text().startswith("<!")
    assert "saved" in plan.hotspots_text()
    plan.save(str(tmp_path / "stack.program"))
    assert (tmp_path / "stack.program").read_text().startswith("program ")
    headrace.snapshot_of(plan, tmp_path / "s.pickle")
    snapshot = pickle.loads((tmp_path / "s.pickle").read_bytes())
    assert snapshot["segments"] and snapshot["device_traces"]
    with pytest.raises(headrace.HeadraceError, match="/nowhere") as caught:
        plan.timeline_html("/nowhere/t.html")
    assert caught.value.code == "io"


def test_the_door_used_last_is_what_timelines_and_hotspots_are_of(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(_report, "_plan", None)
    for ask in (headrace.memory_timeline, headrace.hotspot_analysis):
        with pytest.raises(headrace.HeadraceError, match="no training step has ended yet"):
            ask()
    plan = headrace.plan(stack_workload(), 3 << 20, folder=disk)
    _report.note(plan)
    for ending in (".html", ".pickle", ".json"):
        target = tmp_path / ("run" + ending)
        assert headrace.memory_timeline(target) == str(target)
        assert target.stat().st_size > 1000
    with pytest.raises(headrace.HeadraceError, match=".png"):
        headrace.memory_timeline("run.png")
    assert "saved" in headrace.hotspot_analysis()
    assert repr(headrace.hotspot_analysis()) == str(headrace.hotspot_analysis())


def test_without_torch_plan_and_doctor_work_and_the_others_say_what_is_missing():
    program = """
import sys
sys.modules["torch"] = None  # import torch raises ModuleNotFoundError
import headrace
assert "fit" in dir(headrace)
plan = headrace.plan({"preset": "llama-8b", "phase": "train", "batch": 1, "sequence": 512},
                     "120GiB", machine="h200-pcie5", goal="fit")
assert plan.arena_bytes > 0
assert "minimum" in headrace.doctor(sys.argv[1], plan=False)
for name in ("fit", "compile_step"):
    try:
        getattr(headrace, name)
    except headrace.HeadraceError as error:
        assert error.code == "unsupported" and "PyTorch" in str(error), error
    else:
        raise SystemExit(name + " needs no torch")
"""
    snapshot = ROOT / "tests/data/snapshots/training_end.pickle"
    subprocess.run([sys.executable, "-c", program, str(snapshot)], check=True,
                   cwd=pathlib.Path(headrace.__file__).parents[1])


def test_names_that_are_not_there_are_attribute_errors():
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        headrace.nothing_of_that_name
    assert headrace.__version__.count(".") == 2
