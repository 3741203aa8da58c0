from benchmarks.search.cases import CASES, HTTP_CASES, WIDE_CASES, Case
from plimsoll.service.requests.training import TrainRequest


def test_every_case_has_a_name_of_its_own():
    names = [case.name for case in (*CASES, *WIDE_CASES)]
    assert len(set(names)) == len(names)


def test_requests_ask_what_the_questions_ask_and_never_the_same_twice():
    case = HTTP_CASES[0]
    first, second = (TrainRequest.model_validate(case.request(number)) for number in (0, 1))
    question = case.question()
    asked = first.to_question(question.model, question.hardware)
    assert (asked.sequence_length, asked.global_batch_size) == (question.sequence_length, question.global_batch_size)
    assert first != second


def test_gpus_are_counted_in_whole_nodes():
    assert all(isinstance(case, Case) and case.gpus % 8 == 0 for case in CASES)
