"""torch.compile(model, backend="headrace", options={"memory": "1GiB"}).

The step of each compiled graph (forward and backward) is planned within a budget: what the
backward pass needs is kept, computed again, or moved to a file and brought back in time.

    _backend    Dynamo and AOTAutograd: where graphs come from
    _buckets    graphs with open shapes
    _step       the joint graph as ops and values
    _measure    seconds and workspace of single ops
    _workload   the step as a workload for the planner
    _search     plans of the step, by how much memory they take
    _schedule   a plan as what happens to ops and values
    _planner    how much memory there is, and which plan a pass follows
    _emit       a plan as two graphs for torch
    _live       the memory of a schedule, counted again
    _ops        headrace::store, load, wait and tick
    _moves      what stands behind them
    _runtime    forward and backward, and what lives between them
    _remotes    parameters marked with @remote_memory
    _region     their memory
    _uses       graphs that read them
    _outside    modules, state dicts and optimizers that read them
"""
from __future__ import annotations

from torch._dynamo.backends.registry import list_backends, register_backend

from ._backend import backend, note_import

__all__ = ["backend"]

note_import()
# An installed headrace is found by its entry point, which registers it; a second time is an error.
if "headrace" not in list_backends(exclude_tags=()):
    register_backend(backend, name="headrace")
