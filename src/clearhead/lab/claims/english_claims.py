"""Claims about what heads do, tested on the English model and on English of our own.

It has 48 heads and was trained on real text; `clearhead heads` shows them in full. Intervals are
over passages of `lab/sentences.txt` or over random sequences. It is one small model; where its card
has the same figure for other seeds of its training, their range is given too.
"""

import json
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clearhead.gpt2.model import GPT2
from clearhead.lab.ablation import Head, head_means, projections, without
from clearhead.lab.claims.claim import Finding, claim, does_not_hold, holds, holds_if
from clearhead.lab.claims.head_claims import best_on_one_half, interval, maps
from clearhead.lab.head_scores import Estimate, estimate
from clearhead.lab.minimal_pairs import make_pairs, measure_pairs
from clearhead.lab.text_report import rows_of
from clearhead.maps.positions import seen_before
from clearhead.models.shipped_models import load_english as shipped
from clearhead.models.shipped_models import shipped_file
from clearhead.tokenizers import Tokenizer

Trained = tuple[GPT2, Tokenizer]
PASSAGE = 64  # tokens
REPEATED = 32  # random tokens, which are then repeated
HARMLESS = 0.01  # nats per token
CLEAR, ABOVE_CHANCE = 0.4, 0.15  # as in clearhead.maps.head_patterns


def other_seeds(model: Callable[[], Trained], name: str) -> str:
    """The range of a figure over the training runs that the card of the shipped model lists."""
    if model is not shipped:
        return "unknown"
    card = json.loads(shipped_file("card.json", "english").read_text(encoding="utf-8"))
    found = [seed[name] for seed in card["seeds"]]
    return f"{min(found):.2f} to {max(found):.2f} in {len(found)} training runs"


def patterns(weights: Float[Tensor, "rows heads tokens tokens"], ids: Tensor) -> dict[str, Tensor]:
    """The mean weight per row and head (and per row under uniform attention) by pattern.

    Heads are columns; the last column is uniform attention. A row without a copy has NaN for the
    patterns about copies.
    """
    tokens = ids.shape[1]
    even = torch.ones(tokens, tokens).tril() / torch.arange(1, tokens + 1)[:, None]
    weights = torch.cat([weights, even.expand(len(ids), 1, -1, -1)], dim=1)
    here = torch.arange(1, tokens)
    same = (ids[:, :, None] == ids[:, None, :]) & (torch.ones(tokens, tokens).tril(-1) > 0)
    after = F.pad(same, (1, 0))[:, :, :-1]  # the key after each earlier copy
    copied = seen_before(ids)

    def on(keys: Tensor) -> Tensor:
        weight = (weights * keys[:, None]).sum(-1)  # -> (rows, heads, queries)
        return weight.masked_fill(~copied[:, None], torch.nan).nanmean(-1)

    return {
        "previous": weights[:, :, here, here - 1].mean(-1),
        "first": weights[:, :, 1:, 0].mean(-1),
        "same": on(same),
        "induction": on(after),
    }


@claim("english-specialise", "Heads specialise: each has its own job.")
def heads_specialise(
    model: Callable[[], Trained] = shipped, *, seeds: Sequence[int] = (0, 1, 2)
) -> Finding:
    """The share of heads with a clear pattern on English text, and of heads without training.

    A pattern is clear if it takes 0.4 of the weight, and 0.15 more than uniform attention gives it.
    The patterns: the previous token, the first token, earlier copies, what followed these. A head
    on the first token mostly does nothing, so it does not count as a job. Heads without a clear
    pattern may still have a job that has no simple name.
    """
    trained, tokenizer = model()
    ids = rows_of(tokenizer, PASSAGE)
    jobs = _jobs(patterns(maps(trained, ids), ids))
    random = []
    for seed in seeds:
        torch.manual_seed(seed)
        fresh = GPT2(trained.config).eval()
        random.append(sum(_jobs(patterns(maps(fresh, ids), ids)).values()))
    heads = sum(block.attention.num_heads for block in trained.blocks)  # type: ignore[misc,union-attr]  # attention
    working = sum(count for name, count in jobs.items() if name != "first")
    listed = ", ".join(f"{name} {count}" for name, count in jobs.items())
    figure = f"{working} of {heads} heads have a clear job ({listed}); untrained {max(random)}"
    spread = (
        f"{len(ids)} passages; untrained {min(random)} to {max(random)} over {len(random)} seeds"
    )
    numbers = {"jobs": jobs, "untrained": random}
    if working > heads / 2 and max(random) == 0:
        return holds(figure, spread, **numbers)
    if working > max(random):
        return holds_if("some heads are meant, not each", figure, spread, **numbers)
    return does_not_hold(figure, spread, **numbers)


def _jobs(found: dict[str, Tensor]) -> dict[str, int]:
    """The number of heads with each clear pattern, each head counted under its clearest."""
    means = {name: weight.nanmean(0) for name, weight in found.items()}
    above = torch.stack([mean[:-1] - mean[-1] for mean in means.values()])
    clear = torch.stack([mean[:-1] for mean in means.values()]) >= CLEAR
    above = above.masked_fill(~clear | (above < ABOVE_CHANCE), 0.0)
    best, which = above.max(0)
    return {name: int(((which == index) & (best > 0)).sum()) for index, name in enumerate(means)}


@claim("english-previous-token", "A head of a model of English attends to the previous token.")
def previous_token_head(model: Callable[[], Trained] = shipped) -> Finding:
    """The weight on the previous token over all tokens; the head is chosen on half of the text.

    Such a head has more than half of its weight there, whatever the token is.
    """
    trained, tokenizer = model()
    ids = rows_of(tokenizer, PASSAGE)
    weight = patterns(maps(trained, ids), ids)["previous"]
    _, best = best_on_one_half(weight[:, :-1])
    even = weight[:, -1].mean().item()
    figure = f"the best head puts {best.mean:.2f} on the previous token (uniform share {even:.2f})"
    spread = f"95 % interval {interval(best)}, {best.count} passages"
    spread += f"; other seeds: {other_seeds(model, 'previous')}"
    verdict = holds if best.low > 0.5 else does_not_hold
    return verdict(figure, spread, weight=best.mean, even=even)


@claim("english-agreement", "A head of a model of English attends from the verb to its subject.")
def agreement_head(model: Callable[[], Trained] = shipped) -> Finding:
    """Beginnings such as "The author near the doctors": the weight of the last token on "author".

    The next word must agree with the subject, not with the noun that is closer. The head is chosen
    on half of the pairs. It attends to the subject if its weight there is twice a uniform share,
    and the model needs it if it gets fewer pairs right without it.
    """
    pairs = [pair for pair in make_pairs() if pair.kind == "agreement across a phrase"]
    (found,) = measure_pairs(*model(), pairs)
    weight, lost = found.attention, found.lost
    figure = (
        f"the best head puts {weight.mean:.2f} on the subject (uniform share {found.chance:.2f}); "
        f"{found.accuracy.mean:.0%} of the pairs are right, and without this head "
        f"{100 * lost.mean:.0f} points fewer"
    )
    spread = (
        f"95 % intervals {interval(weight)}, {interval(found.accuracy)}, [{100 * lost.low:.0f}, "
        f"{100 * lost.high:.0f}] points; {len(pairs)} pairs"
    )
    numbers = {"weight": weight.mean, "accuracy": found.accuracy.mean, "lost": lost.mean}
    if weight.low < 2 * found.chance:
        return does_not_hold(figure, spread, **numbers)
    if lost.low <= 0.0:
        return holds_if("the model need not depend on it", figure, spread, **numbers)
    return holds(figure, spread, **numbers)


@claim("english-sinks", "Much of the attention goes to the first token, whatever it is.")
def attention_sinks(
    model: Callable[[], Trained] = shipped, *, seeds: Sequence[int] = (0, 1, 2)
) -> Finding:
    """The weight on the first token, as written and with another token in its place.

    Heads that find nothing put their weight where it does no harm. The token that is put there is
    random, so that what it means cannot matter. Much: a fifth of all weight, three times a uniform
    share.
    """
    trained, tokenizer = model()
    ids = rows_of(tokenizer, PASSAGE)
    written = patterns(maps(trained, ids), ids)["first"]
    own, even = estimate(written[:, :-1].mean(1)), written[:, -1].mean().item()
    replaced = []
    for seed in seeds:
        torch.manual_seed(seed)
        other = ids.clone()
        other[:, 0] = torch.randint(tokenizer.vocab_size, (len(ids),))
        replaced.append(patterns(maps(trained, other), other)["first"][:, :-1].mean(1))
    random = estimate(torch.cat(replaced))
    most = written[:, :-1].mean(0).max().item()
    figure = (
        f"{own.mean:.2f} of all weight is on the first token, {random.mean:.2f} on a random one "
        f"in its place (uniform share {even:.2f}); {most:.2f} for the strongest head"
    )
    spread = f"95 % intervals {interval(own)}, {interval(random)}; {len(ids)} passages"
    spread += (
        f", {len(seeds)} seeds; the strongest head of other seeds: {other_seeds(model, 'sink')}"
    )
    numbers = {"first": own.mean, "random": random.mean, "even": even}
    if min(own.low, random.low) > max(0.2, 3 * even):
        return holds(figure, spread, **numbers)
    if most > max(0.2, 3 * even):
        return holds_if("some heads are meant", figure, spread, **numbers)
    return does_not_hold(figure, spread, **numbers)


@claim("english-induction", "Induction heads copy: after A B ... A, they attend to B.")
def induction_heads(
    model: Callable[[], Trained] = shipped,
    *,
    quick: bool = False,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
) -> Finding:
    """Random tokens, then the same tokens again: the weight on the token after the earlier copy.

    Nothing in random tokens can be known but by copying. So if the second time is easier to
    predict, the model copies; without the best induction head, it should copy worse.
    """
    trained, tokenizer = model()
    seeds = seeds[:2] if quick else seeds
    ids = torch.cat([_repeated(tokenizer.vocab_size, seed) for seed in seeds])
    weight = patterns(maps(trained, ids), ids)["induction"]
    head, best = best_on_one_half(weight[:, :-1])
    losses = _losses(trained, ids)
    again = losses[:, REPEATED:].mean(1)
    gain = estimate(losses[:, : REPEATED - 1].mean(1) - again)
    without_it = _losses(trained, ids, _numbered(trained, [head]))
    price = estimate(without_it[:, REPEATED:].mean(1) - again)
    figure = (
        f"the best head puts {best.mean:.2f} there (uniform share {weight[:, -1].mean():.2f}); the "
        f"second time, the loss is {gain.mean:.1f} nats lower, and {price.mean:.1f} of that is "
        "lost without this head"
    )
    spread = (
        f"95 % intervals {interval(best)}, {interval(gain)}, {interval(price)}; {best.count} "
        f"sequences, {len(seeds)} seeds"
    )
    spread += f"; other seeds, on English text: {other_seeds(model, 'induction')}"
    numbers = {"weight": best.mean, "gain": gain.mean, "lost": price.mean}
    if best.low < 0.3 or gain.low < 1.0:
        return does_not_hold(figure, spread, **numbers)
    if price.low <= 0.0:
        return holds_if("another head may do it instead", figure, spread, **numbers)
    return holds(figure, spread, **numbers)


def _repeated(vocab_size: int, seed: int) -> Tensor:
    """Eight rows of different random tokens, each row twice in a row."""
    torch.manual_seed(seed)
    once = torch.stack([torch.randperm(vocab_size - 1)[:REPEATED] for _ in range(8)])
    return torch.cat([once, once], dim=1)


def _numbered(model: GPT2, numbers: Sequence[int]) -> list[Head]:
    """Heads by their number in the model, counted over all layers."""
    per_layer = model.config["num_heads"]
    return [(f"blocks.{n // per_layer}.attention", n % per_layer) for n in numbers]


@torch.no_grad()
def _losses(model: GPT2, ids: Tensor, removed: Sequence[Head] = ()) -> Float[Tensor, "rows tokens"]:
    """The loss of each next token, with some heads' outputs replaced by their mean."""
    layers = [f"blocks.{i}.attention" for i in range(len(model.blocks))]
    found = projections(model, layers)
    assert found is not None
    sizes = dict.fromkeys(layers, model.config["num_heads"])
    everywhere = torch.ones_like(ids[:, :-1], dtype=torch.bool)
    means = head_means(found, lambda: model.hidden(ids[:, :-1]), everywhere) if removed else None
    with without(found, removed, sizes, means):
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")


@claim("english-removing-heads", "Most heads of a model of English can be removed without harm.")
def heads_can_be_removed(model: Callable[[], Trained] = shipped, *, quick: bool = False) -> Finding:
    """Each head is replaced by its mean output; no harm means a loss less than 0.01 higher.

    Then all heads whose removal did no harm are removed together: heads that can replace each other
    are not missed one at a time, but they are missed together.
    """
    trained, tokenizer = model()
    ids = rows_of(tokenizer, PASSAGE)[: 4 if quick else 14]
    whole = _losses(trained, ids).mean(1)
    count = len(trained.blocks) * trained.config["num_heads"]

    def rise(numbers: Sequence[int]) -> Estimate:
        return estimate(_losses(trained, ids, _numbered(trained, numbers)).mean(1) - whole)

    alone = [rise([number]) for number in range(count)]
    harmless = [number for number, harm in enumerate(alone) if harm.mean < HARMLESS]
    together = rise(harmless)
    figure = (
        f"{len(harmless)} of {count} heads do no harm alone; removed together they cost "
        f"{together.mean:.2f} (the whole loss is {whole.mean():.2f})"
    )
    worst = max(alone, key=lambda harm: harm.mean)
    spread = (
        f"95 % interval {interval(together)}; one head: {min(a.mean for a in alone):+.3f} to "
        f"{worst.mean:+.2f}; {len(ids)} passages"
    )
    numbers = {"alone": [harm.mean for harm in alone], "together": together.mean}
    if len(harmless) <= count / 2:
        return does_not_hold(figure, spread, **numbers)
    if together.high > HARMLESS:
        return holds_if("one is removed at a time", figure, spread, **numbers)
    return holds(figure, spread, **numbers)
