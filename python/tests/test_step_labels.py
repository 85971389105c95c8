"""compile_step: padding, attention masks, losses divided by what only a step knows."""

import copy

import pytest
import torch
import torch.nn.functional as F

import headrace

import step_models as models
from step_pairs import (
    assert_same_parameters,
    assert_same_training,
    batches,
    in_parts,
    padded,
    pair,
    plain_step,
)


def test_padding_of_labels_is_not_counted():
    eager, compiled = pair(
        lambda: models.huggingface("Llama"),
        step_of=lambda m, o: plain_step(m, o, lambda t, y: m(input_ids=t, labels=y).loss),
    )
    given = [
        (t, torch.where(torch.arange(t.shape[1]) < 9 + i, t, -100))
        for i, (t, _) in enumerate(batches(3))
    ]
    assert_same_training(eager, compiled, given)


def masked_pair(name):
    """A transformers model of that name, plain and compiled, whose steps take an attention mask."""
    pytest.importorskip("transformers")
    return pair(
        models.HUGGINGFACE[name],
        step_of=lambda m, o: plain_step(
            m, o, lambda t, a, y: m(input_ids=t, attention_mask=a, labels=y).loss
        ),
    )


@pytest.mark.parametrize("name", ["Llama", "Llama eager attention", "Mistral", "GPT2"])
def test_attention_masks_of_padding_on_the_right_are_taken(name):
    eager, compiled = masked_pair(name)
    given = []
    for i, (tokens, _) in enumerate(batches(3)):
        mask = (torch.arange(tokens.shape[1]) < torch.tensor([[9 + i], [16 - i]])).long()
        given.append(
            (torch.where(mask == 1, tokens, 0), mask, torch.where(mask == 1, tokens, -100))
        )
    assert_same_training(eager, compiled, given)
    tokens, mask, labels = given[0]
    with pytest.raises(headrace.HeadraceError, match="attention_mask"):
        compiled[2](tokens, mask.flip(1), labels)
    with pytest.raises(headrace.HeadraceError, match="attention_mask"):
        compiled[2](tokens, mask, tokens)


@pytest.mark.parametrize("name", ["Llama", "Llama eager attention", "Mistral"])
def test_attention_masks_of_padding_on_the_left_are_taken(name):
    eager, compiled = masked_pair(name)
    given = []
    for i, (tokens, _) in enumerate(batches(3)):
        left = torch.tensor([[4 + i], [2 - i]])
        mask = (torch.arange(tokens.shape[1]) >= left).long()
        prompt = torch.arange(tokens.shape[1]) < left + 2
        given.append((torch.where(mask == 1, tokens, 0), mask, torch.where(prompt, -100, tokens)))
    assert_same_training(eager, compiled, given)
    tokens, mask, labels = given[0]
    with pytest.raises(headrace.HeadraceError, match="first label after padding"):
        compiled[2](tokens, mask, torch.where(mask == 1, tokens, -100))


def test_padding_on_the_left_is_refused_where_positions_are_absolute():
    pytest.importorskip("transformers")
    _, compiled = pair(
        models.HUGGINGFACE["GPT2"],
        step_of=lambda m, o: plain_step(
            m, o, lambda t, a, y: m(input_ids=t, attention_mask=a, labels=y).loss
        ),
    )
    tokens, _ = models.batch()
    mask = (torch.arange(tokens.shape[1]) >= torch.tensor([[3], [0]])).long()
    labels = torch.where(torch.arange(tokens.shape[1]) < 6, -100, tokens)
    with pytest.raises(headrace.HeadraceError, match="attention_mask"):
        compiled[2](tokens, mask, labels)


def as_trainer_does(model, optimizer, parts=2):
    """Sums of losses over the number of labels of all micro-batches, as transformers' Trainer."""

    def train_step(tokens, mask, labels, items):
        total = 0.0
        for t, a, y in zip(tokens.chunk(parts), mask.chunk(parts), labels.chunk(parts)):
            loss = model(input_ids=t, attention_mask=a, labels=y, num_items_in_batch=items).loss
            loss.backward()
            total = total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
        return total, norm

    return train_step


def gradients_of(make, step_of, *batch):
    """(what the step returns, gradients), in eager and through compile_step: SGD's first step."""
    results = []
    for model, _, step in pair(make, lambda m: torch.optim.SGD(m.parameters(), lr=1.0), step_of):
        before = copy.deepcopy(model.state_dict())
        returned = step(*batch)
        after = model.state_dict()
        results.append((returned, {n: before[n] - after[n] for n in before}))
    return results


def assert_same_gradients(make, step_of, *batch, tolerance=1e-4):
    (expected, gradients), (got, others) = gradients_of(make, step_of, *batch)
    for a, b in zip(expected, got):
        torch.testing.assert_close(b, a.detach(), rtol=1e-5, atol=0)
    for name, gradient in gradients.items():
        difference = (gradient - others[name]).norm()
        assert difference <= tolerance * gradient.norm() + 1e-6, (name, float(difference))


@pytest.mark.parametrize("name", ["Llama", "Llama eager attention", "GPT2", "Qwen2"])
@pytest.mark.parametrize("parts", [1, 2])
def test_padded_batches_as_trainer_gives_them_have_the_gradients_of_torch(name, parts):
    pytest.importorskip("transformers")
    assert_same_gradients(
        models.HUGGINGFACE[name], lambda m, o: as_trainer_does(m, o, parts), *padded()
    )


def test_the_number_of_labels_may_be_any_and_change_from_step_to_step():
    pytest.importorskip("transformers")
    eager, compiled = pair(models.HUGGINGFACE["Llama"], step_of=as_trainer_does)
    engines = set()
    for seed in range(5):
        tokens, mask, labels, items = padded(seed=seed)
        if seed == 3:
            items = items * torch.tensor(1.75, dtype=torch.float64)
        if seed == 4:  # a shorter batch, on the plan of the others
            tokens, mask, labels, items = padded(seed=seed, length=models.LENGTH - 3)
        for a, b in zip(
            eager[2](tokens, mask, labels, items), compiled[2](tokens, mask, labels, items)
        ):
            torch.testing.assert_close(b, a.detach(), rtol=1e-5, atol=0)
        engines.add(id(compiled[2]._state.engine))
    assert_same_parameters(eager[0], compiled[0])
    assert len(engines) == 1
    tokens, mask, labels, items = padded()
    with pytest.raises(headrace.HeadraceError, match="divided by 0"):
        compiled[2](tokens, mask, labels, items * 0)
    for number in (20, 30):  # constants of the step: traced again, the same plan
        compiled[2](tokens, mask, labels, number)
    assert id(compiled[2]._state.engine) in engines


def loss_sum(model, tokens, targets):
    logits = model.lm_head(model.ln_f(model.wte(tokens)))
    logits, targets = logits.flatten(0, 1), targets.flatten()
    return F.cross_entropy(logits, targets, ignore_index=-1, reduction="sum")


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda m, t, y, w: loss_sum(m, t, y),
        lambda m, t, y, w: loss_sum(m, t, y) / y.ne(-1).sum(),
        lambda m, t, y, w: loss_sum(m, t, y) * w / 64,
        lambda m, t, y, w: m(t, y) * w,
        lambda m, t, y, w: m(t, y) / w.clamp(min=2) / 2,
    ],
)
def test_factors_that_are_known_when_the_step_runs(loss_of):
    tokens, targets = models.batch(4)
    targets[0, 4:], targets[2, :7] = -1, -1
    assert_same_gradients(
        lambda: models.NanoGPT(layers=1),
        in_parts(1, 4, loss_of=loss_of),
        tokens,
        targets,
        torch.tensor(0.375),
    )


def test_a_batch_without_a_label_has_the_loss_of_torch_and_changes_what_torch_does():
    eager, compiled = pair(models.NanoGPT)
    assert_same_training(eager, compiled, batches(2))
    tokens, targets = models.batch()
    assert torch.isnan(compiled[2](tokens, torch.full_like(targets, -1)))
    eager[2](tokens, torch.full_like(targets, -1))
    assert_same_training(eager, compiled, batches(2))
