"""Lower bound of every offload-only plan of a kernel trace, by linear programming.

  python fluid_lp.py TRACE.json --budget 40 --link 15.754        # GiB, GiB/s each way
  python fluid_lp.py --all DIR --out ../data/oracle/g10_lp_bounds.json

Problem. One iteration in the order given. Persistent tensors are on the device at the start, and have
a copy somewhere at the end. While an op runs, the device holds what it touches (outputs are there
before inputs are freed) and what is not away. Bytes move in any amounts, at most B seconds of link
time a direction. Variables: the duration d[k] >= c[k] of each op with the stall after it; for each life
of a value (from one write to the next) the share stored in slot k, and for each of its idle gaps the
share that is absent from one op to another and loaded in the slot before it comes back. A copy is
stored once for all gaps of one life. Where a Program could be a little better than op-wise counting
(a load that runs in the stall after an op, a store that ends while its op still runs) the LP takes the
better: it is a bound for all of them.

Method. The LP has a million columns when written down, so: Dantzig-Wolfe with one subproblem a life
(which slot to store in, where to load again: two prefix minima) and the Lagrangian value of the
prices as the bound, which holds at any time (Dantzig and Wolfe, "Decomposition principle for linear
programs", Operations Research 1960). Prices are smoothed between rounds (Wentges 1997). Tensors below
1 MiB are taken to move for nothing, which only lowers the bound.
"""
import argparse
import json
import os
import time

import highspy
import numpy as np
from scipy.sparse import coo_matrix

GIB = 2.0 ** 30
SMALL = 1 << 20


class Life:
    """A value from one write to the next: size in GiB, first slot in which it may be stored, gaps.

    Slot s is the time from the start of op s - 1 to that of op s. A gap (a, b) lies between the touches
    a and b; b is the number of ops when nothing touches it again.
    """

    def __init__(self, size, first, gaps):
        self.size, self.first, self.gaps = size, first, gaps


class Trace:
    def __init__(self, path, budget):
        with open(path) as f:
            data = json.load(f)
        kernels, tensors = data["kernels"], {int(t): v for t, v in data["tensors"].items()}
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.n, self.budget = len(kernels), budget
        self.cost = np.array([k["t"] for k in kernels])
        touches, writes = {}, {}
        for i, k in enumerate(kernels):
            for t in set(k["in"] + k["out"]):
                touches.setdefault(t, []).append(i)
            for t in set(k["out"]):
                if t not in k["in"] and touches[t][0] < i:
                    raise ValueError(f"tensor {t} is overwritten: version it first")
                writes.setdefault(t, []).append(i)
        self.held = np.zeros(self.n)
        for t, tt in touches.items():
            a, b = (0, self.n - 1) if tensors[t]["persistent"] else (tt[0], tt[-1])
            self.held[a:b + 1] += tensors[t]["bytes"] / GIB
        over = self.held > budget
        self.lives = []
        for t, tt in touches.items():
            self.add(t, tensors[t], tt, writes.get(t, []), over)

    def add(self, t, tensor, tt, writes, over):
        size, persistent = tensor["bytes"] / GIB, tensor["persistent"]
        points = [-1] + tt + [self.n] if persistent else tt
        lives = {}
        for a, b in zip(points, points[1:]):
            if b - a < 2 or not over[a + 1:b].any():
                continue
            if tensor["bytes"] < SMALL:
                self.held[a + 1:b] -= size
                continue
            born = max([w for w in writes if w <= a], default=-1 if persistent else tt[0])
            lives.setdefault(born, []).append((a, b))
        for born, gaps in lives.items():
            self.lives.append(Life(size, born + 1, gaps))


def cheapest(life, n, memory, store, load):
    """The best (cost a GiB, store slot, [(absent begin, end, load slot)]) at these prices.

    memory: prefix sums of the price of a GiB while op k runs. A share stored in slot s is absent from
    op s on; one loaded in slot e is there from op e on.
    """
    best, choice = 0.0, None
    later, parts = 0.0, []                       # of the gaps after this one: the copy is there
    for a, b in reversed(life.gaps):
        slots = np.arange(life.first, b)
        begin = np.maximum(slots, a + 1)
        if b == n:                               # never loaded again
            cost = store[slots] - (memory[n] - memory[begin])
            back = lambda first: (n, None, -memory[n])
        else:
            ends = np.arange(a + 2, b + 1)
            price = load[ends] - memory[ends]
            low = np.minimum.accumulate(price[::-1])[::-1]

            def back(first):
                i = first - ends[0]
                e = int(ends[i + int(price[i:].argmin())])
                return e, e, price[e - ends[0]]

            begin = np.minimum(begin, b - 1)
            cost = store[slots] + np.minimum(low[begin + 1 - ends[0]] + memory[begin], 0)
        i = int(cost.argmin())
        if cost[i] + later < best:
            best = float(cost[i]) + later
            e, slot, value = back(begin[i] + 1)
            here = [(int(begin[i]), e, slot)] if value + memory[begin[i]] < 0 else []
            choice = (int(slots[i]), here + parts)
        e, slot, value = back(a + 2)
        if value + memory[a + 1] < 0:
            later += value + memory[a + 1]
            parts = [(a + 1, e, slot)] + parts
    return best, choice


class Master:
    """The restricted LP. Rows: absent GiB at each op, store link, load link, one share a life."""

    PENALTY = 0.05                               # seconds for a GiB that is absent for nothing

    def __init__(self, trace, bandwidth):
        n = self.n = trace.n
        self.trace, self.b = trace, bandwidth
        self.store_row, self.load_row, self.life_row = n, 2 * n + 1, 3 * n + 2
        self.rows = self.life_row + len(trace.lives)
        self.cost, self.lb, self.r, self.c, self.v = [], [], [], [], []
        self.seen = set()
        for k in range(n):                       # absent at op k
            self.column(0, max(0.0, trace.held[k] - trace.budget), self.pulse(k, 1.0))
        for k in range(n):
            self.column(self.PENALTY, 0, self.pulse(k, -1.0))
        for s in range(n + 1):                   # duration of slot s
            least = trace.cost[s - 1] if s else 0.0
            self.column(1, least, [(self.store_row + s, -bandwidth), (self.load_row + s, -bandwidth)])

    def pulse(self, k, a):
        return [(k, a)] + ([(k + 1, -a)] if k + 1 < self.n else [])

    def column(self, cost, least, terms):
        for r, v in terms:
            self.r.append(r)
            self.c.append(len(self.cost))
            self.v.append(v)
        self.cost.append(cost)
        self.lb.append(least)

    def add(self, i, choice):
        key = (i, choice[0], tuple(choice[1]))
        if key in self.seen:
            return 0
        self.seen.add(key)
        size = self.trace.lives[i].size
        terms = [(self.life_row + i, 1.0), (self.store_row + choice[0], size)]
        for begin, end, slot in choice[1]:
            terms.append((begin, -size))
            if end < self.n:
                terms.append((end, size))
            if slot is not None:
                terms.append((self.load_row + slot, size))
        self.column(0, 0, terms)
        return 1

    def solve(self, tolerance):
        n, lives = self.n, len(self.trace.lives)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), self.rows
        lp.col_cost_, lp.col_lower_ = np.array(self.cost, float), np.array(self.lb, float)
        lp.col_upper_ = np.full(len(self.cost), np.inf)
        lp.row_lower_ = np.concatenate([np.zeros(n), np.full(2 * n + 2 + lives, -np.inf)])
        lp.row_upper_ = np.concatenate([np.zeros(3 * n + 2), np.ones(lives)])
        a = coo_matrix((self.v, (self.r, self.c)), shape=(self.rows, len(self.cost))).tocsc()
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.value_ = a.indptr.astype(np.int32), a.data
        lp.a_matrix_.index_ = a.indices.astype(np.int32)
        h = highspy.Highs()
        for key, value in (("output_flag", False), ("threads", 1), ("solver", "ipx"),
                           ("run_crossover", "off"), ("ipm_optimality_tolerance", tolerance)):
            h.setOptionValue(key, value)
        h.passModel(lp)
        h.run()
        y = np.array(h.getSolution().row_dual)
        level = np.append(y[:n], 0.0)
        memory = np.maximum(level[1:] - level[:-1], 0)
        store = np.maximum(-y[self.store_row:self.load_row], 0)
        load = np.maximum(-y[self.load_row:self.life_row], 0)
        most = np.maximum(1.0, (store + load) * self.b)      # a second of slot costs a second
        return h.getInfo().objective_function_value, (memory, store / most, load / most)


def lower_bound(trace, bandwidth, rounds=120, gap=1e-4, seconds=300.0, log=False):
    """(proven bound, value of the restricted LP) in seconds; equal up to `gap` when it converged."""
    n, lives = trace.n, trace.lives
    master = Master(trace, bandwidth)
    slot_cost = np.concatenate([[0.0], trace.cost])
    over = trace.held > trace.budget

    def priced(prices):
        memory, store, load = prices
        prefix = np.concatenate([[0.0], np.cumsum(memory)])
        return [cheapest(life, n, prefix, store, load) for life in lives]

    def lagrangian(prices, found):
        memory, store, load = prices
        return float((slot_cost * (1 - (store + load) * bandwidth)).sum() +
                     (memory * (trace.held - trace.budget)).sum() +
                     sum(life.size * cost for life, (cost, _) in zip(lives, found)))

    flat = np.full(n + 1, 0.45 / bandwidth)
    for f in (0.1, 0.5, 1.0):
        for i, (_, choice) in enumerate(priced((np.where(over, trace.cost * f, 0), flat, flat))):
            if choice:
                master.add(i, choice)
    best, center, begun = -np.inf, None, time.time()
    value = np.inf
    for it in range(rounds):
        value, prices = master.solve(1e-5 if it < 15 else 1e-7)
        if center is not None and it < 0.7 * rounds:
            prices = tuple(0.4 * c + 0.6 * p for c, p in zip(center, prices))
        found = priced(prices)
        bound = lagrangian(prices, found)
        if bound > best:
            best, center = bound, prices
        new = sum(master.add(i, choice) for i, (_, choice) in enumerate(found) if choice)
        if log:
            print(f"{it}: LP {value:.5f}, bound {best:.5f}, {new} new columns", flush=True)
        if value - best <= gap * value or time.time() - begun > seconds:
            break
    return max(best, float(trace.cost.sum())), value


def main():
    a = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("trace", nargs="?")
    a.add_argument("--budget", type=float, default=24)
    a.add_argument("--link", type=float, default=15.754)
    a.add_argument("--all", metavar="DIR")
    a.add_argument("--out")
    o = a.parse_args()
    cells = [(o.trace, o.budget, o.link)]
    if o.all:
        cells = [(os.path.join(o.all, f), m, b)
                 for f in ("g10_bert_base_b256.json", "g10_vit_b1280.json")
                 for b in (15.754, 50.0) for m in (40, 32, 24, 20)]
    out = []
    for path, budget, link in cells:
        trace = Trace(path, budget)
        compute = float(trace.cost.sum())
        bound, value = lower_bound(trace, link)
        out.append({"trace": trace.name, "budget_gib": budget, "link_gib_per_s": link,
                    "compute_s": round(compute, 6), "bound_s": round(bound, 6),
                    "lp_s": round(max(value, compute), 6),
                    "efficiency": round(compute / bound, 4)})
        print(json.dumps(out[-1]), flush=True)
    if o.out:
        with open(o.out, "w") as f:
            f.write("[\n" + ",\n".join(map(json.dumps, out)) + "\n]\n")


if __name__ == "__main__":
    main()
