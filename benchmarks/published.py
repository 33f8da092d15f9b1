"""What a rank of eight holds of diffusion networks of published sizes, how often their blocks send, and how long the plan takes.

    python benchmarks/published.py [--fewest]

With --fewest every combination of cuts of each block is placed, in every order of the ranks, and of those that leave a rank at
most 14% of the block the fewest collectives are shown beside the plan's.

Needs diffusers. Networks are made from their configurations on the meta device, without weights; each in a process of its own,
which has imported what it needs before the time is taken.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
TP, SHARE = 8, 0.14
Made = tuple[Any, dict[str, Any]]


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(*shape, device="meta", dtype=dtype)


def _flux() -> Made:
    import diffusers

    return diffusers.FluxTransformer2DModel(guidance_embeds=True), {
        "hidden_states": _empty(1, 1024, 64),
        "encoder_hidden_states": _empty(1, 512, 4096),
        "pooled_projections": _empty(1, 768),
        "timestep": _empty(1),
        "img_ids": _empty(1024, 3),
        "txt_ids": _empty(512, 3),
        "guidance": _empty(1),
    }


def _stable_diffusion() -> Made:
    import diffusers

    network = diffusers.SD3Transformer2DModel(
        sample_size=128,
        num_layers=38,
        attention_head_dim=64,
        num_attention_heads=38,
        joint_attention_dim=4096,
        caption_projection_dim=2432,
        pooled_projection_dim=2048,
        out_channels=16,
        pos_embed_max_size=192,
        qk_norm="rms_norm",
    )
    return network, {
        "hidden_states": _empty(1, 16, 64, 64),
        "encoder_hidden_states": _empty(1, 154, 4096),
        "pooled_projections": _empty(1, 2048),
        "timestep": _empty(1),
    }


def _hunyuan() -> Made:
    import diffusers

    return diffusers.HunyuanVideoTransformer3DModel(), {
        "hidden_states": _empty(1, 16, 5, 32, 32),
        "timestep": _empty(1),
        "encoder_hidden_states": _empty(1, 256, 4096),
        "encoder_attention_mask": _empty(1, 256, dtype=torch.bool),
        "pooled_projections": _empty(1, 768),
        "guidance": _empty(1),
    }


def _qwen() -> Made:
    import diffusers

    return diffusers.QwenImageTransformer2DModel(), {
        "hidden_states": _empty(1, 1024, 64),
        "timestep": _empty(1),
        "encoder_hidden_states": _empty(1, 128, 3584),
        "encoder_hidden_states_mask": _empty(1, 128, dtype=torch.bool),
        "img_shapes": [[(1, 32, 32)]],
    }


def _wan() -> Made:
    import diffusers

    return diffusers.WanTransformer3DModel(), {
        "hidden_states": _empty(1, 16, 5, 32, 32),
        "timestep": _empty(1),
        "encoder_hidden_states": _empty(1, 512, 4096),
    }


NETWORKS: dict[str, Callable[[], Made]] = {
    "FLUX.1-dev": _flux,
    "Stable Diffusion 3.5 large": _stable_diffusion,
    "HunyuanVideo": _hunyuan,
    "Qwen-Image": _qwen,
    "Wan 2.1 14B": _wan,
}


def measure(name: str, count: bool) -> dict[str, Any]:
    """One network in this process: its parameters, the share of a rank, collectives of its repeated blocks, seconds."""
    import autotp
    import autotp.api

    with torch.device("meta"):
        network, call = NETWORKS[name]()
    start = time.perf_counter()
    plan = autotp.plan(network, TP, example=autotp.Arguments(**call))
    seconds = time.perf_counter() - start
    whole, local = plan.elements()
    assert whole == sum(math.prod(parameter.shape) for parameter in network.parameters())
    equal = [unit for unit in plan.units if len(unit.instances) > 1]
    blocks = [[sum(c.phase == "forward" for c in unit.collectives), len(unit.collectives)] for unit in equal]
    fewest = fewest_collectives(network, call, plan, equal) if count else []
    return {"whole": whole, "share": local / whole, "blocks": blocks, "fewest": fewest, "seconds": seconds}


def fewest_collectives(network: Any, call: dict[str, Any], plan: Any, equal: list[Any]) -> list[list[int]]:
    """Of each block: the fewest collectives of a forward, and of a whole step, among all combinations of cuts that leave a rank
    its share."""
    import autotp
    from autotp.errors import UnsoundPlanError
    from autotp.huggingface.examples import examples_for
    from autotp.placement.place import place
    from autotp.planner.choose import local_elements
    from autotp.planner.cost import Workload, hardware
    from autotp.planner.survey import survey
    from autotp.planner.weigh import Weigher
    from tests.planner.oracle import all_cuts

    found = survey(network, examples_for(network, autotp.Arguments(**call)))
    shapes, fewest = {unit.path: unit.shape for unit in found.units}, []
    for unit in equal:
        problem = found.problems[shapes[unit.instances[0]]]
        weigher = Weigher(problem.graph, hardware(plan.hardware), Workload(plan.tokens))
        whole, counts = local_elements(problem, {}), []
        for cuts in all_cuts(problem, TP):
            if local_elements(problem, cuts) <= SHARE * whole:
                with suppress(UnsoundPlanError):
                    placement = place(problem.graph, problem.typing, cuts, weigher.price, problem.unread)
                    sent = list(weigher.collectives(placement))
                    counts.append((sum(c.phase == "forward" for c in sent), len(sent)))
        fewest.append([min(forward for forward, _ in counts), min(all_of_it for _, all_of_it in counts)])
    return fewest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", choices=NETWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--fewest", action="store_true", help="count the fewest collectives, too: some minutes more")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.fewest)))
        return
    print(f"{'network':<28}{'parameters':>12}{'a rank':>9}{'seconds':>9}   collectives in equal blocks: forward, all")
    fewest = ["--fewest"] if arguments.fewest else []
    for name in NETWORKS:
        command = [sys.executable, __file__, "--measure", name, *fewest]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(run.stdout.splitlines()[-1])
        print(
            f"{name:<28}{found['whole'] / 1e9:>11.1f}B{found['share']:>9.1%}{found['seconds']:>9.1f}   "
            + "; ".join("{}, {}".format(*block) for block in found["blocks"])
        )
        if found["fewest"]:
            print(f"{'  the fewest':<61}" + "; ".join("{}, {}".format(*block) for block in found["fewest"]))


if __name__ == "__main__":
    main()
