from plimsoll.service.workloads.commands.divisors import divisors_text


def test_divisors_are_listed_as_a_person_does():
    assert (divisors_text(28), divisors_text(1)) == ("1, 2, 4, 7, 14 or 28", "1")
