"""Tests the calibration: which samples are used, the error bands, and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config import safe_files
from sidecar.counting import calibration
from sidecar.counting.calibration import (
    MAX_ENTRIES,
    MAX_FACTOR,
    MIN_FACTOR,
    Calibrations,
    ConversationCalibration,
    Sample,
    document_key,
    key_of,
    load_calibrations,
    save_calibrations,
)


def predicted_by(calibration: ConversationCalibration, estimated: int) -> int:
    """Predict a prompt's size: the last reported size plus the calibrated size of new text.

    The occupancy of a context is calculated in the same way.
    """
    if calibration._last is None or estimated < calibration._last[0]:
        around = calibration.hidden if calibration._last is None else None
        return max(0, round(calibration.factor * estimated + (around[0] if around else 0.0)))
    before, reported, _ = calibration._last
    return reported + round(calibration.factor * (estimated - before))


def learn_growth(calibration: ConversationCalibration, ratio: float, turns: int = 20) -> None:
    estimated, real = 0.0, 0.0
    for _ in range(turns):
        estimated += 400
        real += 400 * ratio
        calibration.update(Sample(round(estimated), round(real)))


def test_factor_is_learned_from_prompt_growth() -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "heuristic")
    hidden = 3000
    for turn in range(1, 30):
        calibration.update(Sample(200 * turn, hidden + 260 * turn))

    assert calibration.factor == pytest.approx(1.3, abs=0.03)
    assert predicted_by(calibration, 200 * 30) == pytest.approx(hidden + 260 * 30, rel=0.005)


def test_error_is_measured_before_the_sample_is_learned() -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "heuristic")
    before = calibration.error_percent

    calibration.update(Sample(1000, 1000))
    calibration.update(Sample(2000, 2250))

    # the estimate increased by 1000, and the reported number by 1250
    assert (before, calibration.error_percent) == (None, 25.0)
    assert calibration.samples == 1


def test_new_model_starts_with_the_factor_of_its_generation() -> None:
    shared = Calibrations()
    learn_growth(ConversationCalibration(shared, "claude-opus-4-7", "x"), 1.4)
    learn_growth(ConversationCalibration(shared, "claude-sonnet-4-5", "x"), 0.8)

    conversation = ConversationCalibration(shared, "claude-opus-4-7", "x")
    assert conversation.factor == pytest.approx(1.4, abs=0.05)
    conversation = conversation.for_model("claude-opus-4-8", "x")
    assert conversation.factor == pytest.approx(1.4, abs=0.05)
    assert conversation.samples == 0
    conversation = conversation.for_model("claude-haiku-4-5", "x")
    assert conversation.factor == pytest.approx(0.8, abs=0.05)
    conversation = conversation.for_model("gpt-4", "x")
    assert conversation.factor == 1
    conversation = conversation.for_model("claude-opus-4-7", "another way of estimating")
    assert conversation.factor == 1


def test_reply_updates_the_factor_and_the_next_prediction() -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "heuristic")
    calibration.update(Sample(1000, 1000))
    calibration.add_reply(400, 600)

    assert predicted_by(calibration, 1400) == 1600
    assert calibration.samples == 1
    assert 1 < calibration.factor < 1.5


def test_unknown_models_do_not_share_calibration() -> None:
    shared = Calibrations()
    learn_growth(ConversationCalibration(shared, "my-model", "heuristic"), 2.0)

    assert ConversationCalibration(shared, "your-model", "heuristic").factor == 1


def test_single_outlier_barely_changes_the_factor() -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "heuristic")
    learn_growth(calibration, 1.0)
    before = calibration.factor
    calibration.update(Sample(8400, 90_000))

    assert calibration.factor < before * 1.1


def test_hidden_prompt_does_not_change_the_factor() -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "heuristic")
    calibration.update(Sample(100, 15_000))

    assert calibration.factor == 1
    assert predicted_by(calibration, 400) == 15_300


@pytest.mark.parametrize("share", [0.2, 0.7, 0.9])
@pytest.mark.parametrize("reports", [1, 2, 3, 5])
def test_hidden_prompt_does_not_calibrate_documents_or_other_models(
    share: float, reports: int
) -> None:
    shared = Calibrations()
    for _ in range(20):
        calibration = ConversationCalibration(shared, "claude-sonnet-4-5", "x", "editor")
        for turn in range(reports):
            seen = 400 + 60 * turn
            calibration.update(Sample(seen, seen + round(400 * share), margin=0.15 * seen))

    document = document_key("claude-sonnet-4-5", "x", "prose")
    learned = shared.learned(document)
    assert shared.initial_factor(document) == pytest.approx(1.0, abs=0.001)
    assert learned is None or learned.factor() == pytest.approx(1.0, abs=0.001)
    other = ConversationCalibration(shared, "claude-sonnet-4", "x", "editor")
    assert other.factor == pytest.approx(1.0, abs=0.03)


def test_first_prompt_calibrates_after_subtracting_known_hidden_tokens() -> None:
    shared = Calibrations()
    first = ConversationCalibration(shared, "local", "x", "editor")
    first.update(Sample(1000, 2200))
    first.update(Sample(2000, 3200))
    second = ConversationCalibration(shared, "local", "x", "editor")
    second.update(Sample(50_000, 66_200))

    assert second.samples == 2
    assert second.factor == pytest.approx(1.28, abs=0.02)


def test_pruned_prompt_starts_a_new_growth_baseline() -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "heuristic")
    learn_growth(calibration, 1.2)
    calibration.update(Sample(500, 620))

    assert calibration.factor == pytest.approx(1.2, abs=0.05)
    assert predicted_by(calibration, 900) == pytest.approx(620 + 400 * calibration.factor, abs=1)


NUMBERS = st.integers(-5, 10**9)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=40))
def test_factor_stays_in_range_for_any_reports(samples: list[tuple[int, int]]) -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "heuristic")
    for estimated, reported in samples:
        calibration.update(Sample(estimated, reported))

    assert MIN_FACTOR <= calibration.factor <= MAX_FACTOR
    assert predicted_by(calibration, 1000) >= 0
    assert calibration.error_percent is None or calibration.error_percent >= 0


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"null", b'{"learned": 1}', b'{"learned": {"a": {"real": "x"}}}'),
        *(b'{"learned": {"a": {"real": -1}}}', b"\xff\xfe", b'{"learned": {"a": {"real": 1e99}}}'),
        b'{"version": 1, "learned": {"o200k_base x gpt-5": {"real": 9.0, "estimated": 9.0}}}',
    ],
)
def test_damaged_or_older_file_yields_empty_calibrations(tmp_path: Path, content: bytes) -> None:
    (tmp_path / calibration.FILE_NAME).write_bytes(content)

    assert load_calibrations(tmp_path).to_dict()["learned"] == {}


def test_file_contains_only_numbers_and_names(tmp_path: Path) -> None:
    shared = Calibrations()
    learn_growth(ConversationCalibration(shared, "gpt-5", "heuristic"), 1.1)
    save_calibrations(tmp_path, shared)

    saved = json.loads((tmp_path / calibration.FILE_NAME).read_text())
    [(key, entry)] = saved["learned"].items()
    assert key == "o200k_base heuristic gpt-5"
    numbers = [value if isinstance(value, list) else [value] for value in entry.values()]
    assert all(isinstance(number, int | float) for some in numbers for number in some)


def test_band_narrows_with_confirming_reports() -> None:
    calibration = ConversationCalibration(Calibrations(), "claude-opus-4-7", "x")
    assert calibration.band_factor == 1.0

    for turn in range(1, 12):
        calibration.update(Sample(400 * turn, 404 * turn, margin=60.0 * turn))

    assert calibration.band_factor == 0.8
    calibration = calibration.for_model("claude-sonnet-4-5", "x")
    assert calibration.band_factor == 1.0


def test_band_widens_after_a_miss() -> None:
    calibration = ConversationCalibration(Calibrations(), "local", "x")
    for turn in range(1, 8):
        calibration.update(
            Sample(400 * turn, 400 * turn + (90 if turn % 2 else 0), margin=20.0 * turn)
        )

    assert calibration.band_factor > 2


def test_hidden_tokens_are_kept_for_the_clients_next_conversation(tmp_path: Path) -> None:
    shared = Calibrations()
    first = ConversationCalibration(shared, "gpt-5", "o200k_base", "Neovim")
    first.update(Sample(200, 9_210))
    assert first.hidden is None
    first.update(Sample(700, 9_710))
    save_calibrations(tmp_path, shared)

    again = load_calibrations(tmp_path)
    second = ConversationCalibration(again, "gpt-5", "o200k_base", "Neovim")
    assert second.hidden is not None
    tokens, margin = second.hidden
    assert tokens == pytest.approx(9_010, abs=20)
    assert 0 < margin <= 0.25 * tokens
    assert predicted_by(second, 300) == pytest.approx(9_310, abs=30)
    assert ConversationCalibration(again, "gpt-5", "o200k_base", "Code").hidden is None
    assert ConversationCalibration(again, "gpt-4", "o200k_base", "Neovim").hidden is None


def test_least_recently_updated_entry_is_removed_first(tmp_path: Path) -> None:
    shared = Calibrations()
    for number in range(MAX_ENTRIES + 20):
        shared.update(f"new {number}", 1000, 1500)
        shared.update_hidden(f"new {number}", 1500)
        if number % 100 == 0:
            shared.update("daily", 1000, 1500)
            shared.update_hidden("daily", 1500)
            save_calibrations(tmp_path, shared)  # the next process continues from the file
            shared = load_calibrations(tmp_path)

    daily, hidden = shared.learned("daily"), shared.hidden("daily")
    assert daily is not None
    assert daily.samples == MAX_ENTRIES // 100 + 1
    assert hidden is not None
    assert hidden.samples == daily.samples
    assert (shared.learned("new 0"), shared.hidden("new 0")) == (None, None)
    assert [len(shared.to_dict()[part]) for part in ("learned", "hidden")] == [MAX_ENTRIES] * 2


def test_merging_samples_increases_the_version(tmp_path: Path) -> None:
    """Counts made with the previous factors become invalid."""
    mine, other = Calibrations(), Calibrations()
    mine.update("mine", 1000, 1500)
    other.update("mine", 1000, 500)
    other.update("other", 1000, 1500)
    version = mine.version
    save_calibrations(tmp_path, other)

    assert save_calibrations(tmp_path, mine)
    assert mine.version > version
    both = mine.learned("mine")
    assert both is not None
    assert both.samples == 2
    assert mine.learned("other") == other.learned("other")
    version = mine.version
    assert not save_calibrations(tmp_path, mine)
    assert mine.version == version


K = key_of("unheard-of", "x")


def test_two_processes_keep_each_others_samples(tmp_path: Path) -> None:
    """Each sample from either process is applied once, in whichever order the processes write."""
    one, two = load_calibrations(tmp_path), load_calibrations(tmp_path)
    one.update(K, 1_000, 1_300)
    save_calibrations(tmp_path, one)
    for _ in range(20):
        two.update(K, 1_000, 700)
    assert save_calibrations(tmp_path, two)
    assert samples(two) == 21
    one.update(key_of("other", "x"), 1_000, 1_000)
    assert save_calibrations(tmp_path, one)
    assert samples(one) == samples(load_calibrations(tmp_path)) == 21
    assert one.learned(K) == two.learned(K)


def test_unwritten_samples_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    one, two = load_calibrations(tmp_path), load_calibrations(tmp_path)
    one.update(K, 1_000, 1_300)
    with monkeypatch.context() as broken:
        broken.setattr(calibration, "write", full)
        with pytest.raises(OSError, match="No space"):
            save_calibrations(tmp_path, one)
    two.update(K, 1_000, 700)
    save_calibrations(tmp_path, two)
    save_calibrations(tmp_path, one)
    assert samples(load_calibrations(tmp_path)) == 2


def test_sample_added_during_a_write_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = load_calibrations(tmp_path)
    one.update(K, 1_000, 1_300)

    def slow(path: Path, data: bytes) -> None:
        one.update(K, 1_000, 1_200)
        safe_files.write(path, data)

    with monkeypatch.context() as late:
        late.setattr(calibration, "write", slow)
        save_calibrations(tmp_path, one)
    assert not save_calibrations(tmp_path, one)
    assert samples(one) == samples(load_calibrations(tmp_path)) == 2
    assert not save_calibrations(tmp_path, one)
    assert samples(one) == 2


def samples(of: Calibrations) -> int:
    learned = of.learned(K)
    return learned.samples if learned else 0
