// The kernels for one type of number, T: kernels.h includes this once for float, as NAME_float, and once for bf16, as
// NAME_bf16. Both compute in float.

// sum = x + dropout(branch), y = LayerNorm(sum): section 5.4 of the paper; x (n, d)
HEED_EXPORT heed::Status KERNEL(add_norm)(const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y,
                                          float* mean, float* rstd, int64_t n, int64_t d, float rate, uint64_t seed,
                                          float epsilon);
// dsum: the sum's gradient where it is used besides y, or null
HEED_EXPORT heed::Status KERNEL(add_norm_backward)(const T* dy, const T* dsum, const T* sum, const T* gain,
                                                   const float* mean, const float* rstd, T* dx, T* dbranch,
                                                   float* dgain, float* dbias, int64_t n, int64_t d, float rate,
                                                   uint64_t seed);
// h = max(0, h + bias), in place; h (n, d)
HEED_EXPORT heed::Status KERNEL(bias_relu)(T* h, const T* bias, int64_t n, int64_t d);
HEED_EXPORT heed::Status KERNEL(bias_relu_backward)(const T* dy, const T* y, T* dh, float* dbias, int64_t n, int64_t d);
// y = dropout(table[id] · scale + positions[place]); for an id of -1 of the position alone
HEED_EXPORT heed::Status KERNEL(embed)(const int64_t* ids, const int64_t* places, const T* table, const T* positions,
                                       T* y, int64_t n, int64_t d, float scale, float rate, uint64_t seed);
// Adds the gradient to dtable.
HEED_EXPORT heed::Status KERNEL(embed_backward)(const T* dy, const int64_t* ids, float* dtable, int64_t n, int64_t d,
                                                float scale, float rate, uint64_t seed);
// Label-smoothed loss and negative log-likelihood; logits (n, vocab) become the loss's gradient.
HEED_EXPORT heed::Status KERNEL(smoothed_loss)(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n,
                                               int64_t vocab, float epsilon);
// The same of two passes, logits (2 n, vocab), with alpha / 4 of the divergences between them.
HEED_EXPORT heed::Status KERNEL(consistent_loss)(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n,
                                                 int64_t vocab, float epsilon, float alpha);
// Attention (equation 1) in every head of packed sequences, and its gradients.
HEED_EXPORT heed::Status KERNEL(attend)(const T* q, const T* k, const T* v, T* out, const heed::Shape* shape);
HEED_EXPORT heed::Status KERNEL(attend_backward)(const T* q, const T* k, const T* v, const T* dout, T* dq, T* dk, T* dv,
                                                 const heed::Shape* shape);
// x (n_rows, d_model), in float: what the last layer makes of each row's next token. In bf16: keys, values and norms
// are, products are in what the weights are in, bf16 or 8-bit integers.
HEED_EXPORT heed::Status KERNEL(decoder_step)(const heed::Step<T>* step, float* x);
// The memories of sources; x (n_rows, d_model): what the last layer makes of given targets. Weights as decoder_step
// takes them.
HEED_EXPORT heed::Status KERNEL(encode_sources)(const heed::Step<T>* step, const heed::Sentences<T>* sources);
HEED_EXPORT heed::Status KERNEL(decode_targets)(const heed::Step<T>* step, const heed::Sentences<T>* targets, float* x);
// At most most_steps steps of a search, until most_done sentences are over: see search.cpp. `step` may leave out rows,
// lengths and tokens. done (n_sentences): whether the sentence's search is over; n_steps: -1 if a number was not
// finite.
HEED_EXPORT heed::Status KERNEL(search_steps)(const heed::Step<T>* step, const heed::Search* search, uint8_t* done,
                                              int64_t* n_steps);
