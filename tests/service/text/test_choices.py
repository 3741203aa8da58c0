from plimsoll.service.text.choices import choices_text

ENTRY = {
    "entry": 0, "gpu": "h100", "gpus": 8, "peak_bytes": 2**30, "step_seconds": 2.0, "usd_per_token": 1e-6,
    "verdict": "fits", "refusal": None,
}  # fmt: skip


def test_a_plan_without_choices_has_no_section():
    assert choices_text({}) == []


def test_a_fleet_is_a_table_and_refusals_stand_below():
    refused = dict.fromkeys(ENTRY) | {"gpu": "v100", "refusal": "V100 does not compute in bf16."}
    (text,) = choices_text({"fleet": [ENTRY, refused]})
    # A millionth of a dollar a token is a dollar for a million.
    assert "8 × h100" in text
    assert "$1" in text
    assert "v100: V100 does not compute in bf16." in text


def test_named_layouts_give_their_outcome_and_reasons():
    excluded = {"outcome": "excluded", "layout": None, "reasons": [{"detail": "Heads do not divide."}]}
    degrees = dict.fromkeys(("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel"), 2) | {
        "framework": "fsdp2"
    }
    slower = {"outcome": "does_not_fit", "layout": degrees, "reasons": [], "peak_bytes": 2**30, "step_seconds": 2.0}
    (text,) = choices_text({"comparisons": [excluded, slower]})
    assert "compare/0: excluded\n    - Heads do not divide." in text
    assert "compare/1: does not fit (fsdp2" in text
