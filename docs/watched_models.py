"""Measure what `watch` sees of many Hugging Face models, and write docs/watched-models.md.

    python docs/watched_models.py

Each model is tiny and has random weights. Every map is compared with the weights that the model
itself returns with `attn_implementation="eager"` and `output_attentions=True`. The figures are
written to docs/watched_models.json; `tests/watcher/test_watched_models.py` measures them again.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.overrides import TorchFunctionMode

from clearhead.watcher import NothingSeen, watch

HERE = Path(__file__).parent
FIGURES = HERE / "watched_models.json"
PAGE = HERE / "watched-models.md"
BEGIN, END = "<!-- watched models: begin -->\n", "<!-- watched models: end -->\n"

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2]])
REAL = torch.tensor([[1] * 7 + [0] * 4, [1] * 11])
IMAGE = torch.linspace(-1, 1, 6144).reshape(2, 3, 32, 32).sin()

TEXT = {"input_ids": IDS, "attention_mask": REAL}
PAIR = {**TEXT, "decoder_input_ids": IDS[:, :5]}
SOUND = {"input_values": torch.linspace(0, 99, 3200).reshape(2, 1600).sin()}
PICTURE = {"pixel_values": IMAGE}

SMALL: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 3, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**SMALL, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}
SWITCHING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
BART = {
    "vocab_size": 23, "d_model": 12, "encoder_layers": 1, "decoder_layers": 2,
    "encoder_attention_heads": 3, "decoder_attention_heads": 2, "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20, "max_position_embeddings": 64, "decoder_start_token_id": 2,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
VISION = {**{k: v for k, v in SMALL.items() if k.startswith(("hidden", "inter", "num"))}}
VISION |= {"image_size": 32, "patch_size": 8}
T5 = {"vocab_size": 23, "d_model": 12, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 3}
SPEECH = {
    **{k: v for k, v in SMALL.items() if k != "max_position_embeddings"},
    "conv_dim": (8, 8), "conv_kernel": (10, 8), "conv_stride": (5, 4),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model class of transformers with its configuration and inputs.

    Attributes:
        name: The class, such as "Llama" for `LlamaModel` and `LlamaConfig`.
        config: The sizes.
        inputs: What it is called with.
        shows: What is special about its attention, for the table.
        model: The name of the model class, if not the name with "Model".
        configuration: The name of the configuration class, if not the name with "Config".
        direct: Compare with softmax(q · k scale + mask), computed from the arguments of each fused
            call, because the model's eager form computes something else.
    """

    name: str
    config: dict[str, Any]
    inputs: dict[str, torch.Tensor] = field(default_factory=lambda: TEXT)
    shows: str = ""
    model: str = ""
    configuration: str = ""
    direct: bool = False

    def build(self, how: str) -> torch.nn.Module:
        """The model with random, distinct weights, large enough for uneven attention."""
        config = getattr(transformers, self.configuration or f"{self.name}Config")(**self.config)
        config._attn_implementation = how
        torch.manual_seed(1)
        model: torch.nn.Module = getattr(transformers, self.model or f"{self.name}Model")(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.3)
        return model.eval()


CASES = [
    Case("GPT2", {"vocab_size": 23, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 64}),
    Case("OPT", {**SMALL, "ffn_dim": 20, "word_embed_proj_dim": 24}),
    Case("GPTNeoX", SMALL, shows="partial rotary positions"),
    Case("Llama", GROUPED, shows="grouped keys"),
    Case("Mistral", {**GROUPED, "sliding_window": 4}, shows="sliding window"),
    Case("Mixtral", {**GROUPED, "num_local_experts": 2}, shows="experts"),
    Case("Qwen2", GROUPED),
    Case("Qwen3", GROUPED, shows="normed queries and keys"),
    Case("Qwen3Moe", {**GROUPED, **EXPERTS}, shows="experts"),
    Case(
        "Qwen3Next",
        {
            **GROUPED, **EXPERTS, "shared_expert_intermediate_size": 8,
            "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 2,
            "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        },
        shows="output gate; DeltaNet layers",
    ),
    Case("Gemma", GROUPED),
    Case("Gemma2", {**GROUPED, **SWITCHING, "attn_logit_softcapping": 0.7}, shows="soft cap"),
    Case("Gemma3Text", {**GROUPED, **SWITCHING}, shows="window", configuration="Gemma3TextConfig"),
    Case("Phi", SMALL, shows="partial rotary positions"),
    Case("Phi3", {**SMALL, "num_key_value_heads": 3}, shows="one projection for all"),
    Case("Cohere", GROUPED),
    Case("Olmo2", GROUPED),
    Case("StableLm", GROUPED),
    Case("Starcoder2", {**GROUPED, "sliding_window": 4}),
    Case("SmolLM3", GROUPED, shows="layers without positions"),
    Case("Glm4", GROUPED),
    Case("Granite", {**GROUPED, "attention_multiplier": 0.3}, shows="own scale"),
    Case(
        "DeepseekV3",
        {
            **SMALL, "num_key_value_heads": 3, "n_routed_experts": 2, "num_experts_per_tok": 1,
            "moe_intermediate_size": 8, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
            "q_lora_rank": 6, "kv_lora_rank": 5, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
            "v_head_dim": 7, "n_shared_experts": 1,
        },
        shows="latent attention (MLA)",
    ),
    Case(
        "GptOss",
        {**GROUPED, **SWITCHING, "num_local_experts": 2, "num_experts_per_tok": 1},
        shows="sinks, window",
    ),
    Case("Falcon", {**SMALL, "alibi": False}, shows="one key head"),
    Case("Falcon", {**SMALL, "alibi": True}, shows="ALiBi, compared directly", direct=True),
    Case("Bert", SMALL),
    Case("Roberta", SMALL),
    Case("Electra", {**SMALL, "embedding_size": 12}),
    Case("Albert", {**SMALL, "embedding_size": 12}, shows="one layer, called twice"),
    Case("DistilBert", {"vocab_size": 23, "dim": 12, "n_layers": 2, "n_heads": 3}),
    Case(
        "ModernBert",
        {**SMALL, "global_attn_every_n_layers": 2, "local_attention": 4, "cls_token_id": 1,
         "sep_token_id": 2},
        shows="window in both directions",
    ),
    Case("T5", T5, PAIR, shows="position bias, cross-attention"),
    Case("MT5", T5, PAIR, shows="position bias, cross-attention"),
    Case("Bart", BART, PAIR, shows="cross-attention"),
    Case("Marian", BART, PAIR, shows="cross-attention"),
    Case("Pegasus", BART, PAIR, shows="cross-attention"),
    Case(
        "Whisper",
        {**BART, "num_mel_bins": 4, "max_source_positions": 16, "max_target_positions": 16},
        {"input_features": torch.linspace(0, 30, 256).reshape(2, 4, 32).sin(),
         "decoder_input_ids": IDS[:, :5]},
        shows="audio, cross-attention",
    ),
    Case("Wav2Vec2", SPEECH, SOUND, shows="audio"),
    Case("Hubert", SPEECH, SOUND, shows="audio"),
    Case("ViT", VISION, PICTURE, shows="images"),
    Case("DeiT", VISION, PICTURE, shows="images"),
    Case("Dinov2", VISION, PICTURE, shows="images"),
    Case("SiglipVision", VISION, PICTURE, shows="images", configuration="SiglipVisionConfig"),
    Case("CLIPVision", VISION, PICTURE, shows="images", configuration="CLIPVisionConfig"),
    Case("CLIPText", SMALL, shows="text", configuration="CLIPTextConfig"),
    Case(
        "Swin",
        {"image_size": 32, "patch_size": 2, "embed_dim": 6, "depths": [2, 1], "num_heads": [1, 3],
         "window_size": 4},
        PICTURE,
        shows="shifted windows",
    ),
    Case("Bloom", {"vocab_size": 23, "hidden_size": 12, "n_layer": 2, "n_head": 3}),
    Case("Mpt", {"vocab_size": 23, "d_model": 12, "n_layers": 2, "n_heads": 3, "max_seq_len": 64}),
    Case(
        "GPTNeo",
        {"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "num_heads": 3,
         "attention_types": [[["global", "local"], 1]], "window_size": 4,
         "max_position_embeddings": 64},
    ),
    Case("Mamba", {"vocab_size": 23, "hidden_size": 12, "num_hidden_layers": 2}),
]  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """What is seen of a model, and the largest difference of a weight, per implementation."""
    row: dict[str, Any] = {"model": case.model or f"{case.name}Model", "shows": case.shows}
    with torch.no_grad():
        output = case.build("eager")(**case.inputs, output_attentions=True)
    told = own_weights(output)
    differences: dict[str, float | str] = {}
    layers, unseen = 0, list[str]()
    for how in ("eager", "sdpa"):
        try:
            model = case.build(how)
        except ValueError as error:
            if "does not support" not in str(error):
                raise
            differences[how] = "not supported by the model"
            continue
        try:
            with torch.no_grad():
                with Direct() as direct:
                    plain = first(model(**case.inputs))
                told = direct.weights if case.direct else told
                with watch(model) as seen:
                    watched = first(model(**case.inputs))
        except NothingSeen as nothing:
            differences[how] = "not seen"
            unseen += [one.kind for one in nothing.unseen]
            continue
        assert torch.equal(plain, watched), (case.name, how)
        maps = [call.map.dense() for call in seen.calls]
        layers = len(seen)
        unseen += [one.kind for one in seen.unseen]
        differences[how] = worst(maps, told, case.inputs.get("attention_mask"))
    return {**row, "layers": layers, "unseen": sorted(set(unseen)), "difference": differences}


class Direct(TorchFunctionMode):
    """Computes the weights of every fused call from its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Let every call through; note those of attention."""
        kwargs = kwargs or {}
        if func is torch.nn.functional.scaled_dot_product_attention:
            q, k, mask = args[0], args[1], kwargs.get("attn_mask")
            scores = q @ k.mT * (kwargs.get("scale") or q.shape[-1] ** -0.5)
            if mask is not None and mask.dtype != torch.bool:
                self.weights.append((scores + mask).softmax(-1))
        return func(*args, **kwargs)


def own_weights(output: Any) -> list[torch.Tensor]:
    """The weights of all layers that a model returned, of encoder, decoder and between them."""
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    found = [weights for name in names for weights in output.get(name) or ()]
    return [weights for weights in found if weights is not None]


def first(output: Any) -> torch.Tensor:
    """The first tensor that a model returns."""
    result: torch.Tensor = output[0]
    return result


def worst(maps: list[torch.Tensor], told: list[torch.Tensor], real: torch.Tensor | None) -> float:
    """The largest difference; each layer's own weights are compared with the closest map.

    Queries of padding are left out where they attend to nothing else: there eager attention is
    uniform and fused attention is zero. Maps may be more, because some models do not return all of
    their weights.
    """
    assert len(maps) >= len(told) > 0, (len(maps), len(told))
    left, largest = list(maps), 0.0
    for weights in told:
        counted = torch.ones(weights.shape[0], 1, weights.shape[2], 1)
        if real is not None and real.shape == (weights.shape[0], weights.shape[2]):
            counted = real[:, None, :, None]
        gaps = [
            float(((weights - m) * counted).abs().max()) if weights.shape == m.shape else torch.inf
            for m in left
        ]
        closest = min(range(len(gaps)), key=gaps.__getitem__)
        largest = max(largest, gaps[closest])
        left.pop(closest)
    return largest


def table(figures: dict[str, Any]) -> str:
    """The figures as a Markdown table."""

    def shown(difference: float | str) -> str:
        if isinstance(difference, str):
            return difference
        return "0" if difference == 0 else f"{difference:.0e}".replace("e-0", "e-")

    lines = ["| model | | layers seen | eager | sdpa | not seen |", "|---|---|---|---|---|---|"]
    for row in figures["models"]:
        gaps = [shown(row["difference"].get(how, "")) for how in ("eager", "sdpa")]
        cells = [f"`{row['model']}`", row["shows"], row["layers"], *gaps, ", ".join(row["unseen"])]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    return "\n".join(lines) + f"\n\nMeasured on the CPU in float32, {versions}.\n"


def with_table(page: str, figures: dict[str, Any]) -> str:
    """The page with the table between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(figures)}{END}{after}"


def main(say: Callable[[str], object] = print) -> None:
    """Measure all models, write the figures and the table."""
    rows = []
    for case in CASES:
        rows.append(measure(case))
        say(json.dumps(rows[-1]))
    versions = {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    figures = {"versions": versions, "models": rows}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[func-returns-value]
