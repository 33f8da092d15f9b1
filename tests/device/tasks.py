"""What people do with a parallel model, on ranks of the test device; every function here runs on a rank."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import autotp
from autotp.verify import Float64
from tests.device.models import batch, dense_model, distance, is_here, run, there
from tests.device.module import BACKEND, DEVICE

STEPS, RATE, LIMIT = 3, 1e-2, 0.5
# One key/value head on two ranks: some rows of a fused weight are on both, the others on one.
SHARED = {"num_key_value_heads": 1}
DECODING: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
    "sampled": {"do_sample": True, "top_k": 20},
}


def train(model: Any, inputs: list[dict[str, torch.Tensor]]) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Clipped steps of AdamW; returns the gradients' norms, and what has stepped."""
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    norms = []
    for each in inputs:
        run(model, each)[1].backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT))
        optimizer.step()
        optimizer.zero_grad()
    return norms, optimizer


def weights_differ(model: nn.Module, dense: nn.Module) -> float:
    """How far whole weights are from those of a dense model."""
    found = autotp.full_state_dict(model)
    return max(distance(found[name], parameter) for name, parameter in dense.named_parameters())


def training_differs(name: str, **settings: Any) -> float:
    """Some steps beside the dense model's; moments of the optimizer are on the device."""
    dense = dense_model(name, **settings).train()
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    steps = [batch(dense, step) for step in range(STEPS)]
    expected, _ = train(dense, steps)
    found, optimizer = train(parallel, [there(each) for each in steps])
    assert is_here(parallel)
    moments = [value for slots in optimizer.state.values() for value in slots.values() if value.dim()]
    assert {value.device.type for value in moments} == {DEVICE}
    return max(weights_differ(parallel, dense), *map(distance, found, expected))


def data_parallel_differs(kind: str) -> float:
    """DDP or FSDP2 on a second dim of a mesh, 2 x 2 ranks."""
    mesh = _two_dims(named=kind == "DDP")
    first = 2 * mesh["dp"].get_local_rank()
    dense = dense_model("phi3", **SHARED).train()
    steps = [batch(dense, step) for step in range(STEPS)]
    mine = [{name: value[first : first + 2].to(DEVICE) for name, value in each.items()} for each in steps]
    expected, _ = train(dense, steps)
    parallel: Any = autotp.parallelize(dense_model("phi3", **SHARED).train(), mesh=mesh)
    if kind == "DDP":
        norms, _ = train(DistributedDataParallel(parallel, process_group=mesh["dp"].get_group()), mine)
    else:
        for block in parallel.model.layers:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(parallel, mesh=mesh["dp"])
        norms, _ = train(parallel, mine)
    return max(weights_differ(parallel, dense), *map(distance, norms, expected))


def _two_dims(named: bool) -> DeviceMesh:
    """A mesh of 2 x 2 ranks. Its groups are made one by one where they are to name their backend, as torch's DDP wants, and in
    a world that was made with a device: torch would split them off, which this backend cannot."""
    names = ("dp", "tp")
    if not named and dist.group.WORLD.bound_device_id is None:  # type: ignore[union-attr]
        return init_device_mesh(DEVICE, (2, 2), mesh_dim_names=names)
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))  # as the other way does
    lines = {"dp": [[0, 2], [1, 3]], "tp": [[0, 1], [2, 3]]}
    groups = [dist.new_subgroups_by_enumeration(lines[name], backend=BACKEND)[0] for name in names]
    return DeviceMesh.from_group(groups, DEVICE, mesh=lines["tp"], mesh_dim_names=names)


def cut_loss_differs() -> float:
    """Labels given: logits are never gathered, and returned as a distributed tensor on the device."""
    dense = dense_model("llama", vocab_size=253)
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    inputs = batch(dense)
    expected, found = run(dense, inputs), run(parallel, there(inputs))
    assert found[0].device_mesh.device_type == DEVICE  # type: ignore[attr-defined]
    return max(map(distance, found, expected))


def texts(names: tuple[str, ...], ways: tuple[str, ...]) -> list[str]:
    """The families and ways of decoding in which a parallel model writes other tokens than the dense one."""
    wrong = []
    for name in names:
        dense = dense_model(name).eval()
        parallel: Any = autotp.parallelize(copy.deepcopy(dense))
        ids = batch(dense, rows=2)["input_ids"]
        for way in ways:
            settings: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, **DECODING[way]}
            settings |= {"pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
            with Float64():
                torch.manual_seed(7)
                expected = dense.generate(ids, **settings)
                torch.manual_seed(7 + dist.get_rank())  # what the first rank draws, all do
                settings["attention_mask"] = settings["attention_mask"].to(DEVICE)
                found = parallel.generate(ids.to(DEVICE), **settings)
            assert found.device.type == DEVICE
            if not torch.equal(found.cpu(), expected):
                wrong.append(f"{name}, {way}")
    return wrong


def draws() -> tuple[bool, bool, bool]:
    """If ranks' device generators are in step, slices are dropped apart, and the same comes again for the same seed."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 8)).train()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.25)
    autotp.parallelize(model, example=(torch.ones(3, 8),))
    common = torch.rand(4, device=DEVICE).cpu()
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, common)

    def dropped() -> torch.Tensor:
        model.zero_grad()
        torch.manual_seed(5)
        model(torch.ones(1, 8, device=DEVICE)).sum().backward()
        gradient = autotp.full_gradients(model)["0.weight"]
        assert gradient is not None
        return (gradient.abs().sum(1) == 0).cpu()

    first, again = dropped(), dropped()
    equal = all(torch.equal(each, common) for each in seen)
    return equal, not torch.equal(first[:32], first[32:]) and 8 < int(first.sum()) < 56, torch.equal(first, again)


def checkpoints_differ(source: Path, folder: Path) -> float:
    """Loaded by slices, saved, loaded again, trained and resumed: the weights are those of what was saved."""
    from transformers import AutoModelForCausalLM

    loaded = autotp.from_pretrained(source, dtype=torch.float64)
    assert is_here(loaded)
    dense = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64)
    apart = [weights_differ(loaded, dense)]
    steps = [there(batch(dense, step)) for step in range(STEPS)]
    _, optimizer = train(loaded.train(), steps)
    autotp.save_pretrained(loaded, folder / "saved")
    apart.append(weights_differ(loaded, AutoModelForCausalLM.from_pretrained(folder / "saved", dtype=torch.float64)))
    dcp.save({"training": autotp.TrainingState(loaded, optimizer)}, checkpoint_id=folder / "state")
    resumed = autotp.from_pretrained(source, dtype=torch.float64).train()
    other = torch.optim.AdamW(resumed.parameters(), RATE)
    dcp.load({"training": autotp.TrainingState(resumed, other)}, checkpoint_id=folder / "state")
    for model, stepping in ((loaded, optimizer), (resumed, other)):
        run(model, steps[0])[1].backward()
        stepping.step()
    whole = autotp.full_state_dict(loaded)
    return max(*apart, *(distance(value, whole[n].cpu()) for n, value in autotp.full_state_dict(resumed).items()))


def initial_values_differ() -> float:
    """Built on the meta device and given its values on the ranks' devices: another device changes none of them."""
    from transformers import LlamaForCausalLM

    from tests.families import FAMILIES

    with torch.device("meta"):
        models = [LlamaForCausalLM(FAMILIES["llama"].config()) for _ in range(2)]
    here, cpu = (
        autotp.initialize(autotp.parallelize(models[0]), seed=3),
        autotp.initialize(autotp.parallelize(models[1]), seed=3, device="cpu"),
    )
    assert is_here(here)
    assert {parameter.device.type for parameter in cpu.parameters()} == {"cpu"}
    pairs = zip(here.parameters(), cpu.parameters(), strict=True)
    return max(distance(a.double(), b.double()) for a, b in pairs)


def adapters_differ() -> float:
    """Adapters added before and after: they are where the layers are that they correct."""
    import peft

    def adapted(model: Any) -> Any:
        torch.manual_seed(1)
        found = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear"))
        generator = torch.Generator().manual_seed(2)
        for name, parameter in found.named_parameters():
            if "lora_" in name:
                with torch.no_grad():
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
        return found.double()

    dense = adapted(dense_model("llama"))
    before = autotp.parallelize(adapted(dense_model("llama")))
    inputs = batch(dense.get_base_model())
    apart = []
    expected = run(dense, inputs)
    found = run(before, there(inputs))
    expected[1].backward()
    found[1].backward()
    gradients = autotp.full_gradients(before)
    apart += [distance(a, b) for a, b in zip(found, expected, strict=True)]
    trained = {name: p.grad for name, p in dense.named_parameters() if p.grad is not None}
    apart += [distance(gradients[name], gradient) for name, gradient in trained.items()]  # type: ignore[arg-type]
    after = autotp.parallelize(dense_model("llama"))
    after = autotp.parallelize(peft.get_peft_model(after, peft.LoraConfig(r=4, target_modules="all-linear")).double())
    assert is_here(before)
    assert is_here(after)
    apart.append(distance(run(after, there(inputs))[0], run(dense_model("llama"), inputs)[0]))
    return max(apart)


def groups_made() -> tuple[int, int, int, bool]:
    """How many groups there are before, with two models, and with a third after both are gone; and if a given mesh is used."""
    import gc

    from autotp.checkpoint.full import state_of

    def count() -> int:
        return len(dist.distributed_c10d._world.pg_map)

    before = count()
    models = [autotp.parallelize(dense_model("llama")) for _ in range(2)]  # two groups of heads on four ranks
    for model in models:
        model(**there(batch(model)))
    during = count()
    del model
    models.clear()
    gc.collect()
    autotp.parallelize(dense_model("gpt2"))
    after = count()
    mesh = DeviceMesh(DEVICE, list(range(dist.get_world_size())), mesh_dim_names=("tp",))
    on_mesh = autotp.parallelize(dense_model("gpt2"), mesh=mesh)
    ranks: Any = state_of(on_mesh).ranks
    return before, during, after, ranks.mesh is mesh


def narrow_differs() -> float:
    """Under autocast of the device, beside the dense model there, and within what bfloat16 rounds."""
    dense = dense_model("llama").float()
    parallel: Any = autotp.parallelize(copy.deepcopy(dense))
    inputs = there(batch(dense))
    whole = dense.to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        expected, found = whole(**inputs), parallel(**inputs)
    assert found.logits.dtype == expected.logits.dtype
    found.loss.backward()
    return abs(float(found.loss.detach().cpu()) - float(expected.loss.detach().cpu()))


class Wanderer(nn.Module):
    """Makes tensors in every way that a block might: by its inputs' device, as constants, from a list, from a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)
        self.register_buffer("scale", torch.linspace(1, 2, 16), persistent=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        device, length = value.device, value.shape[1]
        places = torch.arange(length, device=device)
        mask = torch.full((length, length), 0.0, device=device).masked_fill(places[:, None] < places, 0.5)
        steps = torch.tensor([1.0, 2.0], device=device).sum() + torch.zeros((), device=device)
        value = torch.einsum("st,bth->bsh", mask.to(value), value) * self.scale + value.new_ones(16) * steps
        value = value + torch.nn.functional.one_hot(places % 16, 16).to(value)
        return self.second(torch.nn.functional.gelu(self.first(value))) * torch.tensor(3.0)


def wanderer_differs() -> float:
    """Tensors that a block makes are on the device of its rank."""
    torch.manual_seed(0)
    dense = Wanderer().double()
    value = torch.randn(2, 7, 16, dtype=torch.float64)
    parallel = autotp.parallelize(copy.deepcopy(dense), example=(value,))
    expected, found = dense(value), parallel(value.to(DEVICE))
    expected.square().mean().backward()
    found.square().mean().backward()
    gradients = autotp.full_gradients(parallel)
    pairs = [(gradients[name], parameter.grad) for name, parameter in dense.named_parameters()]
    return max(distance(found, expected), *(distance(a, b) for a, b in pairs))  # type: ignore[arg-type]


def placed() -> dict[str, str]:
    """Where parts go, by how it was said."""
    number = int(os.environ["LOCAL_RANK"])
    other = torch.device(DEVICE, number + 4)
    found = {
        "its own": autotp.parallelize(dense_model("gpt2")),
        "given": autotp.parallelize(dense_model("gpt2"), device=other),
    }
    torch.accelerator.set_device_index(0)
    found["where the model is"] = autotp.parallelize(dense_model("gpt2").to(other))
    return {how: str(next(model.parameters()).device) for how, model in found.items()}


def by_trainer(kind: Any, model: Any, folder: Path, on_cpu: bool) -> list[float]:
    """The losses and norms that a trainer logs, with clipping, evaluation and a checkpoint; it brings batches to the device."""
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=2,
        max_steps=STEPS,
        learning_rate=RATE,
        max_grad_norm=LIMIT,
        eval_strategy="steps",
        eval_steps=STEPS,
        logging_steps=1,
        save_steps=STEPS,
        save_only_model=True,
        use_cpu=on_cpu,
        report_to=[],
        disable_tqdm=True,
    )
    drawn = torch.randint(3, 60, (12, 9), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": ids, "labels": ids} for ids in drawn]
    trainer = kind(model, arguments, train_dataset=rows, eval_dataset=rows[:4])
    trainer.train()
    keys = ("loss", "grad_norm", "eval_loss")
    return [float(entry[key]) for entry in trainer.state.log_history for key in keys if key in entry]


def by_dense_trainer(folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Runs in a process of its own, on the CPU."""
    from transformers import Trainer

    with Float64():
        dense = dense_model("llama")
        return by_trainer(Trainer, dense, folder / "dense", on_cpu=True), dense.state_dict()


def trainer_differs(folder: Path, expected: tuple[list[float], dict[str, torch.Tensor]]) -> float:
    """`ParallelTrainer` beside what the dense model's trainer found; its checkpoint is a whole one."""
    from autotp import ParallelTrainer

    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    numbers, weights = expected
    with Float64():
        parallel: Any = autotp.parallelize(dense_model("llama"))
        found = by_trainer(ParallelTrainer, parallel, folder / "parallel", on_cpu=False)
    assert is_here(parallel)
    assert (folder / "parallel" / f"checkpoint-{STEPS}" / "model.safetensors").is_file()
    whole = autotp.full_state_dict(parallel)
    assert len(found) == len(numbers) > STEPS
    return max(
        *(abs(one - other) for one, other in zip(found, numbers, strict=True)),
        *(distance(whole[name], weight) for name, weight in weights.items()),
    )
