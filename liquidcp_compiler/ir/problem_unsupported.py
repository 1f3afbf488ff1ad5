"""Options that users of other libraries know and that a problem cannot honour: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping

from liquidcp_compiler.errors import UnsupportedError

#: option -> what is supported instead
UNSUPPORTED: dict[str, str] = {
    **dict.fromkeys(("dropout", "dropout_p"), "attention without dropout"),
    **dict.fromkeys(
        ("alibi", "alibi_slopes", "attn_bias", "attn_mask", "bias", "score_mod", "mask_mod"),
        "the masks of `mask`, softcap and sinks; no bias on scores",
    ),
    **dict.fromkeys(
        ("block_table", "block_tables", "page_size", "page_table"),
        "contiguous K and V; gather the pages before the call",
    ),
    **dict.fromkeys(
        ("qk_rope_head_dim", "kv_lora_rank"), "separate K and V heads of one head_dim; no latent attention"
    ),
    **dict.fromkeys(("k_descale", "kv_dtype", "q_descale", "v_descale"), "Q, K and V of one `dtype`: bf16, fp16, fp32"),
}


def refuse_unsupported(fields: Mapping[str, object]) -> None:
    """Raise UnsupportedError for the first field that is known and not supported."""
    for name, value in fields.items():
        if name in UNSUPPORTED:
            raise UnsupportedError(name, value, UNSUPPORTED[name])
