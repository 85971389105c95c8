"""The best order and the best use of a duplex link for a step, without running ops again (CP-SAT).

Model: that of fixed_order.py at positions instead of ops. done[o,k]: op o is at position k or earlier.
Bytes are counted in units of 1/4 MiB and time in what the link takes for one unit, so all numbers are
whole; afterwards the order found is solved again as an LP, in which amounts are not whole. So what is
proven is proven for whole units; finer ones (1/16, 1/64 MiB) gave the same on the few steps tried, in
their given order.
"""
import copy
import time

from ortools.sat.python import cp_model

import fixed_order

UNIT = 4


def needs(step):
    """Pairs (a, b): op a before op b, so that every read sees the version that it sees in order."""
    pairs = set()
    state = {t: (None, []) for t in range(len(step.tensors))}   # last writer, readers since
    for k, o in enumerate(step.ops):
        for t in o.ins:
            writer, readers = state[t]
            if writer is not None:
                pairs.add((writer, k))
            readers.append(k)
        for t in o.outs + o.ups:
            writer, readers = state[t]
            if writer is not None:
                pairs.add((writer, k))
            pairs.update((r, k) for r in readers if r != k)
            state[t] = (k, [])
    return pairs


def reach(n, pairs):
    """For each op how many ops must come before it, and after it."""
    before = [set() for _ in range(n)]
    for b in range(n):
        for a, c in pairs:
            if c == b:
                before[b] |= before[a] | {a}
    after = [sum(k in before[j] for j in range(n)) for k in range(n)]
    return [len(b) for b in before], after


def build(step):
    m = cp_model.CpModel()
    n = len(step.ops)
    pairs = needs(step)
    first, after = reach(n, pairs)
    per_ms = int(round(UNIT * step.link))            # units of time in a ms
    done = []
    for o in range(n):
        row = []
        for k in range(n):
            if k < first[o]:
                row.append(0)
            elif k >= n - 1 - after[o]:
                row.append(1)
            else:
                row.append(m.new_bool_var(f"d{o},{k}"))
        for a, b in zip(row, row[1:]):
            m.add(a <= b)
        done.append(row)
    at = [[done[o][k] - (done[o][k - 1] if k else 0) for k in range(n)] for o in range(n)]
    for k in range(n):
        m.add(sum(done[o][k] for o in range(n)) == k + 1)
    for a, b in pairs:
        for k in range(n):
            m.add(done[b][k] <= (done[a][k - 1] if k else 0))
    touches = step.touches()
    horizon = sum(size for size, _ in step.tensors) * UNIT * 4
    stall = [m.new_int_var(0, horizon, f"w{k}") for k in range(n)]
    stores_w, stores_c, loads_w, loads_c, start, end = ([[] for _ in range(n)] for _ in range(6))
    for v, (size, kind) in enumerate(step.tensors):
        size *= UNIT
        touchers = [o for o, op in enumerate(step.ops) if v in op.ins + op.outs + op.ups]
        writers = [o for o, op in enumerate(step.ops) if v in op.outs + op.ups]
        moves = kind == "s" or len(touchers) > 1 or kind == "o"
        y = copied = None
        for k in range(n):
            if kind == "s":
                alive = 1
            else:
                alive = m.new_bool_var(f"a{v},{k}")
                born = done[touches[v][0]][k]
                for o in touchers:
                    m.add(alive >= born - (done[o][k - 1] if k else 0))
                if kind == "o":
                    m.add(alive >= born)
                m.add(alive <= born)
            x = 0
            if moves:
                x, y2, c, e, s1, s2, l1, l2 = (m.new_int_var(0, size, f"{q}{v},{k}")
                                               for q in ("x", "y", "c", "e", "s", "t", "l", "m"))
                touch = sum(at[o][k] for o in touchers)
                if kind == "o" and k == n - 1:
                    touch = 1
                written = sum(at[o][k] for o in writers)
                m.add(x <= size - size * touch)
                m.add(x <= size * alive)
                m.add(y2 <= size - size * touch)
                m.add(y2 <= size * alive)
                m.add(x <= c)
                m.add(y2 <= e)
                m.add(c <= (copied if copied is not None else 0) + s2)
                m.add(e <= c + s1)
                m.add(e <= size - size * written)
                if y is not None:
                    m.add(x >= y - l2)
                m.add(y2 >= x - l1)
                y, copied = y2, e
                stores_w[k].append(s2)
                stores_c[k].append(s1)
                loads_w[k].append(l2)
                loads_c[k].append(l1)
                end[k].append(size * alive - y2)
            else:
                end[k].append(size * alive)
            start[k].append(size * alive - x)
    budget = step.budget * UNIT
    for k in range(n):
        workspace = sum(op.workspace * UNIT * at[o][k] for o, op in enumerate(step.ops)
                        if op.workspace)
        cost = sum(op.cost * per_ms * at[o][k] for o, op in enumerate(step.ops))
        m.add(sum(start[k]) + workspace <= budget)
        m.add(sum(end[k]) + workspace <= budget)
        m.add(sum(stores_w[k]) <= stall[k])
        m.add(sum(loads_w[k]) <= stall[k])
        m.add(sum(stores_c[k]) <= cost)
        m.add(sum(loads_c[k]) <= cost)
    m.minimize(sum(stall))
    for o in range(n):                               # start from the order given
        for k in range(n):
            if not isinstance(done[o][k], int):
                m.add_hint(done[o][k], int(k >= o))
    return m, done, per_ms


def reordered(step, order):
    s = copy.copy(step)
    s.ops = [step.ops[o] for o in order]
    return s


def solve(step, seconds=60.0, log=False):
    t = time.time()
    m, done, per_ms = build(step)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.log_search_progress = log
    status = solver.solve(m)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return {"objective": float("inf"), "bound": step.compute(), "seconds": time.time() - t,
                "status": solver.status_name(status)}
    n = len(step.ops)
    position = [sum(1 - (d if isinstance(d, int) else solver.value(d)) for d in done[o])
                for o in range(n)]
    order = sorted(range(n), key=lambda o: position[o])
    fluid = fixed_order.solve(reordered(step, order), seconds, recompute=False)
    counted = step.compute() + solver.objective_value / per_ms
    objective = min(fluid["objective"], counted)
    least = step.compute() + max(0.0, solver.best_objective_bound / per_ms)
    if status != cp_model.OPTIMAL:
        least = min(least, objective)
    elif objective < counted - 1e-6:                 # amounts that are not whole are better
        least = objective - 1.0 / per_ms
    return {"objective": objective, "bound": min(least, objective), "seconds": time.time() - t,
            "status": solver.status_name(status), "order": order, "counted": counted}
