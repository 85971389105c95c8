"""A model trained in eager and through compile_step, side by side."""

import copy

import torch

import headrace

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


def padded(rows=4, seed=0, length=models.LENGTH):
    """(tokens, attention_mask, labels, number of labels), padded on the right."""
    tokens, _ = models.batch(rows, length, seed)
    lengths = torch.randint(4, length + 1, (rows, 1), generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(length) < lengths).long()
    labels = torch.where((mask == 1) & (torch.arange(length) > 1), tokens, -100)
    return torch.where(mask == 1, tokens, 0), mask, labels, labels[:, 1:].ne(-100).sum()


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


def in_parts(*ends, loss_of):
    """Micro-batches of different shapes: rows up to each of `ends`; further arguments are whole."""
    parts = [slice(*part) for part in zip((0, *ends), ends)]

    def step_of(model, optimizer):
        def train_step(tokens, targets, *more):
            losses = []
            for part in parts:
                loss = loss_of(model, tokens[part], targets[part], *more)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
            return losses

        return train_step

    return step_of
