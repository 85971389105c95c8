"""The MILP of fixed_order.py against exhaustive search on tiny steps.

  python brute_check.py [COUNT]

The search (Dijkstra) knows nothing of the MILP: it moves one unit of size at a time over a link of one
unit a time step each way, drops units, and runs ops again whenever their inputs are there. Amounts are
whole here, so the MILP may be better by fractions; ops may run again at any time here, so the search
may be better there. Both are counted; on most steps the two must agree.
"""
import heapq
import random
import sys

import fixed_order
import step_graphs


def tiny(seed):
    r = random.Random(seed)
    s = step_graphs.Step(f"tiny{seed}", "tiny")
    made = []
    for _ in range(r.randint(4, 6)):
        ins = sorted(set(r.choice(made) for _ in range(r.randint(1, 2)))) if made else []
        y = s.tensor(r.randint(1, 2))
        s.op(r.randint(1, 3), ins, [y], again=r.random() < 0.8)
        made.append(y)
    s.op(1, sorted({made[0], made[1], made[-1]}), [s.tensor(1, "o")])
    s.link = 1.0
    s.budget = max(s.least(), int(max(s.profile()) * r.uniform(0.5, 0.9)))
    return s


# A value is (a, b, c): units there without a copy, there with one, away with one. The rest is lost.
def brute(s, limit=400000):
    n, values = len(s.ops), len(s.tensors)
    sizes = [t[0] for t in s.tensors]
    touches = s.touches()
    last = [t[-1] for t in touches]
    # How long an input may be wanted for running an op again: to the end.
    producer = {o.outs[0]: k for k, o in enumerate(s.ops) if o.again}
    start = (0, 0, tuple((0, 0, 0) for _ in range(values)), -1)
    queue, best = [(0, start)], {start: 0}
    pops = 0

    def held(state):
        return sum(a + b for a, b, _ in state)

    def put(time, node):
        if time < best.get(node, 1 << 30):
            best[node] = time
            heapq.heappush(queue, (time, node))

    def with_value(state, v, new):
        return state[:v] + (new,) + state[v + 1:]

    while queue:
        time, node = heapq.heappop(queue)
        if time > best[node]:
            continue
        pops += 1
        if pops > limit:
            return None
        k, left, state, running = node
        if k == n:
            return time
        busy = [] if left == 0 else sorted(
            set(s.ops[running].ins + s.ops[running].outs))
        written = [] if left == 0 else s.ops[running].outs
        # Free: drop a unit that no running op touches.
        for v in range(values):
            if v in busy:
                continue
            a, b, c = state[v]
            if b:
                put(time, (k, left, with_value(state, v, (a, b - 1, c + 1)), running))
            dead = last[v] < k
            if (v in producer or dead) and a:
                put(time, (k, left, with_value(state, v, (a - 1, b, c)), running))
            if dead and b:
                put(time, (k, left, with_value(state, v, (a, b - 1, c)), running))
        if left == 0:
            # Start op k, or an earlier one again.
            for op in [k] + [p for v, p in producer.items() if p < k]:
                o = s.ops[op]
                if any(state[v][0] + state[v][1] < sizes[v] for v in o.ins):
                    continue
                new = state
                for v in o.outs:
                    new = with_value(new, v, (sizes[v], 0, 0))
                if held(new) + o.workspace <= s.budget:
                    put(time, (k, o.cost, new, op))
        # A time step: at most one unit out and one in, memory held at its end.
        outs = [None] + [v for v in range(values) if state[v][0] and v not in written]
        ins = [None] + [v for v in range(values) if state[v][2] and v not in busy]
        for out in outs:
            stored = state
            if out is not None:
                a, b, c = state[out]
                stored = with_value(state, out, (a - 1, b + 1, c))
            for back in ins:
                if back == out and back is not None:
                    continue
                new = stored
                if back is not None:
                    a, b, c = new[back]
                    new = with_value(new, back, (a, b + 1, c - 1))
                    total = held(new)
                    # The unit stored now may make room for the one that comes in.
                    if total == s.budget + 1 and out is not None and out not in busy:
                        a, b, c = new[out]
                        new = with_value(new, out, (a, b - 1, c + 1))
                    elif total > s.budget:
                        continue
                if left == 0:
                    if out is not None or back is not None:
                        put(time + 1, (k, 0, new, -1))
                elif left > 1:
                    put(time + 1, (k, left - 1, new, running))
                else:
                    put(time + 1, (k + 1 if running == k else k, 0, new, -1))
    return None


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    same = better = worse = skipped = 0
    for seed in range(count):
        s = tiny(seed)
        b = brute(s)
        if b is None:
            skipped += 1
            continue
        m = fixed_order.solve(s, 30)["objective"]
        same += abs(m - b) < 1e-6
        better += m < b - 1e-6
        worse += m > b + 1e-6
        if abs(m - b) > 1e-6:
            print(f"{s.name}: MILP {m:.3f}, search {b}, compute {s.compute()}, budget {s.budget}")
    print(f"{same} agree, {better} MILP better (fractions), {worse} search better (reruns at any "
          f"time), {skipped} too large")
    return 0 if same > 0.8 * (count - skipped) else 1


if __name__ == "__main__":
    sys.exit(main())
