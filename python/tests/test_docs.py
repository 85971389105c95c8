"""The Python that the documents show runs as it stands, block by block."""
import re

import pytest
import torch
from torch import nn

import headrace
import models
from headrace import _report
from conftest import ROOT

GUIDE, README = ROOT / "docs" / "guide" / "pytorch.md", ROOT / "README.md"
TOKENS, LENGTH = 96, 32


def blocks(document, language="python"):
    """Code between the document's fences, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.M | re.S)


def run(code, names, document=GUIDE):
    """What the names are after a block of a document has run."""
    names = {"headrace": headrace, "torch": torch, "nn": nn, **names}
    exec(compile(code, str(document), "exec"), names)
    return names


def llama():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH))


def batches(count):
    """What a loader gives: (tokens, labels), each [4, LENGTH]."""
    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, TOKENS, (4, LENGTH), generator=generator) for _ in range(count)]
    return [(tokens, tokens.clone()) for tokens in rows]


def train(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(input_ids=batch[0], labels=batch[1]).loss
    loss.backward()
    optimizer.step()
    return loss


def of_a_step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (i + 1))
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": batches(4)}


def clipped_step(model, optimizer, batch):
    loss = model(input_ids=batch[0], labels=batch[1]).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_the_guide_has_the_blocks_that_are_run_here():
    first, step, trainer, refusal, marked = blocks(GUIDE)
    assert len(first.splitlines()) == 5
    for block, word in ((step, "compile_step"), (trainer, "trainer"), (refusal, "DoesNotFit"),
                        (marked, "remote_memory")):
        assert word in block


def test_the_five_lines_train_to_the_same_bits(capsys):
    plain, model = llama(), llama()
    given = of_a_step(plain)
    for batch in given["loader"]:
        train(plain, given["optimizer"], batch)
    ours = of_a_step(model)
    names = run(blocks(GUIDE)[0], {**ours, "train": train})
    assert names["model"] is model and names["optimizer"] is ours["optimizer"]
    for a, b in zip(plain.parameters(), model.parameters()):
        assert torch.equal(a, b)
    assert capsys.readouterr().out.strip()


def test_the_step_of_the_guide_trains_as_plain_torch():
    plain, model = llama(), llama()
    given = of_a_step(plain)
    for batch in given["loader"]:
        loss = clipped_step(plain, given["optimizer"], batch)
        given["schedule"].step()
    names = run(blocks(GUIDE)[1], of_a_step(model))
    assert names["loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    for (name, a), b in zip(plain.state_dict().items(), model.state_dict().values()):
        assert (a - b).norm() <= 1e-4 * b.norm(), name


def test_the_trainer_of_the_guide_needs_the_one_line(tmp_path):
    transformers = pytest.importorskip("transformers")

    def trainer():
        rows = [{"input_ids": row, "labels": row} for tokens, _ in batches(4) for row in tokens]
        return transformers.Trainer(
            model=llama(), train_dataset=rows, args=transformers.TrainingArguments(
                output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, seed=7,
                use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True))
    plain, ours = trainer(), trainer()
    plain.train()
    run(blocks(GUIDE)[2], {"trainer": ours})
    assert ours.state.global_step == 3
    for a, b in zip(plain.model.parameters(), ours.model.parameters()):
        assert torch.equal(a, b)


def test_a_refusal_has_the_numbers_that_the_guide_prints(capsys):
    given = of_a_step(llama())
    step = headrace.compile_step(
        lambda *batch: clipped_step(given["model"], given["optimizer"], batch), given["model"],
        given["optimizer"], memory="64KiB")
    names = run(blocks(GUIDE)[3], {"step": step, "batch": given["loader"][0]})
    assert "refused" not in names    # Python forgets it with the block that catches it
    needed, options = capsys.readouterr().out.split(" ", 1)
    assert int(needed) > 64 << 10 and options.startswith("['")


def test_the_mark_of_the_guide_is_on_the_class():
    marked = run(blocks(GUIDE)[4], {})["LargeEmbedding"]
    assert issubclass(marked, nn.Module)
    assert marked.__headrace_remote__.max_size_bytes == 128_000_000
    assert marked.__headrace_remote__.prefetch_priority == 0.8


def test_the_three_lines_of_the_front_page_train():
    text = README.read_text()
    code, = (b for b in blocks(README) if "import headrace" in b)
    fit, compiled, step = [line for line in code.splitlines() if " = " in line]
    assert GUIDE.relative_to(ROOT).as_posix() in text
    for line, door in ((fit, "eager"), (compiled, "compile"), (step, "step")):
        given = of_a_step(models.language_model("llama"))

        def train_step(tokens, targets):
            given["optimizer"].zero_grad()
            loss = given["model"](tokens, targets)
            loss.backward()
            given["optimizer"].step()
            return loss
        names = run(line, {**given, "train_step": train_step}, README)
        given["model"] = names["model"]
        call = names["step"] if door == "step" else train_step
        batch = models.token_batch(torch.Generator().manual_seed(1))
        losses = [call(*batch).item() for _ in range(3)]
        assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("door", ("eager", "compile"))
def test_what_memory_is_for_is_said_where_everything_fits(door, tmp_path, monkeypatch):
    monkeypatch.setattr(_report, "_plan", None)
    model = models.language_model("llama")
    optimizer = torch.optim.AdamW(model.parameters())
    if door == "eager":
        headrace.fit(model, optimizer, memory="4GiB")
    else:
        model = torch.compile(model, backend="headrace", options={"memory": "4GiB"})
    for seed in range(2):
        model(*models.token_batch(torch.Generator().manual_seed(seed))).backward()
        optimizer.step()
        assert "activation" in headrace.hotspot_analysis()
    for ending in ("html", "pickle", "json"):
        headrace.memory_timeline(tmp_path / f"timeline.{ending}")


def test_a_step_that_has_nothing_to_move_says_so():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    headrace.fit(model, optimizer, memory="1GiB")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with pytest.raises(headrace.HeadraceError, match="no tensor of 64 KiB or more"):
        headrace.hotspot_analysis()


@pytest.mark.parametrize("door", ("eager", "compile", "step"))
def test_parameters_that_are_not_on_the_cpu_are_refused_by_name(door):
    model = nn.Linear(8, 8, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.ones(2, 8, device="meta")

    def train_step(tokens):
        loss = called(tokens).sum()
        loss.backward()
        optimizer.step()
        return loss
    called = model
    with pytest.raises(headrace.HeadraceError, match="on meta") as caught:
        if door == "eager":
            headrace.fit(model, optimizer, memory="1GiB")
        elif door == "compile":
            called = torch.compile(model, backend="headrace", options={"memory": "1GiB"})
            train_step(tokens)
        else:
            headrace.compile_step(train_step, model, optimizer, memory="1GiB")(tokens)
    assert caught.value.code == "unsupported"
