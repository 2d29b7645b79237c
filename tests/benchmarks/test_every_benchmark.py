"""No benchmark rots: each runs at toy size here, in the test that is named, or in `.ci/run`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from skerry.benchmarks.__main__ import app
from tests.benchmarks.test_bench_road import bench

_TOY_RUNS = {
    "agent": "test_bench_agent.test_an_agent_goes_from_version_to_version_and_its_phases_are_told",
    "behind": (
        "test_bench_road.test_who_is_many_versions_behind_installs_once_and_reads_near_the_bound"
    ),
    "check": "test_bench_readme.test_what_a_submission_lacks_is_said",
    "codec": "test_bench_codec.test_every_codec_has_a_row_in_every_case",
    "deltas": "test_bench_deltas.test_every_source_counts_its_steps_in_both_precisions",
    "gate": "test_bench_engines.test_both_servers_are_asked_and_their_figures_kept",
    "inspect": "test_bench_inspect.test_it_measures_every_kind_of_request_and_view_or_says_why_not",
    "log": "test_every_benchmark.test_a_long_log_is_read_by_the_command",
    "payload": (
        "test_bench_engines.test_payloads_come_whole_by_each_way_and_the_gate_works_for_one_only"
    ),
    "publish": "test_bench_publish.test_the_same_loop_runs_with_and_without_publishing",
    "readme": (
        "test_bench_readme.test_the_command_writes_the_pages_and_says_when_one_is_out_of_date"
    ),
    "relay": "test_bench_agent.test_agents_behind_a_relay_cost_the_wan_one_fetch",
    "rl adapters": "test_bench_rl.test_adapters_and_merged_weights_are_followed_and_counted",
    "rl replay": "test_bench_rl.test_with_replay_a_sparse_models_trainer_is_nearer_to_its_engine",
    "rl reward": "test_bench_rl.test_two_islands_a_version_apart_give_rollouts_of_two_lags",
    "road": "test_bench_road.test_versions_cross_a_link_and_are_served_beside_a_full_checkpoint",
    "scale": "test_bench_scale.test_the_model_is_calibrated_here_and_checked_at_other_sizes",
}
_IN_CI = {"pause"}  # needs vLLM, in an environment of its own


def test_every_benchmark_has_a_toy_run() -> None:
    commands = {command.name for command in app.registered_commands} | {
        f"{group.name} {command.name}"
        for group in app.registered_groups
        if group.typer_instance is not None
        for command in group.typer_instance.registered_commands
    }
    assert commands == _TOY_RUNS.keys() | _IN_CI
    for run in _TOY_RUNS.values():
        module, _, name = run.partition(".")
        assert callable(getattr(import_module(f"tests.benchmarks.{module}"), name))
    ci = (Path(__file__).parents[2] / ".ci/run").read_text()
    assert all(f"skerry.benchmarks {name} " in ci for name in _IN_CI)


def test_a_long_log_is_read_by_the_command() -> None:
    found = bench("log", "--records", "300", "--round-trip-ms", "0.1")
    assert {read["records"] for read in found["fresh"]} == {300}
    assert found["form"]["benchmark"] == "log"
    assert found["form"]["command"].startswith("skerry bench log --records 300")
