"""Threads that work through a tensor in pieces that stay in their core's cache.

One torch operation over a whole tensor goes through memory once; twenty of them
over a piece of it go through the cache. Each thread takes whole pieces and runs
its operations alone, which costs no synchronization inside an operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import torch

from plimsoll.service.worker.quantization.kernels.native_kernels import NativeKernels

# Half a MiB as fp32: a piece, its indices and its codes share a 2 MiB cache.
CPU_CHUNK_ELEMENTS = 2**17
# Compiled kernels stay in the cache of themselves; so many make handing out a piece (50 us) vanish.
COMPILED_CHUNK_ELEMENTS = 2**21
# A kernel's launch is paid once a piece; 64 MiB as fp32 makes it vanish.
DEVICE_CHUNK_ELEMENTS = 2**24

Span: TypeAlias = tuple[int, int]
Answer = TypeVar("Answer")


class ChunkWorkers:
    """A pool of threads for one device; `chunk_elements` is how much one takes at once."""

    def __init__(
        self,
        device: torch.device | None = None,
        *,
        threads: int | None = None,
        kernels: NativeKernels | None = None,
    ) -> None:
        """Make a pool that is not running yet; `threads` defaults to those torch would use.

        On a device other than the CPU one thread is enough to feed it.
        """
        self._kernels = kernels
        self.device = device or torch.device("cpu")
        on_cpu = self.device.type == "cpu"
        on_cpu_elements = CPU_CHUNK_ELEMENTS if kernels is None else COMPILED_CHUNK_ELEMENTS
        self.chunk_elements = on_cpu_elements if on_cpu else DEVICE_CHUNK_ELEMENTS
        self._torch_threads = torch.get_num_threads()
        self._threads = (threads or self._torch_threads) if on_cpu else 1
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(
            max_workers=self._threads, thread_name_prefix="quantize", initializer=torch.set_num_threads, initargs=(1,)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        # A thread's own setting is also what torch gives to threads begun later.
        torch.set_num_threads(self._torch_threads)

    def kernels_for(self, *tensors: torch.Tensor) -> NativeKernels | None:
        """Return the compiled kernels where there are any that read these tensors, else None: use torch."""
        if self._kernels is None or not all(self._kernels.take(tensor) for tensor in tensors):
            return None
        return self._kernels

    def map(self, function: Callable[[int, int], Answer], spans: Sequence[Span]) -> list[Answer]:
        """Return `function(start, stop)` for every span, in their order; the first error seen is raised.

        Each thread takes the next span itself: handing out every one costs more than working through a small one.
        """
        if self._pool is None:
            raise RuntimeError("The chunk workers are not running; use them in a with statement.")
        # A deque's ends are safe between threads (the library's own word).
        waiting = deque(enumerate(spans))
        answers: dict[int, Answer] = {}

        def work() -> None:
            while waiting:
                try:
                    index, span = waiting.popleft()
                except IndexError:
                    return  # Another thread took the last one.
                answers[index] = function(*span)

        working = [self._pool.submit(work) for _ in range(min(self._threads, len(spans)))]
        try:
            for thread in working:
                thread.result()
        finally:
            waiting.clear()
        return [answers[index] for index in range(len(spans))]


def even_spans(elements: int, span_elements: int) -> list[Span]:
    """Return the spans that cut `elements` into pieces of `span_elements`; the last may be shorter."""
    return [(start, min(start + span_elements, elements)) for start in range(0, elements, span_elements)]


def row_spans(rows: int, columns: int, chunk_elements: int) -> list[Span]:
    """Return spans of whole rows, an even number of them but for the last.

    Even, so that two 4-bit codes that share a byte are never in different spans.
    """
    rows_per_span = max(2, chunk_elements // columns // 2 * 2)
    return even_spans(rows, rows_per_span)
