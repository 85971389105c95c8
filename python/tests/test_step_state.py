"""compile_step: who owns the parameters and the state between two steps."""

import copy
import gc
import io
import weakref

import pytest
import torch

import headrace
from headrace.step import state as states
from headrace.step.values import Parameter

import remote_models
import step_models as models
from step_pairs import (
    MEMORY,
    adamw,
    assert_same_parameters,
    assert_same_training,
    batches,
    pair,
    plain_step,
)


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
