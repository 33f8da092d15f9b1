"""What torch itself has: modes, hooks for all modules, parametrizations, structure, copies."""

import copy
import pickle
import threading

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tests.contract.parts import HIDDEN, INNER, Mlp, Net, call, case, leaf, linear, twins, values


class MakesTensors(Mlp):
    def middle(self, y):
        return y.relu() * torch.ones(INNER).to(y.dtype).cumsum(0) * torch.get_default_dtype().itemsize


@case()
def default_dtype():
    yield twins(lambda index: MakesTensors())
    yield
    torch.set_default_dtype(torch.float64)
    yield
    yield
    torch.set_default_dtype(torch.float32)
    yield


@case()
def default_device():
    yield twins(lambda index: MakesTensors())
    yield
    torch.set_default_device("cpu")
    yield
    yield
    torch.set_default_device(None)
    yield


class Doubles(TorchFunctionMode):
    """Every relu is twice as large."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.relu, torch.Tensor.relu) else result


@case()
def function_mode():
    yield twins(lambda index: Mlp())
    yield
    yield call(under=Doubles)
    yield
    yield call(under=Doubles)


@case()
def autocast_around():
    def under():
        return torch.autocast("cpu", enabled=False)

    yield twins(lambda index: Mlp())
    yield
    yield call(under=under)
    yield call(under=torch.no_grad, backward=False)
    yield call(under=torch.inference_mode, backward=False)
    yield


def doubled(module, args, result):
    return result * 2 if isinstance(module, nn.LayerNorm) else None


@case()
def hook_for_all_modules():
    yield twins(lambda index: Mlp())
    yield
    handle = nn.modules.module.register_module_forward_hook(doubled)
    yield
    yield
    handle.remove()
    yield


@case()
def hook_for_all_modules_before():
    handle = nn.modules.module.register_module_forward_hook(doubled)
    yield twins(lambda index: Mlp())
    yield
    yield
    handle.remove()
    yield
    yield


@case()
def pre_hook_for_all_modules():
    def half(module, args):
        return (args[0] / 2,) if isinstance(module, nn.LayerNorm) else None

    yield twins(lambda index: Mlp())
    yield
    nn.modules.module.register_module_forward_pre_hook(
        lambda m, args: (args[0] + 1,) if type(m) is nn.LayerNorm else None
    )
    yield
    nn.modules.module.register_module_forward_pre_hook(half)
    yield
    yield


@case(refusal=("hook",))
def backward_hook_for_all_modules():
    yield twins(lambda index: Mlp())
    yield
    nn.modules.module.register_module_full_backward_hook(
        lambda module, wanted, given: (wanted[0] * 2,) if isinstance(module, nn.LayerNorm) else None
    )
    yield
    yield
    yield


class WithKeyword(nn.Module):
    def forward(self, x, factor=1.0):
        return x * factor


class CallsWithKeyword(Mlp):
    def __init__(self):
        super().__init__()
        self.scale = WithKeyword()

    def before(self, x):
        return self.scale(x, factor=2.0)


@case()
def hook_with_keywords():
    net = twins(lambda index: CallsWithKeyword())

    def other(module, args, kwargs):
        return args, {"factor": kwargs["factor"] + 1}

    net.blocks[0].scale.register_forward_pre_hook(other, with_kwargs=True)
    yield net
    yield
    net.blocks[1].scale.register_forward_hook(
        lambda m, args, kwargs, result: result * kwargs["factor"], with_kwargs=True
    )
    yield
    yield
    net.blocks[1].scale.register_forward_pre_hook(other, with_kwargs=True, prepend=True)
    yield


class Fails(nn.Module):
    def forward(self, x):
        raise ValueError("never")


class FailsInside(Mlp):
    def __init__(self):
        super().__init__()
        self.part, self.failures = Fails(), 0

    def before(self, x):
        try:
            return self.part(x)
        except ValueError:
            return x * (2 + self.failures)


@case()
def hook_that_is_always_called():
    net = twins(lambda index: FailsInside())

    def note(module, args, result):
        net.blocks[0].failures += 1

    yield net
    yield
    net.blocks[0].part.register_forward_hook(note, always_call=True)
    yield
    yield
    yield


@case()
def hook_that_writes_its_module():
    net = twins(lambda index: Mlp())

    def count(module, args, result):
        module.calls = getattr(module, "calls", 0) + 1
        return result * module.calls

    for block in net.blocks:
        block.norm.register_forward_hook(count)
    yield net
    for _ in range(4):
        yield


@case()
def hook_that_reads_state():
    net, factor = twins(lambda index: Mlp()), [2.0]
    net.blocks[1].norm.register_forward_hook(lambda module, args, result: result * factor[0])
    yield net
    yield
    factor[0] = 3.0
    yield
    factor.insert(0, 4.0)
    yield
    yield


@case()
def hook_on_a_cut_weights_module_with_state():
    net, seen = twins(lambda index: Mlp()), []
    net.seen = seen

    def note(module, args, result):
        seen.append(float(result.detach().sum()))
        return result * len(seen)

    net.blocks[0].down.register_forward_hook(note)
    yield net
    for _ in range(4):
        yield


class Scales(nn.Module):
    def forward(self, weight):
        return weight * 2


@case()
def parametrized_weight():
    net = twins(lambda index: Mlp())
    nn.utils.parametrize.register_parametrization(net.blocks[0].up, "weight", Scales())
    yield net
    yield
    yield
    yield
    yield


@case()
def parametrized_norm_later():
    net = twins(lambda index: Mlp())
    yield net
    yield
    nn.utils.parametrize.register_parametrization(net.blocks[0].norm, "weight", Scales(), unsafe=True)
    yield
    yield
    yield


@case()
def weight_norm_of_old():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = twins(lambda index: Mlp())
        for block in net.blocks:
            nn.utils.weight_norm(block.up)
    yield net
    yield
    with torch.no_grad():
        net.blocks[0].up.weight_g.mul_(2)
    yield
    yield
    yield


class RegistersBuffer(Mlp):
    def middle(self, y):
        if not hasattr(self, "state"):
            self.register_buffer("state", values(INNER))
        return y.relu() * self.state


@case()
def buffer_registered_by_a_call():
    net = twins(lambda index: RegistersBuffer())
    yield net
    yield
    yield
    net.blocks[0].state = values(INNER, seed=4)
    yield
    del net.blocks[1].state
    yield


class HasBuffer(Mlp):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", values(1))
        self.register_buffer("none", None)

    def middle(self, y):
        return y.relu() * self.scale if self.none is None else y.relu() * self.none


@case()
def buffers_replaced():
    net = twins(lambda index: HasBuffer())
    yield net
    yield
    net.blocks[0].scale = values(INNER, seed=3)
    yield
    net.blocks[1].none = values(INNER, seed=4)
    yield
    net.blocks[1].none = None
    net.blocks[0].scale = torch.ones(INNER, dtype=torch.float32)
    yield


@case()
def buffer_that_wants_a_gradient():
    net = twins(lambda index: HasBuffer())
    yield net
    yield
    net.blocks[0].scale.requires_grad_()
    yield
    net.blocks[0].scale = net.blocks[0].scale.detach()
    yield
    yield


@case()
def parameter_becomes_a_tensor():
    net = twins(lambda index: Mlp())
    yield net
    yield
    weight = net.blocks[0].norm.weight
    del net.blocks[0].norm.weight
    net.blocks[0].norm.weight = weight.detach() * 2
    yield
    yield
    yield


@case()
def parameter_becomes_none():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].norm.bias = None
    yield
    yield
    yield


@case()
def norm_replaced_by_an_equal_one():
    net = twins(lambda index: Mlp())
    yield net
    yield
    other = nn.LayerNorm(HIDDEN, dtype=torch.float64)
    nn.init.normal_(other.weight)
    net.blocks[0].norm = other
    yield
    yield
    net.blocks[1].norm = other
    yield


@case()
def eps_of_a_norm():
    net = twins(lambda index: Mlp())
    yield net
    yield
    net.blocks[0].norm.eps = 0.5
    yield
    net.blocks[1].norm.eps = 0.25
    yield
    yield


class TwoNorms(Mlp):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(HIDDEN, eps=eps, dtype=torch.float64) for eps in (1e-5, 0.5)])

    def before(self, x):
        for norm in self.norms:
            x = norm(x) + 1
        return x


@case()
def list_of_modules_reordered():
    net = twins(lambda index: TwoNorms())
    yield net
    yield
    norms = net.blocks[0].norms
    norms[0], norms[1] = norms[1], norms[0]
    yield
    yield
    yield


@case()
def weights_shared_by_a_plain_list():
    shared = [values(INNER, INNER).requires_grad_()]

    class Shares(Mlp):
        def middle(self, y):
            return y.relu() @ shared[0]

    yield twins(lambda index: Shares())
    yield
    with torch.no_grad():
        shared[0].mul_(0.5)
    yield
    shared[0] = values(INNER, INNER, seed=4).requires_grad_()
    yield
    yield


@case()
def module_shared_by_all_blocks():
    norm = nn.LayerNorm(HIDDEN, dtype=torch.float64)
    net = twins(lambda index: Mlp())
    for block in net.blocks:
        block.norm = norm
    yield net
    yield
    norm.eps = 0.5
    yield
    norm.register_forward_hook(lambda module, args, result: result * 2)
    yield
    yield


class Config:
    def __init__(self):
        self.factor = 2.0


class ReadsConfig(Mlp):
    def __init__(self, config):
        super().__init__()
        self.config = config

    def middle(self, y):
        self.config.calls = getattr(self.config, "calls", 0) + 1
        return y.relu() * self.config.factor


@case()
def copy_that_goes_its_own_way():
    config = Config()
    net = twins(lambda index: ReadsConfig(config))
    yield net
    yield
    other = copy.deepcopy(net)
    other.blocks[0].config.factor = 5.0
    yield call(leaf(2, 5, HIDDEN), run=lambda x: (net(x), other(x)))
    config.factor = 7.0
    yield call(leaf(2, 5, HIDDEN), run=lambda x: (other(x), net(x)))
    yield


@case()
def state_pickled_and_given_back():
    config = Config()
    net = twins(lambda index: ReadsConfig(config))
    yield net
    yield
    text = pickle.dumps(vars(config))
    yield
    config.factor = 3.0
    yield
    vars(config).clear()
    vars(config).update(pickle.loads(text))
    yield


@case()
def state_dict_given_back():
    net = twins(lambda index: HasBuffer())
    yield net
    yield
    kept = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        net.blocks[0].scale.mul_(3)
        net.blocks[1].norm.weight.mul_(2)
        net.blocks[1].up.weight.mul_(2)
    yield
    net.load_state_dict(kept)
    yield
    yield


@case()
def call_from_another_thread():
    net = twins(lambda index: Mlp())

    def elsewhere(x):
        results = []
        thread = threading.Thread(target=lambda: results.append(net(x)))
        thread.start()
        thread.join()
        return results[0]

    yield net
    yield
    yield call(leaf(2, 5, HIDDEN), run=elsewhere)
    yield
    net.eval()
    yield call(leaf(2, 5, HIDDEN), run=elsewhere)


class Checkpointed(Net):
    reentrant = False

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class CountsCalls(Mlp):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def middle(self, y):
        self.calls += 1
        return y.relu() * 2


@case()
def checkpoint_around_state():
    yield Checkpointed(CountsCalls(), CountsCalls())
    for _ in range(4):
        yield


@case()
def reentrant_checkpoint_around_state():
    net = Checkpointed(CountsCalls(), CountsCalls())
    net.reentrant = True
    yield net
    for _ in range(4):
        yield


@case()
def checkpoint_switched():
    config = Config()
    net = Checkpointed(ReadsConfig(config), ReadsConfig(config))
    yield net
    yield
    net.reentrant = True
    yield
    config.factor = 3.0
    yield
    net.reentrant = False
    yield


@case()
def two_backwards_of_one_call():
    net = twins(lambda index: Mlp())

    def twice(x):
        result = net(x)
        result.sum().backward(retain_graph=True)
        return result

    yield net
    for seed in range(4):
        yield call(leaf(2, 5, HIDDEN, seed=seed), run=twice)


@case()
def two_calls_then_a_backward():
    config = Config()
    net = twins(lambda index: ReadsConfig(config))

    def both(x):
        first = net(x)
        config.factor += 1
        return first, net(x * 2)

    yield net
    for seed in range(4):
        yield call(leaf(2, 5, HIDDEN, seed=seed), run=both)


@case()
def inner_module_called_by_itself():
    net = twins(lambda index: Mlp())
    yield net
    yield
    yield call(leaf(2, 5, HIDDEN), run=lambda x: net.blocks[0].norm(x))
    yield call(leaf(2, 5, HIDDEN), run=lambda x: net.blocks[0](x) + net.blocks[1](x))
    yield call(leaf(2, 5, HIDDEN), run=lambda x: net.blocks[0].forward(x))


@case()
def linear_called_by_itself():
    net = twins(lambda index: Mlp())
    yield net
    yield
    yield call(leaf(2, 5, HIDDEN), run=lambda x: net.blocks[0].up(x))
    yield call(leaf(2, 5, HIDDEN), run=lambda x: net.blocks[0].down(net.blocks[0].up(x)))
    yield call(leaf(2, 5, HIDDEN), run=lambda x: net.blocks[0].before(x) + net.blocks[0].after(x))


@case()
def other_method_of_a_block():
    net = twins(lambda index: Mlp())
    yield net
    yield
    yield call(leaf(2, 5, HIDDEN), run=lambda x: Mlp.forward(net.blocks[1], x))
    yield call(leaf(2, 5, HIDDEN), run=lambda x: net.blocks[0].down(net.blocks[0].middle(net.blocks[0].up(x))))
    yield


class Counts(nn.Module):
    """Takes no tensor and gives a number."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def forward(self):
        self.number += 1
        return self.number


class HasCounter(Mlp):
    def __init__(self):
        super().__init__()
        self.counter, self.extra = Counts(), linear(HIDDEN, HIDDEN)

    def after(self, z):
        return z * self.counter() + self.extra(z)


@case()
def inner_module_that_counts():
    yield twins(lambda index: HasCounter())
    for _ in range(4):
        yield


FACTOR = 2.0


def registered_with_fx(y, by=(1.0, 3.0)):
    return y.relu() * by[1] * FACTOR


torch.fx.wrap("registered_with_fx")


class CallsRegistered(Mlp):
    def middle(self, y):
        return registered_with_fx(y)


@case()
def function_that_is_registered_with_fx():
    global FACTOR, registered_with_fx
    yield twins(lambda index: CallsRegistered())
    yield
    FACTOR = 5.0
    yield
    registered_with_fx.__defaults__ = ((1.0, 7.0),)
    yield
    kept, registered_with_fx = registered_with_fx, lambda y: y.tanh()
    yield
    registered_with_fx, FACTOR = kept, 2.0
    registered_with_fx.__defaults__ = ((1.0, 3.0),)
    yield
