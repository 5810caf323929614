"""The report: verdict first, user text escaped, the same facts in every format."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import clearhead
from clearhead import drawing
from clearhead.checker import report as report_module
from clearhead.checker.catalogue import MISTAKES
from clearhead.checker.report import Finding, Form, Report, Step, exit_status
from clearhead.checker.source.class_choice import left_out
from clearhead.checker.source.notebooks import Cell, Source
from clearhead.ladder import SelfAttention

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"

SOFTMAX = Finding(
    "softmax-over-queries",
    "wrong",
    "Each key's column sums to one.",
    "Your output equals, to 4e-07, what you get when softmax runs over queries.",
    "Use dim=-1.",
    3,
    code="w = s.softmax(dim=-2)",
    symptom="The weights of a row do not sum to one.",
)
ORDER = Finding("heads-interleaved", "compat", "One number a head.", "e", "Merge.", None)
HALF = Finding("mask-fill-overflows-half", "edge", "Fails in float16.", "e", "Use -inf.", 1)
FORM = Form(heads=4, head_dim=8, causal="yes")
SOURCE = Source("import torch\n\n\tw = s.softmax(dim=-2)\n")


def report(*findings: Finding, verdict: str = "wrong", **rest: object) -> Report:
    return Report("mine.py", "Attention", verdict, findings, FORM, **rest)


def test_the_report_in_a_terminal():
    assert str(report(SOFTMAX, notes=("The network was not closed.",))) == (
        "Wrong: mine.py:Attention\n"
        "  Checked with 4 heads of size 8, causal\n"
        "\n"
        "  softmax-over-queries (wrong)\n"
        "    Each key's column sums to one.\n"
        "    Evidence  Your output equals, to 4e-07, what you get when softmax runs over queries.\n"
        "    Line      3: w = s.softmax(dim=-2)\n"
        "    Fix       Use dim=-1.\n"
        "    More      clearhead mistakes softmax-over-queries\n"
        "\n"
        "  Note      The network was not closed."
    )


def test_a_hint_gives_the_symptom_and_the_place_but_not_the_answer():
    unlisted = Finding("unexplained", "wrong", "says", "Row 3 is NaN.", "fix me", None)
    text = drawing.plain(report(SOFTMAX, unlisted).draw(hint=True))
    assert "do not sum to one" in text
    assert "3: w = s.softmax(dim=-2)" in text
    assert "Row 3 is NaN." in text
    for answer in ("softmax-over-queries", "Use dim=-1", "column", "fix me", "mistakes.md"):
        assert answer not in text


@pytest.mark.parametrize(
    ("verdict", "findings", "headline", "status"),
    [
        ("correct", (), "correct", 0),
        ("correct", (ORDER,), "correct, but weights from elsewhere give a different result", 0),
        ("correct", (HALF,), "correct, but it fails in some situations", 0),
        ("wrong", (SOFTMAX, HALF), "wrong", 1),
        ("error", (), "could not be run", 2),
        ("unsure", (), "unsure", 2),
    ],
)
def test_the_verdict_in_words_and_as_a_status(verdict, findings, headline, status):
    made = report(*findings, verdict=verdict)
    assert (made.headline, made.status) == (headline, status)
    first = drawing.plain(made.draw(), width=200).splitlines()[0]
    assert first.lower() == f"{headline}: mine.py:attention"


def test_a_class_that_was_typed_at_pythons_prompt(monkeypatch):
    """Such a class has no file, and its source is not available."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    namespace = {"__name__": "__main__", "SelfAttention": SelfAttention}
    exec("class Mine(SelfAttention): pass", namespace)
    assert clearhead.check(namespace["Mine"]).verdict == "correct"


def test_json_has_the_fields_that_programs_rely_on():
    data = json.loads(json.dumps(report(SOFTMAX, notes=("n",)).to_json()))
    assert data == {
        "schema": 1,
        "file": "mine.py",
        "class": "Attention",
        "verdict": "wrong",
        "findings": [
            {
                "id": "softmax-over-queries",
                "severity": "wrong",
                "says": SOFTMAX.says,
                "evidence": SOFTMAX.evidence,
                "fix": "Use dim=-1.",
                "cell": None,
                "line": 3,
                "code": "w = s.softmax(dim=-2)",
                "symptom": SOFTMAX.symptom,
                "page": "docs/mistakes.md#softmax-over-queries",
            }
        ],
        "form": "4 heads of size 8, causal",
        "form_fields": {
            "heads": 4,
            "head_dim": 8,
            "kv_heads": None,
            "causal": "yes",
            "window": None,
            "takes_mask": False,
            "out_proj": True,
            "positions": "",
            "axes": "",
            "extra": [],
        },
        "notes": ["n"],
        "tested": "",
        "how": "",
        "steps": [],
        "is_attention": True,
        "seed": 0,
    }
    assert Report.from_json(data) == report(SOFTMAX, notes=("n",))


def test_unsure_is_an_error_with_a_finding_in_json():
    data = report(verdict="unsure").to_json()
    assert data["verdict"] == "error"
    assert [found["id"] for found in data["findings"]] == ["unsure"]
    assert Report.from_json(data).verdict == "unsure"


def test_text_from_outside_cannot_act():
    """A class name with a newline or an escape code could print a verdict of its own."""
    evil = "\x1b[2J\x1b[32mCorrect: mine.py\x07\u202e"
    found = Finding(f"id\n{evil}", "wrong", evil, f"a\n{evil}", evil, 1, evil, evil)
    step = Step(1, evil, evil, ((evil, 3),), evil, evil)
    made = Report(
        f"f{evil}", f"C\n{evil}", "wrong", (found,), Form(axes=evil), (evil,), evil, evil, (step,)
    )
    for text in (str(made), drawing.plain(made.draw(hint=True, steps=True))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert "\\x1b[32mCorrect" in text
        assert not any(line.startswith("Correct") for line in text.splitlines())
        assert text.startswith("Wrong: f")


def test_html_is_escaped():
    evil = "<script>alert(1)</script>"
    found = Finding(evil, "wrong", evil, evil, evil, 1, evil, evil)
    step = Step(1, evil, evil, ((evil, 3),), evil, evil)
    made = Report(evil, evil, "wrong", (found,), Form(axes=evil), (evil,), evil, evil, (step,))
    page = made._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.startswith("<pre")


def test_endless_texts_are_cut():
    found = Finding("x", "wrong", "a" * 10**6, "b" * 10**6, "", 1)
    text = str(report(found).placed(Source("c" * 10**6)))
    assert len(text) < 20_000
    assert "996,000 characters more" in re.sub(r"\s+", " ", text)


def test_the_line_itself_is_shown_where_the_file_is_known():
    plain = replace(SOFTMAX, code="")
    assert report(plain).placed(SOURCE).findings == (SOFTMAX,)
    assert "Line      3\n" in str(report(plain).placed(Source("one line"))) + "\n"
    assert "Line      3\n" in str(report(plain)) + "\n"
    assert "Line" not in str(report(ORDER).placed(SOURCE))


NOTEBOOK = Source(
    "# cell 1\nimport torch\n# cell 2\na = 1\nw = s.softmax(dim=-2)\n",
    (Cell("In[7]", 2, 1), Cell("code cell 2", 4, 2)),
)


def test_a_notebooks_line_is_told_by_its_cell():
    """Line numbers count from the start of the cell, as in Jupyter."""
    first, second, outside = (replace(SOFTMAX, line=n, code="") for n in (2, 5, 99))
    made = report(first, second, outside).placed(NOTEBOOK)
    assert [finding.place for finding in made.findings] == [
        "In[7], line 1",
        "code cell 2, line 2",
        "line 99",
    ]
    text = str(made)
    assert "    Cell      In[7], line 1: import torch\n" in text
    assert "    Cell      code cell 2, line 2: w = s.softmax(dim=-2)\n" in text
    data = made.to_json()["findings"]
    assert [(found["cell"], found["line"]) for found in data] == [
        ("In[7]", 1),
        ("code cell 2", 2),
        (None, 99),
    ]
    assert Report.from_json(made.to_json()) == made


def test_a_traceback_of_a_notebook_names_its_cells():
    rest = 'File "other.py", line 5\nFile "hw.ipynb", line 77'
    evidence = f'File "hw.ipynb", line 2\nFile "hw.ipynb", line 5, in forward\n{rest}'
    found = replace(SOFTMAX, evidence=evidence)
    (placed,) = report(found).placed(NOTEBOOK).findings
    assert placed.evidence == f"Cell In[7], line 1\ncode cell 2, line 2, in forward\n{rest}"
    (same,) = report(found).placed(SOURCE).findings
    assert same.evidence == evidence


def test_a_note_of_a_notebook_names_its_cell():
    notes = ("Line 5 failed (OSError: gone).", "The import in line 2 failed (a).", "Line 5 runs.")
    placed = report(SOFTMAX, notes=notes).placed(NOTEBOOK).notes
    assert placed[0] == "Code cell 2, line 2 failed (OSError: gone)."
    assert placed[1] == "The import in Cell In[7], line 1 failed (a)."
    assert placed[2] == notes[2]


def test_a_form_without_heads_reads_well():
    made = replace(report(SOFTMAX), form=replace(FORM, heads=None, head_dim=None))
    assert made.about[0] == "Checked: causal"


def test_what_could_not_be_run_was_not_judged():
    """A file that crashes at import has no severity."""
    crash = Finding("cannot-run", "wrong", "It failed at import.", "", "", None)
    text = str(report(crash, HALF, verdict="error"))
    assert "cannot-run (not judged)" in text
    assert "mask-fill-overflows-half (not judged)" in text
    assert "(wrong)" not in text
    unsure = Finding("unsure", "edge", "The checker does not know.", "", "", None)
    assert "\n  unsure\n" in str(report(unsure, verdict="unsure"))  # it has no severity
    assert "softmax-over-queries (wrong)" in str(report(SOFTMAX))


def test_one_status_for_many():
    right, wrong, broken = (report(verdict=each) for each in ("correct", "wrong", "error"))
    assert exit_status([right, right]) == 0
    assert exit_status([right, broken, wrong]) == 1
    assert exit_status([right, broken]) == 2
    assert exit_status([]) == 2


NO_CODE = {"cannot-run", "not-what-was-asked", "unexplained", "unsure"}


def test_every_finding_has_its_section_in_the_docs():
    page = PAGE.read_text(encoding="utf-8")
    sections = re.findall(r"^## (\S+)$", page, re.MULTILINE)
    assert sorted(sections) == sorted(mistake.id for mistake in MISTAKES)
    for id, body in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL):
        assert "```text\n" in body, f"{id}: a drawing"
        if id not in NO_CODE:
            assert body.count("```py\n") >= 2, f"{id}: wrong code and right code"
            assert "**How it shows.**" in body, id


def test_no_other_finding_can_be_emitted():
    """Ids are string literals in the checker's code: options, table entries, arguments."""
    folder = Path(report_module.__file__).parent
    code = "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    calls = r'(?:\.add|Finding|finding|_plain|_option)\(\s*"([a-z-]+)"'
    found = {id for text in re.findall(calls, code) for id in text.split("+")}
    assert len(found) > 60
    assert found <= {mistake.id for mistake in MISTAKES}


CODE = "q = self.W_query(x).view(b, n, heads, head_dim).transpose(1, 2)"
HEADS = (("batch", 3), ("heads", 4))
STEPS = (
    Step(20, CODE, "linear", (("batch", 3), ("tokens", 7), ("d_out", 24))),
    Step(20, CODE, "transpose", (*HEADS, ("tokens", 7), ("head_dim", 6))),
    Step(21, "scores = q @ k.mT", "matmul", (("batch", 3), ("", 4), ("queries", 7), ("keys", 7))),
    Step(
        22,
        "weights = scores.softmax(dim=-2)",
        "softmax",
        (*HEADS, ("queries", 7), ("keys", 7)),
        "The columns sum to one: softmax runs over the queries, and not over the keys.",
    ),
)


def test_the_steps_of_the_forward_pass_fit_into_80_columns():
    made = report(SOFTMAX, steps=STEPS)
    text = drawing.plain(made.draw(steps=True), width=80)
    assert text[text.index("  line") :] == (
        "  line  code                            shape\n"
        "  20    q = self.W_query(x).view(b, n, heads, head_dim).transpose(1, 2)\n"
        "          linear                        (batch=3, tokens=7, d_out=24)\n"
        "          transpose                     (batch=3, heads=4, tokens=7, head_dim=6)\n"
        "  21    scores = q @ k.mT               (batch=3, 4, queries=7, keys=7)\n"
        "  22    weights = scores.softmax(dim=-2)\n"
        "          softmax                       (batch=3, heads=4, queries=7, keys=7)\n"
        "          <- The columns sum to one: softmax runs over the queries, and not over\n"
        "          the keys."
    )
    assert "transpose" not in drawing.plain(made.draw())
    narrow = drawing.plain(made.draw(steps=True), width=40)
    assert max(map(len, narrow.splitlines())) <= 40
    assert "(batch=3, heads=4, tokens=7," in narrow


def test_a_hint_shows_the_steps_without_their_remarks():
    text = drawing.plain(report(SOFTMAX, steps=STEPS).draw(hint=True, steps=True), width=80)
    assert "scores = q @ k.mT" in text
    assert "softmax runs over the queries" not in text


def test_steps_are_located_in_a_notebook_and_survive_json():
    made = report(steps=(replace(STEPS[0], line=5),)).placed(NOTEBOOK)
    (step,) = made.steps
    assert (step.place, step.code) == ("code cell 2:2", "w = s.softmax(dim=-2)")
    assert Report.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.parametrize(
    ("form", "text", "hides_future", "multi_head"),
    [
        (Form(), "", None, None),
        (Form(1, 8, causal="no"), "1 head of size 8, not causal", False, False),
        (
            Form(4, 8, 2, "window", 3, True, False, "rotary positions", "pictures", ("gate",)),
            "4 heads of size 8, 2 key and value heads, causal with a window of 3, takes a mask, "
            "no output projection, rotary positions, pictures, gate",
            True,
            True,
        ),
        (Form(2, causal="part"), "2 heads, sees a part of the past", True, True),
        (Form(3, 5, 3, "yes"), "3 heads of size 5, causal", True, True),
    ],
)
def test_a_form_in_words_and_as_facts(form, text, hides_future, multi_head):
    assert str(form) == text
    assert (form.hides_future, form.multi_head) == (hides_future, multi_head)
    assert Form.from_json(json.loads(json.dumps(form.to_json()))) == form


def test_classes_that_are_no_attention_are_left_out():
    """Such reports are recognised by a field, and not by the text of their evidence."""
    right = report(verdict="correct")
    norm = report(verdict="unsure", is_attention=False)
    assert left_out([norm, right]) == [right]
    assert left_out([norm]) == [norm]
    assert not Report.from_json(norm.to_json()).is_attention
