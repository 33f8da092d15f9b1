"""What one rank does for `autotp generate`: load its part of a model, write, and say what that took."""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, TextStreamer
from transformers.generation.streamers import BaseStreamer

from ...errors import UsageError, in_one_line
from ...huggingface.generation import cache_bytes
from ...runtime.cut.origin import parts_only
from ...session.weights import from_pretrained


@dataclass(frozen=True)
class Request:
    """What to write: `settings` are keyword arguments of `generate`; with `stream`, the text is printed as it comes."""

    model: str
    prompt: str
    dtype: str
    seed: int
    stream: bool
    settings: dict[str, Any]


@dataclass(frozen=True)
class Usage:
    """Memory of one rank in bytes: of its process, of the parameters and of the cache it holds at the end."""

    rank: int
    host: str
    resident_bytes: int
    parameter_bytes: int
    cache_bytes: int


@dataclass(frozen=True)
class Written:
    """The new text, its tokens, when each came (in seconds after the start), and what it took on every rank."""

    text: str
    prompt_tokens: int
    tokens: tuple[int, ...]
    times_s: tuple[float, ...]
    ranks: tuple[Usage, ...]

    @property
    def tokens_per_second(self) -> float | None:
        """The rate after the second token, when the programs for prompt and single tokens have been made."""
        count = len(self.times_s) - 2
        return count / (self.times_s[-1] - self.times_s[1]) if count > 0 else None


@dataclass
class Clock(BaseStreamer):
    """Notes when each token comes, and passes it on."""

    inner: BaseStreamer | None
    times: list[float] = field(default_factory=list)

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())
        if self.inner is not None:
            self.inner.put(value)

    def end(self) -> None:
        if self.inner is not None:
            self.inner.end()


def write_on_rank(request: Request) -> Written:
    """Write together with the other ranks of the process group."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    share_cores()
    tokenizer = load_tokenizer(request.model)
    model: Any = load_model(request.model, request.dtype)
    inputs = tokenizer(request.prompt, return_tensors="pt").to(model.device)
    if not inputs["input_ids"].numel():
        raise UsageError("the prompt has no tokens; give a longer --prompt")
    prints = request.stream and dist.get_rank() == 0
    clock = Clock(_printer(tokenizer, model) if prints else None)
    torch.manual_seed(request.seed)
    start = time.perf_counter()
    result = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        streamer=clock,
        return_dict_in_generate=True,
        **request.settings,
    )
    taken = len(result.sequences[0]) - (len(clock.times) - 1)  # what was there before the first new token
    tokens = result.sequences[0, taken:].tolist()
    return Written(
        text=str(tokenizer.decode(tokens, skip_special_tokens=True)),
        prompt_tokens=inputs["input_ids"].shape[1],
        tokens=tuple(tokens),
        times_s=tuple(at - start for at in clock.times[1:]),
        ranks=_usages(model, result.past_key_values),
    )


def load_model(source: str, dtype: str) -> PreTrainedModel:
    """This rank's part of a model with its weights, where the rank computes."""
    model: PreTrainedModel = from_pretrained(_folder(source), dtype=dtype)
    return model


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model. Raises UsageError if there is none."""
    try:
        return AutoTokenizer.from_pretrained(_folder(source), trust_remote_code=False)
    except Exception as error:  # whatever the many kinds of tokenizers say to their files
        raise UsageError(f"{source} has no tokenizer that can be read: {in_one_line(error)}") from error


def _folder(source: str) -> str:
    """A config.json stands for its folder."""
    return str(Path(source).parent) if Path(source).is_file() else source


def share_cores() -> None:
    """Give each rank of this host its share of the cores, unless OMP_NUM_THREADS says how many threads it gets."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", own)))


def _printer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> TextStreamer:
    """Prints text as it comes; a decoder's after its prompt."""
    return TextStreamer(tokenizer, skip_prompt=bool(model.config.is_encoder_decoder), skip_special_tokens=True)


def _usages(model: PreTrainedModel, cache: Any) -> tuple[Usage, ...]:
    with parts_only():
        parameters = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    mine = Usage(dist.get_rank(), socket.gethostname(), resident_bytes(), parameters, cache_bytes(cache))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return tuple(everyone)


def resident_bytes() -> int:
    """Memory that this process has in RAM; its peak where the system does not tell the present."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
