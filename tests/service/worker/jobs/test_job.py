"""The stages of a pipeline that decide, and the chunks of an interleaved one."""

from plimsoll.service.worker.jobs.reading import read_job
from tests.service.worker.cases import LATENT, config, request


def pipeline_job(*planned_bytes, **settings):
    """Return a job of stages of two layers each, with these peaks in the plan."""
    parts = [
        {"stage": number, "layers": [2 * number, 2 * number + 1], "peak_bytes": peak}
        for number, peak in enumerate(planned_bytes)
    ]
    model = config(**settings | {"num_hidden_layers": 2 * len(parts)})
    return read_job(request(layout={"pipeline_parallel": len(parts)}, model=model, stages=parts))


def test_of_a_pipeline_of_equal_layers_the_first_second_and_last_stage_decide():
    job = pipeline_job(5, 4, 3, 2, 1)
    assert [stage.number for stage in job.deciding_stages] == [0, 1, 4]
    assert [(stage.first_layer, stage.last_layer) for stage in job.deciding_stages] == [(0, 1), (2, 3), (8, 9)]


def test_the_first_of_the_stages_with_experts_decides_though_it_is_the_third():
    # Ten layers on five stages, the first four dense: the third and the fourth stage are alike.
    job = pipeline_job(5, 4, 9, 8, 7, **LATENT | {"first_k_dense_replace": 4})
    assert [stage.number for stage in job.deciding_stages] == [0, 1, 2, 4]


def test_the_stage_that_the_plan_has_as_the_fullest_decides_too():
    assert [stage.number for stage in pipeline_job(1, 2, 3, 9, 4).deciding_stages] == [0, 1, 3, 4]


def test_interleaved_a_rank_has_every_so_manieth_chunk():
    # 8 layers in 2 x 2 chunks of 2: rank 1 has the second and the fourth, and the head with it.
    parts = [{"stage": number, "layers": [4 * number, 4 * number + 3], "peak_bytes": 1} for number in range(2)]
    layout = {"pipeline_parallel": 2, "virtual_pipeline": 2}
    job = read_job(request(layout=layout, model=config(num_hidden_layers=8), stages=parts))
    chunks = job.chunks_of(job.deciding_stages[1])
    assert [(chunk.first_layer, chunk.last_layer) for chunk in chunks] == [(2, 3), (6, 7)]
    assert [(chunk.is_first, chunk.is_last) for chunk in chunks] == [(False, False), (False, True)]


def test_without_a_pipeline_the_one_stage_has_every_layer():
    (stage,) = read_job(request()).deciding_stages
    assert (stage.is_first, stage.is_last, stage.first_layer, stage.last_layer) == (True, True, 0, 1)
