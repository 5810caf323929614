"""Labels of queries and keys, one per token: given, or t0, t1, ... by default."""

from collections.abc import Collection, Sequence

from clearhead.validation import ShapeError


def check_labels(
    name: str, labels: Sequence[object], counts: Collection[int], what: str = "token"
) -> None:
    """Raise ShapeError unless `labels` is a list with one label per token.

    Args:
        name: The name of the argument.
        labels: The labels.
        counts: The allowed numbers of labels.
        what: What each label stands for.
    """
    expected = " or ".join(map(str, sorted(set(counts))))
    if isinstance(labels, str):
        raise ShapeError(
            f"{name}: expected a list of {expected} labels, got one string.\n"
            "  Split it into tokens first: WordTokenizer.from_text(text).tokens(text)."
        )
    if len(labels) not in counts:
        raise ShapeError(
            f"{name}: expected one label per {what}, {expected} of them, got {len(labels)}.\n"
            "  Were the labels made by the same tokenizer as the ids?"
        )


def axis_labels(
    queries: int,
    keys: int,
    tokens: Sequence[str] | None,
    context_tokens: Sequence[str] | None = None,
    start: int | None = None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels of all queries and of all keys.

    With more keys than queries (a cache), labels of the keys are enough: the queries are the last
    keys, or begin at key `start`. The keys after them are the empty slots of a fixed-size cache.

    Examples:
        >>> axis_labels(1, 3, ["the", "cat", "sat"])
        (('sat',), ('the', 'cat', 'sat'))
        >>> axis_labels(1, 4, ["the", "cat"], start=1)
        (('cat',), ('the', 'cat', '(empty)', '(empty)'))
    """
    shift = max(0, keys - queries if start is None else start)
    end = shift + queries
    if isinstance(tokens, str):
        check_labels("tokens", tokens, {queries}, "query")
    if isinstance(context_tokens, str):
        check_labels("context_tokens", context_tokens, {keys}, "key")
    if tokens is not None and context_tokens is None:
        if len(tokens) == end < keys:
            tokens = [*tokens, *["(empty)"] * (keys - end)]
        if len(tokens) == keys:
            context_tokens, tokens = tokens, tokens[shift:end]
    if tokens is None:
        if context_tokens is not None and end <= keys == len(context_tokens):
            tokens = context_tokens[shift:end]
        else:
            tokens = [f"t{shift + i}" for i in range(queries)]
    if context_tokens is None:
        context_tokens = tokens if queries == keys else [f"t{i}" for i in range(keys)]
    check_labels("tokens", tokens, {queries}, "query")
    check_labels("context_tokens", context_tokens, {keys}, "key")
    return tuple(map(str, tokens)), tuple(map(str, context_tokens))
