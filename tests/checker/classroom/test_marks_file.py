"""The teacher's summary, page and marks file, also when files are added, renamed or removed."""

import csv
import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from stub_judge import mark

from clearhead import drawing
from clearhead.checker.catalogue import MISTAKES
from clearhead.checker.classroom import class_page as page
from clearhead.checker.classroom.batch import row_of
from clearhead.checker.classroom.class_summary import Counted, draw, tally
from clearhead.checker.classroom.marks_file import HEAD, PASSED, Detail, Marks, Row, pack, unpack
from clearhead.checker.classroom.policy import Policy
from clearhead.checker.report import Form, Report

pytestmark = pytest.mark.usefixtures("plain_terminal")

CLASSROOM = {
    "anna.py": "# wrong missing-scale\n",
    "ben.py": "# edge mask-not-a-buffer\n",
    "cleo.py": "# error SyntaxError: invalid syntax\n",
    "dan.py": "# correct\n",
}


@pytest.fixture
def subs(tmp_path: Path) -> Path:
    folder = tmp_path / "subs"
    folder.mkdir()
    for name, text in CLASSROOM.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def names_in(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row["file"] for row in csv.DictReader(file)]


def row(file: str, verdict: str, findings: str = "", severities: str = "", note: str = "") -> Row:
    passed = PASSED.get(verdict, "unclear")
    return Row(
        file, "A", passed, verdict, "", findings, severities, "-", note, "1.0", "0" * 64, "r"
    )


ROWS = [
    row("a.py", "wrong", "missing-scale softmax-twice", "wrong wrong"),
    row("b.py", "correct", "mask-not-a-buffer", "edge"),
    row("c.py", "error", "cannot-run", "-", "SyntaxError: invalid syntax"),
    row("d.py", "unsure", "unsure", "-", "No known form gives this output."),
    row("e.py", "correct"),
]


# Hints


def test_with_hint_the_page_has_no_fixes(subs, tmp_path):
    """The projected page must show neither fixes nor ids, which give the cause away."""
    file = tmp_path / "class.html"
    mark(subs, html=file)
    known = {mistake.id: mistake for mistake in MISTAKES}
    text = html.unescape(file.read_text(encoding="utf-8"))
    for id in ("missing-scale", "mask-not-a-buffer"):
        assert known[id].fix in text
    mark(subs, html=file, hint=True)
    text = html.unescape(file.read_text(encoding="utf-8"))
    for id in ("missing-scale", "mask-not-a-buffer"):
        assert known[id].symptom in text
        for answer in (id, known[id].fix, known[id].says):
            assert answer not in text


def test_with_hint_the_summary_names_no_cause():
    text = drawing.plain(draw(ROWS, hint=True), width=200)
    assert "missing-scale" not in text
    assert "softmax-twice" not in text
    assert f"1 of 5: {next(m.symptom for m in MISTAKES if m.id == 'missing-scale')}" in text
    for mistake in MISTAKES:
        assert not mistake.fix or mistake.fix not in text


def test_a_hint_says_what_the_assignment_asks_for():
    """For a file without the class, "Found: none." alone would not help."""
    made = Policy(cls="MultiHead*", causal=True)
    (report,) = made.judge("f.py", [])
    text = drawing.plain(report.draw(hint=True), width=200)
    assert "The assignment asks for a class MultiHead*." in text
    assert 'Asked for: class = "MultiHead*". Found: none.' in text
    form = Form(heads=1, head_dim=8, causal="no")
    (report,) = made.judge("f.py", [Report("f.py", "MultiHead", "correct", (), form)])
    text = drawing.plain(report.draw(hint=True), width=200)
    assert "The assignment asks for causal attention." in text
    assert "Asked for: causal = true. Found: not causal." in text
    optional = Report("f.py", "MultiHead", "correct", (), replace(form, takes_mask=True))
    (report,) = made.judge("f.py", [optional])
    assert "Found: not causal, unless a mask is passed in." in str(report)


# Files that come and go


def test_a_file_that_is_gone_is_not_counted_and_is_named(subs, tmp_path, capsys):
    """After `rm subs/anna.py`, all counts must agree: 5 submissions, not 6."""
    marks, file = tmp_path / "marks.csv", tmp_path / "class.html"
    assert mark(subs, csv=marks) == 1
    before = names_in(marks)
    (subs / "anna.py").unlink()
    capsys.readouterr()
    assert mark(subs, csv=marks, html=file) == 2  # no wrong submission is left
    out, err = capsys.readouterr()
    assert "3 submissions: 2 correct" in out
    assert "missing-scale" not in out
    assert f"Not in {subs} any more, and not counted: anna.py" in out
    assert f"The row stays in {marks}." in out
    assert names_in(marks) == before
    assert "anna" not in file.read_text(encoding="utf-8")
    mark(subs, csv=marks, as_json=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "not counted: anna.py" in err


def test_a_renamed_file_is_recognised(subs, tmp_path, capsys):
    marks = tmp_path / "marks.csv"
    mark(subs, csv=marks)
    (subs / "anna.py").rename(subs / "anna_k.py")
    (subs / "ben.py").unlink()
    mark(subs, csv=marks)
    said = "not counted: anna.py (the same as anna_k.py), ben.py\n"
    out = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert said.strip() in out
    assert "Their rows stay in" in out


def test_one_file_beside_its_class_counts_them_all(subs, tmp_path, capsys):
    marks = tmp_path / "marks.csv"
    mark(subs, csv=marks)
    capsys.readouterr()
    assert mark(subs / "dan.py", csv=marks) == 1
    out = capsys.readouterr().out
    assert "4 submissions" in out
    assert "any more" not in out


def test_sorting_keeps_what_is_no_row(tmp_path):
    """A line that a user wrote below the rows is kept."""
    path = tmp_path / "marks.csv"
    marks = Marks(path)
    marks.add(row("b.py", "correct"))
    marks.close()
    with path.open("a", encoding="utf-8") as file:
        file.write("seen by me on Monday,yes\n")
    marks = Marks(path)
    marks.add(row("a.py", "correct"))
    marks.sort()
    marks.close()
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line[:4] for line in lines[1:3]] == ["a.py", "b.py"]
    assert lines[3:] == ["seen by me on Monday,yes"]


def test_a_run_with_several_jobs_ends_in_order(subs, tmp_path):
    marks = tmp_path / "marks.csv"
    (subs / "zoe").mkdir()
    (subs / "zoe" / "a.py").write_text("# correct\n", encoding="utf-8")
    (subs / "zz.py").write_text("# correct\n", encoding="utf-8")
    mark(subs, csv=marks, jobs=3)
    assert names_in(marks) == [*CLASSROOM, "zoe/a.py", "zz.py"]


def test_changed_rules_say_that_all_is_judged_again(subs, tmp_path, capsys):
    marks, rules, adapter = (tmp_path / name for name in ("marks.csv", "p.toml", "adapter.py"))
    mark(subs, csv=marks)
    assert "changed:" not in capsys.readouterr().err
    rules.write_text('fail = ["wrong", "edge"]\n', encoding="utf-8")
    mark(subs, csv=marks, policy=rules)
    assert "The policy changed: all are judged again." in capsys.readouterr().err
    with marks.open(encoding="utf-8", newline="") as file:
        verdicts = [row["verdict"] for row in csv.DictReader(file)]
    assert verdicts == ["wrong", "wrong", "error", "correct"]
    mark(subs, csv=marks, policy=rules)
    assert "changed:" not in capsys.readouterr().err
    adapter.write_text("class Adapted: ...", encoding="utf-8")
    mark(subs, csv=marks, policy=rules, adapter=adapter)
    assert "The adapter changed: all are judged again." in capsys.readouterr().err
    text = marks.read_text(encoding="utf-8")
    marks.write_text(re.sub(r",\d+\.\d+\.\d+[^\s,]*(?=-\w+-\w+,)", ",0.0.1", text))
    (subs / "new.py").write_text("# correct\n", encoding="utf-8")
    mark(subs, csv=marks)
    err = capsys.readouterr().err
    assert "The version, the policy and the adapter changed: all are judged again." in err
    text = marks.read_text(encoding="utf-8").splitlines()
    kept = [line if "dan.py" not in line else line[:-7] + "12345,," for line in text]
    marks.write_text("\n".join(kept) + "\n", encoding="utf-8")
    mark(subs, csv=marks)
    assert "The adapter changed: 1 of 5 is judged again." in capsys.readouterr().err


# What fails, and what does not


def test_what_fails_and_what_does_not_are_apart():
    """An edge finding of a correct class is no mistake, and shows its severity."""
    seen = tally(ROWS, ("wrong",))
    assert seen.fails == [Counted("missing-scale", 1), Counted("softmax-twice", 1)]
    assert seen.remarks == [Counted("mask-not-a-buffer", 1, "edge: only in some situations")]
    assert tally(ROWS, ("wrong", "edge")).remarks == []
    assert Counted("mask-not-a-buffer", 1) in tally(ROWS, ("edge",)).fails
    text = drawing.plain(draw(ROWS), width=120)
    assert text.startswith("5 submissions: 2 correct (1 of them with a remark), 1 error, 1 unsure")
    mistakes, remarks = text.index("What fails"), text.index("what does not fail")
    assert mistakes < text.index("missing-scale") < remarks < text.index("mask-not-a-buffer")
    whole = page.html(ROWS)
    mistakes, remarks = whole.index("The mistakes,"), whole.index("what does not fail")
    assert mistakes < whole.index("missing-scale") < remarks < whole.index("mask-not-a-buffer")
    assert "only in some situations" in whole


def test_the_page_names_nobody():
    """The page is projected; tracebacks and read errors begin with the name of the file."""
    seen = 'File "anna.py", line 3, in forward\nTypeError: anna.py is odd'
    details = pack([Detail("crashes", "line 3", "x()", seen)])
    lost = row("zoe/hw.py", "error", note="hw.py: expected a file, got a link. It was not read.")
    wrong = replace(row("anna.py", "wrong", "crashes", "wrong"), details=details)
    for hint in (False, True):
        whole = page.html([wrong, lost, replace(lost, file="ben/hw.py")], hint=hint)
        assert not re.search(r"anna|zoe|ben|hw\.py", whole)
        assert "the file: expected a file, got a link. It was not read. (2 files)" in whole
    assert "in forward" in page.html([wrong])


def test_a_reason_from_outside_cannot_act():
    evil = row("x\x1b[2J.py", "error", note="a\nCorrect: all\x1b[32m")
    text = drawing.plain(draw([evil]), width=120)
    assert "\x1b" not in text
    assert not any(line.startswith("Correct") for line in text.splitlines())
    assert len(text.splitlines()) < 6


# The columns


def test_a_policy_can_fail_what_cannot_be_run(subs, tmp_path):
    marks, rules = tmp_path / "marks.csv", tmp_path / "policy.toml"
    for fail, passed in (('["wrong"]', "unclear"), ('["wrong", "error"]', "no")):
        rules.write_text(f"fail = {fail}\n", encoding="utf-8")
        assert mark(subs, csv=marks, policy=rules) == 1
        with marks.open(encoding="utf-8", newline="") as file:
            rows = {row["file"]: row for row in csv.DictReader(file)}
        assert (rows["cleo.py"]["passed"], rows["cleo.py"]["verdict"]) == (passed, "error")
        assert rows["anna.py"]["passed"] == "no"
        assert rows["dan.py"]["passed"] == "yes"


def test_the_notes_of_a_judged_file_are_in_its_row():
    """For example, that a file ran only in part because there is no network."""
    notes = ("Line 5 failed (URLError).", "It is slow.")
    report = Report("a.py", "A", "correct", notes=notes)
    row, _ = row_of("a.py", "", {"reports": [report.to_json()] * 2}, 1.0, Policy())
    assert row.note == "Line 5 failed (URLError). It is slow."


def test_the_columns_that_a_teacher_reads_are_first(subs, tmp_path):
    marks = tmp_path / "marks.csv"
    mark(subs, csv=marks)
    with marks.open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    assert head[:5] == ["file", "class", "passed", "verdict", "mistakes"]
    assert head[-5:] == ["seconds", "sha256", "rules", "details", "seed"]
    assert [cells[:5] for cells in rows] == [
        ["anna.py", "Attention", "no", "wrong", "missing-scale"],
        ["ben.py", "Attention", "yes", "correct", ""],
        ["cleo.py", "", "unclear", "error", ""],
        ["dan.py", "Attention", "yes", "correct", ""],
    ]


def test_a_row_keeps_the_seed_that_it_was_judged_with(subs, tmp_path):
    marks = tmp_path / "marks.csv"
    mark(subs, csv=marks, seed=5)
    (subs / "ben.py").write_text(CLASSROOM["ben.py"] + "\n", encoding="utf-8")
    mark(subs, csv=marks, seed=7)
    with marks.open(encoding="utf-8", newline="") as file:
        assert [row["seed"] for row in csv.DictReader(file)] == ["5", "7", "5", "5"]


OLD_HEAD = (
    *("file", "class", "verdict", "findings", "severities", "places", "seconds", "note"),
    *("sha256", "rules"),
)


@pytest.mark.parametrize("head", [OLD_HEAD, HEAD[:-1]], ids=["first edition", "no seed"])
def test_marks_of_earlier_versions_are_read_and_get_the_new_columns(subs, tmp_path, capsys, head):
    marks = tmp_path / "marks.csv"
    mark(subs, csv=marks)
    with marks.open(encoding="utf-8", newline="") as file:
        new = list(csv.DictReader(file))
    with marks.open("w", encoding="utf-8", newline="") as file:
        old = csv.DictWriter(file, head, extrasaction="ignore", lineterminator="\n")
        old.writeheader()
        old.writerows(new)
    capsys.readouterr()
    mark(subs, csv=marks)
    assert "4 of 4 were judged before" in capsys.readouterr().out
    with marks.open(encoding="utf-8", newline="") as file:
        again = list(csv.DictReader(file))
    kept = {"details": ""} if head == OLD_HEAD else {}
    assert again == [{**row, **kept} for row in new]


def test_details_survive_the_cell_of_a_csv_file(tmp_path):
    details = [Detail("a", "line 3", 'x = "é"; =1+1', "Row 3\n\x1b is NaN; -1 was found")] * 2
    path = tmp_path / "marks.csv"
    marks = Marks(path)
    marks.add(replace(ROWS[0], details=pack(details)))
    marks.close()
    again = Marks(path)
    assert unpack(again.rows["a.py"].details) == details
    again.close()
    many = pack([Detail("a" * 100, "p", "é" * 160, "é" * 10**6)] * 1000)
    assert 0 < len(unpack(many)) < 1000
    assert len(many) <= 15_000
