"""One rank of vLLM's engine: its configuration from a checkpoint's, a fake group, and its own model on fake tensors."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.vllm_own_code.absent import stand_in_for_absent_modules
from benchmarks.vllm_own_code.custom_ops import declare_operations, launch_no_kernels

PLATFORM = "benchmarks.vllm_own_code.hopper.Hopper"
SETTINGS = {
    "VLLM_TARGET_DEVICE": "cuda",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_DISABLE_SHARED_EXPERTS_STREAM": "1",
}
_libraries: list[torch.library.Library] = []


class _ReadAsOne(TorchDispatchMode):
    """Lets a fake tensor's value be read, as one: scales of a checkpoint that was never loaded."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].dtype.is_floating_point else 1
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRank:
    """vLLM's configuration and model of a rank, and the mode that its tensors are fakes of."""

    config: Any
    model: Any
    fakes: FakeTensorMode


def prepare() -> str:
    """Make vLLM importable and return its version; the first of all that touches it."""
    os.environ.update(SETTINGS)
    stand_in_for_absent_modules()
    import vllm.platforms

    if not _libraries:
        vllm.platforms.builtin_platform_plugins = {"cuda": lambda: PLATFORM}
        vllm.platforms.load_plugins_by_group = lambda _group: {}
        _libraries.extend(declare_operations(Path(vllm.__file__).parent))
        launch_no_kernels()
        _stay_in_one_process()
    return str(vllm.__version__)


def _stay_in_one_process() -> None:
    """Ask no other process, neither a child about a model's class nor other ranks, and keep no notes for a reload."""
    import vllm.model_executor.models.registry as registry
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm.model_executor.layers.fused_moe import expert_map_manager
    from vllm.model_executor.model_loader import utils as loading

    loading.record_metadata_for_reloading = lambda _model: None
    registry._run_in_subprocess = lambda function: function()
    parallel_state.in_the_same_node_as = lambda group, source_rank=0: [True] * dist.get_world_size(group)  # noqa: ARG005
    MessageQueue.create_from_process_group = staticmethod(lambda *_arguments, **_options: None)
    # A line of the log that lists a rank's experts by the numbers of its map, which a fake tensor has not.
    expert_map_manager.ExpertMapManager.get_compressed_map_string = lambda _manager: ""
    made = dist.new_group
    dist.new_group = lambda ranks=None, backend=None, **_options: made(ranks, backend="fake")  # noqa: ARG005


def engine_config(config: Mapping[str, Any], *, tensor_parallel: int, **asked: Any) -> Any:
    """Return vLLM's configuration of an engine that serves a checkpoint of this config."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        given = {"dtype": "bfloat16", "max_model_len": 8192, **asked}
        return EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            enforce_eager=True,
            load_format="dummy",
            disable_log_stats=True,
            distributed_executor_backend="mp",
            tensor_parallel_size=tensor_parallel,
            **given,
        ).create_engine_config(UsageContext.OPENAI_API_SERVER)


@contextlib.contextmanager
def own_rank(config: Mapping[str, Any], *, tensor_parallel: int, rank: int = 0, **asked: Any) -> Iterator[OwnRank]:
    """Give a rank with its weights laid out as the kernels want them, as the worker leaves them after loading."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
    from vllm.platforms import current_platform

    engine = engine_config(config, tensor_parallel=tensor_parallel, **asked)
    dtype = engine.model_config.dtype
    with set_current_vllm_config(engine), _ranks(tensor_parallel, rank), _default_dtype(dtype):
        fakes = FakeTensorMode(allow_non_fake_inputs=True)
        with fakes, torch.no_grad():
            model = initialize_model(engine)
            with _ReadAsOne():
                process_weights_after_loading(model, engine.model_config, torch.device("cpu"))
            current_platform.update_block_size_for_backend(engine)
        yield OwnRank(config=engine, model=model, fakes=fakes)
    del model
    gc.collect()


@contextlib.contextmanager
def _ranks(tensor_parallel: int, rank: int) -> Iterator[None]:
    from vllm.distributed import parallel_state

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=tensor_parallel)
    try:
        parallel_state.init_distributed_environment(tensor_parallel, rank, "unused", rank, "fake")
        parallel_state.initialize_model_parallel(tensor_parallel, 1)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
