"""Small random steps for the exact oracles, and the text file that holds them with their optima.

Units: sizes in MiB, times in ms, bandwidth in MiB/ms. A step is fixed by (family, seed).

File format (read by tests/plan/oracle_steps.h), one graph after the other:
  graph NAME FAMILY fixed|free BUDGET_MIB LINK_MIB_PER_MS OPTIMUM_MS BOUND_MS closed|open
  t SIZE_MIB a|s|o          a: activation, s: state (there at entry, must survive), o: output
  op COST_MS WORKSPACE_MIB 0|1 IN,.. OUT,.. UPDATED,..     1: may run again; "-": none
"""
import math
import random


class Op:
    def __init__(self, cost, ins=(), outs=(), ups=(), workspace=0, again=True):
        self.cost, self.ins, self.outs, self.ups = cost, list(ins), list(outs), list(ups)
        self.workspace, self.again = workspace, again


class Step:
    """tensors: [(size, kind)]; ops in a valid order."""

    def __init__(self, name, family):
        self.name, self.family = name, family
        self.tensors, self.ops = [], []
        self.budget, self.link = 0, 0.0
        self.order = "fixed"
        self.optimum, self.bound, self.status = 0.0, 0.0, "open"

    def tensor(self, size, kind="a"):
        self.tensors.append((size, kind))
        return len(self.tensors) - 1

    def op(self, *args, **kwargs):
        self.ops.append(Op(*args, **kwargs))
        # The oracles run again only what has one output and needs no workspace.
        o = self.ops[-1]
        if o.ups or len(o.outs) != 1 or o.workspace:
            o.again = False
        return o

    def touches(self):
        out = [[] for _ in self.tensors]
        for k, o in enumerate(self.ops):
            for t in sorted(set(o.ins + o.outs + o.ups)):
                out[t].append(k)
        last = len(self.ops) - 1
        for t, (_, kind) in enumerate(self.tensors):
            if kind == "o" and out[t][-1] != last:
                out[t].append(last)
        return out

    def profile(self):
        """Bytes held at each op when everything stays."""
        prof = [o.workspace for o in self.ops]
        for t, tt in enumerate(self.touches()):
            size, kind = self.tensors[t]
            a, b = (0, len(self.ops) - 1) if kind == "s" else (tt[0], tt[-1])
            for k in range(a, b + 1):
                prof[k] += size
        return prof

    def least(self):
        """Bytes that must be there at the same time whatever is done."""
        need = [o.workspace for o in self.ops]
        for t, tt in enumerate(self.touches()):
            for k in tt:
                need[k] += self.tensors[t][0]
        entry = sum(size for size, kind in self.tensors if kind == "s")
        return max(max(need), entry)

    def compute(self):
        return sum(o.cost for o in self.ops)


def chain(r, n, weights):
    s = Step("", "chain")
    acts, ws = [], []
    x = s.tensor(r.randint(2, 8))
    s.op(1, [], [x], again=False)
    for _ in range(n):
        y = s.tensor(r.randint(2, 8))
        w = s.tensor(r.randint(1, 3), "s") if weights else None
        s.op(r.randint(2, 8), [x] + ([w] if weights else []), [y], again=r.random() < 0.9)
        acts.append((x, y, s.ops[-1].cost))
        ws.append(w)
        x = y
    g = s.tensor(s.tensors[x][0])
    s.op(1, [x], [g])
    for (a, b, cost), w in zip(reversed(acts), reversed(ws)):
        d = s.tensor(s.tensors[a][0])
        read_out = r.random() < 0.5
        if weights:
            dw = s.tensor(s.tensors[w][0])
            s.op(2 * cost, [g, a, w] + ([b] if read_out else []), [d, dw])
            s.op(1, [dw], [], [w])
        else:
            s.op(2 * cost, [g, a] + ([b] if read_out else []), [d])
        g = d
    s.op(1, [g], [s.tensor(1, "o")])
    return s


def unet(r, depth):
    s = Step("", "unet")
    x = s.tensor(12)
    s.op(1, [], [x], again=False)
    skips, fwd = [], []

    def conv(ins, size):
        y = s.tensor(size)
        s.op(r.randint(2, 9), ins, [y], again=r.random() < 0.9)
        fwd.append((list(ins), y, s.ops[-1].cost))
        return y

    size = 12
    for _ in range(depth):
        x = conv([x], size)
        skips.append(x)
        size = max(1, size * 2 // 3)
        x = conv([x], size)
    for skip in reversed(skips):
        size = s.tensors[skip][0]
        x = conv([x], size)
        x = conv([x, skip], size)
    grads = {x: s.tensor(size)}
    s.op(1, [x], [grads[x]])
    for ins, y, cost in reversed(fwd):
        outs, ups = [], []
        for t in ins:
            if t in grads:
                ups.append(grads[t])      # a second path adds its gradient in place
            else:
                grads[t] = s.tensor(s.tensors[t][0])
                outs.append(grads[t])
        s.op(2 * cost, [grads[y]] + ins, outs, ups)
    return s


def transformer(r, layers, train):
    s = Step("", "transformer")
    h = r.choice([4, 6, 8])
    x = s.tensor(h)
    s.op(1, [], [x], again=False)
    tape = []

    def f(ins, size, cost, again=True):
        y = s.tensor(size)
        s.op(cost, ins, [y], again=again)
        tape.append((list(ins), y, cost))
        return y

    for _ in range(layers):
        a = f([x], h, 1)
        q = f([a], 3 * h, r.randint(5, 9))
        o = f([q], h, r.randint(3, 9))
        p = f([o, x], h, r.randint(2, 4), again=r.random() < 0.8)
        b = f([p], h, 1)
        u = f([b], 4 * h, r.randint(6, 12))
        v = f([u], 4 * h, 1)
        x = f([v, p], h, r.randint(6, 12))
    if not train:
        s.op(1, [x], [s.tensor(1, "o")])
        return s
    grads = {x: s.tensor(h)}
    s.op(1, [x], [grads[x]])
    for ins, y, cost in reversed(tape):
        outs, ups = [], []
        for t in ins:
            if t in grads:
                ups.append(grads[t])
            else:
                grads[t] = s.tensor(s.tensors[t][0])
                outs.append(grads[t])
        s.op(2 * cost, [grads[y]] + ins[:1], outs, ups)
    return s


def dag(r, n):
    s = Step("", "dag")
    states = [s.tensor(r.randint(1, 4), "s") for _ in range(r.choice([0, 0, 2, 4]))]
    made = []
    uses = {}
    for k in range(n):
        ins = []
        for _ in range(r.choice([1, 1, 2, 2, 3])):
            if not made:
                break
            i = len(made) - 1 - min(len(made) - 1, int(r.expovariate(1 / 3)))
            if r.random() < 0.35:
                i = r.randrange(len(made))
            if made[i] not in ins:
                ins.append(made[i])
        if states and r.random() < 0.2:
            ins.append(r.choice(states))
        y = s.tensor(int(2 ** r.uniform(0, 4)))
        extra = [s.tensor(r.randint(1, 6))] if r.random() < 0.15 else []
        ups = []
        if states and r.random() < 0.12:
            w = r.choice(states)
            if w not in ins:
                ups = [w]
        workspace = r.randint(1, 6) if r.random() < 0.1 else 0
        s.op(r.randint(1, 12), ins, [y] + extra, ups, workspace, again=r.random() < 0.85)
        for t in ins:
            uses[t] = uses.get(t, 0) + 1
        made += [y] + extra
    last = [t for t in made if t not in uses][-4:]
    s.op(2, last, [s.tensor(1, "o")])
    # A state that nothing touches is legal, but tells nothing.
    return s


def fixed_step(i):
    """Step number i of the fixed-order set: 20 to 60 ops."""
    r = random.Random(1000 + i)
    kind = i % 5
    if kind == 0:
        s = chain(r, r.randint(10, 24), False)
    elif kind == 1:
        s = chain(r, r.randint(7, 15), True)
    elif kind == 2:
        s = unet(r, r.randint(3, 6))
    elif kind == 3:
        s = transformer(r, r.randint(2, 3), True)
    else:
        s = dag(r, r.randint(20, 58))
    return finish(s, r, "fixed", i)


def free_step(i):
    """Step number i of the free-order set: 8 to 24 ops."""
    r = random.Random(7000 + i)
    kind = i % 4
    if kind == 0:
        s = dag(r, r.choice([7, 8, 9, 10, 12, 14, 18, 22]))
    elif kind == 1:
        s = branches(r)
    elif kind == 2:
        s = chain(r, r.choice([2, 3, 3, 4, 5, 7]), True)
    else:
        s = unet(r, r.choice([1, 1, 2]))
    return finish(s, r, "free", i)


def branches(r):
    """Branches from one tensor that join again: the order decides the peak."""
    s = Step("", "branches")
    x = s.tensor(r.randint(2, 6))
    s.op(1, [], [x], again=False)
    ends = []
    for _ in range(r.randint(2, 4)):
        y = x
        for _ in range(r.randint(2, 4)):
            z = s.tensor(int(2 ** r.uniform(0, 4)))
            s.op(r.randint(1, 8), [y], [z])
            y = z
        ends.append(y)
    out = s.tensor(r.randint(1, 4))
    s.op(r.randint(1, 6), ends, [out])
    s.op(r.randint(1, 6), [out, x], [s.tensor(1, "o")])
    return s


def finish(s, r, order, i):
    s.order = order
    s.name = f"{order}{i:03d}"
    peak, least = max(s.profile()), s.least()
    share = r.uniform(0.45, 0.9)
    s.budget = max(least, int(round(share * peak)))
    moved = sum(size for size, _ in s.tensors)
    link = r.choice([0.3, 0.6, 1.0, 2.0]) * moved / s.compute() / 2
    s.link = round(link, 3)
    if order == "free":                      # a round figure: the model counts in whole units
        s.link = 2.0 ** max(-2, min(1, round(math.log2(link))))
    return s


def write(steps, path, header):
    ids = lambda l: ",".join(map(str, l)) if l else "-"
    with open(path, "w") as f:
        for line in header:
            f.write(f"# {line}\n")
        for s in steps:
            f.write(f"graph {s.name} {s.family} {s.order} {s.budget} {s.link:g} "
                    f"{s.optimum:.6f} {s.bound:.6f} {s.status}\n")
            for size, kind in s.tensors:
                f.write(f"t {size} {kind}\n")
            for o in s.ops:
                f.write(f"op {o.cost} {o.workspace} {int(o.again)} "
                        f"{ids(o.ins)} {ids(o.outs)} {ids(o.ups)}\n")
