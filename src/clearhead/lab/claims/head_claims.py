"""Claims about what heads do, tested on the grammar model that comes with Clearhead.

It was trained on sentences whose relations are known (`lab/grammar.py`); `clearhead heads --model
grammar` shows its heads in full. One small model proves nothing about large ones. But it shows what
a claim would have to mean, and a claim that fails here is not a general law.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.gpt2.model import GPT2
from clearhead.lab import grammar
from clearhead.lab.ablation import Head, head_means, projections, without
from clearhead.lab.claims.claim import Finding, claim, does_not_hold, holds, holds_if
from clearhead.lab.grammar_readers import WordReader
from clearhead.lab.grammar_training import write_rows
from clearhead.lab.head_scores import Estimate, estimate, measure
from clearhead.lab.relations import Examples, encode
from clearhead.masks import Mask
from clearhead.models.shipped_models import load_grammar as shipped
from clearhead.tokenizers import WordTokenizer
from clearhead.watcher import watch

Trained = tuple[GPT2, WordTokenizer]
SEED = 7_000_007  # of the sentences; training and its evaluation use others
CUT = 12  # tokens per sentence, where all must have the same length
FAR = 5  # words at this distance or more are far


def maps(model: GPT2, ids: Tensor) -> Tensor:
    """The weights of all heads of all layers, (batch, heads, queries, keys)."""
    with torch.no_grad(), watch(model) as seen:
        model.hidden(ids)
    return torch.cat([each.dense() for each in seen.values()], dim=1)


def equally_long(tokens: WordTokenizer, count: int) -> Tensor:
    """The beginnings of new sentences from the training distribution, (count, CUT)."""
    start = tokens.encode("<|endoftext|>")
    found = (
        start + tokens.encode(" ".join(sentence.words))
        for sentence in grammar.sentences(SEED, "train")
        if len(sentence.words) >= CUT
    )
    return torch.tensor([ids[:CUT] for ids in islice(found, count)])


def labelled(model: Trained, relation: str, count: int) -> Examples:
    """Sentences with this relation, as the model's tokens."""
    return encode(WordReader(*model), grammar.labelled(relation, count, seed=SEED))


def best_on_one_half(weight: Tensor) -> tuple[int, Estimate]:
    """The head (column) with most weight in even rows, and its weight in odd rows."""
    head = int(weight[::2].mean(0).argmax())
    return head, estimate(weight[1::2, head])


def interval(value: Estimate) -> str:
    """An interval as people write it."""
    return f"[{value.low:.2f}, {value.high:.2f}]"


def _relation(relation: str, model: Trained, quick: bool) -> Finding:
    """Whether a head attends to the labelled word, and whether the model needs that head.

    It attends if its weight on the word is twice that on the distractor, twice a uniform share and
    twice that of the best head of an untrained model. It is needed if the accuracy falls by five
    points without it.
    """
    reader = WordReader(*model)
    report = measure(
        reader,
        sentences=100 if quick else 600,
        relations=[relation],
        untrained=reader.untrained(),
        seed=SEED,
    )
    score = report[relation]
    best = score.heads[score.best]
    assert best.without is not None
    assert score.untrained is not None
    lost = best.without["mean"]
    figure = (
        f"the best head puts {best.key.mean:.2f} on it and {best.distractor.mean:.2f} on the word "
        f"that could be mistaken for it (uniform share {score.uniform:.2f}, untrained "
        f"{score.untrained:.2f}); without it the accuracy falls by {100 * lost.mean:.0f} points"
    )
    spread = (
        f"95 % intervals {interval(best.key)}, {interval(best.distractor)}, "
        f"[{100 * lost.low:.0f}, {100 * lost.high:.0f}] points; {best.key.count} sentences"
    )
    numbers = {"key": best.key.mean, "distractor": best.distractor.mean, "lost": lost.mean}
    if best.key.low < 2 * max(best.distractor.mean, score.uniform, score.untrained):
        return does_not_hold(figure, spread, **numbers)
    if lost.mean < 0.05:
        return holds_if("the model need not depend on it", figure, spread, **numbers)
    return holds(figure, spread, **numbers)


@claim("head-subject-verb", "A head learns to attend from the verb to its subject.")
def head_subject_verb(
    model: Callable[[], Trained] = shipped, *, quick: bool = False, seed: int = SEED
) -> Finding:
    """Sentences with a noun of the other number in between: "the cat near the dogs sleeps".

    A causal model must know the number at the word before the verb, so attention is measured there.
    The head is chosen in one half of the sentences and measured in the other. Which head it is
    changes with the training seed.
    """
    return _relation("subject", model(), quick)


@claim("head-pronoun", "A head learns to attend from a pronoun to its referent.")
def head_pronoun(
    model: Callable[[], Trained] = shipped, *, quick: bool = False, seed: int = SEED
) -> Finding:
    """Sentences with two candidates for he, she, it or they; measured as for the subject."""
    return _relation("pronoun", model(), quick)


@claim("head-adjective-noun", "A head learns to attend from a noun to its adjective.")
def head_adjective_noun(
    model: Callable[[], Trained] = shipped, *, quick: bool = False, seed: int = SEED
) -> Finding:
    """Nouns with two adjectives, the first of which limits the noun; measured the same way."""
    return _relation("adjective", model(), quick)


@claim("head-adjacent-words", "A head learns to attend to the previous word.")
def head_adjacent_words(model: Callable[[], Trained] = shipped, *, seed: int = SEED) -> Finding:
    """The weight on the previous word, over all words of 200 sentences; such a head exceeds 0.75.

    Heads use the previous word where it helps. Few attend to it whatever the word is.
    """
    trained, tokens = model()
    weights = maps(trained, equally_long(tokens, 200))
    here = torch.arange(2, CUT)
    _, best = best_on_one_half(weights[:, :, here, here - 1].mean(-1))
    even = (1 / (here + 1)).mean().item()
    figure = f"the best head puts {best.mean:.2f} on the previous word (uniform share {even:.2f})"
    spread = f"95 % interval {interval(best)}, {best.count} sentences"
    verdict = holds if best.low > 0.75 else does_not_hold
    return verdict(figure, spread, weight=best.mean, even=even)


@claim("head-long-range", "A head learns to attend far back.")
def head_long_range(
    model: Callable[[], Trained] = shipped, *, quick: bool = False, seed: int = SEED
) -> Finding:
    """The weight on words at a distance of five or more: in general, and if the subject is there.

    No head prefers far words as such, with one and a half times their uniform share. But the head
    that finds subjects finds them at any distance.
    """
    trained, tokens = model()
    ids = equally_long(tokens, 200)
    position = torch.arange(CUT)
    far = (position[:, None] - position >= FAR) & (position > 0)  # the first token is not a word
    rows = maps(trained, ids)[:, :, 8:] * far[8:]
    _, general = best_on_one_half(rows.sum(-1).mean(-1))
    even = (far[8:].sum(-1) / (position[8:] + 1)).mean().item()

    examples = labelled((trained, tokens), "subject", 100 if quick else 600)
    here = torch.arange(len(examples))
    on_key = (maps(trained, examples.ids)[here, :, examples.query] * examples.key[:, None]).sum(-1)
    head, _ = best_on_one_half(on_key)
    distance = examples.query - examples.key.int().argmax(1)
    near, distant = on_key[distance < FAR, head].mean(), estimate(on_key[distance >= FAR, head])
    figure = (
        f"the best head puts {general.mean:.2f} on far words (uniform share {even:.2f}); the "
        f"subject head puts {distant.mean:.2f} on a far subject, {near:.2f} on a near one"
    )
    spread = f"95 % intervals {interval(general)}, {interval(distant)}; {distant.count} sentences"
    if general.low > 1.5 * even:
        return holds(figure, spread, general=general.mean, distant=distant.mean)
    if distant.low > 0.4 and distant.mean > 0.8 * near:
        condition = "the word that it looks for is there"
        return holds_if(condition, figure, spread, general=general.mean, distant=distant.mean)
    return does_not_hold(figure, spread, general=general.mean, distant=distant.mean)


@claim("head-position", "A head learns to attend to a position, whatever the words are.")
def head_position(model: Callable[[], Trained] = shipped, *, seed: int = SEED) -> Finding:
    """How much of a head's map is the same in all sentences: the share explained by its mean.

    Uniform attention, which all heads have in common, is subtracted first. Such a head exceeds
    0.75, and differs from uniform attention in at least a fifth of its weight.
    """
    trained, tokens = model()
    weights = maps(trained, equally_long(tokens, 200))
    even = torch.ones(CUT, CUT).tril() / torch.arange(1, CUT + 1)[:, None]
    own = weights - even
    moved = own.abs().sum(-1).mean((0, 2)) / 2  # the share of the weight that is not uniform
    same = own.mean(0).square().sum((-2, -1)) / own.square().mean(0).sum((-2, -1))
    same = same.masked_fill(moved < 0.2, 0.0)
    best = int(same.argmax())
    figure = f"the position explains {same[best]:.2f} of the most regular head's map"
    spread = f"{same.min():.2f} to {same.max():.2f} over {len(same)} heads, 200 sentences"
    verdict = holds if same[best] > 0.75 else does_not_hold
    return verdict(figure, spread, explained=same.tolist())


def _loss(model: GPT2, ids: Tensor) -> float:
    with torch.no_grad():
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


@claim("removing-heads", "Most heads can be removed without harm.")
def heads_can_be_removed(model: Callable[[], Trained] = shipped, *, seed: int = SEED) -> Finding:
    """Each head is replaced by its mean output; no harm means a loss less than 0.01 higher.

    Then all heads whose removal did no harm are removed together: heads that can replace each other
    are not missed one at a time, but they are missed together.
    """
    trained, _ = model()
    ids = write_rows(200, 32, seed=SEED).ids
    with torch.no_grad(), watch(trained) as seen:
        trained.hidden(ids[:1])
    sizes = {layer: weights.shape[1] for layer, weights in seen.items()}
    found = projections(trained, list(sizes))
    assert found is not None
    everywhere = torch.ones_like(ids[:, :-1], dtype=torch.bool)
    means = head_means(found, lambda: trained.hidden(ids[:, :-1]), everywhere)

    def rise(heads: Sequence[Head]) -> float:
        with without(found, heads, sizes, means):
            return _loss(trained, ids) - whole

    whole = _loss(trained, ids)
    alone = {(layer, n): rise([(layer, n)]) for layer, size in sizes.items() for n in range(size)}
    harmless = [head for head, harm in alone.items() if harm < 0.01]
    together = rise(harmless)
    figure = (
        f"{len(harmless)} of {len(alone)} heads do no harm alone; removed together they cost "
        f"{together:.2f} (the whole loss is {whole:.2f})"
    )
    spread = f"{min(alone.values()):+.3f} to {max(alone.values()):+.2f} for one head"
    numbers = {"alone": list(alone.values()), "together": together, "loss": whole}
    if len(harmless) <= len(alone) / 2:
        return does_not_hold(figure, spread, **numbers)
    if together > 0.01:
        return holds_if("one is removed at a time", figure, spread, **numbers)
    return holds(figure, spread, **numbers)


def effect_of_hiding(model: GPT2, examples: Examples) -> Tensor:
    """How much the answer changes when a token is hidden from all others, (batch, tokens).

    The answer is the margin of the right word over the best wrong one, in logits.
    """
    batch, tokens = examples.ids.shape
    here = torch.arange(batch)

    def answer(hidden: int | None) -> Tensor:
        visible = torch.ones(tokens, tokens, dtype=torch.bool)
        if hidden is not None:
            visible[:, hidden] = False
            visible[hidden, hidden] = True
        x = model.embedding(examples.ids)
        for block in model.blocks:
            x = block(x, mask=Mask.custom(visible))
        logits = model.head(model.norm(x)[here, examples.query])
        right = logits.gather(1, examples.right[:, None])[:, 0]
        return right - logits.masked_fill(~examples.wrong, -torch.inf).amax(1)

    with torch.no_grad():
        whole = answer(None)
        return torch.stack([(answer(j) - whole).abs() for j in range(tokens)], dim=1)


@claim("attention-explains", "The attention weights show which words decided the output.")
def attention_explains(
    model: Callable[[], Trained] = shipped, *, quick: bool = False, seed: int = SEED
) -> Finding:
    """The weights at the position of the answer, compared with the effect of hiding each word.

    The weights are the mean over all heads and layers. Their order is compared with the order of
    the effects (Spearman's rank correlation per sentence), and the largest weight with the largest
    effect.
    """
    trained, tokens = model()
    orders, hits = [], []
    for relation in ("subject", "pronoun", "adjective"):
        examples = labelled((trained, tokens), relation, 40 if quick else 200)
        here = torch.arange(len(examples))
        weights = maps(trained, examples.ids)[here, :, examples.query].mean(1)
        effects = effect_of_hiding(trained, examples)
        for row, end in enumerate(examples.query.tolist()):
            weight, effect = weights[row, :end], effects[row, :end]  # all but the query itself
            ranks = torch.stack([weight.argsort().argsort(), effect.argsort().argsort()])
            orders.append(torch.corrcoef(ranks.double())[0, 1])
            hits.append((weight.argmax() == effect.argmax()).double())
    order, hit = estimate(torch.stack(orders)), estimate(torch.stack(hits))
    figure = (
        f"rank correlation {order.mean:.2f}; the word with the largest weight has the largest "
        f"effect in {hit.mean:.0%} of the sentences"
    )
    spread = f"95 % intervals {interval(order)}, {interval(hit)}; {hit.count} sentences"
    if order.low > 0.8 and hit.low > 0.9:
        return holds(figure, spread, order=order.mean, hit=hit.mean)
    if order.low > 0.4:
        return holds_if("a rough guide is enough", figure, spread, order=order.mean, hit=hit.mean)
    return does_not_hold(figure, spread, order=order.mean, hit=hit.mean)
