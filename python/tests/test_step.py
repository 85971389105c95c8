"""compile_step against eager training: same losses and parameters, whatever happens between."""

import collections
import copy
import gc
import io
import tempfile
import types
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import headrace
from headrace.step import state as states
from headrace.step.values import Parameter

import remote_models
import step_models as models

MEMORY = "256MiB"


def adamw(model):
    """The gradient of a bias of keys is rounding alone; an eps of 1e-8 would make steps of it."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3, eps=1e-4)


def plain_step(model, optimizer, loss_of=None, clip=None):
    loss_of = loss_of or model

    def train_step(*batch):
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss

    return train_step


def pair(make, optimizer_of=adamw, step_of=plain_step, **more):
    """(eager model, optimizer, step), (model, optimizer, compiled step) of the same parameters."""
    torch.manual_seed(1)
    model = make()
    other = copy.deepcopy(model)
    optimizer, other_optimizer = optimizer_of(model), optimizer_of(other)
    return (
        (model, optimizer, step_of(model, optimizer)),
        (
            other,
            other_optimizer,
            headrace.compile_step(
                step_of(other, other_optimizer), other, other_optimizer, MEMORY, **more
            ),
        ),
    )


def assert_same_parameters(model, other, tolerance=1e-5):
    """By norm; a bias of keys moves by rounding alone, by less than 1e-6 a step."""
    state = other.state_dict()
    for name, value in model.state_dict().items():
        difference = (value - state[name]).norm()
        assert difference <= tolerance * value.norm() + 5e-6, (name, float(difference))


def assert_same_training(eager, compiled, batches, tolerance=1e-5):
    for batch in batches:
        expected, loss = eager[2](*batch), compiled[2](*batch)
        assert isinstance(loss, torch.Tensor) and loss.shape == expected.shape
        torch.testing.assert_close(loss, expected.detach(), rtol=tolerance, atol=0)
    assert_same_parameters(eager[0], compiled[0])


def batches(count=5, **shape):
    return [models.batch(seed=i, **shape) for i in range(count)]


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


def accumulated(model, optimizer, parts=3):
    def train_step(tokens, targets):
        total = 0
        for t, y in zip(tokens.chunk(parts), targets.chunk(parts)):
            loss = model(t, y) / parts
            loss.backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return total, norm

    return train_step


def test_accumulation_and_clipping_are_those_of_torch():
    eager, compiled = pair(models.Llama2c, step_of=accumulated)
    for tokens, targets in batches(rows=6):
        targets[0, 3:] = -1  # means of micro-batches are over different numbers of targets
        for expected, got in zip(eager[2](tokens, targets), compiled[2](tokens, targets)):
            torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=0)
    assert_same_parameters(eager[0], compiled[0])


def test_micro_batches_of_different_shapes_have_their_own_rows():
    def step_of(model, optimizer):
        def train_step(tokens, targets):
            losses = []
            for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
                loss = model(tokens[part], targets[part]) / 3
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            return losses

        return train_step

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


# ---- losses that are divided by what is known when the step runs --------------------------------


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


def padded(rows=4, seed=0, length=models.LENGTH):
    """(tokens, attention_mask, labels, number of labels), padded on the right."""
    tokens, _ = models.batch(rows, length, seed)
    lengths = torch.randint(4, length + 1, (rows, 1), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(length) < lengths).long()
    labels = torch.where((mask == 1) & (torch.arange(length) > 1), tokens, -100)
    return torch.where(mask == 1, tokens, 0), mask, labels, labels[:, 1:].ne(-100).sum()


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


def test_a_batch_encoding_is_a_dictionary_of_tensors():
    transformers = pytest.importorskip("transformers")

    def step_of(model, optimizer):
        def train_step(batch, scale):
            loss = model(**batch).loss * scale
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss, batch["labels"].ne(-100).sum() + batch.input_ids.sum()

        return train_step

    eager, compiled = pair(models.HUGGINGFACE["Llama"], step_of=step_of)
    for seed in range(3):
        tokens, mask, labels, _ = padded(seed=seed)
        given = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        batch = transformers.BatchEncoding(given)
        expected, got = eager[2](batch, 2.0), compiled[2](batch, 2.0)
        torch.testing.assert_close(got[0], expected[0].detach(), rtol=1e-5, atol=0)
        assert got[1] == expected[1]
    assert len(compiled[2]._compiled) == 1
    with pytest.raises(headrace.HeadraceError, match="SimpleNamespace has tensors in it"):
        compiled[2](types.SimpleNamespace(**given), 2.0)


def test_a_users_dictionary_keeps_its_attributes_and_stays_the_users_to_register():
    class Named(collections.UserDict):
        """Has attributes of its own."""

    def named(batch, scale):
        tokens, targets = batch
        made = Named(tokens=tokens, inner=Named(targets=targets))
        made.scale, made.opaque = scale, object()
        return made

    def step_of(model, optimizer):
        def train_step(batch, wants_opaque=False):
            assert type(batch) is Named and type(batch["inner"]) is Named
            if wants_opaque:
                batch.opaque
            loss = model(batch["tokens"], batch["inner"]["targets"]) * batch.scale
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return train_step

    eager, compiled = pair(models.NanoGPT, step_of=step_of)
    for i, scale in enumerate((1.0, 2.0, 2.0, 1.0)):
        expected = eager[2](named(models.batch(seed=i), scale))
        loss = compiled[2](named(models.batch(seed=i), scale))
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=0)
    assert len(compiled[2]._compiled) == 2  # one for each scale
    with pytest.raises(AttributeError, match="opaque"):
        compiled[2](named(models.batch(), 1.0), wants_opaque=True)
    # Once in a process; torch refuses a second time.
    pytree.register_pytree_node(Named, lambda d: ([], None), lambda items, context: Named())


@pytest.mark.parametrize(
    "inside",
    ([torch.ones(1)], {"a": (torch.ones(1),)}, collections.UserDict(a=torch.ones(1))),
)
def test_tensors_deeper_in_an_argument_are_refused_by_its_type(inside):
    _, (_, _, step) = pair(models.NanoGPT)
    with_attribute = collections.UserDict()
    with_attribute.inside = inside
    for kind, given in (
        ("SimpleNamespace", types.SimpleNamespace(inside=inside)),
        ("mappingproxy", types.MappingProxyType({"inside": inside})),
        ("UserDict", with_attribute),
    ):
        with pytest.raises(headrace.HeadraceError, match=f"type {kind} has tensors in it"):
            step(given, *models.batch())


def test_a_model_and_an_optimizer_may_be_arguments():
    def step_of(model, optimizer):
        plain = plain_step(model, optimizer)
        return lambda *batch: plain(*batch[2:])

    eager, compiled = pair(models.NanoGPT, step_of=step_of)
    for batch in batches(2):
        expected, loss = (each[2](*each[:2], *batch) for each in (eager, compiled))
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-5, atol=0)


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
    def step_of(model, optimizer):
        def train_step(tokens, targets, weight):
            losses = []
            for part in (slice(0, 1), slice(1, 4)):  # micro-batches of different shapes
                loss = loss_of(model, tokens[part], targets[part], weight)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            return losses

        return train_step

    tokens, targets = models.batch(4)
    targets[0, 4:], targets[2, :7] = -1, -1
    assert_same_gradients(
        lambda: models.NanoGPT(layers=1), step_of, tokens, targets, torch.tensor(0.375)
    )


def test_a_batch_without_a_label_has_the_loss_of_torch_and_changes_what_torch_does():
    eager, compiled = pair(models.NanoGPT)
    assert_same_training(eager, compiled, batches(2))
    tokens, targets = models.batch()
    assert torch.isnan(compiled[2](tokens, torch.full_like(targets, -1)))
    eager[2](tokens, torch.full_like(targets, -1))
    assert_same_training(eager, compiled, batches(2))


# ---- who owns the parameters -------------------------------------------------------------------


def test_between_steps_the_model_takes_no_memory_and_says_so():
    _, (model, optimizer, step) = pair(models.NanoGPT)
    weight = model.h[0].c_fc.weight
    step(*models.batch())
    assert model.h[0].c_fc.weight is weight and weight.shape == (128, 32)
    assert weight.untyped_storage().nbytes() == 4 and torch.isnan(weight).all()
    step.sync()
    assert not torch.isnan(weight).any() and weight.requires_grad


def test_evaluation_and_state_dict_in_between_change_nothing():
    eager, compiled = pair(models.NanoGPT)
    for i, batch in enumerate(batches(6)):
        torch.testing.assert_close(
            compiled[2](*batch), eager[2](*batch).detach(), rtol=1e-5, atol=0
        )
        if i % 2:
            for model, *_ in (eager, compiled):
                model.eval()
            with torch.no_grad():
                torch.testing.assert_close(compiled[0](*batch), eager[0](*batch), rtol=1e-5, atol=0)
            for model, *_ in (eager, compiled):
                model.train()
            assert not any(torch.isnan(t).any() for t in compiled[0].state_dict().values())
    assert_same_parameters(eager[0], compiled[0])


def test_load_state_dict_writes_through():
    eager, compiled = pair(models.NanoGPT)
    start = copy.deepcopy(eager[0].state_dict())
    assert_same_training(eager, compiled, batches(2))
    for model, *_ in (eager, compiled):
        model.load_state_dict(start)
    assert_same_training(eager, compiled, batches(3))


def test_a_parameter_changed_by_hand_after_sync_is_taken():
    eager, compiled = pair(models.NanoGPT)
    assert_same_training(eager, compiled, batches(2))
    compiled[2].sync()
    for model, *_ in (eager, compiled):
        with torch.no_grad():
            model.ln_f.weight.mul_(1.5)
            model.h[1].c_fc.weight.data[3] = 0.25
    assert_same_training(eager, compiled, batches(3))


def test_a_deepcopy_is_a_model_of_its_own():
    eager, compiled = pair(models.NanoGPT)
    assert_same_training(eager, compiled, batches(2))
    copied = copy.deepcopy(compiled[0])
    assert_same_parameters(eager[0], copied)
    assert copied.wte.weight is copied.lm_head.weight
    assert "__deepcopy__" not in vars(copied)
    before = copy.deepcopy(copied.state_dict())
    assert_same_training(eager, compiled, batches(2))
    assert all(torch.equal(t, before[n]) for n, t in copied.state_dict().items())
    optimizer = adamw(copied)
    plain_step(copied, optimizer)(*models.batch())


def test_a_checkpoint_of_model_and_optimizer_goes_on_in_eager_and_back():
    eager, compiled = pair(models.NanoGPT)
    assert_same_training(eager, compiled, batches(3))
    file = io.BytesIO()
    torch.save({"model": compiled[0].state_dict(), "optimizer": compiled[1].state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    model = models.NanoGPT()
    optimizer = adamw(model)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    resumed = (model, optimizer, plain_step(model, optimizer))
    assert_same_training(resumed, compiled, batches(2))
    again = headrace.compile_step(plain_step(model, optimizer), model, optimizer, MEMORY)
    assert_same_training(compiled, (model, optimizer, again), batches(2))


def test_an_optimizer_that_has_done_steps_is_taken_over():
    eager, compiled = pair(models.NanoGPT)
    plain = plain_step(compiled[0], compiled[1])
    for batch in batches(3):
        eager[2](*batch)
        plain(*batch)
    assert_same_training(eager, compiled, batches(3))


def test_after_close_everything_is_torch_again():
    eager, compiled = pair(models.NanoGPT)
    assert_same_training(eager, compiled, batches(3))
    model, optimizer, step = compiled
    step.close()
    assert not model._forward_pre_hooks and "__deepcopy__" not in vars(model)
    with pytest.raises(headrace.HeadraceError, match="closed"):
        step(*models.batch())
    assert_same_training(eager, (model, optimizer, plain_step(model, optimizer)), batches(3))


def test_a_model_keeps_what_it_has_learnt_when_the_step_is_dropped():
    eager, (model, optimizer, step) = pair(models.NanoGPT)
    assert_same_training(eager, (model, optimizer, step), batches(2))
    del step
    assert_same_parameters(eager[0], model)
    assert_same_training(eager, (model, optimizer, plain_step(model, optimizer)), batches(2))


def test_the_engine_ends_with_the_last_reference_to_the_model():
    gc.collect()
    gc.disable()
    try:
        _, (model, optimizer, step) = pair(models.NanoGPT)
        step(*models.batch())
        engine = weakref.ref(step._state.engine)
        del optimizer, step
        assert engine() is not None
        del model, _
        assert engine() is None
    finally:
        gc.enable()


def test_a_second_step_for_a_model_closes_the_first():
    eager, (model, optimizer, first) = pair(models.NanoGPT)
    assert_same_training(eager, (model, optimizer, first), batches(2))
    second = headrace.compile_step(plain_step(model, optimizer), model, optimizer, MEMORY)
    with pytest.raises(headrace.HeadraceError, match="closed"):
        first(*models.batch())
    assert_same_training(eager, (model, optimizer, second), batches(3))


def test_parameters_that_another_models_step_holds_are_refused():
    _, (model, optimizer, step) = pair(models.NanoGPT)
    step(*models.batch())
    with pytest.raises(headrace.HeadraceError, match="'0.ln_1.weight' is held by a step"):
        headrace.compile_step(lambda: None, model.h, optimizer, MEMORY)
    model.state_dict()  # now the model has the values, until the next step
    with pytest.raises(headrace.HeadraceError, match="'0.ln_1.weight' is held by a step"):
        headrace.compile_step(lambda: None, model.h, optimizer, MEMORY)
    step.close()
    headrace.compile_step(lambda: None, model.h, optimizer, MEMORY)


def test_of_two_steps_for_a_model_that_have_not_run_only_one_gets_it():
    eager, (model, optimizer, first) = pair(models.NanoGPT)
    second = headrace.compile_step(plain_step(model, optimizer), model, optimizer, MEMORY)
    assert_same_training(eager, (model, optimizer, second), batches(2))
    with pytest.raises(headrace.HeadraceError, match="'wte.weight' is held by a step"):
        first(*models.batch())
    assert_same_training(eager, (model, optimizer, second), batches(2))


def test_a_deepcopy_of_the_users_own_is_used_and_stays():
    class Copier:
        calls = 0

        def copy(self, memo):
            self.calls += 1
            return models.NanoGPT()

    eager, (model, optimizer, step) = pair(models.NanoGPT)
    step.close()
    copier = Copier()
    model.__deepcopy__ = own = copier.copy
    step = headrace.compile_step(plain_step(model, optimizer), model, optimizer, MEMORY)
    assert_same_training(eager, (model, optimizer, step), batches(2))
    copy.deepcopy(model)
    assert copier.calls == 1
    assert_same_training(eager, (model, optimizer, step), batches(2))
    step.close()
    assert vars(model)["__deepcopy__"] == own


def test_parameters_that_a_graph_of_torch_compile_keeps_out_of_memory_are_refused(folder):
    model = remote_models.Net(far=True)
    optimizer = adamw(model)
    options = {"memory": "4GiB", "folder": str(folder)}
    compiled = torch.compile(model, backend="headrace", options=options)
    compiled(torch.arange(32).view(2, 16)).backward()
    with pytest.raises(headrace.HeadraceError, match="'table.weight' are out of memory") as refused:
        headrace.compile_step(lambda: None, model, optimizer, MEMORY)
    assert refused.value.code == "unsupported"
    # A step that was compiled before, and takes them at its first call.
    state = states.State(model, optimizer, None)
    taken = {name: Parameter(name, p) for name, p in model.named_parameters()}
    with pytest.raises(headrace.HeadraceError, match="'table.weight' are out of memory"):
        state.give(None, taken, [])
    other = copy.deepcopy(model)
    headrace.compile_step(lambda: None, other, adamw(other), MEMORY)
    del compiled, model, optimizer, state, taken, refused
    torch._dynamo.reset()
    gc.collect()


def test_an_eager_step_in_between_is_a_step_like_all_others():
    eager, compiled = pair(models.NanoGPT)
    plain = plain_step(compiled[0], compiled[1])
    for i, batch in enumerate(batches(6)):
        expected = eager[2](*batch)
        loss = plain(*batch) if i == 3 else compiled[2](*batch)
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-5, atol=0)
    assert_same_parameters(eager[0], compiled[0])


# ---- shapes ------------------------------------------------------------------------------------


def test_smaller_batches_run_on_the_plan_of_larger_ones():
    eager, compiled = pair(models.Llama2c)
    shapes = [(4, 16), (3, 16), (4, 12), (3, 11), (4, 16)]
    engines = set()
    for i, (rows, length) in enumerate(shapes):
        assert_same_training(eager, compiled, [models.batch(rows, length, seed=i)])
        engines.add(id(compiled[2]._state.engine))
    assert len(engines) == 1


def test_other_shapes_are_planned_anew_and_share_the_state():
    eager, compiled = pair(models.NanoGPT)
    shapes = [(2, 16), (4, 24), (2, 8), (1, 40), (2, 16)] + [(1, 3 + i) for i in range(8)]
    assert_same_training(
        eager,
        compiled,
        [models.batch(rows, length, seed=i) for i, (rows, length) in enumerate(shapes)],
    )


def test_state_moves_between_plans_through_the_folder_that_was_named(folder, monkeypatch):
    folders, file = [], tempfile.TemporaryFile
    monkeypatch.setattr(
        tempfile, "TemporaryFile", lambda dir: folders.append(dir) or file(dir=dir)
    )
    eager, compiled = pair(models.NanoGPT, folder=folder)
    given = [models.batch(rows, length, seed=rows) for rows, length in ((2, 16), (4, 24))]
    assert_same_training(eager, compiled, given)
    assert folders == [str(folder)]


def test_what_is_no_tensor_is_a_constant_of_the_step():
    def step_of(model, optimizer):
        def train_step(tokens, targets, factor):
            optimizer.zero_grad()
            loss = model(tokens, targets) * factor
            loss.backward()
            optimizer.step()
            return loss

        return train_step

    eager, compiled = pair(
        models.NanoGPT, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), step_of
    )
    assert_same_training(eager, compiled, [(*b, 1.0 + i % 2) for i, b in enumerate(batches(4))])


# ---- what is refused ---------------------------------------------------------------------------


def test_tokens_out_of_range_are_refused_and_training_goes_on():
    eager, compiled = pair(models.NanoGPT)
    tokens, targets = models.batch()
    with pytest.raises(headrace.HeadraceError, match="tokens from .* below 96"):
        compiled[2](tokens + 90, targets)
    with pytest.raises(headrace.HeadraceError, match="targets from"):
        compiled[2](tokens, targets + 90)
    assert_same_training(eager, compiled, batches(2))


def test_a_padding_token_whose_gradient_torch_leaves_out_is_refused():
    def make():
        model = models.NanoGPT(tied=False)
        model.wte = torch.nn.Embedding(models.VOCAB, models.WIDTH, padding_idx=0)
        return model

    eager, compiled = pair(make)
    tokens, targets = models.batch()
    tokens[0, 12:], targets[0, 11:] = 0, -1  # after the last target: no gradient anyway
    assert_same_training(eager, compiled, [(tokens, targets)])
    tokens[1, 2] = 0
    with pytest.raises(headrace.HeadraceError, match="padding_idx"):
        compiled[2](tokens, targets)


def test_a_failed_call_leaves_the_model_as_it_was():
    model = models.NanoGPT()
    optimizer = adamw(model)
    before = copy.deepcopy(model.state_dict())

    def train_step(tokens, targets):
        optimizer.zero_grad()
        model(tokens, targets).cos().backward()
        optimizer.step()

    step = headrace.compile_step(train_step, model, optimizer, MEMORY)
    with pytest.raises(headrace.HeadraceError, match="aten.cos"):
        step(*models.batch())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    plain_step(model, optimizer)(*models.batch())


def test_a_compiled_model_is_refused_by_name():
    model = models.NanoGPT()
    with pytest.raises(headrace.HeadraceError, match="torch.compile"):
        headrace.compile_step(lambda: None, torch.compile(model), adamw(model), MEMORY)


def test_a_model_that_fit_works_on_is_refused_by_name():
    model = models.NanoGPT()
    optimizer = adamw(model)
    headrace.fit(model, optimizer, memory="1GiB", verbose=False)
    with pytest.raises(headrace.HeadraceError, match="release"):
        headrace.compile_step(plain_step(model, optimizer), model, optimizer, MEMORY)
    headrace.release(model)


def test_arguments_that_are_no_model_or_optimizer_are_refused():
    model = models.NanoGPT()
    with pytest.raises(headrace.HeadraceError, match="no torch.optim.Optimizer"):
        headrace.compile_step(lambda: None, model, "adamw", MEMORY)
    with pytest.raises(headrace.HeadraceError, match="no torch.nn.Module"):
        headrace.compile_step(lambda: None, F.relu, adamw(model), MEMORY)


def test_freezing_is_obeyed_and_thawing_refused():
    eager, compiled = pair(models.NanoGPT, lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    assert_same_training(eager, compiled, batches(2))
    for model, *_ in (eager, compiled):
        model.wpe.weight.requires_grad_(False)
    assert_same_training(eager, compiled, batches(2))
    compiled[0].wpe.weight.requires_grad_(True)
    with pytest.raises(headrace.HeadraceError, match="wpe.weight"):
        compiled[2](*models.batch())


# ---- images ------------------------------------------------------------------------------------


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


# ---- the engine's own promises -----------------------------------------------------------------


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
