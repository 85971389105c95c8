"""What compile_step makes of a model is the model: by a slow reference of the engine's ops."""

import re

import pytest
import torch
import torch.nn.functional as F

from headrace._errors import HeadraceError
from headrace.step import shapes
from headrace.step.capture import capture
from headrace.step.description import describe

import step_models as models
import step_reference as reference
from step_pairs import adamw, plain_step


def raised(train_step, model, optimizer, *args):
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    return describe(capture(train_step, model, optimizer, args, {}), model, optimizer, tensors)


def reference_losses(description, *args):
    """By the ops of the description, of the rows that the callable makes."""
    values = description.before(*[a for a in args if isinstance(a, torch.Tensor)])
    rows = shapes.Rows(description, description, values)
    inputs = {}
    for name, number, floats in rows.floats:
        shape = next(i["shape"] for i in description.forward["inputs"] if i["name"] == name)
        inputs.setdefault(name, {})[number] = floats.reshape(shape)
    parameters = {n: p.tensor.detach() for n, p in description.parameters.items()}
    return reference.losses_of(description.forward, parameters, rows.tokens, rows.targets, inputs)


def ops_of(description):
    return [op["op"] for op in description.forward["micro_batches"][0]["ops"]]


@pytest.mark.parametrize("name", models.OWN)
def test_a_model_written_by_hand_has_the_same_loss(name):
    torch.manual_seed(1)
    model = models.OWN[name]()
    optimizer = adamw(model)
    tokens, targets = models.batch()
    description = raised(plain_step(model, optimizer, model), model, optimizer, tokens, targets)
    losses = reference_losses(description, tokens, targets)
    torch.testing.assert_close(losses[0], model(tokens, targets), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", models.HUGGINGFACE)
def test_a_model_of_transformers_has_the_same_loss(name):
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = models.HUGGINGFACE[name]()
    optimizer = adamw(model)
    tokens, _ = models.batch()
    step = plain_step(model, optimizer, lambda t: model(input_ids=t, labels=t).loss)
    description = raised(step, model, optimizer, tokens)
    losses = reference_losses(description, tokens)
    expected = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(losses[0], expected, rtol=1e-6, atol=0)


def test_label_smoothing_and_factors_by_column_are_raised():
    torch.manual_seed(1)
    model = models.NanoGPT()
    model.gamma = torch.nn.Parameter(torch.rand(models.WIDTH))

    def loss_of(tokens, targets):
        x = model.wte(tokens) * model.gamma * 3
        logits = model.lm_head(model.ln_f(x))
        return F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.1)

    optimizer = adamw(model)
    tokens, targets = models.batch()
    description = raised(plain_step(model, optimizer, loss_of), model, optimizer, tokens, targets)
    assert ops_of(description) == ["hr.embed", "hr.scale", "hr.scale", "hr.norm", "hr.loss"]
    torch.testing.assert_close(
        reference_losses(description, tokens, targets)[0],
        loss_of(tokens, targets),
        rtol=1e-6,
        atol=0,
    )


def test_products_that_read_one_value_are_one_product():
    model = models.Llama2c(layers=1)
    optimizer = adamw(model)
    description = raised(plain_step(model, optimizer, model), model, optimizer, *models.batch())
    assert ops_of(description) == [
        "hr.embed",
        "hr.norm",
        "hr.linear",
        "hr.rope",
        "hr.attention",
        "hr.linear",
        "hr.norm",
        "hr.linear",
        "hr.act",
        "hr.linear",
        "hr.norm",
        "hr.loss",
    ]


def test_lora_adds_to_columns_of_the_fused_product():
    model = models.with_lora(models.Llama2c(layers=1), ["wv"])
    optimizer = adamw(model)
    description = raised(plain_step(model, optimizer, model), model, optimizer, *models.batch())
    added = [
        op["attrs"]
        for op in description.forward["micro_batches"][0]["ops"]
        if op["attrs"].get("col_begin")
    ]
    assert added == [{"weights": 1, "scale": 2.0, "col_begin": 48}]
    trained = [p["name"] for p in description.forward["parameters"] if p["trainable"]]
    assert trained == ["layers.0.wv.lora_A.weight", "layers.0.wv.lora_B.weight"]


def test_accumulation_is_a_repeated_micro_batch_with_its_factor():
    model = models.NanoGPT()
    optimizer = adamw(model)

    def train_step(tokens, targets):
        optimizer.zero_grad()
        total = 0.0
        for part in range(2):
            loss = model(tokens[2 * part : 2 * part + 2], targets[2 * part : 2 * part + 2]) / 2
            loss.backward()
            total = total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": total, "norm": norm}

    tokens, targets = models.batch(4)
    description = raised(train_step, model, optimizer, tokens, targets)
    (micro,) = description.forward["micro_batches"]
    assert micro["repeat"] == 2
    assert micro["ops"][-1]["attrs"] == {"scale": 0.5, "own_mean": 1}
    assert description.optimizer["clip_norm"] == 1.0
    losses = reference_losses(description, tokens, targets)
    total, norm = description.after(tokens, targets, *losses, torch.tensor(3.0))
    torch.testing.assert_close(total, model(tokens, targets), rtol=1e-6, atol=0)
    assert norm == 3.0


def test_logits_and_labels_may_be_cut_instead_of_padded():
    model = models.huggingface("GPT2")
    optimizer = adamw(model)
    tokens, _ = models.batch()
    loss_of = lambda t: models.shifted_loss(model(input_ids=t).logits, t)  # noqa: E731
    description = raised(plain_step(model, optimizer, loss_of), model, optimizer, tokens)
    torch.testing.assert_close(
        reference_losses(description, tokens)[0], loss_of(tokens), rtol=1e-6, atol=0
    )


def test_labels_that_are_changed_in_place_are_made_as_torch_makes_them():
    model = models.NanoGPT()
    optimizer = adamw(model)

    def loss_of(tokens):
        labels = tokens.clone()
        labels[:, :-1] = tokens[:, 1:]
        labels[:, -1] = -1
        labels[labels == 7] = -1
        return model(tokens, labels)

    tokens, _ = models.batch()
    description = raised(plain_step(model, optimizer, loss_of), model, optimizer, tokens)
    torch.testing.assert_close(
        reference_losses(description, tokens)[0], loss_of(tokens), rtol=1e-6, atol=0
    )


def test_tracing_computes_nothing_and_changes_nothing():
    model = models.NanoGPT()
    optimizer = adamw(model)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    raised(plain_step(model, optimizer, model), model, optimizer, *models.batch())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not optimizer.state
    assert "step" not in vars(optimizer) and "backward" in dir(torch.Tensor)
    loss = model(*models.batch())
    loss.backward()
    optimizer.step()
    assert optimizer.state


# ---- what is refused ---------------------------------------------------------------------------


def refusal(train_step, model, optimizer, *args):
    with pytest.raises(HeadraceError) as caught:
        raised(train_step, model, optimizer, *args)
    assert caught.value.code == "unsupported"
    return str(caught.value)


class Odd(models.NanoGPT):
    """nano with something strange done to what the blocks give."""

    def __init__(self, strange):
        super().__init__()
        self.h.append(strange)


class Apply(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize(
    "function, words",
    [
        (lambda x: torch.cumsum(x, 1), "aten.cumsum.default of [2x16x32]"),
        (lambda x: torch.sin(x), "aten.sin"),
        (lambda x: x * x, "aten"),
        (lambda x: x.detach(), "gradients would stop here"),
        (lambda x: x + torch.arange(16.0)[None, :, None], "is no mask"),
        (lambda x: x.flip(1), "aten.flip"),
        (lambda x: x.transpose(0, 1).reshape(2, 16, 32) + x, "different rows"),
        (lambda x: x.to(torch.bfloat16).float(), "bfloat16"),
        (lambda x: x.exp(), "aten.exp"),
    ],
)
def test_an_op_that_the_engine_has_not_is_named_with_its_line(function, words):
    model = Odd(Apply(function))
    optimizer = adamw(model)
    message = refusal(plain_step(model, optimizer, model), model, optimizer, *models.batch())
    assert words in message
    assert ".py, line " in message


def test_dropout_of_attention_weights_is_refused_by_name():
    pytest.importorskip("transformers")
    model = models.huggingface("GPT2", attn_pdrop=0.1)
    optimizer = adamw(model)
    step = plain_step(model, optimizer, lambda t: model(input_ids=t, labels=t).loss)
    message = refusal(step, model, optimizer, models.batch()[0])
    assert "dropout of attention weights (p = 0.1)" in message
    assert re.search(r"transformers/.*\.py, line \d+: ", message)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, d):
        return d


def incomplete_steps(model, optimizer):
    """(train_step, words of its refusal), for want of an event or because of one."""

    def no_zero(tokens, targets):
        model(tokens, targets).backward()
        optimizer.step()

    def twice(tokens, targets):
        for _ in range(2):
            optimizer.zero_grad()
            model(tokens, targets).backward()
            optimizer.step()

    def no_step(tokens, targets):
        optimizer.zero_grad()
        model(tokens, targets).backward()

    def autocast(tokens, targets):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()

    def custom(tokens, targets):
        optimizer.zero_grad()
        Doubled.apply(model(tokens, targets)).backward()
        optimizer.step()

    def grad(tokens, targets):
        torch.autograd.grad(model(tokens, targets), list(model.parameters()))

    def clip_some(tokens, targets):
        optimizer.zero_grad()
        model(tokens, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.h.parameters(), 1.0)
        optimizer.step()

    return [
        (no_zero, "zero_grad"),
        (twice, "once"),
        (no_step, "once"),
        (autocast, "autocast"),
        (custom, "Doubled"),
        (grad, "torch.autograd.grad"),
        (clip_some, "some of the trained"),
    ]


def dependent_steps(model, optimizer):
    """The same, of steps that use values or gradients themselves."""

    def item(tokens, targets):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    def gradients(tokens, targets):
        optimizer.zero_grad()
        model(tokens, targets).backward()
        for p in model.parameters():
            p.grad.mul_(0.5)
        optimizer.step()

    def logits(tokens, targets):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        return loss, model.ln_f.weight * 2

    def branch(tokens, targets):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        if loss > 10:
            loss = loss / 2
        loss.backward()
        optimizer.step()

    return [
        (item, "return the loss as a tensor"),
        (gradients, "computes with gradients"),
        (logits, "losses"),
        (branch, "value"),
    ]


@pytest.mark.parametrize("number", range(11))
def test_a_step_that_is_not_a_step_is_refused_by_name(number):
    model = models.NanoGPT()
    optimizer = adamw(model)
    steps = incomplete_steps(model, optimizer) + dependent_steps(model, optimizer)
    train_step, words = steps[number]
    message = refusal(train_step, model, optimizer, *models.batch())
    assert words.lower() in message.lower()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "weight_decay=0.1"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "nesterov"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "dampening"),
        (lambda p: torch.optim.RMSprop(p), "RMSprop"),
    ],
)
def test_an_optimizer_that_the_engine_has_not_is_refused_by_name(make, words):
    model = models.NanoGPT()
    optimizer = make(model.parameters())
    message = refusal(plain_step(model, optimizer, model), model, optimizer, *models.batch())
    assert words in message


def test_functions_imported_by_name_are_noted_too():
    model = models.NanoGPT()
    optimizer = adamw(model)

    def train_step(tokens, targets):
        optimizer.zero_grad()
        loss = model(tokens, targets)
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    description = raised(train_step, model, optimizer, *models.batch())
    assert description.optimizer["clip_norm"] == 0.5


from torch.nn.utils import clip_grad_norm_  # noqa: E402


def test_a_checkpointed_block_is_traced_through():
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        torch.manual_seed(1)
        model = models.NanoGPT()
        for block in model.h:
            inner = block.forward
            block.forward = lambda x, f=inner: checkpoint(f, x, use_reentrant=reentrant)
        optimizer = adamw(model)
        tokens, targets = models.batch()
        description = raised(plain_step(model, optimizer, model), model, optimizer, tokens, targets)
        losses = reference_losses(description, tokens, targets)
        torch.testing.assert_close(losses[0], model(tokens, targets), rtol=1e-6, atol=0)


# ---- images ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_vision_transformer_has_the_same_loss(pool):
    torch.manual_seed(1)
    model = models.Vit(pool)
    optimizer = adamw(model)
    images, labels = models.image_batch()
    description = raised(plain_step(model, optimizer, model), model, optimizer, images, labels)
    losses = reference_losses(description, images, labels)
    torch.testing.assert_close(losses[0], model(images, labels), rtol=1e-6, atol=0)
    assert description.forward["rows"] == 3
    assert ops_of(description)[-3] == ("hr.select" if pool == "class" else "hr.norm")


def test_a_vision_transformer_of_transformers_has_the_same_loss():
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = models.huggingface_vit()
    optimizer = adamw(model)
    images, labels = models.image_batch()
    loss_of = lambda x, y: model(pixel_values=x, labels=y).loss  # noqa: E731
    description = raised(plain_step(model, optimizer, loss_of), model, optimizer, images, labels)
    losses = reference_losses(description, images, labels)
    torch.testing.assert_close(losses[0], loss_of(images, labels), rtol=1e-6, atol=0)
