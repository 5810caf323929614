"""What is expected of a class, and the result of reading it step by step."""

from dataclasses import dataclass, field

from clearhead.checker.catalogue import find


@dataclass(frozen=True)
class Expectation:
    """What is known about a class besides its recorded pass.

    Args:
        causal: Whether it is meant to be causal: "yes" or "no".
        given_mask: Whether a causal mask was passed in.
        batch: The number of sequences in the inputs.
        arguments: Numeric constructor arguments, one of which may be its scale.
        dropout: The dropout rate that it was built with.
        window: Height and width, if the tokens are the pixels of a window.
        unscaled: Whether its source says that the scores are intentionally unscaled.
        heads: The possible numbers of heads.
        angles: Whether the rotary angles were passed in.
        fused_order: The order in which its source names the parts of a fused matrix, or "".
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
    """A step that is not as it should be: the id of the mistake, the evidence, the line."""

    id: str
    evidence: str
    line: int | None
    severity: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether it makes the class wrong; otherwise the step is right in most situations."""
        return (self.severity or find(self.id).severity) == "wrong"


@dataclass
class Judgement:
    """The result of reading a class step by step.

    Args:
        findings: The steps that are wrong.
        notes: What is unusual but right.
        doubts: What could not be judged. Reading alone never calls a class with doubts correct.
        heads: The number of heads.
        head_dim: The width of a head.
        kv_heads: The number of key and value heads, if smaller.
        scale: The total factor on the products of queries and keys.
        mask: "none", "causal", "window5" for the last five tokens, "lifted" if the
            scores that it marks are raised, or "other".
        rotary: Whether queries and keys are rotated by their positions.
        projected: Whether the mixed values pass through an output projection.
        question: Whether a finding may be intended, so that there is no verdict.
        products: The number of products that the scores are the sum of.
        lost: Whether the mixed values could not be followed to the output, which is a doubt.
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
    products: int = 1
    lost: bool = False

    @property
    def right(self) -> bool:
        """Whether every step is right, or right in most situations."""
        return not self.doubts and not any(found.is_wrong for found in self.findings)

    @property
    def wrong(self) -> bool:
        """Whether mistakes were found and nothing is in doubt."""
        return not self.doubts and not self.right

    def add(self, id: str, evidence: str, line: int | None, severity: str = "") -> None:
        """Record a finding, once per id."""
        if all(found.id != id for found in self.findings):
            self.findings.append(StepFinding(id, evidence, line, severity))
