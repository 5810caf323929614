"""Feedback: one readable file per submission, written safely, with all user text escaped."""

import os
import re
from pathlib import Path

import pytest
from stub_judge import mark

from clearhead.checker.catalogue import MISTAKES, finding
from clearhead.checker.classroom import check_command as runner
from clearhead.checker.classroom import feedback, html_parts
from clearhead.checker.report import Finding, Form, Report, Step

STEP = Step(
    7, "w = s.softmax(-2)", "softmax", (("batch", 3), ("queries", 7)), "The columns sum to one."
)
REPORT = Report(
    "anna.py",
    "Attention",
    "wrong",
    (finding("softmax-over-queries", "Columns sum to one.", 7),),
    Form(heads=4, head_dim=8, causal="yes"),
    ("It was run without a GPU.",),
    "tested: the output and its gradients",
    "built with d_in=5; called with x",
    (STEP,),
)
EVIL = "<img src=//x onerror=alert(1)>![a](http://x/y) |`\n# Correct\n```\n"


@pytest.fixture
def subs(tmp_path: Path) -> Path:
    folder = tmp_path / "subs"
    (folder / "zoe").mkdir(parents=True)
    (folder / "anna.py").write_text("# wrong missing-scale\n", encoding="utf-8")
    (folder / "zoe" / "hw.py").write_text("# correct\n", encoding="utf-8")
    (folder / "cleo.py").write_text("# crash\n", encoding="utf-8")
    return folder


def test_the_feedback_as_markdown():
    text = feedback.markdown("anna.py", [REPORT])
    assert text.startswith(
        "# anna.py\n"
        "\n"
        "## Wrong: Attention\n"
        "\n"
        "Checked with 4 heads of size 8, causal.  \n"
        "Built with d\\_in=5; called with x.  \n"
        "Tested: the output and its gradients.  \n"
        "\n"
        "### softmax-over-queries (wrong)\n"
    )
    assert "**Evidence.** Columns sum to one." in text
    assert "**Fix.** Use dim=-1: queries are rows, keys are columns." in text
    assert "Note: It was run without a GPU." in text
    row = (
        "| 7 | `w = s.softmax(-2)` | `softmax` | `(batch=3, queries=7)` | The columns sum to one. |"
    )
    assert row in text
    assert "\n## softmax-over-queries\n\n```py\nweights = scores.softmax(dim=-2)" in text


def test_the_caret_of_a_syntax_error_stands_below_its_character():
    snippet = 'File "a.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax'
    found = Finding("cannot-run", "wrong", "Python could not read the file.", snippet, "", 3)
    report = Report("a.py", "", "error", (found,))
    page = feedback.html("a.py", [report])
    assert f"<pre>{snippet.replace(chr(34), '&quot;')}</pre>" in page
    assert f"```text\n{snippet}\n```" in feedback.markdown("a.py", [report])
    assert "what this verdict means</a>" in page


def test_a_hint_gives_neither_name_nor_fix():
    known = next(mistake for mistake in MISTAKES if mistake.id == "softmax-over-queries")
    for text in (
        made("anna.py", [REPORT], hint=True) for made in (feedback.markdown, feedback.html)
    ):
        assert known.symptom in text
        assert "(batch=3, queries=7)" in text
        for answer in (known.id, known.fix, known.says, "Columns sum to one", STEP.remark):
            assert answer not in text


def test_text_from_outside_is_only_shown():
    found = Finding(EVIL, "wrong", EVIL, EVIL, EVIL, 1, EVIL, EVIL, EVIL)
    step = Step(1, EVIL, EVIL, ((EVIL, 1),), EVIL, EVIL)
    report = Report(EVIL, EVIL, "wrong", (found,), Form(axes=EVIL), (EVIL,), EVIL, EVIL, (step,))
    for hint in (False, True):
        page = feedback.html(EVIL, [report], hint=hint)
        assert "<img" not in page
        text = feedback.markdown(EVIL, [report], hint=hint)
        outside = re.sub(r"^```(?:py|text)\n.*?^```$", "", text, flags=re.M | re.S)
        assert "```" not in outside
        outside = re.sub(r"(?<!\\)`[^`\n]*`", "", outside)  # code, which is shown as it is
        assert not re.search(r"(?<!\\)<img|(?<!\\)!\[|^# Correct|http://", outside, re.M)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.id)
def test_every_section_is_html(mistake):
    made = html_parts.section(mistake.id)
    assert "```" not in made
    assert "**" not in re.sub(r"<(code|pre)>.*?</\1>", "", made, flags=re.S)
    assert made.count("<pre ") == mistake.section.count("```") / 2
    assert made.count("<p>") == made.count("</p>") > 0


def test_one_file_per_submission(subs, tmp_path, capsys):
    folder = tmp_path / "feedback"
    mark(subs, feedback=folder, jobs=2)
    names = sorted(file.name for file in folder.iterdir())
    plain = ["anna.py", "cleo.py", "zoe__hw.py"]
    assert names == [f"{name}{end}" for name in plain for end in (".html", ".md")]
    assert "missing-scale" in (folder / "anna.py.md").read_text(encoding="utf-8")
    assert "the worker ended with status 7" in (folder / "cleo.py.md").read_text(encoding="utf-8")
    assert "Correct" in (folder / "zoe__hw.py.html").read_text(encoding="utf-8")
    assert f"Wrote {folder}" in capsys.readouterr().err


def test_feedback_that_is_missing_or_outdated_is_written_again(subs, tmp_path, monkeypatch):
    folder, marks, log = tmp_path / "feedback", tmp_path / "marks.csv", tmp_path / "log"
    monkeypatch.setenv("STUB_LOG", str(log))

    def judged(**options: object) -> list[str]:
        log.write_text("", encoding="utf-8")
        mark(subs, csv=marks, feedback=folder, **options)
        return sorted(log.read_text(encoding="utf-8").split())

    everything = ["anna.py", "cleo.py", "zoe/hw.py"]
    mark(subs, csv=marks)
    assert judged() == everything  # there are rows, but no feedback
    assert judged() == []
    (folder / "anna.py.html").unlink()
    assert judged() == ["anna.py"]
    (subs / "anna.py").write_text("# correct\n", encoding="utf-8")
    mark(subs, csv=marks)  # the row is newer than the feedback
    assert judged() == ["anna.py"]
    assert judged(hint=True) == everything


def test_links_in_the_folder_are_replaced_and_not_followed(subs, tmp_path):
    folder, outside = tmp_path / "feedback", tmp_path / "outside.txt"
    folder.mkdir()
    outside.write_text("mine", encoding="utf-8")
    (folder / "anna.py.md").symlink_to(outside)
    (folder / "anna.py.html").symlink_to(tmp_path / "nowhere")
    mark(subs, feedback=folder)
    assert outside.read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert not any(file.is_symlink() for file in folder.iterdir())


@pytest.mark.parametrize(
    "file",
    [
        *("../x.py", "/etc/passwd", "a/../b.py", ".hidden.py", "con.py", "a\nb.py", "a\x00b.py"),
        *("x" * 300 + ".py", "é" * 300 + ".py", "a__b.py", "a\\b.py", "C:x.py", "x\udc80.py"),
        *("..", ""),
    ],
)
def test_names_are_safe(file, tmp_path):
    name = feedback.name_for(file)
    assert re.fullmatch(r"[^\x00-\x1f/\\:*?\"<>|]+", name)
    assert not name.startswith(".")
    (tmp_path / f"{name}.html").write_bytes(b"")  # neither too long nor reserved
    assert len(os.listdir(tmp_path)) == 1


def test_no_two_submissions_have_the_same_name():
    files = ["a/b.py", "a__b.py", "a b.py", "a\tb.py", "a_b.py", "x" * 200, "x" * 201, "é.py"]
    assert len({feedback.name_for(file) for file in files}) == len(files)


def test_feedback_among_the_submissions_is_refused(subs, tmp_path):
    for folder in (subs, subs / "new", subs / "zoe"):
        with pytest.raises(ValueError, match=r"--feedback .*: expected a path outside"):
            mark(subs, feedback=folder)
    assert not (subs / "new").exists()
    with pytest.raises(OSError, match=r"--feedback .*: there is no folder .*none"):
        mark(subs, feedback=tmp_path / "none" / "feedback")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"--feedback .*: expected a folder, got a file"):
        mark(subs, feedback=tmp_path / "file")


def test_the_command_shows_steps_if_asked(tmp_path, capsys):
    def judge(source, file, only, adapter):
        return [REPORT]

    file = tmp_path / "anna.py"
    file.write_text("class Attention: ...\n", encoding="utf-8")
    options = runner.Options(steps=True)
    assert runner.check(str(file), options, judge=judge) == 1
    out = capsys.readouterr().out
    assert "w = s.softmax(-2)" in out
    assert "(batch=3, queries=7)" in out
    assert runner.check(str(file), runner.Options(), judge=judge) == 1
    assert "(batch=3, queries=7)" not in capsys.readouterr().out
