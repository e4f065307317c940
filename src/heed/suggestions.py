"""What someone may have meant by a name that is not known: names that look like it, and names that mean the same."""

import difflib
from collections.abc import Iterable, Sequence

# What fairseq, OpenNMT, Marian, Joey NMT and Hugging Face call settings, and plain words for them → Heed's names.
SYNONYMS = {
    "learning_rate schedule warmup_steps learning_rate_factor": "optimizer optim scheduler optimization",
    "schedule": "lr_scheduler lr_scheduler_type learning_rate_scheduler decay_method lr_decay scheduling decay",
    "learning_rate learning_rate_factor": "lr max_lr peak_lr learn_rate base_lr initial_lr",
    "warmup_steps": "warmup warmup_updates lr_warmup num_warmup_steps learning_rate_warmup warmup_ratio",
    "max_steps": "steps train_steps max_update max_updates total_steps num_steps updates after_batches iterations",
    "max_epochs": "epochs epoch max_epoch num_train_epochs num_epochs n_epochs after_epochs",
    "batch_tgt_tokens batch_src_tokens": "batch_size batch tokens batch_tokens per_device_train_batch_size bsz",
    "micro_batch_tokens": "gradient_accumulation_steps update_freq accum_count batch_multiplier optimizer_delay",
    "clip_norm": "max_grad_norm clip gradient_clipping clip_gradients grad_clip",
    "label_smoothing": "smoothing label_smoothing_factor loss_smoothing",
    "checkpoint_every": "save_steps save_interval save_checkpoint_steps save_freq eval_steps valid_steps valid_freq "
    "validation_freq save_every eval_interval",
    "keep_checkpoints": "save_total_limit keep_last keep_checkpoint keep_last_epochs keep_best_ckpts",
    "average_last": "average averaging avg checkpoint_average",
    "patience": "early_stopping_patience early_stop",
    "precision": "fp16 bf16 amp mixed_precision dtype",
    "report_every": "logging_steps log_interval logging_freq log_every disp_freq",
    "seed": "random_seed",
    "start_from": "finetune fine_tune pretrained pretrained_model load_model train_from restore_file",
    "d_model": "hidden_size hidden hidden_dim rnn_size embed_dim embedding_dim dim_emb encoder_embed_dim model_dim emb",
    "d_ff": "ffn_dim ff_size transformer_ff encoder_ffn_embed_dim intermediate_size ffn transformer_dim_ffn",
    "n_heads": "heads num_heads attention_heads num_attention_heads transformer_heads encoder_attention_heads nhead",
    "n_layers": "layers num_layers num_hidden_layers depth",
    "n_encoder_layers": "encoder_layers enc_layers enc_depth num_encoder_layers",
    "n_decoder_layers": "decoder_layers dec_layers dec_depth num_decoder_layers",
    "dropout": "dropout_rate drop transformer_dropout",
    "share": "tied_embeddings tie_word_embeddings share_embeddings share_all_embeddings tied_softmax",
    "max_positions": "max_position_embeddings max_source_positions",
    "vocab_size": "vocab vocabulary bpe_codes num_merges merges src_vocab_size dim_vocabs vocabulary_size",
    "beam_size": "beam num_beams beams",
    "length_penalty": "lenpen alpha lp normalize beam_alpha",
    "max_extra_tokens max_tokens": "max_length max_len max_len_b max_new_tokens max_output_length",
    "src": "source source_lang src_lang",
    "tgt": "target target_lang tgt_lang trg",
}


def names_meant(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> list[str]:
    """Those of the known names that someone may have meant by a name: by meaning, else the one most alike; else none.

    Dotted names, as of settings, mean the same if their last parts do. cutoff: difflib's, of likeness.
    """
    word = name.rpartition(".")[2].lower().lstrip("-").replace("-", "_")
    ours = [own for own, theirs in SYNONYMS.items() if word in theirs.split()]
    meant = [word, *(each for names in ours for each in names.split())]
    found = [each for last in meant for each in known if each.rpartition(".")[2] == last]
    # A decoder's max_tokens is not the data's: the table that was named goes before the others.
    table = name.rpartition(".")[0]
    if beside := [each for each in found if table and each.rpartition(".")[0] == table]:
        found = beside
    return list(dict.fromkeys(found)) or difflib.get_close_matches(name, known, n=1, cutoff=cutoff)


def did_you_mean(names: Iterable[str]) -> str:
    """ "did you mean a, b or c?"; empty without names."""
    *others, last = [*names] or [""]
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?" if last else ""
