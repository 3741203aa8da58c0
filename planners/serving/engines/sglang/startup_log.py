"""What SGLang prints as it starts."""

from __future__ import annotations

import re

from plimsoll.planners.ground.units import GIB
from plimsoll.planners.serving.log_lines import (
    COUNT,
    GIB_NUMBER,
    NAME,
    NUMBER,
    WORD,
    Line,
    LogLines,
    count_line,
    gib_line,
    word,
)

# sglang/srt/model_executor/model_runner.py, mem_cache/memory_pool.py, managers/scheduler.py; GiB are printed as GB.
LINES = (
    gib_line("free_before_bytes", "Load weight begin", r"load weight begin\. avail mem=" + GIB_NUMBER, min),
    gib_line("weights_bytes", "Load weight end", r"mem usage=" + GIB_NUMBER),
    Line(
        figure="kv_available_bytes",
        has="KV Cache is allocated",
        pattern=re.compile(r"\b(?:K|V|KV) size: " + GIB_NUMBER, re.ASCII),
        unit=float(GIB),
        of_several=max,
        sums=True,
    ),
    gib_line("cuda_graphs_bytes", "apture cuda graph end", r"mem usage=" + GIB_NUMBER),
    count_line("kv_tokens", "KV Cache is allocated", r"#tokens: " + COUNT, max),
    count_line("kv_tokens", "max_total_num_tokens=", r"max_total_num_tokens=" + COUNT, max),
    count_line("max_model_len", "context_len=", r"context_len=" + COUNT),
    count_line("max_num_batched_tokens", "chunked_prefill_size=", r"chunked_prefill_size=" + COUNT),
    count_line("gpu_memory_utilization", "mem_fraction_static=", r"mem_fraction_static=" + NUMBER),
    count_line("tensor_parallel", "tp_size=", r"\btp_size=" + COUNT),
    count_line("pipeline_parallel", "pp_size=", r"\bpp_size=" + COUNT),
    count_line("data_parallel", "dp_size=", r"\bdp_size=" + COUNT),
)

STARTUP_LOG = LogLines(
    lines=LINES,
    settings="server_args=",
    words={
        "model": word(r"\bmodel_path=" + NAME),
        "weight_dtype": word(r"[ ,(]dtype=" + WORD),
        "quantization": word(r"[ ,(]quantization=" + WORD),
        "kv_cache_dtype": word(r"\bkv_cache_dtype=" + WORD),
    },
    versions=(re.compile(r"sglang(?: version|==|/)\s?v?(\d[\w.+-]{0,60})", re.ASCII | re.I),),
    attention_data_parallel="enable_dp_attention=True",
)
