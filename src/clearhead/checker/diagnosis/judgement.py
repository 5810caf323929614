"""What is expected of a class, and what reading it step by step has shown."""

from dataclasses import dataclass, field

from clearhead.checker.catalogue import find


@dataclass(frozen=True)
class Expectation:
    """What is known of a class beside its recorded pass.

    Args:
        causal: Whether it is meant to be causal: "yes" or "no".
        given_mask: Whether a causal mask was passed in.
        batch: How many texts the inputs hold.
        arguments: Numbers that it was built with, of which one may be its scale.
        dropout: The dropout that it was built with.
        window: Height and width, where the tokens are the pixels of a window.
        unscaled: Whether its source says that the scores have no scale, on purpose.
        heads: How many heads it may have.
        angles: Whether the angles of rotary positions were passed in.
        fused_order: The order in which its source names the parts of a fused matrix: "kqv".
    """

    causal: str
    given_mask: bool
    batch: int
    arguments: tuple[float, ...] = ()
    dropout: float = 0.0
    window: tuple[int, ...] | None = None
    unscaled: bool = False
    fused_order: str = ""
    angles: bool = False
    heads: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepFinding:
    """A step that is not as it should be: the mistake's id, the evidence, the line."""

    id: str
    evidence: str
    line: int | None
    severity: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it makes the class wrong; else it is right in most situations."""
        return (self.severity or find(self.id).severity) == "wrong"


@dataclass
class Judgement:
    """What reading a class step by step has shown.

    Args:
        findings: The steps that are wrong.
        notes: What is unusual and right.
        doubts: What could not be judged. A class with doubts is not called correct by its reading.
        heads: How many heads there are.
        head_dim: The width of a head.
        kv_heads: How many heads of keys and values there are, if fewer.
        scale: What the products of queries and keys are multiplied by, in all.
        mask: "none", "causal", "window5" for the last five tokens, "lifted" if the
            scores that it marks are raised, or "other".
        rotary: Whether queries and keys are turned by their positions.
        projected: Whether the mixed values pass an output projection.
        question: Whether a finding may be on purpose, so that there is no verdict.
    """

    findings: list[StepFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    heads: int = 0
    head_dim: int = 0
    kv_heads: int = 0
    scale: float = 0.0
    mask: str = ""
    rotary: bool = False
    projected: bool = True
    question: bool = False

    @property
    def right(self) -> bool:
        """Whether every step is right, or right in most situations."""
        return not self.doubts and not any(found.is_wrong for found in self.findings)

    @property
    def wrong(self) -> bool:
        """Whether mistakes were found, and there is no doubt of them."""
        return not self.doubts and not self.right

    def add(self, id: str, evidence: str, line: int | None, severity: str = "") -> None:
        """Note a finding, once."""
        if all(found.id != id for found in self.findings):
            self.findings.append(StepFinding(id, evidence, line, severity))
