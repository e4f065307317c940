"""What someone may have meant by a name that is not known: names that look like it, and names that mean the same."""

import difflib
from collections.abc import Iterable, Sequence

# What fairseq, OpenNMT, Marian, Joey NMT and Hugging Face call settings, and plain words for them → Heed's names.
SYNONYMS = {
    "learning_rate schedule warmup_steps learning_rate_factor": "scheduler",
    "schedule": "lr_scheduler lr_scheduler_type learning_rate_scheduler decay_method lr_decay scheduling decay",
    "learning_rate learning_rate_factor": "lr max_lr peak_lr learn_rate base_lr initial_lr",
    "warmup_steps": "warmup warmup_updates lr_warmup num_warmup_steps learning_rate_warmup warmup_ratio",
    "max_steps": "steps train_steps max_update max_updates total_steps num_steps updates after_batches iterations",
    "max_minutes": "time max_time time_limit max_hours hours minutes",
    "max_epochs": "epochs epoch max_epoch num_train_epochs num_epochs n_epochs after_epochs",
    "batch_tgt_tokens batch_src_tokens": "batch_size batch tokens batch_tokens mini_batch per_device_train_batch_size "
    "bsz max_tokens",
    "micro_batch_tokens": "gradient_accumulation_steps update_freq accum_count batch_multiplier optimizer_delay "
    "mini_batch_fit workspace auto_find_batch_size gradient_checkpointing",
    "clip_norm": "max_grad_norm clip gradient_clipping clip_gradients grad_clip",
    "label_smoothing": "smoothing label_smoothing_factor loss_smoothing",
    "checkpoint_every": "save_steps save_interval save_checkpoint_steps save_freq eval_steps valid_steps valid_freq "
    "validation_freq save_every eval_interval",
    "keep_checkpoints": "save_total_limit keep_last keep_checkpoint keep_last_epochs keep_best_ckpts",
    "average_last": "average averaging avg checkpoint_average ema ema_decay exponential_smoothing",
    "patience": "early_stopping_patience early_stop early_stopping",
    "precision": "fp16 bf16 int8 float16 amp mixed_precision dtype compute_type quantization quantize",
    "adam_beta1 adam_beta2": "adam_betas betas beta1 beta2",
    "adam_epsilon": "eps adam_eps epsilon",
    "consistency": "rdrop r_drop rdrop_alpha",
    "n_teachers": "teachers teacher distill distillation",
    "kind tokenizer": "tokenizer_type model_type type algorithm subword subword_type",
    "report_every": "logging_steps log_interval logging_freq log_every disp_freq",
    "seed": "random_seed",
    "start_from": "finetune fine_tune pretrained pretrained_model load_model train_from restore_file",
    "d_model": "hidden_size hidden hidden_dim rnn_size embed_dim embedding_dim dim_emb encoder_embed_dim model_dim emb",
    "d_ff": "ffn_dim ff_size transformer_ff encoder_ffn_embed_dim intermediate_size ffn transformer_dim_ffn",
    "n_heads": "heads num_heads attention_heads num_attention_heads transformer_heads encoder_attention_heads nhead",
    "n_layers": "layers num_layers num_hidden_layers depth",
    "n_encoder_layers": "encoder_layers enc_layers enc_depth num_encoder_layers",
    "n_decoder_layers": "decoder_layers dec_layers dec_depth num_decoder_layers",
    "dropout": "dropout_rate drop transformer_dropout activation_dropout relu_dropout",
    "norm": "pre_norm prenorm norm_first layer_norm normalize_before encoder_normalize_before",
    "positions": "rope rotary position_encoding positional_encoding position_embedding_type",
    "attention_bias output_bias": "bias use_bias",
    "share": "tie tied shared share_vocab joined_dictionary "
    "tied_embeddings tie_word_embeddings share_embeddings share_all_embeddings tied_softmax "
    "tied_embeddings_all share_decoder_embeddings share_decoder_input_output_embed",
    "max_positions": "max_position_embeddings max_source_positions",
    "vocab_size": "vocab vocabulary bpe_codes num_merges merges src_vocab_size dim_vocabs vocabulary_size vocabs",
    "beam_size beam": "num_beams beams greedy",
    "min_tokens": "min_length min_len min_new_tokens",
    "no_repeat_ngram_size": "block_ngram_repeat no_repeat_ngram",
    "length_penalty": "lenpen alpha lp normalize beam_alpha",
    "max_extra_tokens max_tokens": "max_length max_len max_len_b max_new_tokens max_output_length",
    "max_tokens": "max_seq_len max_seq_length max_sequence_length max_sent_length src_seq_length max_source_length",
    "src": "source",
    "tgt ref": "target trg",
    "from to": "lang lang_pair pair languages langs direction",
    "src from": "source_lang src_lang source_language src_language from_lang",
    "tgt to": "target_lang tgt_lang target_language tgt_language to_lang",
    "train corpus": "train_sets train_data train_file trainpref train_src train_tgt dataset data_path path",
    "dev": "valid validation val valid_src valid_tgt valid_data validation_file validpref dev_src dev_tgt eval_data "
    "val_split dev_split valid_split validation_split",
    "tests": "test test_src test_tgt test_data testpref test_file",
    # Options of verbs.
    "run out": "output o output_dir output_file out_dir save_dir save model_dir save_model save_to save_path exp_dir",
    "last": "best n num_checkpoints num_epoch_checkpoints",
    "version": "v",
    "to": "format target_format output_format",
    "recipe": "config c configuration config_file yaml",
    "run": "name run_name exp_name experiment_name log_dir logdir experiment",
    "track": "wandb trackio tracker report_to",
    "sample": "temperature temp sampling do_sample",
    "best_by": "metric_for_best_model best_checkpoint_metric early_stopping_metric eval_metric",
    "n_best": "nbest num_return_sequences n_hyps",
    "ref": "reference references refs gold r",
    "hyp": "hypothesis hypotheses translations sys system",
    "in hyp": "input i",
    "model": "m checkpoint model_path",
    "preset model": "arch architecture size model_name model_size task",
    "device": "gpu cuda cpu use_gpu use_cuda",
    "host": "address bind ip listen public",
    "port": "p",
    "dry_run": "dryrun simulate estimate check",
    "max_chars": "char_limit",
    "max_texts": "batch_limit",
    "root_path": "url_prefix base_path",
    "no_page": "disable_web_ui no_ui headless",
    "no_metrics": "metrics",
    "cors": "cors_origins allow_origins",
    "workers": "num_workers n_workers jobs n_jobs processes",
}
# What Heed, or a verb, has no name for: what to do → the names.
ADVICE = {
    "the optimizer is Adam (section 5.3), set by training.adam_beta1, adam_beta2 and adam_epsilon": "optimizer optim "
    "optimiser optimization adam adamw optimizer_name",
    "there is no weight decay; model.dropout and training.label_smoothing regularize": "weight_decay wd l2 "
    "weight_regularization",
    "a run resumes when the same command is given again": "resume resume_from resume_from_checkpoint continue restart "
    "continue_training load_checkpoint from_checkpoint",
    "training takes one GPU unasked, several by torchrun: torchrun --nproc-per-node 2 -m heed train RECIPE": "gpus "
    "n_gpus num_gpus ngpus n_gpu devices gpu_ids world_size distributed ddp nproc_per_node",
    "nothing that exists is replaced; choose another name, or move it away": "overwrite force f overwrite_output_dir",
    "the loss is cross-entropy with training.label_smoothing (section 5.4)": "criterion loss loss_function loss_type",
    "a batch is counted in tokens: training.batch_src_tokens and training.batch_tgt_tokens": "batch_type",
    "BLEU and chrF are always printed; heed compare adds TER, heed compare --comet MODEL also COMET": "metric "
    "metrics scorer comet ter confidence paired_bs significance bootstrap",
    "HEED_DEVICE=cpu (or cuda:1) before the command chooses the device": "device gpu cuda cpu use_gpu use_cuda",
    "Heed forms batches itself": "batch_size batch mini_batch batch_tokens",
    "Heed reads text as it is; change its case or split off its punctuation beforehand": "lowercase lc lower truecase "
    "do_lower_case pretokenize moses",
    "pairs are always shuffled, by training.seed": "shuffle",
    "results go to standard output: > FILE": "out output output_file o save save_to results_path",
    "heed attention MODEL TEXT draws which words attend to which": "alignment align report_align print_alignment",
    "heed evaluate --hyp FILE --ref FILE scores translations": "sys system hyp ref reference",
    "heed export MODEL OUT --to huggingface writes what can be uploaded": "push push_to_hub hub_model_id upload",
    "a proxy in front of the server does that (docs/guides/serve.md)": "ssl tls https certfile keyfile "
    "req_limit rate_limit",
    "name a model for each pair of languages: heed serve MODEL MODEL": "load_only",
    "HEED_DEBUG=1 before the command prints the traceback of a bug": "debug traceback",
    "each is a command: heed train, heed evaluate, heed translate": "do_train do_eval do_predict mode",
    "--precision int8 of translate, evaluate and serve computes in int8": "int8 quantize quantization compute_type",
    "--set training.n_teachers=2 learns from an ensemble's translations": "distill distillation",
    "Heed trains translation models and parsers, no language models": "lm language_model gpt causal_lm",
    "HF_HUB_OFFLINE=1 before the command keeps it off the network": "offline local_files_only",
    "OMP_NUM_THREADS=N before the command sets the number of threads": "threads num_threads n_threads cpu_threads "
    "inter_threads intra_threads workers num_workers",
    "messages are on standard error: 2> /dev/null hides them": "quiet q silent verbose v log_level",
}


def names_meant(name: str, known: Sequence[str], *, cutoff: float = 0.6) -> list[str]:
    """The known names that someone may have meant by a name: by meaning, else the one most alike; else none.

    Dotted names, as of settings, mean the same if their last parts do, and are alike only if their last parts are.
    cutoff: difflib's, of likeness.
    """
    if meant := names_of_meaning(name, known):
        return meant
    word = name.rpartition(".")[2]
    alike = difflib.get_close_matches(name, known, n=5, cutoff=cutoff)
    return [each for each in alike if difflib.get_close_matches(word, [each.rpartition(".")[2]], cutoff=0.6)][:1]


def names_of_meaning(name: str, known: Sequence[str]) -> list[str]:
    """The known names that mean the same as a name, without any that merely looks alike."""
    word = _word(name)
    exact = [each for each in known if each == word or each.endswith(f".{word}")]
    elsewhere = [own for own, theirs in SYNONYMS.items() if word in theirs.split()]
    if exact and not elsewhere:
        return exact
    ours = elsewhere or [own for own in SYNONYMS if word in own.split()]
    meant = [word, *(each for names in ours for each in names.split())]
    alike = [each for last in meant for each in known if each.rpartition(".")[2] == last]
    # A decoder's max_tokens is not the data's: the table that was named goes before the others.
    table = name.rpartition(".")[0]
    return list(dict.fromkeys([each for each in alike if table and each.rpartition(".")[0] == table] or alike))


def advice(name: str) -> str:
    """What to do where Heed has no setting or option of this meaning; empty if unknown."""
    return next((text for text, names in ADVICE.items() if _word(name) in names.split()), "")


def _word(name: str) -> str:
    return name.rpartition(".")[2].lower().lstrip("-").replace("-", "_")


def did_you_mean(names: Iterable[str]) -> str:
    """ "did you mean a, b or c?"; empty without names."""
    *others, last = [*names] or [""]
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?" if last else ""
