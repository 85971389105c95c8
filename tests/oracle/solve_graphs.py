"""Solves the small steps exactly, offline, and writes tests/data/oracle/steps.txt.

  pip install numpy highspy ortools
  python solve_graphs.py --out ../data/oracle/steps.txt [--seconds 60] [--only fixed|free]

Results are appended to a work file as they come (--work), so that a stopped run goes on where it was.
"""
import argparse
import json
import os

import step_graphs


def steps(fixed, free):
    return [step_graphs.fixed_step(i) for i in range(fixed)] + \
           [step_graphs.free_step(i) for i in range(free)]


def solve_one(step, seconds):
    if step.order == "fixed":
        import fixed_order
        r = fixed_order.solve(step, seconds)
    else:
        import free_order
        r = free_order.solve(step, seconds)
    closed = r["objective"] - r["bound"] <= 1e-3 * r["objective"]
    return {"name": step.name, "optimum": r["objective"], "bound": r["bound"],
            "status": "closed" if closed else "open", "seconds": round(r["seconds"], 1)}


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--out", required=True)
    a.add_argument("--work", default="oracle_results.jsonl")
    a.add_argument("--seconds", type=float, default=60)
    a.add_argument("--fixed", type=int, default=130)
    a.add_argument("--free", type=int, default=70)
    a.add_argument("--only", default="")
    o = a.parse_args()
    done = {}
    if os.path.exists(o.work):
        with open(o.work) as f:
            done = {r["name"]: r for r in map(json.loads, f)}
    all_steps = steps(o.fixed, o.free)
    for s in all_steps:
        if s.name in done or (o.only and s.order != o.only):
            continue
        r = solve_one(s, o.seconds)
        done[s.name] = r
        with open(o.work, "a") as f:
            f.write(json.dumps(r) + "\n")
        print(r, s.family, len(s.ops), flush=True)
    out = []
    for s in all_steps:
        r = done.get(s.name)
        if r is None or not r["optimum"] < 1e9:
            continue
        s.optimum, s.bound, s.status = r["optimum"], r["bound"], r["status"]
        out.append(s)
    step_graphs.write(out, o.out, ["Small steps and their exact optima; format: "
                                   "tests/oracle/step_graphs.py, made by solve_graphs.py."])
    closed = sum(s.status == "closed" for s in out)
    print(f"{len(out)} steps, {closed} closed")


if __name__ == "__main__":
    main()
