"""Measured rows as questions."""

from benchmarks.accuracy.peak_memory.cases import memory_cases

QUERY_KEY_VALUE_OUTPUT = ("q_proj", "k_proj", "v_proj", "o_proj")


def test_of_a_recipe_s_names_those_count_that_the_model_has_as_in_peft():
    # fms-acceleration's recipe says `q_proj k_proj v_proj o_proj c_attn` of Mistral, Llama 2 and Santacoder alike.
    targets = {case.question.model.name: case.question.lora.target_modules for case in memory_cases().cases}
    assert targets["santacoder"] == ("c_attn",)
    assert targets["llama2-70b"] == QUERY_KEY_VALUE_OUTPUT


def test_no_row_is_left_out_for_a_name_or_for_learned_positions():
    reasons = [reason for _, reason in memory_cases().left_out]
    assert [reason for reason in reasons if "no module" in reason or "learned positions" in reason] == []
