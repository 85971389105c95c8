"""A decode step that attends only some blocks of a long cache, as a workload for the planner.

An 8B llama (16.1 GB of weights, 32 layers, 8 key-value heads of 128, 16 bits) and 5 sequences of
71,000 positions: 62.6 GB in all. Of the 17.3 blocks (4,096 positions of all sequences) of a layer,
9.3 are attended in every step and 8 once in `part` steps, evenly spread. `part` steps are unrolled
into one that repeats, so that no plan can gain by always selecting the same.
"""
MACHINE = "ascend-910c-node"
LAYERS, WEIGHTS = 32, 16_060_522_496
POSITION = 5 * 2 * 8 * 128 * 2          # bytes a layer, of all sequences
POSITIONS, BLOCK, SELDOM = 71_000, 4096, 8
NOT_HERE = ["host"]                     # the published runs use the pool alone


def workload(part):
    """The JSON of `part` steps as one (docs/guide/workload.md)."""
    tensors, ops = [], []

    def state(name, size, kind):
        tensors.append({"name": name, "bytes": size, "class": kind, "persistent": True,
                        "forbidden_tiers": NOT_HERE})
        return name

    weights = [state(f"w{i}", WEIGHTS // LAYERS, "weight") for i in range(LAYERS)]
    often = [state(f"often{i}", (POSITIONS - SELDOM * BLOCK) * POSITION, "kv")
             for i in range(LAYERS)]
    seldom = [[state(f"seldom{i}.{j}", BLOCK * POSITION, "kv") for j in range(SELDOM)]
              for i in range(LAYERS)]
    last = None
    for step in range(part):
        for i in range(LAYERS):
            chosen = [seldom[i][j] for j in range(SELDOM) if (i * SELDOM + j) % part == step]
            for what, read in (("layer", weights[i]), ("attend", often[i]),
                               *(("attend", block) for block in chosen)):
                name = f"x{len(ops)}"
                tensors.append({"name": name, "bytes": 1 << 16})
                ops.append({"name": f"{what}{step}.{i}", "kernel": what,
                            "inputs": [read] + ([last] if last else []), "outputs": [name],
                            "flops": 1, "recompute": False})
                last = name
    return {"headrace_workload": 1, "name": f"1/{part} selected", "cyclic": True,
            "tensors": tensors, "ops": ops}
