"""When the largest pieces of a ledger come and go."""

from plimsoll.service.worker.proofs.trace.lifetimes import largest_allocations
from plimsoll.service.worker.recording.ledger import Kind, Ledger

KIB = 1024
FORWARD, BACKWARD, REDUCTION, UPDATE = "forward and loss", "backward", "root gradient reduction", "optimizer step"


def at(phase, layer=None):
    return {"phase": phase, "layer": layer}


def two_steps():
    """Return a ledger of two steps of two layers, of which the second has what the first left."""
    ledger = Ledger()
    ledger.mark(0, "states")
    ledger.allocate(100 * KIB, kind=Kind.PARAMETER, origin="embed.weight")
    for step in range(2):
        kept = []
        ledger.mark(step, "forward")
        ledger.allocate(KIB, kind=Kind.FORWARD_ACTIVATION, origin="on its way", on_host=True)
        for layer in range(2):
            ledger.mark_layer(layer)
            kept.append(ledger.allocate(4 * KIB, kind=Kind.FORWARD_ACTIVATION, origin=f"model.layers.{layer}.mlp"))
        ledger.mark_layer(None)
        logits = ledger.allocate(50 * KIB, kind=Kind.LOGITS, origin="mm")
        ledger.mark(step, "backward")
        ledger.release(logits)
        for layer in (1, 0):
            ledger.mark_layer(layer)
            ledger.release(kept.pop())
        ledger.mark_layer(None)
        gradient = ledger.allocate(20 * KIB, kind=Kind.GRADIENT, origin="gradient")
        ledger.mark(step, "optimizer")
        if step == 0:
            ledger.allocate(200 * KIB, kind=Kind.OPTIMIZER_STATE, origin="exp_avg")
        ledger.release(gradient)
    return ledger


def told(name, moments=()):
    (found,) = (each for each in largest_allocations(two_steps(), moments) if each["name"] == name)
    return found


def test_the_largest_come_first_and_no_more_than_asked_for():
    names = [each["name"] for each in largest_allocations(two_steps(), ())]
    assert names == ["exp_avg", "embed.weight", "mm", "gradient", "model.layers.*.mlp"]
    assert len(largest_allocations(two_steps(), (), most=2)) == 2


def test_what_stands_before_the_last_step_and_after_it_has_no_moments():
    state = told("exp_avg")
    assert (state["allocated_at"], state["released_at"], state["item"]) == (None, None, "optimizer")


def test_a_piece_lives_from_one_moment_to_another():
    logits, gradient = told("mm"), told("gradient")
    assert (logits["allocated_at"], logits["released_at"]) == (at(FORWARD), at(BACKWARD))
    assert (gradient["allocated_at"], gradient["released_at"]) == (at(REDUCTION), at(UPDATE))


def test_of_layers_alike_the_piece_that_lives_longest_is_told():
    kept = told("model.layers.*.mlp")
    assert (kept["count"], kept["bytes"]) == (2, 4 * KIB)
    assert (kept["allocated_at"], kept["released_at"]) == (at(FORWARD, 0), at(BACKWARD, 0))


def test_the_plan_s_bytes_are_those_of_the_item_where_the_piece_comes():
    items = {"logits": 60 * KIB, "parameters": 90 * KIB}
    begin = at(FORWARD) | {"allocated_bytes": 1, "items": {"parameters": 99 * KIB}}
    moments = [begin, at(FORWARD, 0) | {"allocated_bytes": 2, "items": {}}]
    moments.append(at(FORWARD) | {"allocated_bytes": 3, "items": items})
    assert told("mm", moments)["planned_item_bytes"] == 60 * KIB
    assert told("embed.weight", moments)["planned_item_bytes"] == 99 * KIB
    assert told("gradient", moments)["planned_item_bytes"] is None


def test_a_ledger_without_steps_has_none():
    ledger = Ledger()
    ledger.mark(0, "states")
    assert largest_allocations(ledger, ()) == []
