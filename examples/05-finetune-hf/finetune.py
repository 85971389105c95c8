#!/usr/bin/env python3
"""Fine-tunes a real Hugging Face model with transformers' own Trainer, in less memory, by one line.

    make python                                           # PyTorch and headrace into .cache/torch
    .cache/torch/bin/python examples/05-finetune-hf/finetune.py
    .cache/torch/bin/python examples/05-finetune-hf/finetune.py --plain    # without the line

All 134.5M parameters of SmolLM2-135M-Instruct (Apache-2.0) learn the GPL that Debian's base-files
ships. The weights come from the GGUF file that `make models` fetches; transformers turns it into
an ordinary folder of a model first, offline. AdamW's two numbers a parameter alone are 1,026 MiB.
"""
import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
import transformers  # noqa: E402

import headrace  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
MODELS = pathlib.Path(os.environ.get("HEADRACE_MODELS", HERE.parent.parent / ".cache" / "models"))
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = ["/usr/share/common-licenses/GPL-3", "/usr/share/common-licenses/GPL-2"]
SKIPPED = 77


def convert(folder):
    """The GGUF file as a folder that from_pretrained() takes."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS, gguf_file=GGUF)
    model.config.quantization_config = None       # its weights are ordinary numbers now
    if hasattr(model, "hf_quantizer"):
        del model.hf_quantizer
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(MODELS, gguf_file=GGUF).save_pretrained(folder)


class Windows(torch.utils.data.Dataset):
    """Pieces of `length` tokens of a text, one after another."""

    def __init__(self, tokenizer, length):
        text = "".join(pathlib.Path(path).read_text() for path in TEXT)
        ids = tokenizer(text, return_tensors="pt")["input_ids"][0]
        self.rows = ids[:len(ids) // length * length].view(-1, length)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--memory", default="1700MiB", help="what training may take on top of the model")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--length", type=int, default=256, help="tokens of a row")
    p.add_argument("--out", type=pathlib.Path, default=HERE / "run")
    p.add_argument("--plain", action="store_true", help="without headrace")
    p.add_argument("--json", action="store_true", help="print what came of it as one JSON object")
    p.add_argument("--convert", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    folder = a.out / "model"
    if a.convert:
        return convert(folder)
    if not (folder / "config.json").exists():
        if not (MODELS / GGUF).exists():
            print(f"SKIPPED: no {GGUF} in {MODELS}; make models fetches it")
            sys.exit(SKIPPED)
        # In a process of its own, whose memory is not this one's.
        subprocess.run([sys.executable, __file__, "--convert", "--out", a.out], check=True)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    arguments = transformers.TrainingArguments(
        output_dir=str(a.out / "trainer"), max_steps=a.steps, per_device_train_batch_size=a.batch,
        learning_rate=2e-5, warmup_steps=2, lr_scheduler_type="cosine", logging_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=1)
    trainer = transformers.Trainer(model=model, args=arguments,
                                   train_dataset=Windows(tokenizer, a.length))
    if not a.plain:
        headrace.fit(trainer.model, trainer.create_optimizer(), memory=a.memory)   # the added line

    resident = headrace.process_memory().rss
    headrace.reset_peak()
    begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    trainer.train()
    end = resource.getrusage(resource.RUSAGE_SELF)
    peak = headrace.process_memory().peak
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    if a.json:
        print(json.dumps({
            "losses": losses, "peak_rss_bytes": peak, "resident_before": resident,
            "train_s": time.monotonic() - begin,
            "train_cpu_s": end.ru_utime + end.ru_stime - used.ru_utime - used.ru_stime}))
        return
    print(f"{a.steps} steps in {time.monotonic() - begin:.1f} s, loss {losses[0]:.4f} to "
          f"{losses[-1]:.4f}; peak {peak / 2**20:,.0f} MiB, {(peak - resident) / 2**20:,.0f} of "
          "them for training")
    trainer.save_model(str(a.out / "tuned"))
    tokenizer.save_pretrained(a.out / "tuned")
    print(f"{a.out / 'tuned'} is a folder of a model as any other")
    prompt = tokenizer("The licensee shall", return_tensors="pt")
    print(tokenizer.decode(model.generate(**prompt, max_new_tokens=30, do_sample=False)[0]))


if __name__ == "__main__":
    main()
