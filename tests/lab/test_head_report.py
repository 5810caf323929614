"""What a head does: attention and ablation against plain computations, and the shipped model."""

import json
import math
import runpy
import string
from functools import partial
from importlib import resources
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn

from clearhead import drawing, lab
from clearhead.embedding import Rope
from clearhead.gpt2.model import GPT2
from clearhead.lab import grammar, head_scores, vocabulary
from clearhead.lab.ablation import head_means, projections, without
from clearhead.lab.grammar_readers import PieceReader, WordReader
from clearhead.lab.head_report import draw_report
from clearhead.lab.head_scores import HeadReport, estimate, measure, share
from clearhead.lab.relations import answers, encode
from clearhead.lab.seed_runs import judge
from clearhead.models import hugging_face

ROOT = Path(__file__).parents[2]
SHIPPED = resources.files("clearhead.models") / "grammar"
SIZES = {
    "context_length": 37,
    "d_model": 30,
    "num_heads": 5,
    "num_layers": 2,
    "dropout": 0.0,
    "qkv_bias": False,
}
LAYERS = ["blocks.0.attention", "blocks.1.attention"]


@pytest.fixture(scope="module")
def tokens():
    return grammar.tokenizer()


@pytest.fixture(scope="module")
def model(tokens):
    """Random weights, large enough for heads that differ."""
    torch.manual_seed(3)
    model = GPT2({"vocab_size": tokens.vocab_size, **SIZES}, rope=Rope()).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(8.0 if weight.ndim > 1 else 1.0)
    return model


@pytest.fixture
def reader(model, tokens):
    return WordReader(model, tokens)


def examples_of(reader, tokens, name="possessive", count=7):
    pairs = grammar.labelled(name, count)
    return pairs, encode(reader, pairs)


def plain_weights(model, ids):
    """Every layer's weights, by hand: (layers, heads, queries, keys)."""
    found = []
    x = model.embedding(ids[None])
    for block in model.blocks:
        attention = block.attention
        y = block.norm1(x)
        split = [
            linear(y)[0].unflatten(-1, (5, 6)).transpose(0, 1)
            for linear in (attention.W_query, attention.W_key)
        ]
        places = torch.arange(len(ids))
        q, k = (attention.rope.rotate(part[None], places)[0] for part in split)
        scores = (q @ k.transpose(1, 2)) / math.sqrt(6)
        future = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
        found.append(scores.masked_fill(future, -math.inf).softmax(-1))
        x = block(x)
    return torch.stack(found)


def test_the_numbers_are_the_ones_computed_by_hand(model, reader, tokens):
    """Attention on key and distractor, sentence by sentence, without padding or batches."""
    sentences = 12
    pairs, _ = examples_of(reader, tokens, "subject", sentences)
    keys, others = [], []
    with torch.no_grad():
        for sentence, relation in pairs:
            ids = torch.tensor([257, *(tokens.encode(word)[0] for word in sentence.words)])
            assert tokens.decode([257]) == "<|endoftext|>"
            rows = plain_weights(model, ids)[:, :, relation.query + 1].flatten(0, 1)
            keys.append(rows[:, relation.key + 1])
            others.append(rows[:, relation.distractor + 1])
    keys, others = torch.stack(keys), torch.stack(others)
    report = measure(reader, sentences=sentences, relations=["subject"])
    score = report["subject"]
    assert report.layers == LAYERS
    assert score.best == int(keys[0::2].mean(0).argmax())
    assert score.few == keys[0::2].mean(0).argsort(descending=True).tolist()[:3]
    for i, head in enumerate(score.heads):
        assert (head.layer, head.head) == (LAYERS[i // 5], i % 5)
        assert head.key.mean == pytest.approx(keys[1::2, i].mean().item(), abs=1e-5)
        assert head.distractor.mean == pytest.approx(others[1::2, i].mean().item(), abs=1e-5)
        assert head.key.count == sentences // 2
    values = [relation.value for _, relation in pairs]
    for value, number in score.heads[2].by_value.items():
        chosen = [i for i in range(1, sentences, 2) if values[i] == value]
        assert number == pytest.approx(keys[chosen, 2].mean().item(), abs=1e-5)
    uniform = [1 / (relation.query + 2) for _, relation in pairs][1::2]
    assert score.uniform == pytest.approx(sum(uniform) / len(uniform))


def test_a_head_without_its_part_is_a_model_with_zero_columns(model, reader, tokens):
    """Zero ablation of head 3 in layer 1 = zeros in the columns of out_proj that read it."""
    _, examples = examples_of(reader, tokens)
    found = projections(model, LAYERS)
    sizes = dict.fromkeys(LAYERS, 5)
    twin = GPT2(model.config, rope=Rope()).eval()
    twin.load_state_dict(model.state_dict())
    with torch.no_grad():
        twin.blocks[1].attention.out_proj.weight[:, 18:24] = 0
        expected = twin(examples.ids)
        with without(found, [(LAYERS[1], 3)], sizes):
            changed = model(examples.ids)
        assert torch.equal(changed, expected)
        assert not torch.allclose(changed, model(examples.ids), atol=1e-3)
        # afterwards the model is as it was
        twin.load_state_dict(model.state_dict())
        assert torch.equal(model(examples.ids), twin(examples.ids))


def test_mean_ablation_puts_the_mean_of_real_tokens_there(model, reader, tokens):
    _, examples = examples_of(reader, tokens)
    found = projections(model, LAYERS)
    sizes = dict.fromkeys(LAYERS, 5)
    seen = {}
    handle = found[LAYERS[0]].register_forward_pre_hook(
        lambda module, inputs: seen.update(x=inputs[0].clone())
    )
    with torch.no_grad():
        model(examples.ids)
        handle.remove()
        means = head_means(found, lambda: model(examples.ids), examples.real)
        rows = [x[real].sum(0) for x, real in zip(seen["x"], examples.real, strict=True)]
        by_hand = torch.stack(rows).sum(0) / examples.real.sum()
        torch.testing.assert_close(means[LAYERS[0]], by_hand)
        after = {}
        inner = model.blocks[0].attention
        with without(found, [(LAYERS[0], 0), (LAYERS[0], 2)], sizes, means):
            # this hook is later than the ablation's: it sees what the projection reads
            handle = found[LAYERS[0]].register_forward_pre_hook(
                lambda module, inputs: after.update(x=inputs[0].clone())
            )
            model(examples.ids)
            handle.remove()
    assert inner.out_proj is found[LAYERS[0]]
    expected = seen["x"].clone()
    for part in (slice(0, 6), slice(12, 18)):
        expected[..., part] = by_hand[part]
    torch.testing.assert_close(after["x"], expected)


def test_right_answers_beat_every_wrong_word(model, reader, tokens):
    for name in ("possessive", "induction", "adjective"):
        pairs, examples = examples_of(reader, tokens, name)
        told = answers(reader, examples)
        for (sentence, relation), correct in zip(pairs, told.tolist(), strict=True):
            ids = [tokens.encode(word)[0] for word in sentence.words[: relation.query + 1]]
            with torch.no_grad():
                last = model(torch.tensor([[257, *ids]]))[0, -1]
            right = tokens.encode(relation.right)[0]
            wrong = [tokens.encode(word)[0] for word in relation.wrong] or [
                i for i in range(tokens.vocab_size) if i != right
            ]
            assert correct == all(last[right] > last[i] for i in wrong)


def test_intervals():
    assert share(torch.tensor([True] * 40)).high == 1.0
    half = share(torch.tensor([True, False] * 50))
    assert (half.mean, half.count) == (0.5, 100)
    assert half.low == pytest.approx(0.4038, abs=1e-4)  # Wilson's, from a table
    one = estimate(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert one.high - one.mean == pytest.approx(1.96 * 1.2910 / 2, abs=1e-3)
    assert one.low == pytest.approx(2 * one.mean - one.high)


def test_the_report_can_be_printed_stored_and_read_again(reader):
    report = measure(reader, sentences=16, relations=["subject", "induction"])
    text = json.dumps(report.to_json(), allow_nan=False)
    assert HeadReport.from_json(json.loads(text)) == report
    shown = drawing.plain(draw_report(report), width=100)
    best = report["subject"].heads[report["subject"].best]
    assert f"{best.key.mean:.2f} ± " in shown
    assert "layer 1" in shown
    with pytest.raises(KeyError):
        report["verb"]


# Other checkpoints.


def save_tokenizer(folder, **special):
    """Words of the grammar cut into pieces: the last two letters of a long word are one."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    pieces = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
    for word in [word.lower() for word in vocabulary.vocabulary()]:
        for piece in [word] if len(word) < 5 else [word[:-2], f"##{word[-2:]}"]:
            pieces.setdefault(piece, len(pieces))
    for character in string.ascii_lowercase:  # for a word that begins like another
        pieces.setdefault(f"##{character}", len(pieces))
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", **special
    ).save_pretrained(folder)
    return len(pieces)


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpt2") / "small"
    size = save_tokenizer(folder, bos_token="[CLS]")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=size, n_embd=12, n_layer=2, n_head=3, n_positions=64
    )
    config.initializer_range, config.bos_token_id, config.eos_token_id = 0.5, 1, 1
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "small"
    size = save_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=size,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=16,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def test_pieces_are_found_again_in_the_words(gpt2_folder):
    reader = PieceReader(hugging_face.load(gpt2_folder))
    assert reader.causal
    sentence = grammar.score(["Mary", "followed", "Adam", "in", "her", "garden", "."], "train")
    ids, spans = reader.read(sentence)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2_folder)
    assert ids[0] == tokenizer.bos_token_id
    for word, (begin, end) in zip(sentence.words, spans, strict=True):
        text = "".join(tokenizer.convert_ids_to_tokens(ids[begin:end])).replace("##", "")
        assert text == word.lower()
    assert spans[1][1] - spans[1][0] > 1
    assert reader.piece("followed") == ids[spans[1][0]]
    examples = encode(reader, [(sentence, sentence.relations[0])])
    relation = sentence.relations[0]
    assert examples.query.tolist() == [spans[relation.query][1] - 1]
    assert examples.key[0].nonzero()[:, 0].tolist() == list(range(*spans[relation.key]))


def test_a_gpt2_checkpoint_gets_the_whole_table(gpt2_folder):
    reader = PieceReader(hugging_face.load(gpt2_folder))
    report = measure(
        reader,
        sentences=16,
        relations=["subject", "possessive"],
        untrained=reader.untrained(),
    )
    assert report.layers == ["h.0.attn", "h.1.attn"]
    score = report["possessive"]
    assert score.accuracy is not None
    assert score.untrained is not None
    assert all(head.without is not None for head in score.heads)
    # the same model as transformers computes it: one sentence, eager attention
    other = transformers.GPT2Model.from_pretrained(gpt2_folder, attn_implementation="eager")
    pairs = grammar.labelled("possessive", 16)[1::2]
    keys = []
    for sentence, relation in pairs:
        ids, spans = reader.read(sentence)
        with torch.no_grad():
            maps = other(torch.tensor([ids]), output_attentions=True).attentions
        query = spans[relation.query][1] - 1
        keys.append(maps[1][0, 2, query, slice(*spans[relation.key])].sum())
    assert score.heads[5].key.mean == pytest.approx(torch.stack(keys).mean().item(), abs=1e-5)


def test_a_bert_checkpoint_gets_attention_only(bert_folder):
    reader = PieceReader(hugging_face.load(bert_folder))
    assert not reader.causal
    report = measure(reader, sentences=16, relations=["subject"])
    score = report["subject"]
    assert (score.accuracy, score.without_few, score.untrained) == (None, None, None)
    assert "this model is bidirectional" in drawing.plain(draw_report(report), width=100)
    # it is asked at the verb itself, among all tokens
    pairs = grammar.labelled("subject", 16)[1::2]
    shares = []
    for sentence, relation in pairs:
        ids, spans = reader.read(sentence)
        begin, end = spans[relation.key]
        shares.append((end - begin) / len(ids))
    assert score.uniform == pytest.approx(sum(shares) / len(shares))


def test_where_no_projection_is_found_it_is_said(reader, tokens, monkeypatch):
    monkeypatch.setattr(head_scores, "projections", lambda model, layers: None)
    report = measure(reader, sentences=16, relations=["subject", "pronoun"])
    assert report.notes == ["no ablation: the output projection of the attention was not found"]
    assert report["subject"].accuracy is not None
    assert projections(nn.ModuleDict({"a": nn.MultiheadAttention(4, 2)}), ["a"]) is None


def test_a_large_model_loses_only_its_best_heads_one_by_one(reader, tokens, monkeypatch):
    monkeypatch.setattr(head_scores, "_MOST_ABLATED", 4)
    report = measure(reader, sentences=16, relations=["subject"])
    removed = [i for i, h in enumerate(report["subject"].heads) if h.without is not None]
    assert removed == sorted(report["subject"].few)
    assert "only the 3 best heads" in report.notes[0]


# The shipped model and the command.


@pytest.fixture(scope="module")
def shipped():
    return lab.load()


def test_the_shipped_model_meets_the_criteria(shipped):
    reader = WordReader(*shipped)
    report = measure(
        reader,
        sentences=160,
        relations=["subject", "possessive", "pronoun", "induction"],
        untrained=reader.untrained(),
        seed=7,
    )
    size = len((SHIPPED / "model.safetensors").read_bytes())
    assert [each for each in judge(report, size) if not each.reached] == []
    for score in report.relations:
        best = score.heads[score.best]
        assert best.key.mean > 2 * score.untrained
        assert best.key.mean > 2 * score.uniform


def test_the_stored_figures_are_those_of_the_shipped_model(shipped):
    stored = HeadReport.from_json(json.loads((SHIPPED / "heads.json").read_text("utf-8")))
    fresh = measure(WordReader(*shipped), sentences=400, relations=["collocation"])
    for old, new in zip(stored["collocation"].heads, fresh["collocation"].heads, strict=True):
        assert new.key.mean == pytest.approx(old.key.mean, abs=1e-3)
    assert new.without["zero"].mean == pytest.approx(old.without["zero"].mean, abs=0.02)


def test_the_card_is_written_from_its_json():
    card = json.loads((SHIPPED / "card.json").read_text("utf-8"))
    assert (card["schema"], len(card["seeds"])) == (1, 3)
    script = runpy.run_path(str(ROOT / "tools" / "ship_grammar_model.py"))
    assert (SHIPPED / "card.md").read_text("utf-8") == script["card_text"](card)


@pytest.fixture
def run(command_line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    return partial(command_line, "heads")


@pytest.mark.slow
def test_the_command_measures_the_shipped_model(run, tmp_path):
    picture = tmp_path / "heads.svg"
    status, out, err = run("--model", "grammar", "--sentences", 16, "--out", picture)
    assert (status, err) == (0, f"Wrote {picture}\n")
    assert "What the heads of the grammar model do" in out
    assert "possessive" in out
    assert "<svg" in picture.read_text("utf-8")
    assert max(map(len, out.splitlines())) <= 100


def test_the_command_measures_a_folder(run, gpt2_folder):
    status, out, err = run("--model", gpt2_folder, "--relations", "--sentences", 8, "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == 1
    assert [score["relation"] for score in found["relations"]] == list(grammar.RELATIONS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--relations", "the cat"], "--relations uses its own sentences"),
        (["the cat", "--out", "none/x.svg"], "there is no folder none"),
        (["--relations", "--out", "x.jpeg"], "got '.jpeg'"),
        (["--relations", "--out", "none/x.svg"], "there is no folder none"),
        (["--model", "none"], "none: no such file or folder"),
        (["--relations"], "--relations: the English model reads pieces of words"),
        (["--sort", "first"], "--layer, --sort and --csv apply to the table of a text"),
        (["--out", "x.svg"], "--out writes the maps of a text: give a TEXT."),
        (["--model", "none", "--relations"], "none: no such file or folder"),
    ],
)
def test_errors(run, arguments, message):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
