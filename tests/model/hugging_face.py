"""A network's weights in Hugging Face's MarianMTModel, written in by hand: a reference that no exporter has touched."""

from typing import Any

import torch

from heed.model.transformer import Transformer, sinusoid

PAD, BOS, EOS = 0, 1, 2


def marian_of(model: Transformer, *, max_positions: int = 64, pad: int = PAD, bos: int = BOS, eos: int = EOS) -> Any:
    """Hugging Face's MarianMTModel."""
    from transformers import MarianConfig, MarianMTModel

    arch = model.arch
    config = MarianConfig(
        vocab_size=model.src_vocab_size,
        decoder_vocab_size=model.vocab_size,
        share_encoder_decoder_embeddings=arch.share == "all",
        d_model=arch.d_model,
        encoder_layers=arch.encoder_layers,
        decoder_layers=arch.decoder_layers,
        encoder_ffn_dim=arch.d_ff,
        decoder_ffn_dim=arch.d_ff,
        encoder_attention_heads=arch.n_heads,
        decoder_attention_heads=arch.n_heads,
        activation_function=arch.activation,
        scale_embedding=True,
        dropout=0.0,
        attention_dropout=0.0,
        max_position_embeddings=max_positions,
        pad_token_id=pad,
        decoder_start_token_id=bos,
        bos_token_id=bos,
        eos_token_id=eos,
        forced_eos_token_id=None,
    )
    reference: Any = MarianMTModel(config)
    reference.eval()

    def copy_linears(targets: list[Any], ours: Any) -> None:
        weights = ours.weight.chunk(len(targets))
        biases = [None] * len(targets) if ours.bias is None else ours.bias.chunk(len(targets))
        for target, weight, bias in zip(targets, weights, biases, strict=True):
            target.weight.copy_(weight)
            target.bias.copy_(torch.zeros_like(target.bias) if bias is None else bias)

    with torch.no_grad():
        reference.model.encoder.embed_tokens.weight.copy_(model.src_embedding.weight)
        reference.model.decoder.embed_tokens.weight.copy_(model.tgt_embedding.weight)
        reference.final_logits_bias.zero_()
        if model.output.bias is not None:
            reference.final_logits_bias.copy_(model.output.bias[None])
        if arch.positions == "sinusoid":  # Marian's table has all sines before all cosines
            for stack in (reference.model.encoder, reference.model.decoder):
                stack.embed_positions.weight.copy_(sinusoid(max_positions, arch.d_model))
        layers: list[tuple[Any, Any]] = [
            *zip(model.encoder, reference.model.encoder.layers, strict=True),
            *zip(model.decoder, reference.model.decoder.layers, strict=True),
        ]
        for ours, theirs in layers:
            own = theirs.self_attn
            copy_linears([own.q_proj, own.k_proj, own.v_proj], ours.self_attention.qkv)
            copy_linears([own.out_proj], ours.self_attention.out)
            theirs.self_attn_layer_norm.load_state_dict(ours.self_attention_norm.state_dict())
            if hasattr(ours, "cross_attention"):
                source = theirs.encoder_attn
                copy_linears([source.q_proj], ours.cross_attention.q)
                copy_linears([source.k_proj, source.v_proj], ours.cross_attention.kv)
                copy_linears([source.out_proj], ours.cross_attention.out)
                theirs.encoder_attn_layer_norm.load_state_dict(ours.cross_attention_norm.state_dict())
            copy_linears([theirs.fc1], ours.feed_forward.inner)
            copy_linears([theirs.fc2], ours.feed_forward.outer)
            theirs.final_layer_norm.load_state_dict(ours.feed_forward_norm.state_dict())
    return reference
