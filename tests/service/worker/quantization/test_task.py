"""The quantization job on small models."""

import json

import pytest
import torch

from plimsoll.planners.families import describe_config
from plimsoll.planners.ground.errors import InvalidModelConfig, UnknownName
from plimsoll.planners.quantization.planning import quantization_estimate, scheme_settings
from plimsoll.service.worker.quantization.task import run

LLAMA = {
    "model_type": "llama", "hidden_size": 192, "intermediate_size": 520, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 96, "n_head": 4, "n_layer": 2, "vocab_size": 500, "n_positions": 64}
SCHEMES = ("int8", "int8-channel", "int8-group", "nf4", "fp4", "fp8", "fp8-channel", "int4", "mxfp4")


def request(config=LLAMA, **changes):
    return {"model": {"name": "small", "config": config}, "scheme": "nf4", "weights": "random", "seed": 0, **changes}


def ignore(done, total, unit, message):
    pass


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("double_quantization", [False, True])
def test_measured_bytes_equal_the_estimate(config, scheme, double_quantization):
    result = run(request(config, scheme=scheme, double_quantization=double_quantization), ignore)
    settings = scheme_settings(scheme, double_quantization=double_quantization)
    estimate = quantization_estimate(settings, describe_config(config, name="small"), original_dtype="bf16")
    assert result["quantized_bytes"] == estimate.quantized_bytes
    assert result["original_bytes"] == estimate.original_bytes
    assert result["bits_per_parameter"] == estimate.bits_per_parameter


def test_the_result_is_json_without_nan_and_names_its_circumstances():
    result = json.loads(json.dumps(run(request(), ignore), allow_nan=False))
    assert result["torch_version"] == torch.__version__
    assert result["peak_host_bytes"] > 0
    assert result["seconds"] > 0
    assert result["bytes_per_second"] > 0
    assert any("0.02" in note for note in result["assumptions"])


def test_errors_of_the_whole_lie_among_those_of_its_tensors():
    result = run(request(), ignore)
    errors = [tensor["relative_error"] for tensor in result["tensors"]]
    assert len(errors) == 2 * 7
    assert min(errors) <= result["relative_error"] <= max(errors)
    assert result["max_abs_error"] == max(tensor["max_abs_error"] for tensor in result["tensors"])
    # 0.092 on normal numbers (Dettmers et al. 2023's NF4 in blocks of 64).
    assert result["relative_error"] == pytest.approx(0.092, abs=0.002)


def test_the_ten_worst_tensors_come_worst_first():
    result = run(request(), ignore)
    worst = [tensor["relative_error"] for tensor in result["worst_tensors"]]
    assert worst == sorted((tensor["relative_error"] for tensor in result["tensors"]), reverse=True)[:10]


def test_the_same_seed_gives_the_same_errors():
    first, second, other = (run(request(seed=seed), ignore) for seed in (3, 3, 4))
    assert first["relative_error"] == second["relative_error"] != other["relative_error"]


def test_progress_counts_bytes_up_to_the_total():
    calls = []
    run(request(), lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert done[0] == 0
    assert done == sorted(done)
    assert calls[-1][0] == calls[-1][1]
    assert {call[2] for call in calls} == {"bytes"}


def test_a_cancel_raised_by_the_report_ends_the_job():
    def cancel(done, total, unit, message):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(request(), cancel)


def test_the_configs_own_initializer_range_is_used():
    wide = run(request({**LLAMA, "initializer_range": 0.2}), ignore)
    assert wide["max_abs_error"] > 5 * run(request(), ignore)["max_abs_error"]


@pytest.mark.parametrize("value", [0, -0.02, float("nan"), float("inf"), "0.02", True])
def test_an_initializer_range_that_is_no_positive_number_is_refused(value):
    with pytest.raises(InvalidModelConfig, match="positive"):
        run(request({**LLAMA, "initializer_range": value}), ignore)


def test_an_unknown_scheme_is_refused():
    with pytest.raises(UnknownName, match="nf4"):
        run(request(scheme="nf5"), ignore)


def test_the_whole_model_is_weighed_under_every_scheme():
    result = run(request(), ignore)
    weighed = result["quantized_bytes_by_scheme"]
    assert weighed["nf4"] == result["quantized_bytes"]
    # 4 bits and a scale for each 64, 8 bits and a scale for each row: NF4 is the smaller, its double the smallest.
    assert weighed["nf4-double"] < weighed["nf4"] < weighed["int8-channel"] < result["original_bytes"]


def test_the_histogram_counts_a_sample_of_every_tensor():
    result = run(request(), ignore)
    # Tensors of 192 x 192, 96 x 192 and 520 x 192 weights; of the large ones 65,536.
    assert sum(result["error_histogram"]["counts"]) == 2 * (2 * 36_864 + 2 * 18_432 + 3 * 65_536)
