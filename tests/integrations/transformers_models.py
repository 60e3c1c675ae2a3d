"""Networks of transformers, built from their configurations: tiny, random, nothing downloaded.

A decoder keeps the defaults of its configuration: ``use_cache`` stays on, attention is whatever the library prefers.
"""

from typing import Any

import torch
from torch import Tensor, nn

import transformers

from .case import Case

Settings = dict[str, Any]

VOCABULARY, LENGTH, SAMPLES, CLASSES = 11, 5, 3, 3

SIZES: Settings = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
WORDS: Settings = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LABELS: Settings = {"num_labels": CLASSES}


def _made(kind: str, head: str, settings: dict[str, Any]) -> nn.Module:
    """A model with a head, from a configuration with the defaults of its kind wherever nothing is said."""
    configuration = getattr(transformers, kind + "Config")(**settings)
    return getattr(transformers, kind + head)(configuration)


def _text() -> dict[str, Tensor]:
    """Token numbers with padding after the end of the second text, as a collator leaves them."""
    mask = torch.ones(SAMPLES, LENGTH, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": torch.randint(3, VOCABULARY, (SAMPLES, LENGTH)) * mask, "attention_mask": mask}


def _text_classes() -> dict[str, Tensor]:
    return {**_text(), "labels": torch.randint(CLASSES, (SAMPLES,))}


def _text_words() -> dict[str, Tensor]:
    """With a word for each position, and -100 where there is padding."""
    text = _text()
    words = torch.randint(VOCABULARY, (SAMPLES, LENGTH))
    return {**text, "labels": words.masked_fill(text["attention_mask"] == 0, -100)}


def _translation() -> dict[str, Tensor]:
    return {**_text_words(), "decoder_input_ids": torch.randint(3, VOCABULARY, (SAMPLES, LENGTH))}


def _images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(SAMPLES, 3, 16, 16), "labels": torch.randint(CLASSES, (SAMPLES,))}


def _sound() -> dict[str, Tensor]:
    return {"input_values": torch.randn(SAMPLES, 400), "labels": torch.randint(CLASSES, (SAMPLES,))}


def _frames(name: str, *shape: int) -> dict[str, Tensor]:
    return {name: torch.randn(SAMPLES, *shape), "labels": torch.randint(CLASSES, (SAMPLES,))}


def _classifier(kind: str, **settings: Any) -> Case:
    whole = {**SIZES, **WORDS, **LABELS, **settings}
    return Case(kind, lambda: _made(kind, "ForSequenceClassification", whole), _text_classes)


def _masked(kind: str, **settings: Any) -> Case:
    whole = {**SIZES, **WORDS, **settings}
    return Case(kind + "-masked", lambda: _made(kind, "ForMaskedLM", whole), _text_words)


def _decoder(kind: str, head: str = "ForCausalLM", **settings: Any) -> Case:
    whole = {**SIZES, **WORDS, **settings}
    return Case(kind, lambda: _made(kind, head, whole), _text_words)


def _seq2seq(kind: str, **settings: Any) -> Case:
    whole = {**WORDS, "decoder_start_token_id": 1, **settings}
    return Case(kind, lambda: _made(kind, "ForConditionalGeneration", whole), _translation)


def _vision(kind: str, **settings: Any) -> Case:
    whole = {**LABELS, "image_size": 16, "patch_size": 4, **settings}
    return Case(kind, lambda: _made(kind, "ForImageClassification", whole), _images)


def _audio(kind: str, **settings: Any) -> Case:
    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 4), "conv_kernel": (10, 4), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8}
    whole = {**SIZES, **LABELS, **convolutions, **positions, **settings}
    return Case(kind, lambda: _made(kind, "ForSequenceClassification", whole), _sound)


_GROUPED: Settings = {"num_key_value_heads": 2}
_STAGES: Settings = {"depths": [1, 1], "num_heads": [2, 2], "embed_dim": 8, "window_size": 2, "patch_size": 2}
_BLOCKS: Settings = {"depths": [1, 1], "hidden_sizes": [8, 16]}
_PAIR: Settings = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
}
_EXPERTS: Settings = {  # eager: torch has no other products of experts in double precision, for the oracle
    **_GROUPED,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "experts_implementation": "eager",
}
_ROUTED: Settings = {
    **_EXPERTS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "head_dim": 4,
}
_JAMBA: Settings = {
    "use_mamba_kernels": False,
    "mamba_d_state": 4,
    "attn_layer_offset": 1,
    "attn_layer_period": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
}
_WIDTHS: Settings = {"vocab_size": VOCABULARY, "pad_token_id": 0, "d_model": 16, "n_head": 4, "d_inner": 24}
_XLNET: Settings = {**_WIDTHS, **LABELS, "n_layer": 2}
_FUNNEL: Settings = {**_WIDTHS, **LABELS, "d_head": 4, "block_sizes": [1, 1]}
_T5: Settings = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}

_RELATIVE: Settings = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_BUCKETS: Settings = {**_RELATIVE, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True}
_PYRAMID: Settings = {"num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2]}
_REDUCED: Settings = {**_BLOCKS, **_PYRAMID, "num_attention_heads": [1, 2], "sr_ratios": [2, 1], "mlp_ratios": [2, 2]}
_HEARD: Settings = {
    "num_mel_bins": 8,
    "max_source_positions": 10,
    "classifier_proj_size": 8,
    "decoder_start_token_id": 1,
}
_WHISPER: Settings = {**_PAIR, **WORDS, **LABELS, **_HEARD}
_STRIDES: Settings = {"patch_size": 8, "frequency_stride": 8, "time_stride": 8}
_AST: Settings = {**SIZES, **LABELS, **_STRIDES, "max_length": 20, "num_mel_bins": 16}

ENCODERS = [
    _classifier("Bert"),
    _masked("Bert"),
    _classifier("Roberta"),
    _classifier("DistilBert", dim=16, n_layers=2, n_heads=4, hidden_dim=24),
    _classifier("Albert", embedding_size=8),
    _classifier("Electra", embedding_size=8),
    _classifier("DebertaV2", **_BUCKETS),
    _classifier("Deberta", **_RELATIVE),
    _classifier("ModernBert"),
    _masked("ModernBert"),
    _classifier("MPNet"),
    _classifier("SqueezeBert", embedding_size=16),
    _classifier("MobileBert", embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8),
    _classifier("ConvBert", embedding_size=16),
    _classifier("RoFormer", embedding_size=16),
    _classifier("Nystromformer", num_landmarks=5, segment_means_seq_len=5),
    _classifier("BigBird", block_size=2),
    _classifier("RemBert", input_embedding_size=8, output_embedding_size=8),
    _classifier("Esm"),
    _classifier("XLMRobertaXL"),
    Case("XLNet", lambda: _made("XLNet", "ForSequenceClassification", _XLNET), _text_classes),
    Case("Funnel", lambda: _made("Funnel", "ForSequenceClassification", _FUNNEL), _text_classes),
]

DECODERS = [
    _decoder("GPT2", "LMHeadModel", n_embd=16, n_layer=2, n_head=4),
    _decoder("Llama", **_GROUPED),
    _decoder("Mistral", **_GROUPED),
    _decoder("Qwen2", **_GROUPED),
    _decoder("Qwen3", **_GROUPED, head_dim=4),
    _decoder("Gemma", num_key_value_heads=1, head_dim=4),
    _decoder("Gemma2", num_key_value_heads=2, head_dim=4),
    _decoder("GPTNeoX"),
    _decoder("GPTNeo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]),
    _decoder("GPTJ", n_embd=16, n_layer=2, n_head=4, rotary_dim=2),
    _decoder("OPT", ffn_dim=24, word_embed_proj_dim=16),
    _decoder("Phi", **_GROUPED),
    _decoder("Phi3", **_GROUPED),
    _decoder("Bloom", n_layer=2, n_head=4),
    _decoder("Falcon"),
    _decoder("StableLm", **_GROUPED),
    _decoder("Cohere", **_GROUPED),
    _decoder("Olmo2", **_GROUPED),
    _decoder("Mamba", state_size=4),
    _decoder("Mamba2", state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=4),
    _decoder("FalconMamba", state_size=4),
    _decoder("Nemotron", **_GROUPED),
    _decoder("Mixtral", **_EXPERTS),
    _decoder("Qwen2Moe", **_EXPERTS, shared_expert_intermediate_size=8),
    _decoder("Dots1", **_ROUTED),
    _decoder("Jamba", **_EXPERTS, **_JAMBA),
    _decoder("BioGpt"),
    _decoder("OpenAIGPT", "LMHeadModel", n_embd=16, n_layer=2, n_head=4),
    _seq2seq("T5", **_T5),
    _seq2seq("Bart", **_PAIR),
    _seq2seq("BlenderbotSmall", **_PAIR),
]

VISION = [
    _vision("ViT", **SIZES),
    _vision("DeiT", **SIZES),
    _vision("Beit", **SIZES, use_relative_position_bias=True),
    _vision("Swin", **_STAGES),
    _vision("Swinv2", **_STAGES),
    _vision("ConvNext", **_BLOCKS, num_stages=2),
    _vision("ConvNextV2", **_BLOCKS, num_stages=2),
    _vision("ResNet", **_BLOCKS, embedding_size=8, layer_type="basic"),
    _vision("RegNet", **_BLOCKS, embedding_size=8, groups_width=4),
    _vision("PvtV2", **_REDUCED),
    _vision("Segformer", **_REDUCED),
    _vision("PoolFormer", **_BLOCKS, **_PYRAMID, padding=[1, 1]),
    _vision("Dinov2", **SIZES),
    _vision("FocalNet", depths=[1, 1], embed_dim=8, focal_levels=[1, 1], focal_windows=[3, 3]),
    _vision("Bit", hidden_sizes=[8, 16], depths=[1, 1], embedding_size=8, num_groups=4),
]

AUDIO = [
    _audio("Wav2Vec2"),
    _audio("Hubert"),
    _audio("WavLM"),
    _audio("SEW", squeeze_factor=1),
    _audio("UniSpeech"),
    _audio("Wav2Vec2Conformer", layerdrop=0.5),
    Case(
        "Whisper",
        lambda: _made("Whisper", "ForAudioClassification", _WHISPER),
        lambda: _frames("input_features", 8, 20),
    ),
    Case("AST", lambda: _made("AST", "ForAudioClassification", _AST), lambda: _frames("input_values", 20, 16)),
]
