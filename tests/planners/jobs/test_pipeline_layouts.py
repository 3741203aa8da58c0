"""How blocks are divided among a pipeline's virtual stages, each form worked out by hand."""

import pytest

from plimsoll.planners.architecture import ModelSpec
from plimsoll.planners.architecture.multi_token import with_multi_token_prediction
from plimsoll.planners.ground.errors import InvalidQuestion
from plimsoll.planners.ground.identity import ByIdentity
from plimsoll.planners.jobs.block_lists import MOST_BLOCKS, POINTER
from plimsoll.planners.jobs.pipeline_layouts import (
    BY_COMPUTE,
    EVEN,
    NAMED,
    Division,
    balanced,
    balanced_ways,
    named,
    nearest_degrees,
    pipeline_layouts,
    reached_by_compute,
    read_pipeline_layout,
    worthwhile,
)
from tests.planners.factories import llama, small_llama


def layers_of(way: str, num_layers: int, stages: int, chunks: int = 1) -> tuple[int, ...] | None:
    """Return the layers of each virtual stage, None where they cannot be divided so."""
    division = read_pipeline_layout(way).division(llama(num_hidden_layers=num_layers), stages, chunks)
    return None if division is None else division.layers


@pytest.mark.parametrize(
    ("way", "num_layers", "stages", "chunks", "layers"),
    [
        ("even", 32, 4, 1, (8,) * 4),
        ("even", 32, 4, 2, (4,) * 8),
        ("even", 126, 16, 1, None),
        # 126 = 16 x 7 + 14: one more on each of the 14 behind the first.
        ("behind-first", 126, 16, 1, (7, *(8,) * 14, 7)),
        ("behind-first", 61, 16, 1, (3, *(4,) * 13, 3, 3)),
        # Where they are interleaved its chunks are equal.
        ("behind-first", 126, 9, 2, (7,) * 18),
        ("behind-first", 126, 16, 2, None),
        ("behind-first", 3, 4, 1, None),
        # 126 layers, embedding and head are 128: 8 a stage, of which the ends have a block that is none.
        ("account-for-embedding-and-loss", 126, 16, 1, (7, *(8,) * 14, 7)),
        # In 8 chunks one block each: embedding and head stand alone.
        ("account-for-embedding-and-loss", 126, 16, 8, (0, *(1,) * 126, 0)),
        ("account-for-embedding-and-loss", 126, 16, 2, (3, *(4,) * 30, 3)),
        # 128 blocks do not go round 16 x 3 chunks.
        ("account-for-embedding-and-loss", 126, 16, 3, None),
        # 70 + 2 = 12 x 6 and 94 + 2 = 16 x 6.
        ("account-for-embedding-and-loss", 70, 12, 1, (5, *(6,) * 10, 5)),
        ("account-for-embedding-and-loss", 94, 16, 1, (5, *(6,) * 14, 5)),
        ("account-for-embedding-and-loss", 61, 16, 1, None),
        ("account-for-embedding-and-loss", 126, 1, 1, (126,)),
        # 63 + 1 = 16 x 4.
        ("account-for-embedding", 63, 16, 1, (3, *(4,) * 15)),
        ("account-for-loss", 63, 16, 1, (*(4,) * 15, 3)),
        # 61 - 1 = 15 x 4; 61 - 5 = 15 x 3 + 11 is none.
        ("last=1", 61, 16, 1, (*(4,) * 15, 1)),
        ("last=5", 61, 16, 1, None),
        ("first=1", 61, 16, 1, (1, *(4,) * 15)),
        # 126 - 6 - 8 = 14 x 8, in two chunks each.
        ("first=6,last=8", 126, 16, 2, (3, *(4,) * 15) * 2),
        ("first=7,last=7", 126, 16, 2, None),
        # Both stages are named: nothing is left for others.
        ("first=17,last=15", 32, 2, 1, (17, 15)),
        ("last=15,first=17", 32, 2, 1, (17, 15)),
        ("last-less=1, first-less=0", 31, 2, 1, (16, 15)),
        ("first=17,last=14", 32, 2, 1, None),
        ("first=0,last=2", 32, 4, 1, None),
        ("first=40", 32, 4, 1, None),
        ("first=8", 32, 1, 1, None),
        ("Et*7|(t*8|)*14t*7L", 126, 16, 1, (7, *(8,) * 14, 7)),
        ("E|(t|)*126L", 126, 16, 8, (0, *(1,) * 126, 0)),
        # A layer too few, a stage too many.
        ("Et*7|(t*8|)*14t*6L", 126, 16, 1, None),
        ("Et*7|(t*8|)*14t*7L", 126, 15, 1, None),
    ],
)
def test_blocks_are_divided_as_the_way_says(
    way: str, num_layers: int, stages: int, chunks: int, layers: tuple[int, ...] | None
):
    assert layers_of(way, num_layers, stages, chunks) == layers


# The Ultra-Scale runs' 1.34B model: a layer is 4 x 2048^2 + 3 x 2048 x 8192 = 67.1M products a token, the head as
# much as 4 layers.
def nanotron_model() -> ModelSpec:
    return llama(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=32,
        intermediate_size=8192,
        vocab_size=131072,
        tie_word_embeddings=True,
    )


@pytest.mark.parametrize(
    ("stages", "division"),
    [
        # 16 layers and a head of 4 are 20, 10 a stage: ten layers are exactly that.
        (2, Division(layers=(10, 6), head=1)),
        # 5 a stage: layers 5, 10 and 15 end one, and the last has layer 16 and the head.
        (4, Division(layers=(5, 5, 5, 1), head=3)),
        # 2.5 a stage: three layers, up to 5 two more, up to 7.5 three, and so on; the block that exceeds a share is
        # still of the stage, and the seventh has the head.
        (8, Division(layers=(3, 2, 3, 2, 3, 2, 1, 0), head=6)),
        (16, None),
    ],
)
def test_by_compute_blocks_are_dealt_out_until_a_stage_has_its_share(stages: int, division: Division | None):
    assert named(BY_COMPUTE).division(nanotron_model(), stages, 1) == division


# What nanotron's own `build_model` deals out (2411b02), with `get_block_compute_costs` of its Llama; run beside this.
@pytest.mark.parametrize(
    ("key_value_heads", "intermediate", "vocabulary", "num_layers", "layers"),
    [
        (8, 14336, 128256, 32, (9, 9, 8, 6)),
        (8, 14336, 128256, 32, (5, 5, 5, 5, 5, 5, 2)),
        (8, 14336, 128256, 16, (4, 4, 3, 4, 1)),
        (8, 11008, 128256, 94, (20, 19, 19, 20, 16)),
        (8, 11008, 128256, 126, (19, 18, 19, 18, 18, 19, 15)),
        (1, 11008, 32000, 80, (7, 7, 7, 6, 7, 7, 7, 6, 7, 7, 6, 6)),
        # How many heads share a key changes nothing.
        (8, 11008, 32000, 61, (4, 4, 4, 4, 4, 4, 3, 4, 4, 4, 4, 4, 4, 3, 4, 3)),
        (32, 11008, 32000, 61, (4, 4, 4, 4, 4, 4, 3, 4, 4, 4, 4, 4, 4, 3, 4, 3)),
    ],
)
def test_odd_numbers_of_layers_are_dealt_out_as_nanotron_deals_them(
    key_value_heads: int, intermediate: int, vocabulary: int, num_layers: int, layers: tuple[int, ...]
):
    model = llama(
        num_key_value_heads=key_value_heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        num_hidden_layers=num_layers,
    )
    division = named(BY_COMPUTE).division(model, len(layers), 1)
    assert division == Division(layers=layers, head=len(layers) - 1)


# Sixteen stages of 1.25: two layers, one, one and one are four stages, so layer 15 ends the twelfth. Layer 16, norm
# and head are the 13th, which they exceed. All blocks together have every share: cast and loss are a stage each.
@pytest.mark.parametrize(("stages", "reached"), [(1, 1), (8, 8), (16, 15)])
def test_stages_are_left_empty_where_the_head_outweighs_them(stages: int, reached: int):
    assert reached_by_compute(nanotron_model(), stages) == reached


@pytest.mark.parametrize(
    ("fewer", "num_layers", "stages", "chunks", "layers"),
    [
        # 126 = 16 x 7 + 14: the two that have no more are the first, which keep the most micro-batches.
        ((0, 0), 126, 16, 1, (7, 7, *(8,) * 14)),
        # 126 + 2 = 16 x 8.
        ((1, 1), 126, 16, 1, (7, *(8,) * 14, 7)),
        # 80 + 2 = 16 x 5 + 2: the last two of six, of which the last has two fewer.
        ((0, 2), 80, 16, 1, (*(5,) * 14, 6, 4)),
        # 32 + 2 = 2 x 17: 8 and 9 in the first stage's chunks, and 8 and 7 in the last's, whose last has the head.
        ((0, 2), 32, 2, 2, (8, 8, 9, 7)),
        # A stage of one layer less than one has none.
        ((1, 0), 3, 4, 1, None),
        ((0, 0), 32, 1, 1, None),
    ],
)
def test_what_the_search_balances_is_as_even_as_it_can_be(
    fewer: tuple[int, int], num_layers: int, stages: int, chunks: int, layers: tuple[int, ...] | None
):
    division = balanced(*fewer).division(llama(num_hidden_layers=num_layers), stages, chunks)
    assert (None if division is None else division.layers) == layers


@pytest.mark.parametrize(
    ("fewer", "num_layers", "stages", "told"),
    [
        ((0, 0), 32, 4, "even"),
        ((1, 1), 126, 16, "account-for-embedding-and-loss"),
        ((0, 1), 63, 16, "account-for-loss"),
        # 61 + 3 = 16 x 4.
        ((0, 3), 61, 16, "last=1"),
        # 126 + 4 = 16 x 8 + 2: the last has 9 - 4 and one other 9.
        ((0, 4), 126, 16, "Et*8|(t*8|)*13t*9|t*5L"),
        ((0, 0), 126, 16, "Et*7|t*7|(t*8|)*13t*8L"),
    ],
)
def test_what_the_search_balanced_is_told_as_shortly_as_it_can_be_asked_for(
    fewer: tuple[int, int], num_layers: int, stages: int, told: str
):
    model = llama(num_hidden_layers=num_layers)
    assert balanced(*fewer).told(model, stages, 1) == told
    assert read_pipeline_layout(told).division(model, stages, 1) == balanced(*fewer).division(model, stages, 1)


@pytest.mark.parametrize("way", [*NAMED, "first=6", "last=8", "first=6,last=8", "Et*7|(t*8|)*14t*7L"])
def test_what_a_client_asked_for_is_told_as_it_was_asked(way: str):
    assert read_pipeline_layout(way).told(llama(num_hidden_layers=126), 16, 1) == way


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t|tL", "the embedding (E) is missing"),
        ("Et|t", "the head and loss (L) is missing"),
        ("EEt|tL", "the embedding (E) is there 2 times"),
        ("Et|tL*3", "the head and loss (L) is there 3 times"),
        ("tE|tL", "the embedding (E) must be the first block"),
        ("Et|Lt", "head and loss (L) the last"),
        ("Et||tL", "stage 1 of 3, counted from 0, has no block: give it one, or omit a |"),
        ("|Et|tL", "stage 0 of 3"),
        ("Et|x|tL", "'x' is no block: E is the embedding"),
        ("Et|T|tL", "'T' is no block"),
        ("E((t|)*2t|)*3tL", "parentheses within parentheses"),
        ("E(t|t)L", "without *N behind them"),
        ("Et*|tL", "repeat with x*3"),
        ("Et*99999|tL", f"more than {MOST_BLOCKS:,} blocks"),
        ("E(t*9999|)*99999tL", f"more than {MOST_BLOCKS:,} blocks"),
        ("Et*999999|tL", f"*999999 is too large: a list has at most {MOST_BLOCKS:,} blocks"),
        ("Et*1000000000L", "*1000000000 is too large"),
        ("first=8,first=9", "is no way"),
        ("first=8,last-less=1", "is no way"),
        ("balanced", "'balanced' is no way to divide a pipeline's blocks: it may be even, behind-first"),
        ("", "'' is no way"),
        ("first=", "'first=' is no way"),
        ("first=8,", "is no way"),
        ("first=8last=8", "is no way"),
        ("first=-1", "is no way"),
        ("first-less=1", "is no way"),
        ("type:", "is no way"),
        pytest.param("even" * 900, "is no way", id="long"),
    ],
)
def test_what_names_no_way_is_refused_with_what_would(text: str, words: str):
    with pytest.raises(InvalidQuestion) as refused:
        read_pipeline_layout(text)
    assert words in str(refused.value)
    assert refused.value.pointer == POINTER
    assert len(str(refused.value)) < 480


def test_a_client_s_way_is_the_only_one_and_else_a_stack_s_own_is_the_first():
    model = llama()
    assert [way.form for way in pipeline_layouts("last=8", (EVEN,), model)] == ["ends"]
    # Without lists other ways are what the stack's own is where it divides, or another program's.
    assert pipeline_layouts(None, ("behind-first", "even"), model) == (named("behind-first"),)
    assert pipeline_layouts(None, ("fewer-at-ends",), model) == (read_pipeline_layout("first-less=1,last-less=1"),)
    listing = pipeline_layouts(None, ("even", "account-for-loss", "ends", "listed"), model)
    assert listing == (named(EVEN), *balanced_ways(ByIdentity(model)))


def test_a_search_balances_by_as_many_layers_as_the_head_is_work():
    # A layer of 4096 x (4096 + 2 x 1024 + 4096 + 3 x 14336) = 218e6, a head of 4096 x 128256 = 525e6: 2.4 layers.
    ways = balanced_ways(ByIdentity(llama()))
    assert [way.fewer for way in ways] == [(first, last) for first in (0, 1) for last in range(4)]


def test_of_what_the_search_balances_only_the_best_are_tried_each_once():
    # 16 layers and a head of 4 on 4 stages. With a last stage of 4 fewer, 20 = 4 x 5: 5, 5, 5, 1, five layers' work
    # each. Ways that divide as even stages do are those: the first of them is tried alone.
    model = nanotron_model()
    ways = pipeline_layouts(None, ("even", "listed"), model)
    divisions = [ways[place].division(model, 4, 1) for place in worthwhile(ways, ByIdentity(model), 4, 1)]
    layers = [division.layers for division in divisions if division is not None]
    assert layers[0] == (4, 4, 4, 4)
    assert (5, 5, 5, 1) in layers
    assert len(set(layers)) == len(layers) == len(divisions)


def test_the_nearest_degrees_are_told_on_either_side():
    model = llama(num_hidden_layers=126)
    assert nearest_degrees((named(EVEN),), model, 16, 1) == "14 or 18"
    # 126 + 2 = 128: 8 and 32.
    assert nearest_degrees((read_pipeline_layout("account-for-embedding-and-loss"),), model, 15, 1) == "8 or 16"
    assert nearest_degrees((named(EVEN),), model, 200, 1) == "126"
    assert nearest_degrees((read_pipeline_layout("first=200"),), model, 4, 1) == ""


SMALL = small_llama()


class TestMultiTokenPrediction:
    def model(self, layers=1):
        return with_multi_token_prediction(ByIdentity(SMALL), layers)

    def division(self, text, *, layers=1, stages=2, chunks=1):
        return read_pipeline_layout(text).division(self.model(layers), stages, chunks)

    @pytest.mark.parametrize(("layers", "held"), [(1, (2, 3)), (2, (2, 4))])
    def test_by_a_name_they_stand_where_the_head_does(self, layers, held):
        assert self.division("even", layers=layers) == Division(layers=held, head=1, multi_token=1)

    def test_a_list_says_where_they_stand(self):
        assert self.division("Ettt|tmL") == Division(layers=(3, 2), head=1, multi_token=1)
        assert self.division("Ett|tt|m|L", stages=4) == Division(layers=(2, 2, 1, 0), head=3, multi_token=2)

    @pytest.mark.parametrize(("text", "layers"), [("Ett|ttL", 1), ("Ett|ttmL", 0), ("Ett|ttmL", 2), ("Ett|ttmmL", 1)])
    def test_a_list_has_as_many_as_are_asked_for(self, text, layers):
        model = self.model(layers) if layers else SMALL
        assert read_pipeline_layout(text).division(model, 2, 1) is None

    @pytest.mark.parametrize("text", ["Ett|tmtL", "Ettm|ttL"])
    def test_no_other_layer_stands_behind_them(self, text):
        with pytest.raises(InvalidQuestion, match="stand behind all others"):
            read_pipeline_layout(text)

    def test_they_are_all_in_one_stage(self):
        with pytest.raises(InvalidQuestion, match="must be in one stage"):
            read_pipeline_layout("Ett|ttm|mL")

    def test_the_first_stage_has_none_in_a_later_chunk(self):
        # Chunks of two stages: Et|t on the first, t|tmL on the last; then m in the first's second chunk.
        assert self.division("Et|t|t|tmL", chunks=2) is not None
        assert self.division("Ett|tt|m|L", chunks=2) is None

    @pytest.mark.parametrize("text", ["Et*3|tmL", "Ett|ttmL", "Et*4|mL"])
    def test_a_list_is_told_as_it_was_read(self, text):
        assert read_pipeline_layout(text).told(self.model(), 2, 1) == text

    def test_what_the_search_balances_leaves_them_to_the_head_s_stage(self):
        assert balanced(0, 2).division(self.model(), 2, 1) == Division(layers=(3, 2), head=1, multi_token=1)
        assert named("even").division(self.model(), 1, 1) == Division(layers=(5,), head=0, multi_token=0)
