"""A small Llama with a tokenizer of its own, trained in about a minute on two cores on the reference text in Python itself.

python examples/train_tiny_lm.py            train, and write an ordinary checkpoint with its tokenizer to tiny_lm/
autotp generate tiny_lm --tp 2 --prompt "The statement"
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, logging

SEED = 0
START, PADDING = "<|start|>", "<|padding|>"


@dataclass(frozen=True)
class Recipe:
    """Sizes of the model, and how long it is trained: `steps` of `batch` pieces of `length` tokens."""

    steps: int = 500
    batch: int = 12
    length: int = 128
    vocabulary: int = 1024
    width: int = 128
    layers: int = 4
    rate: float = 6e-3


@dataclass(frozen=True)
class Learned:
    """Losses of every step in nats a token, and the entropy of the tokens' frequencies: what knowing no context can reach."""

    losses: tuple[float, ...]
    unigram: float


def read_text() -> str:
    """The language reference that `help()` shows: 0.7 MB of English and Python that comes with every Python."""
    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def make_tokenizer(text: str, vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, learned from a text, so that any text can be written in it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PADDING, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=START, eos_token=START, pad_token=PADDING, padding_side="left"
    )


def make_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> LlamaForCausalLM:
    """A Llama of eight heads that share two key/value heads."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.width * 8 // 3,
        num_hidden_layers=recipe.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def pieces(tokens: torch.Tensor, recipe: Recipe) -> Iterator[torch.Tensor]:
    """Batches of pieces from random places of the text, (batch, length)."""
    for _ in range(recipe.steps):
        starts = torch.randint(0, len(tokens) - recipe.length, (recipe.batch, 1))
        yield tokens[starts + torch.arange(recipe.length)]


def train(folder: Path, recipe: Recipe | None = None, *, verbose: bool = True) -> Learned:
    """Train, and save the checkpoint and its tokenizer in a folder. The same seed gives the same model."""
    recipe = recipe or Recipe()
    torch.manual_seed(SEED)
    text = read_text()
    tokenizer = make_tokenizer(text, recipe.vocabulary)
    tokens = torch.tensor(tokenizer(text).input_ids)
    model = make_model(tokenizer, recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.rate, total_steps=recipe.steps, pct_start=0.1)
    losses: list[float] = []
    for step, ids in enumerate(pieces(tokens, recipe), 1):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if verbose and (step == 1 or step % 50 == 0):
            print(f"step {step:4d}   loss {losses[-1]:.3f}", flush=True)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Learned(tuple(losses), entropy(tokens.tolist()))


def entropy(tokens: list[int]) -> float:
    """The entropy of the tokens' frequencies, in nats."""
    counts = Counter(tokens).values()
    return -sum(count / len(tokens) * math.log(count / len(tokens)) for count in counts)


def sample(folder: Path, prompt: str) -> str:
    """Greedy text from a saved checkpoint, read as anyone would read it."""
    model = LlamaForCausalLM.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    written = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=60, do_sample=False)
    return str(tokenizer.decode(written[0], skip_special_tokens=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a small language model on Python's own reference.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("tiny_lm"), help="where to save it")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    options = parser.parse_args()
    logging.disable_progress_bar()
    start = time.perf_counter()
    learned = train(options.folder, Recipe(steps=options.steps))
    last = sum(learned.losses[-20:]) / len(learned.losses[-20:])
    print(f"loss {learned.losses[0]:.2f} -> {last:.2f} nats a token; token frequencies alone: {learned.unigram:.2f}")
    print(f"saved in {options.folder} after {time.perf_counter() - start:.0f} s\n")
    print(sample(options.folder, "The statement"))
