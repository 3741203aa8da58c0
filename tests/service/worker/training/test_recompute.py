import pytest

from plimsoll.service.worker.recording.ledger import Kind
from plimsoll.service.worker.training.recompute import recomputed_layers
from tests.service.worker.cases import config, job, requested_bytes, traced_on_transformers

# Of a token of the small Llama: two bytes of each feature.
TOKENS, HIDDEN, INTERMEDIATE = 64, 64, 176


@pytest.mark.parametrize(
    ("limits", "layers"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"recompute_layers": 2}, [0, 1]),
        ({"recompute_layers": 9}, [0, 1, 2, 3, 4]),
        ({"recompute_every": 1}, [0, 1, 2, 3, 4]),
        ({"recompute_every": 2}, [1, 3]),
        ({"recompute_every": 6}, []),
    ],
)
def test_layers_are_counted_from_the_first(limits, layers):
    assert list(recomputed_layers(5, job(recompute="full", **limits))) == layers


def kept(modules):
    """Return the activations of a layer of Megatron's at the loss, which 40,001 words make the peak."""
    changes = {"recompute": "selective", "recompute_modules": modules} if modules else {}
    ledger = traced_on_transformers(
        config=config(vocab_size=40_001, num_hidden_layers=1),
        framework="megatron",
        zero_stage=0,
        **changes,
    )
    return requested_bytes(ledger, Kind.FORWARD_ACTIVATION, phase="backward")


@pytest.mark.slow
class TestModules:
    def test_norms_keep_their_inputs_alone(self):
        # Two outputs of 64 features, and two statistics of 4 bytes a token.
        assert kept(()) - kept(("layernorm",)) == 2 * (2 * TOKENS * HIDDEN + 4 * TOKENS)

    def test_a_feed_forward_keeps_its_input_alone(self):
        # Gate, up and their product.
        assert kept(()) - kept(("mlp",)) == 3 * 2 * TOKENS * INTERMEDIATE

    def test_a_feed_forward_s_input_stays_though_norms_are_recomputed(self):
        both = 3 * 2 * TOKENS * INTERMEDIATE + 2 * TOKENS * HIDDEN + 4 * TOKENS
        assert kept(()) - kept(("mlp", "layernorm")) == both
