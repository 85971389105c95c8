"""compile_step: what the step may be given, batches of other shapes, and what is refused."""

import collections
import copy
import tempfile
import types

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import headrace

import step_models as models
from step_pairs import MEMORY, adamw, assert_same_training, batches, padded, pair, plain_step


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


# ---- shapes --------------------------------------------------------------------------------------


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


# ---- what is refused -----------------------------------------------------------------------------


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
