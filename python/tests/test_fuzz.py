"""Random models, trained in random ways, through each door against plain PyTorch.

200 through the eager door and 60 through each of the others in `make check` (they take seconds a
model), 2,000 of each with HEADRACE_FUZZ_ALL=1. A failing test's name has its seed:
pytest python/tests/test_fuzz.py -k "eager and 17-".
"""
import os
import random

import pytest
import torch
import transformers
from torch import nn

import doors
import headrace
import models
import random_models
from doors import How

COUNT = 2000 if os.environ.get("HEADRACE_FUZZ_ALL") == "1" else 200
FEWER = COUNT if COUNT > 200 else 60
refusals = {door: [] for door in doors.DOORS}
followed = []    # seeds of the eager door whose plan moved something


def in_some_memory(door, seed, run):
    """The run with room for all in one of five seeds, else in the least memory, or a bit more."""
    slack = (None, 1.0, 1.0, 1.1, 1.5)[seed % 5]
    return run("4GiB") if slack is None else doors.in_the_least(door, run, slack)


def through(door, seed, run):
    """run(door, memory) -> Run, or the test is skipped with what was refused."""
    try:
        return in_some_memory(door, seed, lambda memory: run(door, memory))
    except headrace.HeadraceError as refused:
        if refused.code != "unsupported":
            raise
        refusals[door].append((seed, str(refused)))
        pytest.skip(f"refused by name: {refused}")


def compared(door, seed, run, close=doors.CLOSE):
    """run(door or None, memory) -> Run, plainly and through the door."""
    plain = run(None, None)
    got = through(door, seed, run)
    doors.assert_same(got, plain, door, close)
    if door == "eager" and seed % 5 and got.stats.followed and got.stats.stored_bytes:
        followed.append(seed)


@pytest.mark.parametrize("seed", range(COUNT), ids=lambda seed: f"{seed}-")
def test_eager_gives_the_same_bits(seed, folder):
    s = random_models.scenario(seed)
    compared("eager", seed, lambda door, memory: doors.train(
        s.model(), s.batches(), random_models.loss, s.how, door, memory, folder, seed))


def torchs_own(run):
    """The run with torch's own graphs; None where they fail as their views do not fit."""
    try:
        return run("aot_eager", None)
    except RuntimeError as error:
        if "view size is not compatible" not in str(error):
            raise
        return None


# What fails in the middle and comes again is not for compiled graphs: a hook that raises breaks
# them.
@pytest.mark.parametrize("seed", range(FEWER), ids=lambda seed: f"{seed}-")
def test_compile_gives_the_same_numbers(seed, folder):
    """Those of torch's own graphs to the bit, and those of plain PyTorch nearly, if both drew the
    same random numbers: a dropout that nobody reads is not in a graph."""
    s = random_models.scenario(seed)
    how = s.how._replace(fail_at=-1)

    def run(door, memory):
        return doors.train(s.model(), s.batches(), random_models.loss, how, door, memory, folder,
                           seed)
    plain, own = run(None, None), torchs_own(run)
    got = through("compile", seed, run)
    if own is not None:
        doors.assert_same(got, own, "aot_eager")
    if own is None or torch.equal(own.random, plain.random):
        doors.assert_same(got, plain, "compile", close=1e-4, noise=torch.finfo().eps)


def step_scenario(seed):
    """(model, batch, loss, how) of a kind that the step door raises to its own ops."""
    r = random.Random(seed * 104729 + 5)
    heads = r.choice([2, 4])
    hidden, layers = heads * r.choice([16, 32]), r.randint(1, 3)
    kv_heads = r.choice([h for h in (1, 2, 4) if heads % h == 0])
    rows, length = r.randint(1, 4), r.choice([8, 16, 48])
    how = How(steps=3, optimizer=r.choice(["sgd", "momentum", "adamw"]),
              accumulation=r.choice([1, 1, 2]), clip=r.choice([None, 0.1]),
              schedule=r.random() < 0.3, groups=r.random() < 0.3)

    def batch(generator):
        return models.token_batch(generator, rows, length)

    kind = r.choice(["llama", "gpt2", "vit", "hf-llama", "hf-qwen2", "hf-gpt2"])
    torch.manual_seed(seed)
    if kind == "vit":
        return models.Vit(hidden=hidden, layers=layers, heads=heads), models.image_batch, \
            models.class_loss, how
    if not kind.startswith("hf-"):
        model = models.language_model(kind, hidden=hidden, layers=layers, heads=heads,
                                      kv_heads=heads if kind == "gpt2" else kv_heads,
                                      ffn=hidden * 2, sequence=length)
        return model, batch, models.language_loss, how
    model = hugging_face(kind[3:], hidden, layers, heads, kv_heads, length, r.random() < 0.5)

    def loss(model, tokens, targets):
        return model(input_ids=tokens, labels=targets).loss
    return model, batch, loss, how


def hugging_face(kind, hidden, layers, heads, kv_heads, length, tied) -> nn.Module:
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=models.VOCAB, n_embd=hidden, n_layer=layers, n_head=heads,
            n_positions=length, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    config, model = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM)}[kind]
    return model(config(
        vocab_size=models.VOCAB, hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=length, tie_word_embeddings=tied))


@pytest.mark.parametrize("seed", range(FEWER), ids=lambda seed: f"{seed}-")
def test_step_gives_the_same_numbers(seed, folder):
    def run(door, memory):
        model, batch, loss, how = step_scenario(seed)
        return doors.train(model, batch, loss, how, door, memory, folder, seed)
    compared("step", seed, run, close=1e-4)


def test_eager_moved_something_in_most_of_them():
    assert len(followed) >= COUNT // 2, f"{len(followed)} of {COUNT}"


@pytest.mark.parametrize("door", doors.DOORS)
def test_few_are_refused(door):
    """What a door cannot do is refused by name; most it can."""
    assert len(refusals[door]) <= FEWER // 10, refusals[door][:20]
