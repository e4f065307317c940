"""Where Heed may wait for a GPU, by (file, function) of the package, and why. A wait anywhere else is a fault.

No training step waits, but for the result of the step before. The rest waits once a run, report, checkpoint or batch of
validation; a search in slots once in four steps, and in each of its steps where it chooses on the CPU.
"""

Places = dict[tuple[str, str], str]

ONCE: Places = {
    ("model/transformer.py", "Transformer.position_table"): "the table of sinusoids, when a longer sequence comes"
}
TRAINING: Places = {
    ("training/step.py", "MasterWeights.__init__"): "a run's first weights",
    ("training/step_log.py", "Progress.__init__"): "a run's sums of losses",
    ("training/step.py", "QueuedStep.wait"): "the step before: finite or not, when the next one has been sent",
    ("training/step_log.py", "Progress._log"): "the losses of an entry of the log",
    ("training/step.py", "MasterWeights.are_finite"): "whether the weights that would be saved are finite",
    ("training/step_log.py", "Progress.store"): "the sums of losses of a checkpoint",
    ("training/checkpoint.py", "_moments"): "Adam's moments of a checkpoint",
    ("model_folder/modules.py", "shared_weights"): "the weights of a checkpoint",
    ("training/validation.py", "batch_nll"): "the loss of a batch of the dev set",
    ("training/validation.py", "token_log_probs"): "whether the scores of a batch are finite",
    ("runs/train.py", "_averaged_and_scored"): "weights of the average and of the best checkpoint, which dev compares",
}
PASSES: Places = {  # in bf16
    ("backends/gpu/capture.py", "record"): "passes of another shape and Adam's step, before they are recorded",
    ("training/memory_probe.py", "MemoryProbe._compare"): "whether its passes agree with the plain network",
}
LOADING: Places = {
    ("decoding/loading.py", "folder_precision"): "weights, from the CPU's memory where they were checked"
}
FURTHER_MODELS: Places = {("decoding/loading.py", "ready_models"): "the weights of an ensemble's further models"}
SLOTS: Places = {
    ("backends/gpu/search.py", "GpuSearchState._look"): "which sentences are done, once in four steps",
    ("backends/gpu/capture.py", "record"): "the steps so far, before a graph is captured",
}
PLAIN_SEARCH: Places = {  # with HEED_KERNELS=0
    ("backends/reference_search.py", "ReferenceSearchState.logits"): "each row's last id, which the CPU chose",
    ("backends/reference_search.py", "ReferenceSearchState.select"): "which rows go on, which the CPU chose",
}
CHOICE: Places = {  # of a search that chooses on the CPU
    (
        "backends/reference_search.py",
        "ReferenceSearchBackend.best_continuations",
    ): "the log-probabilities so far, and the best continuations",
    ("backends/forbidden.py", "mask_forbidden"): "the rows that may not end yet, and what prefixes ask for",
    ("backends/reference_search.py", "ReferenceSearchBackend.log_probs_of"): "what follows in a constrained search",
    ("backends/reference_search.py", "ReferenceSearchBackend.draw"): "the ids that were drawn, by the CPU's numbers",
}
JOINED: Places = {
    ("backends/gpu/search.py", "GpuSearchState._bring_back"): "the account, when a source with a prefix joins others"
}
SEARCH: Places = SLOTS | CHOICE | JOINED
SCORING: Places = {
    ("backends/reference_search.py", "_log_probs"): "the scores of a batch",
}
ATTENTION: Places = {("model/attention_weights.py", "attention_weights"): "the ids of one pair"}
