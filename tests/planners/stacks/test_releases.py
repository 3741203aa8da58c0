import pytest

from plimsoll.planners.ground.errors import UnknownVersion
from plimsoll.planners.stacks.profile import load_profile, running_profile, stack_names, stack_version, stack_versions
from plimsoll.planners.stacks.releases import UNKNOWN_RUNS_SPREAD, release_entries, release_in

TABLE = {
    "loss": {"logits_bytes": 6, "compiled": True},
    "variants": {"fast": {"loss": {"compiled": True}}},
    "releases": [
        {"versions": ["2024-11 to 2025-02"], "source": "a", "loss": {"logits_bytes": 12}},
        {"versions": ["0.9 to 0.11"], "source": "b", "variants": {"fast": {"loss": {"compiled": False}}}},
        {"versions": ["1.0.0", "1.0.1"], "source": "c", "has_runs": True},
    ],
}
ENTRIES = release_entries(TABLE)


def test_rows_of_versions_count_months_over_the_year_and_numbers_up_in_their_last_part():
    assert ENTRIES[0].versions == ("2024-11", "2024-12", "2025-01", "2025-02")
    assert ENTRIES[1].versions == ("0.9", "0.10", "0.11")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("0.10", "0.10"),
        ("v0.10", "0.10"),
        ("0.10.3", "0.10"),  # a patch
        ("0.10.3+cu126", "0.10"),
        ("2025-01-17", "2025-01"),  # a day
        ("1.0", "1.0.1"),  # the newest of what it abbreviates
        ("2024", "2024-12"),
    ],
)
def test_a_version_is_meant_by_its_patches_its_days_and_its_beginning(asked, meant):
    _, release = release_in("trainer", ENTRIES, asked)
    assert release.version == meant


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("0.8", ("0.9", "1.0.1")),  # before all that are numbered; and the newest
        ("0.12", ("0.11", "1.0.0", "1.0.1")),
        ("2.0", ("1.0.1",)),
        ("2024-03", ("2024-11", "1.0.1")),
        ("2025-07", ("2025-02", "1.0.1")),
        ("main", ("1.0.1",)),
    ],
)
def test_an_unknown_version_is_refused_with_those_before_and_behind_it_and_the_newest(asked, nearest):
    with pytest.raises(UnknownVersion) as refusal:
        release_in("trainer", ENTRIES, asked)
    assert refusal.value.nearest == nearest
    assert f"Unknown version {asked!r} of trainer. Nearest: {', '.join(nearest)}." == refusal.value.detail
    assert refusal.value.pointer == "/framework_version"


def test_without_a_version_the_newest_is_planned():
    entry, release = release_in("trainer", ENTRIES, None)
    assert (release.version, release.is_newest, release.has_runs) == ("1.0.1", True, True)
    assert entry.applied(TABLE) == TABLE


def test_a_release_changes_what_it_says_and_nothing_else():
    entry, release = release_in("trainer", ENTRIES, "2024-12")
    assert entry.applied(TABLE)["loss"] == {"logits_bytes": 12, "compiled": True}
    assert (release.alike, release.has_runs) == (("2024-11", "2025-02"), False)


def test_a_release_changes_variants_of_kernels_over_the_file_s_own():
    assert ENTRIES[1].variant("fast") == {"loss": {"compiled": False}}
    assert ENTRIES[1].applied(TABLE)["variants"] == TABLE["variants"]
    assert ENTRIES[0].variant("fast") == {}


def test_a_stack_whose_versions_are_not_told_apart_has_none():
    assert release_in("papers", (), None) is None
    with pytest.raises(UnknownVersion, match="Its versions are not told apart"):
        release_in("papers", (), "1.0")


@pytest.mark.parametrize("name", stack_names())
def test_every_version_of_a_stack_makes_a_profile_and_none_is_listed_twice(name):
    versions = stack_versions(name)
    assert len(versions) == len(set(versions))
    for version in versions:
        profile = load_profile(name, version=version)
        assert profile.release.version == version == stack_version(name, version)
        assert profile.release.source


@pytest.mark.parametrize("name", [name for name in stack_names() if stack_versions(name)])
def test_a_stack_is_planned_in_its_newest_version_by_default(name):
    assert load_profile(name) == load_profile(name, version=stack_versions(name)[-1])


def test_what_runs_a_job_keeps_the_version():
    profile = running_profile(load_profile("fsdp2", version="2025-01"), "compiled", "adamw")
    assert profile.release.version == "2025-01"
    assert not profile.loss.compiled
    assert running_profile(load_profile("fsdp2"), "compiled", "adamw").loss.compiled


def test_where_no_run_of_a_release_is_known_its_band_is_wider():
    known, unknown = load_profile("fsdp2", version="2025-03"), load_profile("fsdp2", version="2024-11")
    assert (known.release.has_runs, unknown.release.has_runs) == (True, False)
    assert unknown.band.low == known.band.low / UNKNOWN_RUNS_SPREAD
    assert unknown.band.high == known.band.high * UNKNOWN_RUNS_SPREAD


# torchtitan, git log of train.py and components/loss.py.
@pytest.mark.parametrize(
    ("version", "compiled"),
    [("2024-10", False), ("2024-11", True), ("2024-12", False), ("2025-03", False), ("2025-04", True), ("0.2.2", True)],
)
def test_torchtitan_compiled_its_loss_but_for_the_winter_of_2024(version, compiled):
    assert load_profile("fsdp2", "compiled", version=version).loss.compiled is compiled
    assert not load_profile("fsdp2", version=version).loss.compiled
