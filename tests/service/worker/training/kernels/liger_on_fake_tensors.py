"""Liger's own autograd functions on fake tensors: its Python runs, and its kernels, which allocate nothing, do not.

Fake tensors lie on a CPU. What Liger asks of them is answered as by tensors on an H100.
"""

import contextlib
import functools
import importlib
import inspect
from types import SimpleNamespace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from plimsoll.service.worker.recording.ledger import Kind, Ledger
from plimsoll.service.worker.recording.patches import StreamClock, replaced
from plimsoll.service.worker.recording.tracker import StorageTracker
from plimsoll.service.worker.training.foreign_code import ScalarsOfFakeTensors
from plimsoll.service.worker.training.kernels.liger_kernels import MULTIPROCESSORS

CAPABILITY = (9, 0)
MODULES = ("rms_norm", "swiglu", "geglu", "rope", "cross_entropy", "fused_linear_cross_entropy")
WITHIN_BOUNDS = (torch.Tensor.lt, torch.Tensor.ge, torch.Tensor.__lt__, torch.Tensor.__ge__)


class Answers(TorchFunctionMode):
    """Answers what is asked of values, and leaves out what a CPU does not do."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in WITHIN_BOUNDS and isinstance(args[1], int):
            return True  # labels are words of the vocabulary
        if func is torch.equal:
            return False  # a gradient has no value that could be one
        if func is torch.addmm and "out_dtype" in kwargs:
            return kwargs["out"]  # cuBLAS adds 16-bit products to fp32 where they lie, which a CPU does not
        return func(*args, **kwargs)


def on_a_card(function):
    """Return Liger's own function, to which the device of fake tensors is a card.

    Autograd leaves aside the modes around what it calls.
    """
    names = function.__globals__
    source = compile(inspect.getsource(function).replace('"cuda"', '"cpu"'), function.__code__.co_filename, "exec")
    made = {}
    exec(source, names, made)  # noqa: S102 - the package's own source

    @functools.wraps(function)
    def call(*args, **kwargs):
        with Answers():
            return made[function.__name__](*args, **kwargs)

    return call


@contextlib.contextmanager
def runnable_liger():
    """Launch no kernel, and answer for the card."""
    from triton.runtime.jit import JITFunction

    card = SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(JITFunction, "run", lambda *_asked, **_named: None))
        stack.enter_context(replaced(torch.cuda, "get_device_properties", lambda *_device: card))
        stack.enter_context(replaced(torch.cuda, "get_device_capability", lambda *_device: CAPABILITY))
        stack.enter_context(replaced(torch.cuda, "device", lambda *_device: contextlib.nullcontext()))
        for name in MODULES:
            module = importlib.import_module(f"liger_kernel.ops.{name}")
            for function in vars(module).keys() & {f"{name}_forward", f"{name}_backward", "_can_use_mm_out"}:
                stack.enter_context(replaced(module, function, on_a_card(vars(module)[function])))
            if "infer_device_arch" in vars(module):
                stack.enter_context(replaced(module, "infer_device_arch", lambda *_device: "hopper"))
        yield


def events_of(act, inputs, *, runs_liger=False):
    """Return what a function and its backward pass allocate and let go of: bytes, negative where they are let go of.

    `inputs` makes its tensors, which are there before. Between the passes stands None.
    """
    ledger = Ledger()
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = inputs()
        tracker = StorageTracker(ledger, StreamClock(), logit_shapes=frozenset())
        for tensor in given:
            tracker.label(tensor, Kind.INPUT)
        began = len(ledger.events)
        with contextlib.ExitStack() as stack:
            stack.enter_context(tracker.watching())
            stack.enter_context(ScalarsOfFakeTensors())
            if runs_liger:
                stack.enter_context(runnable_liger())
            tracker.begin_phase(0, "forward")
            outputs = act(*given)
            outputs = [
                output for output in (outputs if isinstance(outputs, tuple) else (outputs,)) if output is not None
            ]
            between = len(ledger.events)
            tracker.begin_phase(0, "backward")
            learning = [output for output in outputs if output.requires_grad]
            gradients = [torch.empty_like(output) for output in learning]
            del given, outputs
            torch.autograd.backward(learning, gradients)
            del learning, gradients
    sizes = [(-1 if event.is_release else 1) * event.piece.requested_bytes for event in ledger.events]
    return sizes[began:between], sizes[between:]
