"""The formats of ``-o``: one list and one item in each of them."""

from __future__ import annotations

import csv
import io
import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobmaster.cli.main import run
from jobmaster.cli.tables import Column, Output, emit_data, emit_item, emit_record, emit_rows
from jobmaster.model.errors import InputError


class State(StrEnum):
    ACTIVE = "ACTIVE"


ROWS: list[dict[str, Any]] = [
    {"name": "a", "state": State.ACTIVE, "figures": {"slots": 4, "note": "x" * 90}, "tags": ["t"], "none": None},
    {"name": "ü\x1b", "state": State.ACTIVE, "figures": {"slots": None}, "tags": [], "none": None},
]
COLUMNS = (Column("NAME", "name"), Column("SLOTS", "figures.slots", right=True))
PLAIN = json.loads(json.dumps(ROWS))

Out = pytest.CaptureFixture[str]


def rows(output: Output, capsys: Out, given: list[dict[str, Any]] = ROWS) -> str:
    emit_rows(given, COLUMNS, output, empty="nothing")
    return capsys.readouterr().out


def test_a_list_is_the_same_data_in_json_json_lines_and_yaml(capsys: Out) -> None:
    assert json.loads(rows(Output.JSON, capsys)) == PLAIN
    assert [json.loads(line) for line in rows(Output.JSONL, capsys).splitlines()] == PLAIN
    assert yaml.safe_load(rows(Output.YAML, capsys)) == PLAIN


def test_csv_has_a_line_of_names_and_no_stream(capsys: Out) -> None:
    head, first, second = csv.reader(io.StringIO(rows(Output.CSV, capsys), newline=""))
    assert head == ["name", "state", "figures", "tags", "none"]
    assert first == ["a", "ACTIVE", json.dumps(ROWS[0]["figures"], separators=(",", ":")), '["t"]', ""]
    assert second == ["ü\x1b", "ACTIVE", '{"slots":null}', "", ""]
    with pytest.raises(InputError, match="csv is a format of lists"):
        emit_item(ROWS[0], Output.CSV)


def test_an_empty_list_is_empty_data_and_a_sentence_for_people(capsys: Out) -> None:
    assert [rows(output, capsys, []) for output in Output] == ["", "", "[]\n", "", "[]\n", "", ""]
    for output in Output:
        emit_rows([], COLUMNS, output, empty="nothing")
        assert capsys.readouterr().err == ("nothing\n" if output.for_people else "")


def test_wide_has_every_field_that_a_row_has_and_cuts_nothing(capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmaster.cli.tables.terminal_width", lambda: 40)
    assert rows(Output.TABLE, capsys).split()[:2] == ["NAME", "SLOTS"]
    title, first, second = rows(Output.WIDE, capsys).splitlines()
    assert title.split() == ["NAME", "SLOTS", "STATE", "FIGURES.NOTE", "TAGS"]
    assert first.split() == ["a", "4", "ACTIVE", "x" * 90, '["t"]']
    assert second.split() == ["ü\\x1b", "-", "ACTIVE", "-", "[]"]


def test_names_are_ids_or_what_the_first_column_shows_and_cannot_steer_the_terminal(capsys: Out) -> None:
    assert rows(Output.NAME, capsys) == "a\nü\\x1b\n"
    assert rows(Output.NAME, capsys, [{"id": 7, **ROWS[0]}, {"id": None, "name": None}]) == "7\n"
    emit_data([{"kind": "tag", "value": "a b"}], Output.NAME, name=("kind", "value"))
    assert capsys.readouterr().out == "tag 'a b'\n"


def test_one_item(capsys: Out) -> None:
    item = {"id": 7, "state": State.ACTIVE, "lines": "one\ntwo", "none": None}
    printed = {}
    for output in Output:
        emit_record(item, output)
        printed[output] = capsys.readouterr().out
    assert printed[Output.TABLE].splitlines() == ["id     7", "state  ACTIVE", "lines  one", "       two"]
    assert printed[Output.WIDE] == f"{printed[Output.TABLE]}none   -\n"
    assert json.loads(printed[Output.JSON]) == yaml.safe_load(printed[Output.YAML]) == item
    assert printed[Output.JSONL] == printed[Output.JSON]
    assert printed[Output.NAME] == "7\n"


def test_the_items_of_a_stream_are_lines_or_one_yaml_list(capsys: Out) -> None:
    for output in (Output.JSON, Output.JSONL, Output.YAML):
        assert all(emit_item(row, output) for row in ROWS)
        text = capsys.readouterr().out
        assert (yaml.safe_load(text) if output is Output.YAML else [*map(json.loads, text.splitlines())]) == PLAIN
    assert not emit_item(ROWS[0], Output.WIDE)


@pytest.mark.parametrize(
    "command",
    [
        "bulk retry --yes --watch", "bulk watch x", "batch watch x", "stat", "events", "job logs x",
    ],
)  # fmt: skip
def test_a_stream_as_csv_is_refused_before_anything_is_read_or_started(
    command: str, capsys: Out, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A watched bulk operation would have begun. There is no configuration here: what needs a cluster is another error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOBMASTER_CONFIG", "absent.yaml")
    assert run([*command.split(), "-o", "csv"]) == 2
    assert "csv is a format of lists" in capsys.readouterr().err
