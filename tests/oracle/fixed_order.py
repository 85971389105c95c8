"""The exact optimum of a step in fixed order: keep, run again, or move over a duplex link (MILP).

Model. Op k occupies a slot: a stall w[k] >= 0, ops that run again for it, then op k itself. Fractions
of a value may be moved (a Program moves ranges of 64 bytes, and chunks one after the other on a link
give any fluid schedule). For value v and op k
  X[v,k]  absent fraction when op k starts       Y[v,k]  absent when op k ends
  S[v,k], E[v,k]  fraction with a valid copy off the device, at the same two times
  lost[v,k]       absent without a copy: only running its op again brings it back
  R[p,k]  (binary) op p runs again just before op k, on inputs that are there then
  T[v,k]  fraction there while those ops run, beyond what is there when op k starts
Memory is held to the budget when op k starts, when it ends, and while ops run again; between these
times bytes change monotonically, so they are enough. A write makes copies stale. Copies may be stored
while an op reads the value, not while one writes it. State is on the device at entry and must have a
copy somewhere at the end; transfers in flight after the last op do not count.

What it leaves out, so that a Program could still be better: an op runs again only just before a use
of its value (or of a value computed from it, up to DEPTH ops back), and all that runs again before
one op is held at the same time.

Only what is there can be freed: a published formulation of recomputation omits that and returns plans
over budget. Here T <= R + (1 - Y before), X >= Y before - loaded - R, and Y >= X - loaded.
"""
import time

import highspy
import numpy as np

DEPTH = 4


class Lp:
    """Rows and columns, gathered, then solved by HiGHS on one thread."""

    def __init__(self):
        self.cost, self.lb, self.ub, self.whole = [], [], [], []
        self.start, self.index, self.value, self.lo, self.hi = [0], [], [], [], []

    def var(self, lb=0.0, ub=1.0, cost=0.0, whole=False):
        self.cost.append(cost)
        self.lb.append(lb)
        self.ub.append(ub)
        self.whole.append(whole)
        return len(self.cost) - 1

    def row(self, terms, lo=-np.inf, hi=np.inf):
        merged = {}
        for j, a in terms:
            merged[j] = merged.get(j, 0.0) + a
        for j, a in merged.items():
            self.index.append(j)
            self.value.append(a)
        self.start.append(len(self.index))
        self.lo.append(lo)
        self.hi.append(hi)

    def solve(self, seconds, gap=1e-4, log=False):
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.lo)
        lp.col_cost_ = np.array(self.cost, float)
        lp.col_lower_, lp.col_upper_ = np.array(self.lb, float), np.array(self.ub, float)
        lp.row_lower_, lp.row_upper_ = np.array(self.lo, float), np.array(self.hi, float)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.start, np.int32)
        lp.a_matrix_.index_ = np.array(self.index, np.int32)
        lp.a_matrix_.value_ = np.array(self.value, float)
        if any(self.whole):
            lp.integrality_ = [highspy.HighsVarType.kInteger if w else
                               highspy.HighsVarType.kContinuous for w in self.whole]
        h = highspy.Highs()
        h.setOptionValue("output_flag", log)
        h.setOptionValue("threads", 1)
        h.setOptionValue("time_limit", float(seconds))
        h.setOptionValue("mip_rel_gap", gap)
        h.passModel(lp)
        t = time.time()
        h.run()
        info = h.getInfo()
        status = h.modelStatusToString(h.getModelStatus())
        x = np.array(h.getSolution().col_value)
        bound = info.mip_dual_bound if any(self.whole) else info.objective_function_value
        return {"status": status, "objective": info.objective_function_value, "bound": bound,
                "x": x, "seconds": time.time() - t}


class Value:
    def __init__(self, step, v, touches):
        size, kind = step.tensors[v]
        self.size, self.kind, self.touches = size, kind, touches
        self.writes = [k for k in touches if v in step.ops[k].outs or v in step.ops[k].ups]
        self.first = -1 if kind == "s" else touches[0]
        self.end = len(step.ops) - 1 if kind == "s" else touches[-1]
        self.producer = None     # op that can run again
        self.again = []          # positions before which it may
        if kind != "s" and len(self.writes) == 1 and step.ops[self.writes[0]].again:
            self.producer = self.writes[0]


def values_of(step, recompute):
    """Values with where their ops may run again, and how long they may have to live for that."""
    touches = step.touches()
    values = [Value(step, v, touches[v]) for v in range(len(step.tensors))]
    if not recompute:
        for v in values:
            v.producer = None
        return values

    def allowed(v, k):
        # What its op reads must have the version of the first time.
        ins = [values[i] for i in step.ops[v.producer].ins]
        return all(not any(v.producer < w < k for w in i.writes) for i in ins)

    wave = []
    for v in values:
        if v.producer is None:
            continue
        for a, b in zip(v.touches, v.touches[1:]):
            if b - a > 1 and allowed(v, b):
                v.again.append(b)
                wave.append((v, b))
    for _ in range(DEPTH - 1):
        more = []
        for v, k in wave:
            for i in step.ops[v.producer].ins:
                u = values[i]
                if u.producer is None or k in u.touches or k in u.again or not allowed(u, k):
                    continue
                u.again.append(k)
                more.append((u, k))
        wave = more
    for v in values:
        for k in v.again:
            for i in step.ops[v.producer].ins:
                values[i].end = max(values[i].end, k)
            v.end = max(v.end, k)
    return values


def build(step, recompute=True, offload=True):
    n = len(step.ops)
    values = values_of(step, recompute)
    lp = Lp()
    stall = [lp.var(0, 1e9, 1.0) for _ in range(n)]
    rerun = {}                                     # (value, k) -> binary
    for v, val in enumerate(values):
        for k in sorted(val.again):
            rerun[v, k] = lp.var(0, 1, float(step.ops[val.producer].cost), True)
    runs_at = [[] for _ in range(n)]
    for (v, k), col in rerun.items():
        runs_at[k].append((v, col))
    start_mem = [[] for _ in range(n)]             # (col, size) of X; constant in start_all
    end_mem = [[] for _ in range(n)]
    again_mem = [[] for _ in range(n)]
    held = [o.workspace for o in step.ops]         # what is there unless absent
    births = [o.workspace for o in step.ops]       # not there yet while ops run again
    store_w, store_r, store_c = ([[] for _ in range(n)] for _ in range(3))
    load_w, load_c = ([[] for _ in range(n)] for _ in range(2))
    absent = {}
    before = {}                                    # (v, k): column of Y before op k (None: there)
    for v, val in enumerate(values):
        size = val.size
        for k in range(max(val.first, 0), val.end + 1):
            held[k] += size
            if k == val.first:
                births[k] += size
        touch = set(val.touches)
        copy = None                                # column of the copied fraction
        y = lost = None                            # absent, lost at the end of the op before
        can_lose = val.producer is not None or val.end > (val.touches[-1] if val.touches else -1)
        last_touch = val.touches[-1] if val.touches else -1
        for k in range(max(val.first, 0), val.end + 1):
            before[v, k] = y
            r = rerun.get((v, k))
            born = k == val.first
            written = k in val.writes
            x = new_lost = None
            # ---- stall and ops that run again, up to the start of op k
            if not born:
                s = None
                if offload and not (written and k == last_touch and val.kind != "s"):
                    s = lp.var()
                    sr = lp.var() if runs_at[k] else None
                    e = lp.var()
                    terms = [(e, 1), (s, -1)] + ([(copy, -1)] if copy is not None else [])
                    store_w[k].append((s, size))
                    if sr is not None:
                        terms.append((sr, -1))
                        store_r[k].append((sr, size))
                        again_mem[k].append((sr, size))
                    lp.row(terms, hi=0)
                    copy = e
                if k not in touch:
                    x = lp.var()
                    if can_lose:
                        new_lost = lp.var()
                        lp.row([(x, 1), (new_lost, -1)], lo=0)
                        # Lost stays lost until its op runs again.
                        if lost is not None:
                            lp.row([(new_lost, 1), (lost, -1)] + ([(r, 1)] if r is not None else []),
                                   lo=0)
                        lp.row([(x, 1), (new_lost, -1)] + ([(copy, -1)] if copy is not None else []),
                               hi=0)
                    elif copy is not None:
                        lp.row([(x, 1), (copy, -1)], hi=0)
                    else:
                        lp.ub[x] = 0
                else:
                    if lost is not None:           # must be whole: nothing lost but by running again
                        lp.row([(lost, 1)] + ([(r, -1)] if r is not None else []), hi=0)
                if y is not None:
                    back = lp.var() if offload else None
                    terms = [(y, -1)]
                    if back is not None:
                        terms.append((back, 1))
                        load_w[k].append((back, size))
                    if x is not None:
                        terms.append((x, 1))
                    if r is not None:
                        terms.append((r, 1))
                    lp.row(terms, lo=0)
            absent[v, k] = x
            if x is not None:
                start_mem[k].append((x, size))
            # ---- op k itself
            if written:
                copy = None                        # stale
            elif offload and not (k == last_touch and val.kind != "s" and val.end == last_touch):
                s = lp.var()
                e = lp.var()
                store_c[k].append((s, size))
                lp.row([(e, 1), (s, -1)] + ([(copy, -1)] if copy is not None else []), hi=0)
                copy = e
            if x is not None:
                y = lp.var()
                end_mem[k].append((y, size))
                if can_lose:
                    lost = lp.var()
                    lp.row([(lost, 1), (new_lost, -1)], lo=0)
                    lp.row([(y, 1), (lost, -1)], lo=0)
                    lp.row([(y, 1), (lost, -1)] + ([(copy, -1)] if copy is not None else []), hi=0)
                elif copy is not None:
                    lp.row([(y, 1), (copy, -1)], hi=0)
                else:
                    lp.ub[y] = 0
                if offload:
                    back = lp.var()
                    load_c[k].append((back, size))
                    lp.row([(y, 1), (back, 1), (x, -1)], lo=0)
                else:
                    lp.row([(y, 1), (x, -1)], lo=0)
            else:
                y = lost = None
        if val.kind == "s" and lost is not None:
            lp.ub[lost] = 0
    # ---- ops that run again: inputs and bytes
    temps = {}

    def temp(v, k):
        """T[v,k]: there while ops run again before op k, beyond what is there when op k starts."""
        if (v, k) not in temps:
            t = temps[v, k] = lp.var()
            again_mem[k].append((t, values[v].size))
            lp.row([(t, 1), (absent[v, k], -1)], hi=0)
            y, r = before[v, k], rerun.get((v, k))
            if y is not None:
                lp.row([(t, 1), (y, 1)] + ([(r, -1)] if r is not None else []), hi=1)
        return temps[v, k]

    for (v, k), col in rerun.items():
        for i in step.ops[values[v].producer].ins:
            u = values[i]
            if k < max(u.first, 0) or k > u.end:
                lp.ub[col] = 0
                continue
            x = absent.get((i, k))
            if x is None:
                continue                           # touched by op k, or born before: there
            lp.row([(col, 1), (x, 1), (temp(i, k), -1)], hi=1)
        x = absent.get((v, k))
        if x is not None:
            lp.row([(temp(v, k), 1), (col, -1), (x, -1)], lo=-1)
    budget = step.budget
    for k in range(n):
        if held[k] > budget:
            lp.row(start_mem[k], lo=held[k] - budget)
            lp.row(end_mem[k], lo=held[k] - budget)
        if runs_at[k] and (again_mem[k]):
            over = held[k] - births[k] - budget
            lp.row(start_mem[k] + [(j, -m) for j, m in again_mem[k]], lo=over)
        cost = float(step.ops[k].cost)
        reruns = [(col, float(step.ops[values[v].producer].cost)) for v, col in runs_at[k]]
        b = step.link
        if store_w[k]:
            lp.row(store_w[k] + [(stall[k], -b)], hi=0)
        if store_r[k]:
            lp.row(store_r[k] + [(c, -b * t) for c, t in reruns], hi=0)
        if load_w[k]:
            lp.row(load_w[k] + [(stall[k], -b)] + [(c, -b * t) for c, t in reruns], hi=0)
        if store_c[k]:
            lp.row(store_c[k], hi=b * cost)
        if load_c[k]:
            lp.row(load_c[k], hi=b * cost)
    return lp, rerun, stall


def solve(step, seconds=60.0, recompute=True, offload=True, log=False):
    lp, rerun, stall = build(step, recompute, offload)
    out = lp.solve(seconds, log=log)
    out["objective"] += step.compute()
    out["bound"] += step.compute()
    out["columns"], out["binaries"] = len(lp.cost), len(rerun)
    if len(out["x"]):
        out["reruns"] = [key for key, col in rerun.items() if out["x"][col] > 0.5]
    return out
