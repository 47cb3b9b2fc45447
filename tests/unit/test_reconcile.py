"""`eventonce reconcile`: events that never arrived are found by their keys, despite copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eventonce.sources.files import Capture
from eventonce.study.reconcile import by_fields, reconcile
from tests.helpers import Run, call, write_lines


def simulated(run: Run, folder: Path) -> tuple[Path, Path, int]:
    capture, truth, expected = (folder / name for name in ("c.jsonl", "t.jsonl", "e.jsonl"))
    files = ("-o", capture, "--truth", truth, "--expected", expected)
    run("simulate", "--seed", "301", "--events", "3000", "--rate", "lost=0.05", *files)
    arrived = {json.loads(line)["fact"] for line in truth.read_bytes().splitlines()}
    return expected, capture, len(expected.read_bytes().splitlines()) - len(arrived)


def test_the_lost_events_are_found_and_written(run: Run, tmp_path: Path) -> None:
    expected, capture, lost = simulated(run, tmp_path)
    missing = tmp_path / "missing.jsonl"
    result = run("reconcile", expected, capture, "--missing", missing, "--json")
    (found,) = result.documents
    assert lost > 50
    assert (result.code, found["missing"]) == (1, lost)
    assert sum(found["types"].values()) == lost
    written = missing.read_bytes().splitlines()
    assert len(written) == lost
    assert set(written) <= set(expected.read_bytes().splitlines())
    again = run("reconcile", missing, capture, "--json").documents[0]
    assert again["both"] == 0


def test_a_capture_compared_with_itself_lacks_no_event(run: Run, tmp_path: Path) -> None:
    _, capture, _ = simulated(run, tmp_path)
    result = run("reconcile", capture, capture)
    assert result.code == 0
    assert "0 never arrived" in result.out


def test_the_progress_is_at_its_half_when_the_first_capture_was_read(tmp_path: Path) -> None:
    first, second = (write_lines(tmp_path / name, {"id": "e1"}) for name in ("1.jsonl", "2.jsonl"))
    shares: list[float] = []
    key_of = by_fields(["detail.n"])
    reconcile([first], [second], key_of, progress=lambda at, of: shares.append(at / of))
    assert shares == [0.5, 1]


def test_two_captures_of_one_bus_give_an_estimate_of_the_events_that_both_lack(
    run: Run, tmp_path: Path
) -> None:
    # Each lacks a tenth of a thousand events, independently of the other, so ten are in neither.
    one = [number for number in range(1_000) if number % 10]
    two = [number for number in range(1_000) if number // 10 % 10]
    captures = [
        write_lines(tmp_path / name, *[call(number).decode() for number in numbers])
        for name, numbers in (("one", one), ("two", two))
    ]
    (found,) = run("reconcile", *captures, "--json").documents
    assert (found["expected"], found["seen"], found["both"]) == (900, 900, 810)
    assert round(found["neither"]) == 1_000 - len({*one, *two}) == 10
    assert "about 10 events are in neither" in " ".join(run("reconcile", *captures).out.split())


def test_the_estimate_is_the_formula_of_chapman() -> None:
    from eventonce.study.reconcile import Reconciled

    found = Reconciled(expected=200, seen=180, both=120, types={}, keyless=0)
    assert found.neither is not None
    assert round(found.neither) == round(201 * 181 / 121 - 1 - 260)
    assert Reconciled(5, 5, 1, {}, 0).neither is None


def test_a_list_of_another_form_is_compared_by_fields(run: Run, tmp_path: Path) -> None:
    export = write_lines(
        tmp_path / "export",
        {"type": "row", "call": "1"},
        {"type": "row", "call": "2"},
        {"type": "row"},
    )
    seen = write_lines(
        tmp_path / "seen", {"detail-type": "call", "id": "a", "detail": {"call": "1", "more": True}}
    )
    (found,) = run("reconcile", export, seen, "--by", "detail.call", "--json").documents
    assert (found["expected"], found["both"], found["missing"], found["keyless"]) == (2, 1, 1, 1)


def test_an_event_without_a_type_is_missing_too(run: Run, tmp_path: Path) -> None:
    expected = write_lines(tmp_path / "e.jsonl", {"x": 1})
    seen = write_lines(tmp_path / "s.jsonl", {"x": 2})
    words = ("reconcile", expected, seen)
    result = run(*words, "--html", tmp_path / "page.html")
    assert (result.code, result.out.count("1  without a type")) == (1, 1)
    assert "without a type" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert run(*words, "--json").documents[0]["types"] == {"": 1}


@pytest.mark.parametrize("option", ["--html", "--missing"])
def test_an_output_file_in_a_folder_that_does_not_exist_is_refused_before_anything_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    def never(_: Capture) -> None:
        raise AssertionError("the capture was read")

    monkeypatch.setattr(Capture, "__iter__", never)
    captures = [write_lines(tmp_path / name, {"x": 1}) for name in ("e.jsonl", "s.jsonl")]
    refused = run("reconcile", *captures, option, tmp_path / "none" / "file")
    assert (refused.code, refused.out) == (2, "")
    assert "its folder does not exist" in refused.err
    with pytest.raises(AssertionError, match="was read"):
        run("reconcile", *captures, option, tmp_path / "file")
