"""Hugging Face transformers: models and Trainer, unmodified, with one added line."""
import pytest
import torch
import transformers

import doors
import headrace
import models
from doors import How
from models import Case

LAYERS, HIDDEN, LENGTH = 2, 128, 64


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=models.VOCAB, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=LENGTH))


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=models.VOCAB, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=LENGTH, tie_word_embeddings=True))


def gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=models.VOCAB, n_embd=HIDDEN, n_layer=LAYERS, n_head=4, n_positions=LENGTH,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=models.VOCAB, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS, num_attention_heads=4, max_position_embeddings=LENGTH,
        num_labels=5))


def vit():
    # Without biases of q, k and v: that of keys has no gradient but rounding, which Adam makes
    # steps of.
    return transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=4, image_size=32, patch_size=4, num_labels=10,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, qkv_bias=False))


def language_loss(model, tokens, targets):
    return model(input_ids=tokens, labels=tokens).loss


def label_loss(model, tokens, targets):
    return model(input_ids=tokens, labels=targets[:, 0] % 5).loss


def image_loss(model, images, labels):
    return model(pixel_values=images, labels=labels).loss


CASES = {case.name: case for case in (
    Case("llama", llama, models.token_batch, language_loss),
    Case("qwen2", qwen2, models.token_batch, language_loss),
    Case("gpt2", gpt2, models.token_batch, language_loss),
    Case("bert", bert, models.token_batch, label_loss),
    Case("vit", vit, models.image_batch, image_loss),
)}


def needs_dynamo_for_the_library(door="compile"):
    """transformers 5 asks torch.compiler.is_exporting while Dynamo traces it: with an older torch
    no backend compiles it."""
    if door == "compile" and not hasattr(torch.compiler, "is_exporting"):
        pytest.skip(f"torch {torch.__version__} cannot compile models of transformers "
                    f"{transformers.__version__}: it has no torch.compiler.is_exporting")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("door", doors.DOORS)
def test_models(door, name, folder):
    needs_dynamo_for_the_library(door)
    case = CASES[name]

    def run(door=None, memory=None):
        return doors.train(case.model(), case.batch, case.loss, How(clip=1.0), door, memory, folder)
    if door == "step" and name == "bert":
        with pytest.raises(headrace.HeadraceError) as refused:   # dropout of attention
            run(door, "1GiB")
        assert refused.value.code == "unsupported"
        return
    got = doors.in_the_least(door, lambda memory: run(door, memory))
    doors.assert_same(got, run(), door, close=2e-5)


@pytest.mark.parametrize("door", ("eager", "compile"))
def test_checkpointing_of_the_library_inside(door, folder):
    needs_dynamo_for_the_library(door)
    case = CASES["llama"]

    def run(door=None, memory=None):
        model = case.model()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        return doors.train(model, case.batch, case.loss, How(), door, memory, folder)
    doors.assert_same(doors.in_the_least(door, lambda memory: run(door, memory)), run(), door)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        tokens = torch.randint(0, models.VOCAB, (LENGTH,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def trainer_of(folder, **more):
    model = CASES["llama"].model()
    arguments = transformers.TrainingArguments(**(dict(
        output_dir=str(folder), max_steps=6, per_device_train_batch_size=4, logging_steps=1,
        learning_rate=1e-3, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        seed=7, lr_scheduler_type="cosine", warmup_steps=2) | more))
    return transformers.Trainer(model=model, args=arguments, train_dataset=Rows(),
                                eval_dataset=Rows())


def losses_of(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


@pytest.mark.parametrize("more", [
    {}, {"gradient_accumulation_steps": 3}, {"eval_strategy": "steps", "eval_steps": 2},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
], ids=["plain", "accumulation", "evaluation", "checkpointing"])
def test_trainer_with_one_added_line(more, tmp_path, folder):
    plain = trainer_of(tmp_path / "a", **more)
    plain.train()

    def run(memory):
        trainer = trainer_of(tmp_path / "b", **more)
        headrace.fit(trainer.model, trainer.create_optimizer(), memory=memory, folder=folder)
        trainer.train()
        return trainer
    trainer = doors.in_the_least("eager", run)
    assert losses_of(trainer) == losses_of(plain) and len(losses_of(plain)) == 6
    for a, b in zip(trainer.model.parameters(), plain.model.parameters()):
        assert torch.equal(a, b)


def test_trainer_saves_and_goes_on(tmp_path, folder):
    """Its checkpoint of a run through the door, resumed through the door, is the plain run."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    plain = trainer_of(tmp_path / "a")
    plain.train()
    first = trainer_of(tmp_path / "b", **saving)
    headrace.fit(first.model, first.create_optimizer(), memory="64MiB", folder=folder)
    first.train()
    second = trainer_of(tmp_path / "c")
    headrace.fit(second.model, second.create_optimizer(), memory="64MiB", folder=folder)
    second.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-3"))
    for a, b in zip(second.model.parameters(), plain.model.parameters()):
        assert torch.equal(a, b)
    assert losses_of(second)[-3:] == losses_of(plain)[-3:]


def test_trainer_with_the_compile_door(tmp_path, folder):
    """accelerate knows the names of the backends it lets through: the model is compiled before."""
    needs_dynamo_for_the_library()
    plain = trainer_of(tmp_path / "a", max_steps=3)
    plain.train()
    torch._dynamo.reset()
    trainer = trainer_of(tmp_path / "b", max_steps=3)
    trainer.model.compile(backend="headrace", options={"memory": "1GiB", "folder": str(folder)})
    trainer.train()
    assert losses_of(trainer) == pytest.approx(losses_of(plain), rel=1e-4)
