"""compile_step against eager training: same losses and parameters; the engine's own promises."""

import copy

import pytest
import torch

import headrace

import step_models as models
from step_pairs import (
    MEMORY,
    accumulated,
    adamw,
    assert_same_parameters,
    assert_same_training,
    batches,
    in_parts,
    pair,
    plain_step,
)


@pytest.mark.parametrize("name", models.OWN)
def test_a_model_written_by_hand_trains_as_in_eager(name):
    assert_same_training(*pair(models.OWN[name]), batches())


@pytest.mark.parametrize("name", models.HUGGINGFACE)
def test_a_model_of_transformers_trains_as_in_eager(name):
    pytest.importorskip("transformers")

    def step_of(model, optimizer):
        return plain_step(model, optimizer, lambda t: model(input_ids=t, labels=t).loss)

    eager, compiled = pair(models.HUGGINGFACE[name], step_of=step_of)
    assert_same_training(eager, compiled, [(t,) for t, _ in batches()])


@pytest.mark.parametrize(
    "optimizer_of",
    [
        lambda m: torch.optim.AdamW(
            m.parameters(), lr=1e-2, betas=(0.8, 0.95), weight_decay=0.3, eps=1e-4
        ),
        lambda m: torch.optim.Adam(m.parameters(), lr=1e-3, eps=1e-6),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda m: torch.optim.AdamW(
            [
                {"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.1},
                {"params": [p for p in m.parameters() if p.dim() < 2], "lr": 1e-2},
            ],
            lr=1e-3,
            eps=1e-4,
        ),
    ],
)
def test_optimizers_and_groups_are_those_of_torch(optimizer_of):
    assert_same_training(*pair(models.NanoGPT, optimizer_of), batches())


def test_accumulation_and_clipping_are_those_of_torch():
    eager, compiled = pair(models.Llama2c, step_of=accumulated)
    for tokens, targets in batches(rows=6):
        targets[0, 3:] = -1  # means of micro-batches are over different numbers of targets
        for expected, got in zip(eager[2](tokens, targets), compiled[2](tokens, targets)):
            torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=0)
    assert_same_parameters(eager[0], compiled[0])


def test_micro_batches_of_different_shapes_have_their_own_rows():
    step_of = in_parts(1, 4, 6, loss_of=lambda m, t, y: m(t, y) / 3)
    eager, compiled = pair(models.NanoGPT, step_of=step_of, check=False)
    for tokens, targets in batches(rows=6):
        targets[2, 3:] = -1
        for expected, got in zip(eager[2](tokens, targets), compiled[2](tokens, targets)):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=0)
    assert_same_parameters(eager[0], compiled[0])


def test_schedulers_inside_and_outside_of_the_step_are_obeyed():
    def step_of(model, optimizer):
        inside = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

        def train_step(tokens, targets):
            optimizer.zero_grad()
            loss = model(tokens, targets)
            loss.backward()
            optimizer.step()
            inside.step()
            return loss

        return train_step

    eager, compiled = pair(models.NanoGPT, step_of=step_of)
    assert_same_training(eager, compiled, batches(3))
    for _, optimizer, _ in (eager, compiled):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(3e-3 * 0.7**3)
        optimizer.param_groups[0]["lr"] = 1e-4
    assert_same_training(eager, compiled, batches(2))


def test_frozen_parameters_stay_and_lora_trains():
    def make():
        model = models.NanoGPT()
        for p in model.h[0].parameters():
            p.requires_grad_(False)
        return model

    eager, compiled = pair(make)
    frozen = compiled[0].h[0].attn.c_attn.weight.clone()
    assert_same_training(eager, compiled, batches())
    assert torch.equal(compiled[0].h[0].attn.c_attn.weight, frozen)


def test_dictionaries_of_losses_come_back_as_they_were():
    def step_of(model, optimizer):
        def train_step(tokens, targets):
            optimizer.zero_grad()
            loss = model(tokens, targets)
            loss.backward()
            optimizer.step()
            return {"loss": loss, "scaled": loss.detach() * 2 + 1, "name": "x"}

        return train_step

    eager, compiled = pair(models.NanoGPT, step_of=step_of)
    tokens, targets = models.batch()
    expected, got = eager[2](tokens, targets), compiled[2](tokens, targets)
    assert got.keys() == expected.keys() and got["name"] == "x"
    torch.testing.assert_close(got["scaled"], expected["scaled"], rtol=1e-5, atol=0)


# ---- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_vision_transformer_trains_as_in_eager(pool):
    assert_same_training(
        *pair(lambda: models.Vit(pool)), [models.image_batch(seed=i) for i in range(4)]
    )


def test_a_vision_transformer_of_transformers_trains_as_in_eager():
    pytest.importorskip("transformers")
    eager, compiled = pair(
        models.huggingface_vit,
        step_of=lambda m, o: plain_step(
            m, o, lambda x, y: m(pixel_values=x, labels=y).loss, clip=1.0
        ),
    )
    assert_same_training(eager, compiled, [models.image_batch(seed=i) for i in range(4)])


def test_micro_batches_of_images_have_their_own():
    eager, compiled = pair(models.Vit, step_of=accumulated)
    for i in range(3):
        batch = models.image_batch(6, seed=i)
        torch.testing.assert_close(compiled[2](*batch)[0], eager[2](*batch)[0], rtol=1e-5, atol=0)
    assert_same_parameters(eager[0], compiled[0])


# ---- the engine's own promises -------------------------------------------------------------------


def least(make, step_of=plain_step):
    """The least memory that the step of a model is planned in."""
    model = make()
    optimizer = adamw(model)
    step = headrace.compile_step(step_of(model, optimizer), model, optimizer, "1MiB", check=False)
    with pytest.raises(headrace.DoesNotFit) as refused:
        step(*models.batch(8, 32))
    assert refused.value.needed_bytes > 1 << 20 and refused.value.options
    return refused.value.needed_bytes


def test_in_the_least_memory_the_bits_are_those_of_plenty():
    results = []
    for memory in (least(models.NanoGPT), "1GiB"):
        torch.manual_seed(1)
        model = models.NanoGPT()
        optimizer = adamw(model)
        with headrace.compile_step(
            plain_step(model, optimizer), model, optimizer, memory, check=False
        ) as step:
            losses = [step(*models.batch(8, 32, seed=i)) for i in range(3)]
        results.append((losses, model.state_dict()))
    assert results[0][0] == results[1][0]
    assert all(torch.equal(t, results[1][1][n]) for n, t in results[0][1].items())


def test_the_process_grows_by_no_more_than_memory():
    pytest.importorskip("transformers")
    model = models.huggingface(
        "Llama",
        hidden_size=256,
        intermediate_size=704,
        vocab_size=4096,
        num_hidden_layers=4,
        num_key_value_heads=4,
    )
    optimizer = adamw(model)
    given = [torch.randint(0, 4096, (8, 64)) for _ in range(3)]
    memory = 140 << 20
    before = headrace.process_memory().rss
    headrace.reset_peak()
    step = headrace.compile_step(
        plain_step(model, optimizer, lambda t: model(input_ids=t, labels=t).loss),
        model,
        optimizer,
        memory,
    )
    losses = [float(step(t)) for t in given]
    assert headrace.process_memory().peak - before <= memory
    assert all(8 < loss < 9 for loss in losses)


def test_dropout_is_drawn_anew_each_step_and_the_same_for_one_seed():
    def losses(seed):
        torch.manual_seed(1)
        model = models.NanoGPT(p=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        step = headrace.compile_step(
            plain_step(model, optimizer), model, optimizer, MEMORY, seed=seed
        )
        return [float(step(*models.batch())) for _ in range(3)]

    first = losses(5)
    assert len(set(first)) == 3
    assert losses(5) == first and losses(6) != first


def test_bf16_trains_close_to_what_f32_does():
    torch.manual_seed(1)
    model = models.Llama2c()
    other = copy.deepcopy(model).to(torch.bfloat16)
    other.cos, other.sin = model.cos, model.sin  # what .to() rounds would not be rotations
    optimizer, other_optimizer = adamw(model), adamw(other)
    plain = plain_step(model, optimizer)
    step = headrace.compile_step(plain_step(other, other_optimizer), other, other_optimizer, MEMORY)
    for batch in batches(4):
        torch.testing.assert_close(step(*batch).float(), plain(*batch).detach(), rtol=2e-2, atol=0)
    assert other.state_dict()["output.weight"].dtype == torch.bfloat16


def test_a_step_that_is_not_finite_changes_nothing():
    model = models.NanoGPT()
    optimizer = adamw(model)
    step = headrace.compile_step(plain_step(model, optimizer), model, optimizer, MEMORY)
    step(*models.batch())
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model.ln_f.weight[0] = float("inf")
    assert not torch.isfinite(step(*models.batch()))
    assert step.skipped_steps == 1
    after = model.state_dict()
    assert all(torch.equal(t, before[n]) for n, t in after.items() if n != "ln_f.weight")


def test_the_plan_is_a_table_and_trains_without_a_file_left(folder, tmp_path):
    model = models.NanoGPT()
    optimizer = adamw(model)
    step = headrace.compile_step(
        plain_step(model, optimizer), model, optimizer, MEMORY, folder=folder, threads=1
    )
    assert "first call" in str(step)
    step(*models.batch())
    assert "NanoGPT" in step.plan_text() and "activations" in repr(step)
    assert step._repr_html_().startswith("<pre>")
    path = tmp_path / "timeline.html"
    headrace.memory_timeline(path)
    assert path.read_text().rstrip().endswith("</html>")
    assert "NanoGPT" in str(headrace.hotspot_analysis())
    assert not list(folder.iterdir())
    step.close()


def test_remote_memory_is_obeyed():
    @headrace.remote_memory()
    class Table(torch.nn.Embedding):
        pass

    def make():
        model = models.NanoGPT(tied=False)
        model.wte = Table(models.VOCAB, models.WIDTH)
        return model

    eager, compiled = pair(make)
    assert_same_training(eager, compiled, batches(3))
    rules = [p for p in compiled[2]._live.description.forward["parameters"] if "remote_memory" in p]
    assert [p["name"] for p in rules] == ["wte.weight"]
