"""GPT-2 as others build it: Hugging Face's model, and state dicts with the names of others."""

import torch
import transformers

TINY = {
    "vocab_size": 97,
    "context_length": 19,
    "d_model": 15,
    "num_heads": 3,
    "num_layers": 2,
    "dropout": 0.0,
    "qkv_bias": True,
}


def randomize(model, seed=0):
    """Every parameter another number, norms and biases too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            middle = 1.0 if parameter.ndim == 1 and name.endswith("weight") else 0.0
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(middle + 0.1 * noise)
    return model


def hugging_face_config(config, **options):
    """Our sizes as those of transformers."""
    return transformers.GPT2Config(
        vocab_size=config["vocab_size"],
        n_positions=config["context_length"],
        n_embd=config["d_model"],
        n_head=config["num_heads"],
        n_layer=config["num_layers"],
        resid_pdrop=config["dropout"],
        embd_pdrop=config["dropout"],
        attn_pdrop=config["dropout"],
        bos_token_id=None,
        eos_token_id=None,
        **options,
    )


def hugging_face(config=TINY, dtype=torch.float64, **options):
    """A GPT2LMHeadModel of this size with random weights."""
    sizes = hugging_face_config(config, **options)
    return randomize(transformers.GPT2LMHeadModel(sizes)).to(dtype).eval()


def by_book(state, *, head=None):
    """Our state dict under the names of the book's GPTModel, its masks and its head included."""
    pairs = {
        "embedding.token": "tok_emb",
        "embedding.position": "pos_emb",
        "blocks.": "trf_blocks.",
        ".attention.": ".att.",
        "feed_forward.expand": "ff.layers.0",
        "feed_forward.project": "ff.layers.2",
    }
    found = {}
    for name, tensor in state.items():
        if "norm" in name:
            name = name.replace(".weight", ".scale").replace(".bias", ".shift")
            name = name.replace("norm.", "final_norm.") if name.startswith("norm.") else name
        for ours, theirs in pairs.items():
            name = name.replace(ours, theirs)
        found[name] = tensor
    places = found["pos_emb.weight"].shape[0]
    for name in [name for name in found if name.endswith("W_query.weight")]:
        mask = torch.ones(places, places).triu(1)
        found[name.replace("W_query.weight", "mask")] = mask
    found["out_head.weight"] = found["tok_emb.weight"].clone() if head is None else head
    return found


def by_original(state):
    """Hugging Face's state dict under the names and shapes of the original release."""
    found = {}
    for name, tensor in state.items():
        name = name.removeprefix("transformer.")
        if name == "lm_head.weight":
            continue
        stem, _, last = name.rpartition(".")
        kind = {"bias": "b", "weight": "g" if "ln_" in stem else "w"}[last]
        kind = "" if stem in ("wte", "wpe") else f"/{kind}"
        stem = stem.replace("h.", "h", 1).replace(".", "/") if stem.startswith("h.") else stem
        conv = tensor.ndim == 2 and stem not in ("wte", "wpe")
        found[f"model/{stem}{kind}"] = (tensor[None] if conv else tensor).contiguous()
    return found
