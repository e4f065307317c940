"""The shape of a network: the settings of a recipe's table `model`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from heed.config import Settings

DROPOUTS = ("dropout", "attention_dropout", "word_dropout")  # the settings that are no shape
Activation = Literal["relu", "gelu", "swish"]
Sharing = Literal["all", "tgt", "none"]
SinusoidForm = Literal["sinusoid", "sinusoid-halves", "sinusoid-t2t"]
EPSILON = 1e-5  # of layer normalization, which no setting changes


class Architecture(Settings):
    """Shape of the network. Defaults are the paper's base model (Table 3, first row)."""

    network: str | None = Field(
        default=None,
        max_length=200,
        description="the class of a network of one's own, which an installed package offers (heed.networks) or a "
        "program gives (network=…); if not set: the paper's",
    )
    n_layers: int = Field(
        default=6, ge=1, le=1000, description="number of layers in the encoder, and in the decoder (N)"
    )
    n_encoder_layers: int | None = Field(
        default=None, ge=1, le=1000, description="number of layers in the encoder; if not set: n_layers"
    )
    n_decoder_layers: int | None = Field(
        default=None, ge=1, le=1000, description="number of layers in the decoder; if not set: n_layers"
    )
    d_model: int = Field(
        default=512, ge=2, le=65_536, description="width of embeddings and of every sub-layer's output"
    )
    d_ff: int = Field(default=2048, ge=1, le=1_048_576, description="inner width of the feed-forward sub-layers")
    n_heads: int = Field(default=8, ge=1, le=4096, description="number of attention heads (h)")
    d_k: int | None = Field(
        default=None, ge=1, le=65_536, description="width of one head's queries and keys; if not set: d_model / n_heads"
    )
    d_v: int | None = Field(
        default=None, ge=1, le=65_536, description="width of one head's values; if not set: d_model / n_heads"
    )
    activation: Activation = Field(
        default="relu",
        description="activation of the feed-forward sub-layers (equation 2 has relu); gelu is the exact one",
    )
    norm: Literal["post", "pre"] = Field(
        default="post",
        description="post: layer normalization of each sub-layer's sum (section 5.4); pre: of its input, and of each "
        "stack's output",
    )
    attention_bias: bool = Field(default=False, description="whether the projections of attention have biases")
    output_bias: bool = Field(default=False, description="whether the output projection has a bias")
    dropout: float = Field(
        default=0.1, ge=0, lt=1, description="dropout rate of sub-layer outputs and of embeddings (P_drop)"
    )
    attention_dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout rate of attention weights")
    word_dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="probability of zeroing a token's embedding in training; its position encoding stays",
    )
    radius: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="number of neighbours on each side that self-attention sees (section 4); if not set: all",
    )
    positions: Literal[SinusoidForm, "learned"] = Field(
        default="sinusoid",
        description="position encodings (section 3.5; learned: Table 3 row E); sinusoid-halves: all sines before all "
        "cosines, as in Hugging Face's Marian; sinusoid-t2t: with tensor2tensor's frequencies too, as in Marian",
    )
    first_position: int = Field(
        default=0, ge=0, le=1024, description="the position of a sequence's first token in sinusoids; fairseq has 2"
    )
    embedding_norm: bool = Field(
        default=False, description="whether sums of embeddings and positions are normalised, as in mBART"
    )
    max_positions: int = Field(
        default=1024, ge=1, le=1_048_576, description="longest sequence, in tokens, that learned positions can encode"
    )
    decoder_start: Literal["bos", "zero"] = Field(
        default="bos",
        description="what the decoder reads first: the embedding of bos, or, as in Marian, its position alone",
    )
    share: Sharing = Field(
        default="all",
        description="all: both embeddings and the softmax share one matrix (section 3.4); tgt: target embedding and "
        "softmax share one, the source has its own; none: three matrices",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "Architecture":
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd; positions need pairs of sine and cosine")
        if (self.d_k is None or self.d_v is None) and self.d_model % self.n_heads:
            raise ValueError(
                f"d_model={self.d_model} is not a multiple of n_heads={self.n_heads}; change one, or set d_k and d_v"
            )
        if self.first_position and self.positions == "learned":
            raise ValueError(f"first_position={self.first_position} has no effect on learned positions; leave it out")
        return self

    def shape(self) -> dict[str, Any]:
        """The settings that decide which network this is: all but dropout, as they are in effect."""
        return self.model_dump(exclude={*DROPOUTS, "n_layers"}) | {
            "n_encoder_layers": self.encoder_layers,
            "n_decoder_layers": self.decoder_layers,
            "d_k": self.key_width,
            "d_v": self.value_width,
        }

    @property
    def has_dropout(self) -> bool:
        """Whether two passes in training differ."""
        return any(getattr(self, name) for name in DROPOUTS)

    @property
    def encoder_layers(self) -> int:
        """Number of layers in the encoder."""
        return self.n_encoder_layers or self.n_layers

    @property
    def decoder_layers(self) -> int:
        """Number of layers in the decoder."""
        return self.n_decoder_layers or self.n_layers

    @property
    def key_width(self) -> int:
        """d_k of one head."""
        return self.d_k or self.d_model // self.n_heads

    @property
    def value_width(self) -> int:
        """d_v of one head."""
        return self.d_v or self.d_model // self.n_heads
